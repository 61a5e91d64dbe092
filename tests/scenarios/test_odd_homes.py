"""Unexpected files and folders in a home. Shoal reports or skips them, and never blocks."""

import json
import os
import shutil
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from shoal.config.secrets import read_token
from shoal.kernel.errors import ShoalError
from shoal.kernel.events import TurnFinished
from shoal.kernel.home import Home
from shoal.surfaces.cli.init import make_home
from shoal.testing.model import Call, FakeModel, Reply, Seen
from shoal.testing.scenario import SECONDS_MAX, scenario

CALLS = tuple(
    Call(name, json.dumps(arguments))
    for name, arguments in (
        ("bash", {"command": "seq 1 20000"}),
        ("write", {"path": "notes.txt", "content": "hello"}),
        ("edit", {"path": "notes.txt", "edits": [{"old": "hello", "new": "goodbye"}]}),
        ("upload", {"path": "notes.txt"}),
        ("remember", {"text": "ada likes tea"}),
    )
)


def script(seen: Seen) -> Reply | str:
    return f"done {len(seen.messages)}" if seen.rounds else Reply(calls=CALLS)


def in_its_place(path: Path, odd: Callable[[Path], object]) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    odd(path)


@contextmanager
def not_waited_for(path: Path) -> Generator[None]:
    """Fail the test if the block waits for a pipe. A timer opens the pipe, so the block always ends."""
    waited: list[str] = []

    def let_go() -> None:
        waited.append(path.name)
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))

    timer = threading.Timer(3 * SECONDS_MAX, let_go)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    assert not waited


async def a_life(home: Home) -> list[str]:
    said: list[str] = []
    try:
        make_home(home)
        read_token(home)
        async with scenario(home.root, FakeModel(script=script), replays=False) as world:
            before = (await world.types()).count("turn_finished")
            await world.ada.says("do it all")
            end = await world.happens(world.ada.thread, "turn_finished", before + 1)
            assert isinstance(end.data, TurnFinished)
            said += [end.data.reply] if end.data.outcome == "failed" else []
    except (OSError, ShoalError) as error:
        said.append(str(error))
    return said


async def test_odd_files_in_a_home_never_block(tmp_path: Path) -> None:
    first, second = Home(tmp_path / "first"), Home(tmp_path / "second")
    assert await a_life(first) == []
    paths = [path.relative_to(first.root) for path in sorted(first.root.rglob("*")) if ".git" not in path.parts]
    kept = [path for path in paths if "checkpoints" in path.parts]
    paths = [path for path in paths if path not in kept[4:]]  # the other checkpoint files are of the same kinds
    named = 0
    for path in paths:
        a_file = Path.mkdir if (first.root / path).is_file() else lambda place: place.write_bytes(b"\xff\xfe")
        for odd in (os.mkfifo, a_file):
            shutil.copytree(first.root, second.root)
            in_its_place(second.root / path, odd)
            with not_waited_for(second.root / path):
                said = await a_life(second)
            shutil.rmtree(second.root)
            named += bool(said)
            assert all(path.name in text for text in said), (path, said)
    assert named > 20
