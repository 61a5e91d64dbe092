"""Imported files are tainted by the product they came from until a person edits them."""

import asyncio
import time
from pathlib import Path

from shoal.importing import Found, FoundAgent, bring_into
from shoal.kernel.clock import SystemClock
from shoal.kernel.home import Home
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.surfaces.cli.context import CommandContext
from shoal.tools.prompt_files import PromptFiles
from shoal.tools.taint_spans import SLACK_NS
from shoal.tools.tainted_files import MarkedFiles


async def sources(home: Path, *names: str) -> list[str]:
    store = Store(SqliteDriver(home / "shoal.db"), SystemClock())
    prompt_files = PromptFiles(MarkedFiles(store.settings, Home(home)), Home(home))
    try:
        return [await prompt_files.source_of(home / name) for name in names]
    finally:
        await store.close()


def test_imported_files_are_tainted_until_a_person_edits_them(tmp_path: Path) -> None:
    home, own, imported = tmp_path / "home", "agents/main/SOUL.md", "agents/diary/SOUL.md"
    (home / own).parent.mkdir(parents=True)
    (home / own).write_text("I wrote this.")
    made_ns = (home / own).stat().st_ctime_ns
    while time.time_ns() < made_ns + 2 * SLACK_NS:
        pass  # a file created just before the import counts as tainted too
    diary = Found("diary", tmp_path / "diary", title="Diary")
    diary.add_agent(FoundAgent("diary", files={"SOUL.md": "You keep a diary."}, memory=["Ada likes tea"]), "diary")
    bring_into(CommandContext(home), diary)
    assert asyncio.run(sources(home, imported, own, "data/MEMORY.md")) == [
        "an import from Diary",
        "",
        "an import from Diary",
    ]
    (home / imported).write_text("You keep a diary, and I have read this.")
    assert asyncio.run(sources(home, imported)) == [""]
