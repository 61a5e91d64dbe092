"""A plugin of pytest that keeps the threads of each scenario as it ends: see `python -m tests.journals`."""

import os
import shutil
from collections.abc import Collection

import msgspec

from shoal.app import App
from shoal.domain.events import TurnStarted, encode_event
from shoal.domain.version import VERSION
from shoal.testing import scenario
from shoal.turn import skills
from shoal.turn.prompt import decode_prompt
from shoal.turn.replay import DifferenceKind
from tests.journals import BASE, FOLDER, KeptThread

_replays_alike = scenario.replays_alike


async def keep(app: App, changes: Collection[DifferenceKind] = ()) -> None:
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
    await _replays_alike(app, changes)


scenario.replays_alike = keep
# Where they lie stands in system texts.
skills.BUILTIN_SKILLS = shutil.copytree(skills.BUILTIN_SKILLS, BASE / "skills", dirs_exist_ok=True)
