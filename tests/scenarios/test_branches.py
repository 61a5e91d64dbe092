"""Branches: retries, edited messages, switches between branches, and forks.

The model receives the same request on a branch as in a thread that contains only the messages of that branch.
"""

import asyncio
import contextlib
import json
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.postgres import database
from tests.scenarios.kit import echo, echoes

from shoal.features.snapshots.service import ConversationSnapshots
from shoal.features.undo.undo import Undo
from shoal.kernel.clock import Clock
from shoal.kernel.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    PlatformError,
    StoreNewer,
    StoreUnavailable,
    UnderWay,
)
from shoal.kernel.events import Branched, Forked, ToolFinished, UserSaid, spans_to
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Attachment, Author, Deletion, Edit, ModelRequest, Prompt, Receipt
from shoal.kernel.permissions import Asker
from shoal.kernel.records import CopyOf, NewPost, OutboxRow
from shoal.permissions.access import AccessRules
from shoal.permissions.taint import TaintState
from shoal.store.driver import Driver, Script
from shoal.store.projections import Projections
from shoal.store.store import Store
from shoal.testing.chat import LIMITS, FakeChat
from shoal.testing.clock import ManualClock
from shoal.testing.faults import Side, WrappedDriver
from shoal.testing.model import Call, FakeModel, Gate, Refusal, Reply, Seen, Step
from shoal.testing.model.script import own_words
from shoal.testing.scenario import Person, World, scenario
from shoal.threads.forks import COPYING, Forks
from shoal.threads.orchestrator import COPIED, Orchestrator
from shoal.tools.locks import FileLock
from shoal.tools.tainted_files import MarkedFiles
from shoal.turn.context import ContextBuilder
from shoal.turn.replay import replay_thread

T = TypeVar("T")
THREADS = replace(LIMITS, opens_threads=True)
OWNER = Asker(trust="owner", user="owner")
ADA = Author("ada", trusted=True)


def counting() -> Callable[[Seen], Step | str]:
    return lambda seen: f"heard {len(seen.messages)}"


async def turn(world: World, text: str) -> None:
    done = (await world.types()).count("turn_finished")
    await world.ada.says(text)
    await world.happens(world.ada.thread, "turn_finished", done + 1)


async def again(world: World, seq: int = 0, asker: Asker | None = None) -> None:
    done = (await world.types()).count("turn_finished")
    await world.app[Orchestrator].try_again(world.ada.thread, asker or world.ada.asker, seq)
    await world.happens(world.ada.thread, "turn_finished", done + 1)


def said(request: ModelRequest) -> list[str]:
    return [message.text.partition("\n\n<context>")[0] for message in request.messages]


async def test_a_retried_answer_replaces_the_first(tmp_path: Path) -> None:
    model = FakeModel(script=counting())
    async with scenario(tmp_path, model) as world:
        await turn(world, "one")
        await turn(world, "two")
        await again(world)
        assert said(model.requests[2]) == said(model.requests[1]) == ["[ada] one", "heard 1", "[ada] two"]
        await turn(world, "three")
        assert said(model.requests[3]) == ["[ada] one", "heard 1", "[ada] two", "heard 3", "[ada] three"]
        assert (await world.types()).count("user_message") == 4, "nothing leaves the journal"


async def test_a_second_retry_replaces_the_answer_again(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=counting())) as world:
        await turn(world, "one")
        await again(world)
        await again(world)
        assert [event.data.after for event in await world.journal() if isinstance(event.data, Branched)] == [0, 0]


async def test_retrying_an_earlier_turn_keeps_later_turns_on_another_branch(tmp_path: Path) -> None:
    model = FakeModel(script=counting())
    async with scenario(tmp_path, model) as world:
        for text in ("one", "two", "three"):
            await turn(world, text)
        events = await world.journal()
        second = [event for event in events if isinstance(event.data, UserSaid)][1]
        tip = events[-1].seq
        await again(world, second.seq)
        await turn(world, "four")
        assert said(model.requests[-1]) == ["[ada] one", "heard 1", "[ada] two", "heard 3", "[ada] four"]
        await world.app[Orchestrator].go_to(world.ada.thread, tip, "ada")
        await turn(world, "five")
        assert said(model.requests[-1])[2:] == ["[ada] two", "heard 3", "[ada] three", "heard 5", "[ada] five"]


