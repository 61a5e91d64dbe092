"""Event files: each file in the directory is accepted, ignored, or set aside with a reason, and a scan always ends."""

import asyncio
import os
import random
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from shoal.features.triggers.event_files import EventFiles
from shoal.testing.clock import ManualClock
from tests.fuzz.inputs import Json, any_text, json_bytes
from tests.fuzz.target import Attempt
from tests.unit.features.triggers.test_service import Stand

_THREAD = "slack:C1:17.5"
SAMPLES: tuple[Json, ...] = (
    {"type": "immediate", "threadId": _THREAD, "text": "Look"},
    {"type": "immediate", "adapterId": "slack", "channelId": "C1", "text": "Look"},
    {"type": "periodic", "threadId": _THREAD, "text": "Go", "schedule": "0 9 * * 1-5", "timezone": "Asia/Tokyo"},
    {"type": "one-shot", "channelId": "C1", "adapterId": "slack", "text": "x", "schedule": "2026-10-25T09:00:00"},
)  # fmt: skip


@contextmanager
def target() -> Generator[Attempt]:
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        root = Path(folder)
        directory = root / "events"
        directory.mkdir()
        secret = root / "secret.json"
        secret.write_text('{"type": "immediate", "threadId": "slack:C1:17.5", "text": "CANARY"}')
        stand = Stand(root)

        def attempt(source: random.Random) -> None:
            for path in directory.glob("*.json"):
                path.unlink()
            for number in range(source.randint(1, 3)):
                _put(source, directory / f"{number}{_name(source)}.json", secret)
            files = EventFiles(directory, stand.triggers, stand.inbox, stand.clock, lambda: None, unmarked)
            stand.inbox.prompts.clear()
            stand.inbox.posts.clear()
            runner.run(_scan(files, stand.clock))
            assert all(prompt.text != "CANARY" for prompt in stand.inbox.prompts)

        yield attempt
        runner.run(stand.store.close())


def _name(source: random.Random) -> str:
    text = any_text(source, 1).replace("/", "").replace("\0", "")[:10]
    return text + source.choice(["", "x" * 200, "\udcff"])


def _put(source: random.Random, path: Path, secret: Path) -> None:
    kind = source.random()
    if kind < 0.05:
        path.symlink_to(secret)
    elif kind < 0.1:
        os.mkfifo(path)
    else:
        path.write_bytes(json_bytes(source, SAMPLES))


async def _scan(files: EventFiles, clock: ManualClock) -> None:
    """Scan twice, because half-written files are read only by the second scan."""
    for _ in range(2):
        scan = asyncio.ensure_future(files.scan())
        while not scan.done():
            await asyncio.sleep(0)
            if clock.sleeping():
                await clock.advance(1)
        await scan


async def unmarked(_: Path) -> str:
    return ""
