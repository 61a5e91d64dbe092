"""A plugin of pytest that keeps the threads of each scenario as it ends: see `python -m tests.journals`."""

import os

import msgspec
from tests.journals import FOLDER, KeptThread

from shoal.app import App
from shoal.domain.events import TurnStarted, encode_event
from shoal.domain.version import VERSION
from shoal.testing import scenario
from shoal.turn.prompt import decode_prompt

_replays_alike = scenario.replays_alike


async def keep(app: App) -> None:
    """Write the threads of an app into the file of the test that runs."""
    journal, threads = app.store.journal, list[KeptThread]()
    for info in await journal.threads():
        events = await journal.events(info.thread, limit=10_000)
        digests = {event.data.system for event in events if isinstance(event.data, TurnStarted)}
        bodies = {digest: await journal.prompt(digest) for digest in sorted(digests)}
        prompts = {digest: decode_prompt(body).sections for digest, body in bodies.items() if body is not None}
        threads.append(KeptThread(info.thread, prompts, tuple(msgspec.Raw(encode_event(event)) for event in events)))
    name = os.environ["PYTEST_CURRENT_TEST"].rpartition("::")[2].partition(" ")[0].partition("[")[0]
    file = FOLDER / VERSION / f"{name.removeprefix('test_')}.jsonl"
    file.write_bytes(b"".join(msgspec.json.encode(thread) + b"\n" for thread in threads))
    await _replays_alike(app)


scenario.replays_alike = keep