async def test_a_subagents_end_is_reported_once_on_each_branch_that_started_it(tmp_path: Path) -> None:
    gate = Gate()

    def answer(seen: Seen) -> Reply | str:
        words = own_words(seen.user_text)
        if "plan it" in words:
            return "begun" if seen.rounds else Reply(calls=(Call("spawn", json.dumps({"task": "count the reefs"})),))
        return Reply("seven reefs", gate=gate) if "count the reefs" in words else "heard"

    def told(number: int = -1) -> int:
        return sum(text.count("seven reefs") for text in said(model.requests[number]))

    model = FakeModel(script=answer)
    async with scenario(tmp_path, model) as world:
        await turn(world, "plan it")
        planned = next(event.seq for event in await world.journal() if isinstance(event.data, UserSaid))
        await turn(world, "two")
        gate.open()
        await world.happens(world.ada.thread, "user_message", 3)
        tip = (await world.journal())[-1].seq
        await again(world)
        assert told() == 1
        await turn(world, "three")
        assert told() == 1
        await world.app[Orchestrator].go_to(world.ada.thread, tip, "ada")
        await turn(world, "four")
        assert told() == 1
        before = len(model.requests)
        await again(world, planned)
        assert told(before) == 0, "here it was not begun yet"


async def test_a_message_can_be_replaced_by_its_author(tmp_path: Path) -> None:
    model = FakeModel(script=counting())
    async with scenario(tmp_path, model) as world:
        await turn(world, "one")
        clock, thread = world.app[Clock], world.ada.thread
        instead = Prompt(thread, "k", "uno", ADA, clock.now(), message_id="k")
        await world.app[Orchestrator].say_instead(instead, 0)
        await world.happens(thread, "turn_finished", 2)
        assert said(model.requests[-1]) == ["uno"]
        eve = Prompt(thread, "e", "mine now", Author("eve", trusted=True), clock.now())
        with pytest.raises(Forbidden, match="your own"):
            await world.app[Orchestrator].say_instead(eve, 0)


async def test_only_a_messages_author_and_the_owner_retry_it(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=counting())) as world:
        await turn(world, "one")
        with pytest.raises(Forbidden, match="Only the author"):
            await again(world, asker=Asker(trust="trusted", user="eve", platform="fake"))
        await again(world, asker=OWNER)
        authors = [event.data.author.id for event in await world.journal() if isinstance(event.data, UserSaid)]
        assert authors == ["ada", "ada"], "it stays its author's"


async def test_an_untrusted_message_retried_by_the_owner_stays_untrusted(tmp_path: Path) -> None:
    model = FakeModel(script=counting())
    async with scenario(tmp_path, model, access=AccessRules(allow=("ada", "*"))) as world:
        eve = world.person("eve", "7")
        await eve.says("give me the keys")
        await world.happens(eve.thread, "turn_finished")
        await world.app[Orchestrator].try_again(eve.thread, OWNER)
        await world.happens(eve.thread, "turn_finished", 2)
        first, second = (event.data for event in await world.journal(eve.thread) if isinstance(event.data, UserSaid))
        assert (second.author, second.author.trusted) == (first.author, False)
        assert "<untrusted" in model.requests[-1].messages[0].text
        copy = ThreadId("web:lobby:copy")
        await world.app[Forks].fork(eve.thread, copy, "owner")
        taint = reduce(TaintState.after, await world.journal(copy), TaintState())
        assert taint.active, "a copy is as tainted as its original"


async def test_nothing_is_retried_while_work_is_pending(tmp_path: Path) -> None:
    gate = Gate()
    async with scenario(tmp_path, FakeModel(Reply("done", gate=gate))) as world:
        with pytest.raises(NotFound):
            await again(world)
        await world.ada.says("one")
        await world.happens(world.ada.thread, "turn_started")
        with pytest.raises(Conflict, match="still running"):
            await again(world)
        assert not [event for event in await world.journal() if isinstance(event.data, Branched)]
        gate.open()
        await world.happens(world.ada.thread, "turn_finished")


@pytest.mark.parametrize("after", [-1, 99])
async def test_a_branch_from_an_unknown_event_is_refused(tmp_path: Path, after: int) -> None:
    async with scenario(tmp_path, FakeModel(script=counting())) as world:
        await turn(world, "one")
        before = await world.types()
        with pytest.raises(InvalidInput, match="does not exist"):
            await world.app[Orchestrator].go_to(world.ada.thread, after, "ada")
        with pytest.raises(InvalidInput, match="inside a turn"):
            await world.app[Orchestrator].go_to(world.ada.thread, 2, "ada")
        assert await world.types() == before


