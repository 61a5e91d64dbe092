"""Memory and daily notes move between machines with their conversation."""

from datetime import date

import pytest
from tests.unit.tools.test_synced_folders import THREAD, Machine, machines

from shoal.features.memory.folders import memory_folders
from shoal.kernel.ids import make_thread_id
from shoal.kernel.memory_files import MEMORY_SCOPES, memory_path, note_path

__all__ = ["machines"]
OTHER = make_thread_id("web", "harbour", "sea")


@pytest.fixture(autouse=True)
def following(machines: tuple[Machine, Machine]) -> None:
    for machine in machines:
        machine.folders.follow(memory_folders(machine.home))


async def test_entries_written_on_one_machine_are_read_on_another(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    for scope in MEMORY_SCOPES:
        a.write(memory_path(a.home, scope, THREAD), f"- of {scope}")
    note = note_path(a.home, date(2026, 11, 22)).relative_to(a.home.root)
    a.write(a.home.root / note, "- 08:00 fog")
    a.write(a.home.data / "settings.json", "{}")
    a.write(a.home.channel(OTHER) / "MEMORY.md", "elsewhere")
    assert await a.folders.push(THREAD, a.agent) == ()
    assert await b.folders.pull(THREAD, b.agent) == ()
    assert [memory_path(b.home, scope, THREAD).read_text() for scope in MEMORY_SCOPES] == [
        f"- of {scope}" for scope in MEMORY_SCOPES
    ]
    assert (b.home.root / note).read_text() == "- 08:00 fog"
    assert not (b.home.data / "settings.json").exists()
    assert not b.home.channel(OTHER).exists()


async def test_other_peoples_new_entries_are_not_announced(
    machines: tuple[Machine, Machine], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = machines
    for machine, text in ((a, "- of a"), (b, "- of b")):
        machine.write(memory_path(machine.home, "global", THREAD), text)
    assert await a.folders.push(THREAD, a.agent) == ()
    assert await b.folders.push(THREAD, b.agent) == ()
    assert "files changed on two machines" in caplog.text, "but the operator is told"
