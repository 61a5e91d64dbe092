"""Staged calls: after a person discards them in any way, all files and database rows are unchanged, except the records
of the decision.

A turn stages calls of several tools, some with files, and may write files itself. The test compares the home
directory, the database, the chat and the effects of tools before the decision and after it.
"""

import asyncio
import json
import os
import random
import shutil
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Coroutine, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeAlias

from shoal.agents.registry import AgentRegistry
from shoal.features.mcp.kinds import TRAITS
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Author
from shoal.kernel.ports import Tool
from shoal.kernel.records import Approval
from shoal.kernel.traits import Traits
from shoal.platforms.inbox import press
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Reply, Seen
from shoal.testing.scenario import Person, World, scenario
from shoal.threads.access_gate import OpenInbox
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.functions import tool
from tests.fuzz.inputs import any_text
from tests.fuzz.target import Attempt

ATTEMPTS = 10_000
ATTEMPTS_EACH = 15
"""Number of attempts per home. Few of them keep its database small and quick to read."""
CALLS_MAX, FILES_MAX, BYTES_MAX = 5, 4, 2_000
EXPIRE_SECONDS = 5
SETTINGS: dict[str, object] = {"permissions": {"default_profile": "standard", "ask_expires_seconds": EXPIRE_SECONDS}}
Files: TypeAlias = dict[str, tuple[int, int, bytes]]
Row: TypeAlias = tuple[tuple[str, object], ...]
Rows: TypeAlias = dict[str, Counter[Row]]
JOURNALS = ("log.jsonl", "context.jsonl")
TABLES = "select name from sqlite_master where type = 'table' and sql not like 'create virtual%'"
TELL = ("approvals", "audit", "chains", "events", "outbox", "posted", "staged_sets", "threads")
"""Tables that record the refusal. No other table may change."""
REFUSED = ("deny", "expired")


class Outside:
    """Records the effects of tools outside Shoal."""

    def __init__(self) -> None:
        self.acts: list[str] = []

    def tools(self) -> list[Tool]:
        @tool(Traits(effect="outward", can_stage=True, origin="own", changes="nothing", harm="message"))
        async def send(to: str, text: str = "") -> str:
            """Send something to somebody."""
            self.acts.append(f"send {to}")
            return text

        @tool(TRAITS["write"])
        async def book(what: str, count: int = 1) -> str:
            """Book something, as a writing tool of an MCP server does."""
            self.acts.append(f"book {what}")
            return "booked" * count

        return [send, book]


def staged_call(source: random.Random, names: Sequence[str]) -> Call:
    match source.choice(["send", "book", "message", "file"]):
        case "send":
            arguments = {"to": any_text(source, 1), "text": any_text(source, 2)}
            return Call("send", json.dumps(arguments))
        case "book":
            return Call("book", json.dumps({"what": any_text(source, 1), "count": source.randint(0, 9)}))
        case "message":
            return Call("message", json.dumps({"text": f"x{any_text(source, 2)}", "to": "fake:office"}))
        case _:
            arguments = {"text": "this file", "to": "fake:office", "file": source.choice(names)}
            return Call("message", json.dumps(arguments))