async def test_a_fork_copies_the_history_and_never_changes_the_original(tmp_path: Path) -> None:
    model = FakeModel(echoes("sea"), "one done", "two done", "in the copy", "here")
    async with scenario(tmp_path, model, tools=(echo,)) as world:
        await turn(world, "one")
        events, copy = await world.journal(), ThreadId("web:lobby:copy")
        await turn(world, "two")
        await world.app[Forks].fork(world.ada.thread, copy, "owner", events[-1].seq)
        copied = await world.journal(copy)
        assert [event.data for event in copied[:-1]] == [event.data for event in events]
        assert copied[-1].data == Forked(world.ada.thread, events[-1].seq, "owner")
        owner, clock = Author("owner", trusted=True), world.app[Clock]
        await world.app[Orchestrator].send(Prompt(copy, "c1", "and here?", owner, clock.now(), direct=True))
        await world.happens(copy, "turn_finished", 2)
        assert said(model.requests[-1])[:-1] == ["[ada] one", "", "sea", "one done"]
        await turn(world, "three")
        assert said(model.requests[-1])[-3:] == ["[ada] two", "two done", "[ada] three"]
        with pytest.raises(Conflict, match="already"):
            await world.app[Forks].fork(world.ada.thread, copy, "owner")
        with pytest.raises(NotFound):
            await world.app[Forks].fork(ThreadId("fake:harbour:none"), ThreadId("web:lobby:x"), "owner")


async def test_a_fork_within_a_turn_ends_that_turn(tmp_path: Path) -> None:
    model = FakeModel(echoes("sea"), "done", "so what")
    async with scenario(tmp_path, model, tools=(echo,)) as world:
        await turn(world, "one")
        called = next(event for event in await world.journal() if event.type == "assistant_message")
        copy = ThreadId("web:lobby:copy")
        await world.app[Forks].fork(world.ada.thread, copy, "owner", called.seq)
        assert [event.type for event in await world.journal(copy)][-2:] == ["turn_finished", "forked"]
        owner = Author("owner", trusted=True)
        await world.app[Orchestrator].send(Prompt(copy, "c1", "well?", owner, world.app[Clock].now(), direct=True))
        await world.happens(copy, "turn_finished", 2)
        assert said(model.requests[-1])[2].startswith("Interrupted")


async def test_a_fork_has_no_approvals_of_the_original(tmp_path: Path) -> None:
    touch = Reply(calls=(Call("bash", '{"command": "touch made"}'),))
    async with scenario(tmp_path, FakeModel(touch, "done", touch, "x"), profile="standard") as world:
        await world.ada.says("one")
        asked = await world.ada.is_asked()
        await world.ada.decides(asked.id, allow=True, whole_thread=True)
        await world.happens(world.ada.thread, "turn_finished")
        copy = ThreadId("fake:harbour:copy")
        await world.app[Forks].fork(world.ada.thread, copy, "ada")
        await world.chat.says("harbour", "copy", "again", user="ada")
        await world.happens(copy, "approval_requested", 2)


async def sends(world: World, person: Person, name: str, *, trusted: bool = True) -> Path:
    """Send a message with a file, wait for the end of its turn, and return the path of the file in the thread."""
    sent = world.app[Home].attachments(person.thread) / name
    sent.parent.mkdir(parents=True, exist_ok=True)
    sent.write_text(f"what {name} says")
    clock, thread, author = world.app[Clock], person.thread, Author(person.name, trusted=trusted)
    done = (await world.types(thread)).count("turn_finished") if await world.app[Store].journal.thread(thread) else 0
    files = (Attachment(name, "text/plain", path=str(sent)).sent_by(author, mine=trusted),)
    await world.app[Orchestrator].send(Prompt(thread, name, f"see {name}", author, clock.now(), attachments=files))
    await world.happens(thread, "turn_finished", done + 1)
    return sent


async def test_a_fork_has_its_own_files_up_to_its_event(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=counting())) as world:
        early = await sends(world, world.ada, "early.txt")
        upto, copy = (await world.journal())[-1].seq, ThreadId("web:lobby:copy")
        await sends(world, world.ada, "late.txt")
        await world.app[Forks].fork(world.ada.thread, copy, "owner", upto)
        early.unlink()
        (file,) = world.app[Home].attachments(copy).iterdir()
        assert (file.name, file.read_text()) == (early.name, "what early.txt says")
        (said_there,) = [event.data for event in await world.journal(copy) if isinstance(event.data, UserSaid)]
        assert [one.path for one in said_there.attachments] == [str(file)]
        assert not [path for path in world.app[Home].channel(copy).iterdir() if path.name.startswith(COPYING)]


