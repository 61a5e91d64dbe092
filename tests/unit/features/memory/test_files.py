"""Memory files: concurrent writers lose no line and store no duplicates."""

import fcntl
import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.features.memory.files import MemoryEdit, apply_edit
from shoal.kernel.errors import InvalidInput
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.memory_files import (
    ENTRY_CHARS_MAX,
    MEMORY_BYTES_MAX,
    entry_line,
    entry_lines,
    is_known,
    memory_path,
    note_path,
    only_for,
)


def append_entry(path: Path, line: str, *, once: bool = True, person: str = "") -> bool:
    return apply_edit(MemoryEdit(path, added=(only_for(line, person),), person=person, once=once))


def test_each_scope_has_its_path(tmp_path: Path) -> None:
    home, thread = Home(tmp_path), ThreadId("slack:C1:17.5")
    assert memory_path(home, "global", thread) == tmp_path / "data/MEMORY.md"
    assert memory_path(home, "platform", thread) == tmp_path / "data/slack/MEMORY.md"
    assert memory_path(home, "channel", thread) == tmp_path / "data/slack/C1/MEMORY.md"
    assert note_path(home, date(2026, 3, 9)) == tmp_path / "data/memory/202603/20260309.md"


def test_an_entry_keeps_its_lines() -> None:
    assert entry_line("  - likes\n tea ") == "- likes\n   tea"
    with pytest.raises(InvalidInput, match="empty"):
        entry_line(" \n ")
    with pytest.raises(InvalidInput, match="more than the maximum"):
        entry_line("x" * (ENTRY_CHARS_MAX + 1))


def test_known_entries_are_recognized_in_another_spelling() -> None:
    text = "# Facts\n* The Deploy day is  Friday.\n"
    assert is_known(text, "- the deploy day is Friday")
    assert not is_known(text, "- the deploy day is")
    assert not is_known("", "- x")


def test_an_entry_is_added_once_on_its_own_line(tmp_path: Path) -> None:
    path = tmp_path / "a/b/MEMORY.md"
    assert append_entry(path, "- one")
    path.write_text("- one\n- two, no newline", encoding="utf-8")
    assert append_entry(path, "- three")
    assert not append_entry(path, "- TWO, no newline.")
    assert append_entry(path, "- one", once=False)
    assert path.read_text("utf-8") == "- one\n- two, no newline\n- three\n- one\n"


def test_a_full_file_accepts_no_more_entries(tmp_path: Path) -> None:
    path = tmp_path / "MEMORY.md"
    path.write_bytes(b"x" * (MEMORY_BYTES_MAX - 3))
    with pytest.raises(InvalidInput, match="full"):
        append_entry(path, "- one more")
    assert path.stat().st_size == MEMORY_BYTES_MAX - 3


def test_concurrent_threads_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "MEMORY.md"
    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(lambda number: append_entry(path, f"- fact {number}"), range(200)))
    assert all(added)
    assert sorted(path.read_text("utf-8").splitlines()) == sorted(f"- fact {number}" for number in range(200))


def test_a_file_replaced_while_a_writer_waits_gets_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, replacement = tmp_path / "MEMORY.md", tmp_path / "new"
    path.write_text("- old\n", "utf-8")
    replacement.write_text("- new\n", "utf-8")
    lock = fcntl.flock

    def replaced_then_locked(file: int, operation: int) -> None:
        if replacement.exists():
            replacement.rename(path)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", replaced_then_locked)
    assert append_entry(path, "- late")
    assert path.read_text("utf-8") == "- new\n- late\n"


def test_a_file_reveals_no_entries_of_other_people(tmp_path: Path) -> None:
    path = tmp_path / "MEMORY.md"
    assert append_entry(path, "- tea is good", person="owner")
    assert append_entry(path, "- tea is good", person="fake:ada")
    assert append_entry(path, "- tea is good")
    assert not append_entry(path, "- tea is good", person="owner")
    assert not append_entry(path, "- tea is good", person="fake:bob"), "all may see it by now"
    while len(path.read_bytes()) <= MEMORY_BYTES_MAX:
        append_entry(path, f"- {'x' * 2000}", once=False, person="owner")
    assert append_entry(path, "- there is room for ada", person="fake:ada")
    with pytest.raises(InvalidInput, match="is full"):
        append_entry(path, f"- {'x' * 2000}", person="owner")


@given(
    st.lists(
        st.tuples(st.sampled_from(["# Facts", "", "- tea", "- kelp is good"]), st.sampled_from(["", "ada", "bea"]))
    )
)
def test_results_are_numbered_as_if_other_peoples_entries_did_not_exist(lines: list[tuple[str, str]]) -> None:
    def found(readers: Collection[str]) -> list[tuple[str, str, str]]:
        kept = [only_for(line, person) if line else line for line, person in lines if person in readers or not line]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "MEMORY.md"
            path.write_text("\n".join(kept))
            return [one for one in entry_lines(path) if one[2] in readers]

    assert [one for one in found({"", "ada", "bea"}) if one[2] != "bea"] == found({"", "ada"})
    assert [one for one in found({"", "ada"}) if one[2] != "ada"] == found({""})
