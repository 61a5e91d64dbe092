"""Rules of checkpoints: what turns and undos found in workspaces and left there."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from shoal.kernel.checkpoints import CheckpointRow
from shoal.kernel.errors import Conflict, NotFound
from shoal.kernel.events import Checkpointed, FilesChanged, FilesRestored, TurnFinished
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.records import AuditEntry, Commit
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import THREAD, opened

WORKSPACE = "agents/main/workspace"
AUDIT = AuditEntry("undo", "restore 1 files", user="fake:ada")


async def changed(store: Store, turn: str = "T1") -> CheckpointRow:
    """A turn that changed files and has ended."""
    lease = await opened(store, turn)
    await store.journal.commit(lease, Commit(TurnId(turn), (Checkpointed(WORKSPACE, "a" * 32, "ada"),)))
    ended = (FilesChanged("b" * 32, 1), TurnFinished("done"))
    await store.journal.finish_turn(lease, Commit(TurnId(turn), ended))
    row = await store.checkpoints.get(turn)
    assert row is not None
    return row


class CheckpointRules:
    """`CheckpointStore`."""

    async def test_a_turns_events_are_its_checkpoints(self, store: Store, clock: ManualClock) -> None:
        """In the transaction that journals them."""
        row = await changed(store)
        assert (row.thread, row.author, row.before, row.after) == (THREAD, "ada", "a" * 32, "b" * 32)
        assert row.ended_at == clock.now()
        assert row.turn_seq > 0
        assert await store.checkpoints.newest(THREAD) == await store.checkpoints.of_workspace(WORKSPACE) == [row]
        assert await store.checkpoints.trees(WORKSPACE) == {"a" * 32, "b" * 32}

    async def test_a_turn_that_is_undone_and_then_not(self, store: Store) -> None:
        """Each undo is journaled and audited once, and undone like a turn."""
        rows, row = store.checkpoints, await changed(store)
        await rows.begin_undo("U1", row, "ada", "b" * 32, "a" * 32)
        with pytest.raises(Conflict):
            await rows.begin_undo("U2", row, "ada", "b" * 32, "a" * 32)
        (undo,) = await rows.undoing()
        assert (undo.before, undo.after, undo.undoes, undo.author) == ("b" * 32, "a" * 32, "T1", "ada")
        event = FilesRestored("U1", "T1", "ada", 1, ("a.txt",))
        (event_told,) = await rows.end_undo(undo, "a" * 32, event, AUDIT)
        assert (event_told.data, await rows.end_undo(undo, "a" * 32, event, AUDIT)) == (event, ())
        assert [row.entry for row in await store.audit.tail(10)] == [AUDIT]
        undone = await rows.get("T1")
        assert undone is not None
        assert undone.undone_by == "U1"
        done = await rows.get("U1")
        assert done is not None
        await rows.begin_undo("U3", done, "ada", "a" * 32, "b" * 32)
        (back,) = await rows.undoing()
        await rows.end_undo(back, "b" * 32, FilesRestored("U3", "U1", "ada", 1, again=True), AUDIT)
        checkpoints = [await rows.get(name) for name in ("T1", "U1")]
        assert [checkpoint and checkpoint.undone_by for checkpoint in checkpoints] == ["", "U3"]

    async def test_nothing_is_undone_in_a_thread_at_work_or_gone(self, store: Store) -> None:
        """It would be changed under the turn."""
        row = await changed(store)
        await opened(store, "T2")
        with pytest.raises(Conflict, match="still running"):
            await store.checkpoints.begin_undo("U1", row, "ada", "b", "a")
        gone = replace(row, id="T3", thread=ThreadId("fake:harbour:gone"))
        with pytest.raises(NotFound):
            await store.checkpoints.begin_undo("U1", gone, "ada", "b", "a")
        checkpoint = await store.checkpoints.get("T1")
        assert checkpoint is not None
        assert not checkpoint.undone_by

    async def test_old_ones_are_forgotten_but_none_of_an_open_turn(self, store: Store, clock: ManualClock) -> None:
        """And their workspaces told, whose contents can go then."""
        await changed(store)
        lease = await opened(store, "T2")
        await store.journal.commit(lease, Commit(TurnId("T2"), (Checkpointed(WORKSPACE, "c" * 32, "ada"),)))
        await clock.advance(86_400 * 20)
        gone = [tree async for tree in store.checkpoints.forget(clock.now() - timedelta(days=14))]
        assert gone == [WORKSPACE]
        assert await store.checkpoints.trees(WORKSPACE) == {"c" * 32}