async def test_an_untrusted_persons_file_stays_tainted_in_a_fork(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=counting()), access=AccessRules(allow=("ada", "*"))) as world:
        await sends(world, world.person("eve", "7"), "evil.txt", trusted=False)
        copy, home, marked = ThreadId("web:lobby:copy"), world.app[Home], world.app[MarkedFiles]
        await world.app[Forks].fork(ThreadId("fake:harbour:7"), copy, "owner")
        (file,) = home.attachments(copy).iterdir()
        assert "eve" in (await marked.sources([home.attachments(copy)]))(file)


async def test_a_refused_fork_leaves_nothing_behind(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=counting())) as world:
        await sends(world, world.ada, "map.txt")
        bob = world.person("bob", "2")
        await bob.says("hello")
        await world.happens(bob.thread, "turn_finished")
        home = world.app[Home]
        for thread in (world.ada.thread, bob.thread):
            while Projections(home).last_seq(thread) < (await world.journal(thread))[-1].seq:
                pass  # wait until the readable files are written
        before = sorted((tmp_path / "data").rglob("*"))
        for target in (bob.thread, world.ada.thread):
            with pytest.raises(Conflict, match="already"):
                await world.app[Forks].fork(world.ada.thread, target, "owner")
        with pytest.raises(InvalidInput, match="event 99999 does not exist"):
            await world.app[Forks].fork(world.ada.thread, ThreadId("web:lobby:new"), "owner", 99_999)
        assert sorted((tmp_path / "data").rglob("*")) == before
        assert not home.attachments(bob.thread).exists()


async def test_a_fork_with_a_file_replays_identically(tmp_path: Path) -> None:
    def reads(seen: Seen) -> Step | str:
        found = re.search(r"/\S*/attachments/\S*map.txt", seen.messages[-1].text)
        return echoes(found[0]) if found is not None and not seen.rounds else f"It is in {found and found[0]}."

    async with scenario(tmp_path, FakeModel(script=reads), tools=(echo,)) as world:
        path = str(await sends(world, world.ada, "map.txt"))
        await turn(world, "and now?")
        copy = ThreadId("web:lobby:copy")
        await world.app[Forks].fork(world.ada.thread, copy, "owner")
        results = [event.data.text for event in await world.journal(copy) if isinstance(event.data, ToolFinished)]
        assert results == [path], "what was said is not written anew"
        for thread in (world.ada.thread, copy):
            report = await replay_thread(world.app[Store].journal, thread, world.app[ContextBuilder].meter, None)
            assert (report.calls, report.differences) == (3, ())


async def test_a_journal_of_a_newer_version_is_neither_forked_nor_branched(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=counting())) as world:
        await turn(world, "one")
        second = "update events set type = ? where seq = 2"
        copy, (_, event, *_) = ThreadId("web:lobby:copy"), await world.journal()
        with sqlite3.connect(world.app[Home].database_file) as database:
            database.execute(second, ("of_tomorrow",))
        with pytest.raises(StoreNewer, match="newer version of Shoal"):
            await world.app[Forks].fork(world.ada.thread, copy, "owner")
        with pytest.raises(StoreNewer, match="newer version of Shoal"):
            await world.app[Orchestrator].try_again(world.ada.thread, OWNER, 2)
        with pytest.raises(StoreNewer, match="newer version of Shoal"):
            await world.app[Store].branches.branch(world.ada.thread, 0, "owner")
        with sqlite3.connect(world.app[Home].database_file) as database:
            database.execute(second, (event.type,))
        assert await world.app[Store].journal.thread(copy) is None
        assert "branched" not in await world.types()


async def test_without_chat_threads_the_owner_gets_the_copy_on_the_page(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("hi"), access=AccessRules(owners=("ada",), allow=("bob",))) as world:
        ada, bob = (world.person(name, name, channel=name, direct=True) for name in ("ada", "bob"))
        for person in (ada, bob):
            await person.says("hello")
            await world.happens(person.thread, "turn_finished")
            world.model.add("hi")
        assert "cannot create a copy here" in await bob.asks("/fork")
        answer = await ada.asks("/fork")
        assert answer.startswith("The copy is on the page: `web:lobby:")
        copy = ThreadId(answer.split("`")[1])
        assert (await world.types(copy))[-1] == "forked"