def files_of(home: Path) -> Files:
    """Return the mode, time and content of all files below a home.

    Excludes the database, the copies of journals and the records of unfinished work.
    """
    files: Files = {}
    for folder, _, names in os.walk(home):
        for name in names:
            path = Path(folder, name)
            if name.startswith("shoal.db") or name.strip(".").startswith(JOURNALS) or path.parent.name == "begun":
                continue
            stat = path.lstat()
            files[str(path)] = (stat.st_mode, stat.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        files[folder] = (Path(folder).lstat().st_mode, 0, b"")
    return files


def rows_of(home: Path) -> Rows:
    with closing(sqlite3.connect(f"file:{home}/shoal.db?mode=ro", uri=True)) as connection:
        connection.row_factory = lambda cursor, row: tuple(
            zip([name for name, *_ in cursor.description], row, strict=True)
        )
        tables = [row[0][1] for row in connection.execute(TABLES)]
        return {name: Counter(connection.execute(f'select * from "{name}"')) for name in tables}


class House:
    """A Shoal in a separate thread. It gets a new home after ATTEMPTS_EACH attempts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._ending: asyncio.Event | None = None
        self._living: asyncio.Task[None] | None = None
        self._count = 0
        self._outside, self._clock = Outside(), ManualClock()
        self._says: dict[str, list[Reply | str]] = {}

    def run(self, work: Coroutine[object, object, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self.run(self._leave())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def script(self, seen: Seen) -> Reply | str:
        steps = self._says[seen.user_text.partition("do it ")[2].split()[0]]
        return steps[min(seen.rounds, len(steps) - 1)]

    async def _enter(self) -> None:
        await self._leave()
        self._home = Path(tempfile.mkdtemp(dir=self._folder))
        self._outside, self._clock, self._says = Outside(), ManualClock(), {}
        opened, self._ending = asyncio.Event(), asyncio.Event()
        ending = self._ending

        async def live() -> None:
            model, tools = FakeModel(script=self.script), self._outside.tools()
            async with scenario(
                self._home, model, tools=tools, settings=SETTINGS, clock=self._clock, replays=False
            ) as self._world:
                opened.set()
                await ending.wait()

        self._living = asyncio.create_task(live())
        waiting = asyncio.create_task(opened.wait())
        await asyncio.wait([self._living, waiting], return_when=asyncio.FIRST_COMPLETED)
        if self._living.done():
            await self._living
        await self._clock.advance(60)  # lets startup tasks create their files and rows first
        await self._world.is_quiet()

    async def _leave(self) -> None:
        if self._living is not None and self._ending is not None:
            self._ending.set()
            await self._living
            shutil.rmtree(self._home)

    async def attempt(self, source: random.Random) -> None:
        if self._count % ATTEMPTS_EACH == 0:
            await self._enter()
        self._count += 1
        world, number = self._world, str(self._count)
        person = world.person(f"ada{number}", number)
        names = self._fill(source, world.app[AgentRegistry].spec("main").workspace)
        calls = [staged_call(source, names) for _ in range(source.randint(1, CALLS_MAX))]
        if source.random() < 0.3:
            arguments = json.dumps({"path": f"new-{number}", "content": any_text(source, 3)})
            calls.insert(source.randint(0, len(calls)), Call("write", arguments))
        self._says[number] = [Reply(calls=tuple(calls)), "prepared"]
        await person.says(f"do it {number}")
        await world.happens(person.thread, "turn_finished")
        await world.rests()
        asked = await world.app[Store].approvals.search(thread=person.thread)
        assert asked, "nothing was staged"
        assert all(approval.item.staged for approval in asked)
        posts = len(world.chat.posted)
        files, rows = files_of(self._home), rows_of(self._home)
        words = await refuse(source, world, person, asked, self._clock)
        await world.rests()
        assert not self._outside.acts
        now = files_of(self._home)
        assert now == files, f"files: {sorted(name for name, _ in now.items() ^ files.items())}"
        posted = world.chat.posted[posts:]
        assert [post.post.thread for post in posted] == ([person.thread] if words else [])
        check_rows(rows, rows_of(self._home), person.thread, asked)
        assert not (await world.app[Store].inbox.waiting())

    def _fill(self, source: random.Random, workspace: Path) -> list[str]:
        for path in workspace.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        names = [f"{source.choice(['', 'sub/', 'Größe '])}{number}.txt" for number in range(1, 1 + FILES_MAX)]
        names = names[: source.randint(1, FILES_MAX)]
        for name in names:
            (workspace / name).parent.mkdir(exist_ok=True)
            (workspace / name).write_bytes(source.randbytes(source.randint(0, BYTES_MAX)))
        return names


async def refuse(
    source: random.Random, world: World, person: Person, asked: Sequence[Approval], clock: ManualClock
) -> bool:
    """Deny all calls of a card in a randomly chosen way. Return True if Shoal confirms that way with a message."""
    card, threads = asked[0].item.card, world.app[Orchestrator]
    numbers, author = [approval.item.number for approval in asked], Author(person.name, trusted=True)
    match source.choice(["button", "ticks", "words", "words", "one by one", "some and some", "nobody"]):
        case "button":
            said = await press(f"none:{card}", person.thread, author, world.app[OpenInbox])
            assert said.startswith("Discarded.")
        case "ticks":
            await press(f"pick:{card}:{1:x}", person.thread, author, world.app[OpenInbox])
            await press(f"none:{card}", person.thread, author, world.app[OpenInbox])
        case "words":
            await person.says(source.choice(["discard", f"discard {card[-8:]}", f"deny {card}"]))
            return True
        case "one by one":
            for one in source.sample(list(asked), len(asked)):
                assert await threads.decide(one.id, False, person.asker) == "deny"
        case "some and some":
            some = source.sample(numbers, source.randint(1, len(numbers)))
            await threads.decide_card(card, False, person.asker, some)
            if len(some) < len(numbers):
                await threads.decide_card(card, False, person.asker)
        case _:
            await clock.advance(EXPIRE_SECONDS + 1)
            await world.app[Store].approvals.expire()
    return False


def check_rows(before: Rows, after: Rows, thread: ThreadId, asked: Sequence[Approval]) -> None:
    assert before.keys() == after.keys()
    changed = [name for name in before if before[name] != after[name]]
    assert set(changed) <= set(TELL), f"{sorted(set(changed) - set(TELL))} changed"
    card = asked[0].item.card
    new = {name: [dict(row) for row in after[name] - before[name]] for name in TELL}
    removed = {name: [dict(row) for row in before[name] - after[name]] for name in TELL}
    assert not new["staged_sets"]
    assert [row["card"] for row in removed["staged_sets"]] == [card]
    ids = {approval.id for approval in asked}
    assert {row["id"] for row in new["approvals"]} == {row["id"] for row in removed["approvals"]} == ids
    assert all(row["state"] in REFUSED and not row["outcome"] for row in new["approvals"])
    assert [row["type"] for row in new["events"]] == ["approval_decided"] * len(ids)
    for name in ("events", "audit", "chains", "threads", "outbox"):
        assert all(row.get("thread", row.get("chain")) == thread for row in new[name] + removed[name]), name
    assert all(json.loads(str(row["entry"]))["decision"] in REFUSED for row in new["audit"])
    assert not removed["events"] + removed["audit"] + removed["outbox"] + removed["posted"]
    assert all(str(row["id"]).startswith((f"approval:{card}", f"door:{thread}")) for row in new["outbox"])


@contextmanager
def target() -> Generator[Attempt]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        house = House(Path(folder))
        try:
            yield lambda source: house.run(house.attempt(source))
        finally:
            house.close()
