"""A Shoal that undoes a turn, undoes the undo, undoes the turn again, and forks the thread. It is killed at any point.

`python -m tests.scenarios.undo_life` reads one `Life` per line of standard input, as JSON. It runs each in a forked
child and prints the `Outcome` (see `shoal.testing.crash`), which contains the number of possible kill points.
"""

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.features.snapshots.service import ConversationSnapshots
from shoal.features.undo.store import UndoStore
from shoal.features.undo.undo import Undo
from shoal.kernel.clock import Clock
from shoal.kernel.events import FilesRestored
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, make_thread_id
from shoal.kernel.messages import Attachment, Author, Prompt
from shoal.kernel.permissions import Asker
from shoal.sandbox.host import HostSandbox
from shoal.services import Services
from shoal.store.driver import Driver
from shoal.store.store import Store
from shoal.testing.chat import LIMITS, OPEN, FakeChat, Posted
from shoal.testing.crash import World, serve_forked
from shoal.testing.faults import KillingDriver, Side
from shoal.testing.model import Call, FakeModel, Reply, Seen
from shoal.testing.scenario import FakeModels, replays_alike
from shoal.threads.forks import COPYING, Forks
from shoal.threads.orchestrator import COPIED, Orchestrator

THREAD: ThreadId = make_thread_id("fake", "harbour", "1")
COPY: ThreadId = make_thread_id("fake", "harbour", "copy")
RESTORED: ThreadId = make_thread_id("fake", "harbour", "restored")
OWNER = Asker(trust="owner", user="owner")
UNDOS = 3
SECONDS_MAX = 60.0
NOT_YET = -1_000_000
"""Value of the counter before counting starts."""
COMMANDS = {
    "first": "mkdir -p keep old/deep; echo one > a; echo b > b; echo x > old/deep/x; echo run > run; echo s > swap; "
    "ln -s a link; echo k > keep/k; chmod 644 run",
    "second": "echo two > a; rm b; rm -r old; echo now > old; rm swap; mkdir swap; echo in > swap/in; chmod 755 run; "
    "ln -sfn keep/k link; mkdir -p new/deep; echo n > new/deep/n",
}
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.symlink", "os.link"}


class Life(msgspec.Struct, frozen=True):
    """One run.

    - `kind`, `at`: the database write or file change at which the process is killed. 0 means no kill.
    - `until`: the last part to run. `turns` creates the changes, `undos` undoes them, `fork` copies the thread, and
      `end` also sends a message that informs the model.
    - `since`: the part at which counting for `at` starts.
    """

    home: str
    world: str
    database: str = ""
    kind: Literal["write", "file"] = "write"
    side: Side = "before"
    at: int = 0
    since: Literal["undos", "fork"] = "undos"
    until: Literal["turns", "undos", "fork", "end"] = "end"


class FileChanges:
    """Counts the file changes of this process and kills it before a chosen one."""

    def __init__(self, at: int) -> None:
        self.count = NOT_YET
        self._at = at

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            flags = arguments[2]
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event not in CHANGES:
            return
        self.count += 1
        if self.count == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


def tree_of(folder: Path) -> list[tuple[str, str, int]]:
    """Return the path, the content or link target, and the permissions of each entry in a folder."""
    found: list[tuple[str, str, int]] = []
    for path in sorted(folder.rglob("*")):
        what = os.readlink(path) if path.is_symlink() else "" if path.is_dir() else path.read_text()
        mode = 0 if path.is_symlink() else stat.S_IMODE(path.lstat().st_mode)
        found.append((str(path.relative_to(folder)), what, mode))
    return found