async def test_branches_are_controlled_by_commands(tmp_path: Path) -> None:
    model = FakeModel(script=counting())
    async with scenario(tmp_path, model) as world:
        for command in ("/retry", "/fork", "/undo"):
            assert await world.ada.asks(command) == "This conversation is empty."
        await turn(world, "one")
        assert await world.ada.asks("/retry") == "Trying again."
        await world.happens(world.ada.thread, "turn_finished", 2)
        assert said(model.requests[-1]) == ["[ada] one"]


class Losing(WrappedDriver):
    """Loses the connection before or after one write of the next command. `left` counts down to that write."""

    side: Side = "before"
    left = 0

    async def write(self, script: Script[T]) -> T:
        self.left -= 1
        if self.left == 0 and self.side == "before":
            raise StoreUnavailable("The connection is lost.")
        result = await super().write(script)
        if self.left == 0:
            raise StoreUnavailable("The connection is lost.")
        return result


@pytest.fixture
def database_server() -> Iterator[str]:
    with database() as address:
        yield "postgresql:///?" + "&".join(address.split())


async def test_a_failed_turn_offers_a_retry(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(Refusal(400, "no"), "There.")) as world:
        await world.ada.says("Is it there?")
        assert (
            "To get a new answer to your message, write `/retry`."
            in (await world.ada.sees("rejected the request")).markdown
        )
        await world.ada.says("/retry")
        assert "/retry" not in (await world.ada.sees("There.")).markdown


async def test_a_command_repeated_after_a_database_failure_runs_once(tmp_path: Path) -> None:
    await obeyed_once(tmp_path, "before", "")


@pytest.mark.xdist_group("postgres")
async def test_a_command_with_a_lost_commit_answer_takes_effect_once(tmp_path: Path, database_server: str) -> None:
    await obeyed_once(tmp_path, "after", database_server)


async def obeyed_once(tmp_path: Path, side: Side, url: str) -> None:
    """Check that a command takes effect once if the database fails during it and the platform redelivers it."""
    drivers = list[Losing]()

    def wrap(driver: Driver) -> Driver:
        drivers.append(Losing(driver))
        drivers[0].side = side
        return drivers[0]

    def answer(seen: Seen) -> Reply | str:
        given = {"path": "a.txt", "content": own_words(seen.user_text).split()[-1]}
        return "written" if seen.rounds else Reply(calls=(Call("write", json.dumps(given)),))

    chat = FakeChat(limits=THREADS)

    async def asks(world: World, text: str, at: int) -> tuple[str, bool]:
        drivers[0].left, key = at, world.app[Clock].new_id()
        try:
            receipt, failed = await world.ada.says(text, message_id=key), False
        except StoreUnavailable:
            receipt, failed = await world.ada.says(text, message_id=key), True
        drivers[0].left = 0
        return receipt.answer, failed

    owner = AccessRules(owners=("ada",))  # an owner may send any number of messages
    async with scenario(
        tmp_path,
        FakeModel(script=answer),
        chat=chat,
        wrap_driver=wrap,
        access=owner,
        settings={"database": {"url": url}},
    ) as world:
        file, thread = world.app[Home].agent("main") / "workspace" / "a.txt", world.ada.thread
        for command in ("/undo last", "/retry", "/fork"):
            failures = 0
            for at in range(1, 7):
                await turn(world, f"{at}-one")
                await turn(world, f"{at}-two")
                await world.rests()
                before, threads = await world.types(), len(await world.app[Store].journal.threads())
                told, failed = await asks(world, command, at)
                failures += failed
                where = f"{command}, {side} write {at}: {told}"
                assert "still running" not in told, where
                if command == "/retry":
                    await world.happens(thread, "turn_finished", before.count("turn_finished") + 1)
                    await world.rests()
                elif command == "/fork":
                    await world.is_quiet()
                after = await world.types()
                assert after.count("branched") - before.count("branched") == (command == "/retry"), where
                assert len(await world.app[Store].journal.threads()) - threads == (command == "/fork"), where
                assert file.read_text() == f"{at}-{'one' if command == '/undo last' else 'two'}", where
            # a fork is copied later, after the post that opens its thread
            assert failures >= (1 if command == "/fork" else 2), command


