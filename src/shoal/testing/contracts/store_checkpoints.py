"""Rules of checkpoints: the state of workspaces before and after turns and undos."""

from datetime import timedelta

from shoal.kernel.checkpoints import CheckpointRow
from shoal.kernel.events import Checkpointed, FilesChanged, TurnFinished
from shoal.kernel.ids import TurnId
from shoal.kernel.records import Commit
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import THREAD, opened

WORKSPACE = "agents/main/workspace"


async def changed(store: Store, turn: str = "T1") -> CheckpointRow:
    """A finished turn that changed files."""
    lease = await opened(store, turn)
    await store.journal.commit(lease, Commit(TurnId(turn), (Checkpointed(WORKSPACE, "a" * 32, "ada"),)))
    ended = (FilesChanged("b" * 32, 1), TurnFinished("done"))
    await store.journal.finish_turn(lease, Commit(TurnId(turn), ended))
    row = await store.checkpoints.get(turn)
    assert row is not None
    return row


class CheckpointRules:
    """Rules of `CheckpointStore`."""

    async def test_a_turns_events_are_its_checkpoints(self, store: Store, clock: ManualClock) -> None:
        """They are stored in the transaction that journals them."""
        row = await changed(store)
        assert (row.thread, row.author, row.before, row.after) == (THREAD, "ada", "a" * 32, "b" * 32)
        assert row.ended_at == clock.now()
        assert row.turn_seq > 0
        assert await store.checkpoints.newest(THREAD) == await store.checkpoints.of_workspace(WORKSPACE) == [row]
        assert await store.checkpoints.trees(WORKSPACE) == {"a" * 32, "b" * 32}

    async def test_old_ones_are_forgotten_but_none_of_an_open_turn(self, store: Store, clock: ManualClock) -> None:
        """Their workspaces are returned, so that their contents can be deleted."""
        await changed(store)
        lease = await opened(store, "T2")
        await store.journal.commit(lease, Commit(TurnId("T2"), (Checkpointed(WORKSPACE, "c" * 32, "ada"),)))
        await clock.advance(86_400 * 20)
        gone = [tree async for tree in store.checkpoints.forget(clock.now() - timedelta(days=14))]
        assert gone == [WORKSPACE]
        assert await store.checkpoints.trees(WORKSPACE) == {"c" * 32}
