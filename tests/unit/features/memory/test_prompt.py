"""Memory in the system prompt."""

from pathlib import Path

import pytest
from tests.unit.turn.test_prompt import THREAD, TOOLS, Place

from shoal.kernel.ids import ThreadId


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_only_the_last_days_notes_are_included(place: Place) -> None:
    for day in ("20260102", "20260103", "20260105"):
        place.write(f"data/memory/202601/{day}.md", f"on {day}")
    text = place.system().text
    assert "on 20260102" not in text
    assert "## Notes of 2026-01-03\non 20260103" in text
    assert "## Notes of 2026-01-05\non 20260105" in text


def test_without_memory_the_prompt_says_so(place: Place) -> None:
    assert place.system().text.endswith("# Memory\n(no memory yet)")
    (place.home.data / "MEMORY.md").mkdir(parents=True)
    assert "(no memory yet)" in place.system().text, "not a regular file"
    place.write("data/slack/MEMORY.md", "- one")
    assert place.system().text.endswith("# Memory\n\n## Memory for slack\n- one")
    assert "(no memory yet)" in place.system(ThreadId("discord:C1:1")).text


def test_a_private_line_is_shown_only_to_its_person(place: Place) -> None:
    place.write("data/MEMORY.md", "- for all\n- for ada <!-- only slack:ada -->\n")
    for person, shown in (("slack:ada", "- for all\n- for ada"), ("slack:ben", "- for all"), ("", "- for all")):
        prompt = place.builder.system(place.agent, THREAD, TOOLS, str, lambda path: "", person)
        assert prompt.text.endswith(f"## Global memory\n{shown}")


def test_memory_sections_count_as_memory(place: Place) -> None:
    place.write("data/MEMORY.md", "- one")
    place.write("data/memory/202601/20260105.md", "TODAY")
    parts = {section.name: section.part for section in place.system().sections if section.text}
    assert {name for name, part in parts.items() if part == "memory"} == {
        "memory",
        "memory global",
        "notes 2026-01-05",
    }