async def test_a_fork_in_a_channel_opens_its_own_thread(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=counting()), chat=FakeChat(limits=THREADS)) as world:
        await turn(world, "one")
        assert await world.ada.asks("/fork") == ""
        await world.is_quiet()
        (copy,) = [post.post.thread for post in world.chat.posted if post.markdown == COPIED]
        assert (await world.types(copy))[-1] == "forked"
        assert (await world.types())[-1] == "turn_finished"
        titles = {one.thread: one.title for one in await world.app[Store].journal.threads()}
        assert titles == {world.ada.thread: "one", copy: "Copy of one"}
        again = ThreadId("web:lobby:again")
        await world.app[Forks].fork(copy, again, "owner")
        found = await world.app[Store].journal.thread(again)
        assert found is not None
        assert found.title == "Copy of one"


async def test_a_copy_waits_for_a_live_process_and_ignores_a_dead_ones_leftovers(
    tmp_path: Path,
) -> None:
    async with scenario(tmp_path, FakeModel(script=counting())) as world:
        await turn(world, "one")
        copy = ThreadId("web:lobby:copy")
        here = world.app[Home].thread(copy)
        left = here.with_name(f"{COPYING}{here.name}")
        left.mkdir(parents=True)
        (left / "half").write_text("half")
        lock = FileLock(left)
        assert lock.take()
        with pytest.raises(UnderWay, match="Another process is creating"):
            await world.app[Forks].fork(world.ada.thread, copy, "owner")
        assert (left / "half").exists()
        lock.release()
        await world.app[Forks].fork(world.ada.thread, copy, "owner")
        assert (await world.types(copy))[-1] == "forked"
        assert not left.exists()


async def test_a_post_retries_while_another_process_makes_the_copy(tmp_path: Path) -> None:
    chat = FakeChat(limits=THREADS)
    async with scenario(tmp_path, FakeModel(script=counting()), chat=chat) as world:
        await turn(world, "one")
        copy = world.person("ada", "fork:late:0").thread
        here = world.app[Home].thread(copy)
        left = here.with_name(f"{COPYING}{here.name}")
        left.mkdir(parents=True)
        lock = FileLock(left)
        assert lock.take()
        await chat.says("harbour", "1", "/fork", message_id="late")
        await world.rests()
        assert await world.app[Store].journal.thread(copy) is None
        lock.release()
        await world.happens(copy, "forked")
        await world.is_quiet()
        assert not [text for text in chat.texts(copy) if "I could not copy" in text]


async def test_a_copy_opened_by_two_processes_is_made_once_without_an_error(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=counting()), chat=FakeChat(limits=THREADS)) as world:
        await turn(world, "one")
        assert await world.ada.asks("/fork") == ""
        await world.is_quiet()
        (opened,) = [post for post in world.chat.posted if post.markdown == COPIED]
        with contextlib.closing(sqlite3.connect(tmp_path / "shoal.db")) as database:
            ((name,),) = database.execute("select id from outbox where id like '%fork%' or payload like '%copies%'")
        post = NewPost(name, world.ada.thread, COPIED, "opening", copies=CopyOf(world.ada.thread, 1, "ada"))
        row = OutboxRow(name, world.ada.thread, post, 0, 0, world.app[Clock].now())
        await world.app[Orchestrator].opened(row, opened.post.thread, ())
        await world.is_quiet()
        assert not [text for text in world.chat.texts(opened.post.thread) if "I could not copy" in text]


async def test_a_refused_copy_is_reported_where_it_was_requested(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=counting()), chat=FakeChat(limits=THREADS)) as world:
        await turn(world, "one")
        world.chat.troubles.append(PlatformError("The channel takes no threads.", permanent=True))
        assert await world.ada.asks("/fork") == ""
        await world.ada.sees("I could not copy our conversation. The channel takes no threads.")
        assert len(await world.app[Store].journal.threads()) == 1


async def test_a_thread_used_before_its_copy_arrived_says_that_it_is_not_a_copy(tmp_path: Path) -> None:
    chat = FakeChat(limits=THREADS)
    async with scenario(tmp_path, FakeModel(script=counting()), chat=chat) as world:
        await turn(world, "one")
        early = world.person("ada", "fork:early:0")
        await early.says("hello?")
        await world.happens(early.thread, "turn_finished")
        await chat.says("harbour", "1", "/fork", message_id="early")
        await early.sees("I could not copy our conversation. Someone wrote in this thread before")
        assert "forked" not in await world.types(early.thread)
        await world.is_quiet()


