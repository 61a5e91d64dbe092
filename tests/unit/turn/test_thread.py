"""The thread state that a worker reads from the journal."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.known_tools import TRAITS

from shoal.delivery.hub import Hub
from shoal.kernel.clock import SystemClock
from shoal.kernel.events import AssistantSaid, TurnFinished, TurnStarted, UserSaid
from shoal.kernel.files import Folders
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import Attachment, Author, Prompt
from shoal.kernel.records import Commit, Committed, Lease, NewPost
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.turn.thread import Finishing, ThreadView

THREAD = ThreadId("fake:harbour:ada")
ADA = Author("ada", trusted=True)


async def enqueue(thread: ThreadId, posts: Sequence[NewPost], finishing: Finishing) -> Committed:
    return await finishing(0.0)


async def grown(store: Store, turns: int) -> Lease:
    """Create a thread whose last turn is open, and return the lease of the worker that resumes it."""
    clock = SystemClock()
    for number in range(turns):
        await store.inbox.accept(Prompt(THREAD, f"k{number}", f"question {number}", ADA, clock.now()), 5)
        lease = await store.journal.lease(THREAD)
        assert lease is not None
        assert lease.prompt is not None
        turn = TurnId(clock.new_id())
        opening = Commit(turn, (TurnStarted("main", "m"), UserSaid(f"question {number}", ADA)))
        await store.journal.open_turn(lease, lease.prompt, opening)
        if number < turns - 1:
            answer = (AssistantSaid(f"answer {number}"), TurnFinished("done", f"answer {number}"))
            await store.journal.finish_turn(lease, Commit(turn, answer))
    taken = await store.journal.lease(THREAD)
    assert taken is not None
    return taken


@pytest.mark.parametrize("at_once", [3, 500])
async def test_reloading_a_conversation_queues_only_the_open_turn_for_readable_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("shoal.turn.thread.LOADED_AT_ONCE_MAX", at_once)
    store = Store(SqliteDriver(tmp_path / "shoal.db"), SystemClock())
    lease = await grown(store, 5)
    view = ThreadView(store.journal, Hub(), enqueue, lease, TRAITS)
    await view.load()
    assert [event.turn for event in view.unprojected] == [lease.open_turn] * 2
    assert [entry.message.text for entry in view.transcript.entries][-3:] == [
        "question 3",
        "answer 3",
        "question 4",
    ]
    assert len(view.transcript.entries) == 9
    assert view.open.turn == lease.open_turn
    await store.close()


async def test_closing_a_turn_drops_its_state(tmp_path: Path) -> None:
    store = Store(SqliteDriver(tmp_path / "shoal.db"), SystemClock())
    view = ThreadView(store.journal, Hub(), enqueue, await grown(store, 1), TRAITS)
    await view.load()
    view.aborting = True
    said = AssistantSaid("answer", tainted_by="a web page"), TurnFinished("done", "answer")
    await view.finish(Commit(view.turn, said))
    assert (view.tainted_by, [event.data for event in view.unprojected[-2:]]) == ("a web page", list(said))
    view.close_turn()
    assert (view.tainted_by, view.aborting, view.unprojected, view.lease.open_turn) == ("", False, [], "")
    with pytest.raises(AssertionError, match="no turn is open"):
        assert view.open
    await store.close()


class MovedFolders(Folders):
    """Folders that map another machine's paths to this one."""

    def here(self, thread: ThreadId, path: str) -> str:
        return path.replace("/there/", "/here/")


async def test_files_are_named_by_their_paths_on_this_machine(tmp_path: Path) -> None:
    store = Store(SqliteDriver(tmp_path / "shoal.db"), SystemClock())
    clock, file = SystemClock(), Attachment("map.txt", path="/there/map.txt")
    await store.inbox.accept(Prompt(THREAD, "k", "look", ADA, clock.now()), 5)
    lease = await store.journal.lease(THREAD)
    assert lease is not None
    assert lease.prompt is not None
    opening = Commit(TurnId(clock.new_id()), (TurnStarted("main", "m"), UserSaid("look", ADA, attachments=(file,))))
    await store.journal.open_turn(lease, lease.prompt, opening)
    lease = await store.journal.lease(THREAD)
    assert lease is not None
    view = ThreadView(store.journal, Hub(), enqueue, lease, TRAITS, MovedFolders())
    await view.load()
    said = [event.data for event in view.unprojected if isinstance(event.data, UserSaid)]
    assert [one.path for data in said for one in data.attachments] == ["/here/map.txt"]
    await store.close()
