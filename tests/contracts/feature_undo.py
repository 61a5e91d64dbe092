"""Contract for the undo table."""

import pytest
from msgspec.structs import replace

from shoal.features.undo.store import UndoStore
from shoal.kernel.errors import Conflict, NotFound
from shoal.kernel.events import FilesRestored
from shoal.kernel.ids import ThreadId
from shoal.kernel.records import AuditEntry
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import opened
from shoal.testing.contracts.store_checkpoints import changed

AUDIT = AuditEntry("undo", "restore 1 files", user="fake:ada")


class UndoRules:
    async def test_a_turn_is_undone_and_the_undo_is_undone(self, store: Store, clock: ManualClock) -> None:
        rows, undos, row = store.checkpoints, UndoStore(store.driver, clock), await changed(store)
        await undos.begin("U1", row, "ada", "b" * 32, "a" * 32)
        with pytest.raises(Conflict):
            await undos.begin("U2", row, "ada", "b" * 32, "a" * 32)
        (undo,) = await undos.running()
        assert (undo.before, undo.after, undo.undoes, undo.author) == ("b" * 32, "a" * 32, "T1", "ada")
        event = FilesRestored("U1", "T1", "ada", 1, ("a.txt",))
        (event_told,) = await undos.end(undo, "a" * 32, event, AUDIT)
        assert (event_told.data, await undos.end(undo, "a" * 32, event, AUDIT)) == (event, ())
        assert [row.entry for row in await store.audit.tail(10)] == [AUDIT]
        undone = await rows.get("T1")
        assert undone is not None
        assert undone.undone_by == "U1"
        done = await rows.get("U1")
        assert done is not None
        await undos.begin("U3", done, "ada", "a" * 32, "b" * 32)
        (back,) = await undos.running()
        await undos.end(back, "b" * 32, FilesRestored("U3", "U1", "ada", 1, again=True), AUDIT)
        checkpoints = [await rows.get(name) for name in ("T1", "U1")]
        assert [checkpoint and checkpoint.undone_by for checkpoint in checkpoints] == ["", "U3"]

    async def test_nothing_is_undone_in_a_running_or_deleted_thread(self, store: Store, clock: ManualClock) -> None:
        """Undoing would change files while a turn is using them."""
        row = await changed(store)
        await opened(store, "T2")
        with pytest.raises(Conflict, match="still running"):
            await UndoStore(store.driver, clock).begin("U1", row, "ada", "b", "a")
        gone = replace(row, id="T3", thread=ThreadId("fake:harbour:gone"))
        with pytest.raises(NotFound):
            await UndoStore(store.driver, clock).begin("U1", gone, "ada", "b", "a")
        checkpoint = await store.checkpoints.get("T1")
        assert checkpoint is not None
        assert not checkpoint.undone_by