class Stop(NamedTuple):
    """A point at which a conversation was idle.

    - `happened`: the history of its branch. A string is a message, and a tuple holds the names of restored files. A
      message that starts with `f` makes the model write a file.
    """

    seq: int
    happened: tuple[str | tuple[str, ...], ...]


KINDS = ["say", "say", "write", "write", "again", "edit", "go", "fork", "undo", "clear"]
ACTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 30)), max_size=12)


def alone(happened: tuple[str | tuple[str, ...], ...]) -> list[str]:
    """Return the last request that a thread with only this history would send."""
    found, told = list[str](), ""
    for one in happened:
        if isinstance(one, tuple):
            told += "[ada undid earlier changes to files and restored these workspace files: "
            told += f"{', '.join(one)}. Read the files again before you rely on earlier knowledge of them.]\n\n"
        else:
            found += [f"{told}[ada] {one}", *(["", "wrote"] if one[0] == "f" else []), f"after {one}"]
            told = ""
    return found[:-1]


@given(acts=ACTS)
@settings(max_examples=15, deadline=None)
def test_a_branch_matches_a_thread_with_only_its_history(acts: list[tuple[str, int]]) -> None:
    async def drive(root: Path) -> None:
        def answer(seen: Seen) -> Reply | str:
            word = seen.messages[-1 - 2 * seen.rounds].text.partition("[ada] ")[2].split()[0]
            if word[0] == "f" and not seen.rounds:
                given = {"path": f"{word}.txt", "content": str(len(model.requests))}
                return Reply(calls=(Call("write", json.dumps(given)),))
            return f"after {word}"

        model = FakeModel(script=answer)
        async with scenario(root, model, clock=ManualClock()) as world:
            orchestrator, person = world.app[Orchestrator], world.ada
            stops, happened, forks = [Stop(0, ())], tuple[str | tuple[str, ...], ...](), 0
            for number, (act, pick) in enumerate([*acts, ("say", 0)]):
                said_at = [place for place, one in enumerate(happened) if isinstance(one, str)]
                done = (await world.types(person.thread)).count("turn_finished")
                begins = act in ("say", "write") or (act in ("again", "edit") and bool(said_at))
                if act in ("say", "write"):
                    happened = (*happened, f"{'f' if act == 'write' else 'w'}{number}")
                    await person.says(happened[-1])
                elif act == "again" and said_at:
                    happened = happened[: said_at[-1] + 1]
                    await orchestrator.try_again(person.thread, person.asker)
                elif act == "edit" and said_at:
                    happened = (*happened[: said_at[-1]], f"w{number}")
                    ada = Author("ada", name="ada", trusted=True)
                    clock = world.app[Clock]
                    await orchestrator.say_instead(
                        Prompt(person.thread, f"edit{number}", f"w{number}", ada, clock.now()), 0
                    )
                elif act == "go" and len(stops) > 1:
                    seq, happened = stops[pick % len(stops)]
                    await orchestrator.go_to(person.thread, seq, "ada")
                elif act == "fork" and len(stops) > 1:
                    forks += 1
                    copy = world.person("ada", f"copy{forks}")
                    await world.app[Forks].fork(person.thread, copy.thread, "owner")
                    person = copy
                elif act == "undo" and len(stops) > 1:
                    try:
                        undone = await world.app[Undo].undo(person.thread, "last", person.asker, "overwrite")
                    except (NotFound, InvalidInput, Conflict):  # nothing to undo, or only work of the original thread
                        continue
                    happened = (*happened, undone.files)
                elif act == "clear" and len(stops) > 1:
                    await orchestrator.clear(person.thread, "ada")
                    happened = ()
                else:
                    continue
                if begins:
                    await world.happens(person.thread, "turn_finished", done + 1)
                    texts = ["wrote" if text.startswith("Wrote ") else text for text in said(model.requests[-1])]
                    assert texts == alone(happened)
                stops.append(Stop((await world.journal(person.thread))[-1].seq, happened))

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(drive(Path(root)))


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 12))
def test_the_branch_follows_parent_links(jumps: list[int], gap: int) -> None:
    parents, branchings = dict[int, int](), list[tuple[int, int]]()
    for number, jump in enumerate(jumps, 1):
        at = number * (gap + 1)
        branchings.append((at, jump % at))
    last = (len(jumps) + 1) * (gap + 1)
    for seq in range(1, last + 1):
        parents[seq] = dict(branchings).get(seq, seq - 1)
    for tip in range(last + 1):
        way, at = list[int](), tip
        while at:
            way.append(at)
            at = parents[at]
        spans = spans_to(tip, branchings)
        assert [seq for span in spans for seq in range(span.first, span.last + 1)] == way[::-1]