async def live(life: Life) -> int:
    world, files, drivers = World(Path(life.world)), FileChanges(life.at), list[KillingDriver]()
    if life.kind == "file":
        sys.addaudithook(files)

    def wrap(driver: Driver) -> Driver:
        drivers.append(KillingDriver(driver, life.side, life.at if life.kind == "write" else 0))
        drivers[0].writes = NOT_YET
        return drivers[0]

    def answer(seen: Seen) -> Reply:
        said = seen.user_text.partition("<context>")[0].strip()
        word = said.rpartition("It is ")[2]
        if word in COMMANDS and not seen.rounds:
            return Reply(calls=(Call("bash", json.dumps({"command": COMMANDS[word]})),))
        if word == "now?":
            world.note("told", text=said)
        return Reply(f"That was {word}.")

    def show(posted: Posted) -> None:
        if posted.markdown == COPIED:
            world.note("copied", thread=posted.post.thread)

    chat = FakeChat(limits=replace(LIMITS, opens_threads=True), on_post=show)
    parts = Overrides(
        models=FakeModels(FakeModel(script=answer)),
        sandbox=HostSandbox(),
        adapters=(chat,),
        access={chat.platform: OPEN},
        wrap_driver=wrap,
    )
    overrides: dict[str, object] = {
        "permissions": {"default_profile": "open"},
        "engine": {"drain_seconds": 1.0, "heartbeat_seconds": 0.2, "stalled_seconds": 2.0},
        "sandbox": {"kind": "host"},
        "database": {"url": life.database},
    }

    def counts() -> None:
        files.count = drivers[0].writes = 0

    async with open_app(load_config(Path(life.home), {}, overrides), parts) as app, asyncio.timeout(SECONDS_MAX):
        await _live(app, chat, world, life, counts)
    return files.count if life.kind == "file" else drivers[0].writes


async def _live(app: Services, chat: FakeChat, world: World, life: Life, counts: Callable[[], None]) -> None:
    workspace = app[Home].agent("main") / "workspace"
    world.note("start", open=len(await UndoStore(app[Store].driver, app[Clock]).running()))
    turns = [await _turn(app, word) for word in COMMANDS]
    if life.until == "turns":
        return
    if life.since == "undos":
        counts()
    while True:
        undos = [row for row in reversed(await app[Store].checkpoints.newest(THREAD)) if row.undoes]
        world.note("seen", undos=len(undos), tree=json.dumps(tree_of(workspace)))
        if len(undos) == UNDOS:
            break
        await app[Undo].undo(THREAD, undos[0].id if len(undos) == 1 else turns[1], OWNER)
    if life.until == "undos":
        return
    if life.since == "fork":
        counts()
    if await app[Store].journal.thread(COPY) is None:
        at = (await app[Store].journal.events(THREAD))[-1].seq
        await app[Forks].fork(THREAD, COPY, "owner", at)
    if await app[Store].journal.thread(RESTORED) is None:
        saved = await app[ConversationSnapshots].history(THREAD) or [await app[ConversationSnapshots].save(THREAD)]
        await app[ConversationSnapshots].restore(RESTORED, saved[0].id, "owner")
    await chat.says("harbour", "1", "/fork", message_id="fork")
    while await app[Store].outbox.depth():
        await app[Clock].sleep(0.02)
    if life.until == "fork":
        return
    await _turn(app, "now?")
    for thread in (THREAD, COPY, RESTORED):
        events = await app[Store].journal.events(thread)
        restored = [event.data.id for event in events if isinstance(event.data, FilesRestored)]
        types = json.dumps([event.type for event in events])
        world.note("end", thread=thread, types=types, restored=json.dumps(restored))
    audited = [row.entry for row in await app[Store].audit.tail(1000) if row.entry.kind == "undo"]
    world.note("audit", undos=len(audited))
    await replays_alike(app)
    for thread in (COPY, *sorted({ThreadId(str(line["thread"])) for line in world.read("copied")})):
        types = [event.type for event in await app[Store].journal.events(thread)]
        maps = [path.read_text() for path in app[Home].attachments(thread).glob("map.txt")]
        left = [path.name for path in app[Home].channel(thread).iterdir() if path.name.startswith(COPYING)]
        world.note("copy", types=json.dumps(types), maps=json.dumps(maps), left=json.dumps(left))


async def _turn(app: Services, word: str) -> str:
    """Send a word unless it was sent before, wait for the end of its turn, and return the turn's id."""
    author, sent = Author("ada", trusted=True), app[Home].attachments(THREAD) / "map.txt"
    if not sent.exists():
        sent.parent.mkdir(parents=True, exist_ok=True)
        sent.write_text("a map")
    files = (Attachment("map.txt", "text/plain", path=str(sent), origin="own"),) if word == "first" else ()
    prompt = Prompt(THREAD, word, f"It is {word}", author, app[Clock].now(), attachments=files, message_id=word)
    await app[Orchestrator].send(prompt)
    while True:
        events = await app[Store].journal.events(THREAD)
        turn = next((event.turn for event in events if getattr(event.data, "message_id", "") == word), "")
        if any(event.type == "turn_finished" and event.turn == turn for event in events):
            return turn
        await app[Clock].sleep(0.02)


if __name__ == "__main__":
    serve_forked(Life, live)
