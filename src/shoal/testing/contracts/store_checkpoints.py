"""Contract tests for checkpoints, which are snapshots of workspaces before and after turns and undos."""

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
    """Finish a turn that changed files, and return its checkpoint."""
    lease = await opened(store, turn)
    await store.journal.commit(lease, Commit(TurnId(turn), (Checkpointed(WORKSPACE, "a" * 32, "ada"),)))
    ended = (FilesChanged("b" * 32, 1), TurnFinished("done"))
    await store.journal.finish_turn(lease, Commit(TurnId(turn), ended))
    row = await store.checkpoints.get(turn)
    assert row is not None
    return row


class CheckpointRules:
    """Tests of `CheckpointStore`, mixed into `StoreContract`."""

    async def test_a_turns_events_create_its_checkpoint(self, store: Store, clock: ManualClock) -> None:
        """The transaction that journals the events also stores the checkpoint."""
        row = await changed(store)
        assert (row.thread, row.author, row.before, row.after) == (THREAD, "ada", "a" * 32, "b" * 32)
        assert row.ended_at == clock.now()
        assert row.turn_seq > 0
        assert await store.checkpoints.newest(THREAD) == await store.checkpoints.of_workspace(WORKSPACE) == [row]
        assert await store.checkpoints.trees(WORKSPACE) == {"a" * 32, "b" * 32}

    async def test_old_checkpoints_are_deleted_except_those_of_open_turns(
        self, store: Store, clock: ManualClock
    ) -> None:
        await changed(store)
        lease = await opened(store, "T2")
        await store.journal.commit(lease, Commit(TurnId("T2"), (Checkpointed(WORKSPACE, "c" * 32, "ada"),)))
        await clock.advance(86_400 * 20)
        gone = [tree async for tree in store.checkpoints.forget(clock.now() - timedelta(days=14))]
        assert gone == [WORKSPACE]
        assert await store.checkpoints.trees(WORKSPACE) == {"c" * 32}