async def test_a_restart_continues_the_branch(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=counting())) as world:
        for text in ("one", "two"):
            await turn(world, text)
        await again(world)
    model = FakeModel(script=counting())
    async with scenario(tmp_path, model) as world:
        await world.ada.says("three")
        await world.happens(world.ada.thread, "turn_finished", 4)
        assert said(model.requests[0]) == ["[ada] one", "heard 1", "[ada] two", "heard 3", "[ada] three"]
    context = (world.app[Home].thread(world.ada.thread) / "context.jsonl").read_text()
    assert context.count('"role":"user"') == 3, "the readable context is the branch's too"


async def test_a_snapshot_starts_a_new_thread(tmp_path: Path) -> None:
    model = FakeModel(script=lambda seen: "boats" if "Describe" in seen.user_text else f"heard {len(seen.messages)}")
    async with scenario(tmp_path, model) as world:
        await turn(world, "one")
        saved = await world.app[ConversationSnapshots].save(world.ada.thread)
        new = ThreadId("fake:harbour:2")
        await world.app[ConversationSnapshots].restore(new, saved.id, "ada")
        await world.chat.says("harbour", "2", "go on", user="ada")
        await world.happens(new, "turn_finished")
        assert [text.rpartition(") ")[2] for text in said(model.requests[-1])] == ["one", "heard 1", "[ada] go on"]


# ---- messages that their authors edit ----


async def changes(world: World, key: str, text: str, user: str = "ada") -> Receipt:
    assert world.chat.inbox is not None
    return await world.chat.inbox.send(Edit(world.ada.thread, key, text, Author(user, user, trusted=False), key))


async def test_a_retry_answers_the_edited_message(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("low at six", "high at noon")) as world:
        await world.ada.says("when is low tide?", message_id="m1")
        await world.happens(world.ada.thread, "turn_finished")
        await changes(world, "m1", "when is high tide?")
        await again(world)
        assert said(world.model.requests[-1])[-1].endswith("when is high tide?")
        assert "low tide" not in str(world.model.requests[-1].messages)


async def test_a_retry_of_joined_lines_names_the_changed_words(tmp_path: Path) -> None:
    gate = Gate()
    model = FakeModel(Reply("first", gate=gate), "both", "again")
    async with scenario(tmp_path, model, settings={"mailbox": {"pause_seconds": 0.1}}) as world:
        await world.ada.says("hold on")
        await gate.reached.wait()
        await world.ada.says("when is low tide?", message_id="m1")
        await world.ada.says("and who asks?", message_id="m2")
        gate.open()
        await world.happens(world.ada.thread, "turn_finished", 2)
        assert model.calls == 2, "one turn answers both"
        await changes(world, "m1", "when is high tide?")
        await again(world)
        heard = said(world.model.requests[-1])[-1]
        assert "and who asks?" in heard
        assert "message m1 was edited; it now says:]\n[ada] when is high tide?" in heard


async def test_a_deleted_message_is_not_retried(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("low at six")) as world:
        await world.ada.says("when is low tide?", message_id="m1")
        await world.happens(world.ada.thread, "turn_finished")
        assert world.chat.inbox is not None
        await world.chat.inbox.send(Deletion(world.ada.thread, "m1", Author("ada", "ada", trusted=False), "m1"))
        assert await world.ada.asks("/retry") == "The author of that message has deleted it."


async def test_editing_an_answered_message_explains_once_how_to_retry(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("low at six", "you are welcome")) as world:
        await world.ada.says("when is low tide?", message_id="m1")
        await world.happens(world.ada.thread, "turn_finished")
        for text in ("when is high tide?", "when is high tide today?"):
            await changes(world, "m1", text)
        hint = await world.ada.sees("`/retry` answers the edited version.")
        assert (hint.post.kind, hint.post.user, hint.post.reply_to) == ("ephemeral", "ada", "m1")
        await world.ada.says("thanks", message_id="m2")
        await world.happens(world.ada.thread, "turn_finished", 2)
        assert (await changes(world, "m1", "when is the next high tide?")).answer == ""
        assert sum("/retry" in one.markdown for one in world.chat.posted) == 1
