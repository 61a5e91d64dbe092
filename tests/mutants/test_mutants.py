"""The changes of `make mutants`: the intended changes are found, each can be applied, and all accepted changes
still exist.
"""

from pathlib import Path

import pytest

from tests.mutants import changes
from tests.mutants.__main__ import accepted

MODULE = '''
import logging
from contextlib import contextmanager

log = logging.getLogger(__name__)

class Kept:
    def take(self, count, *, twice=False):
        """Overrides."""
        if not twice and count < 3:
            log.info("taken", extra={"count": count + 1})
            self.count = count
            return count
        self.store(count, wait=True)

@contextmanager
def opened():
    yield [one for one in (1,) if one]
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "src" / "kept_here.py"
    file.parent.mkdir()
    file.write_text(MODULE)
    monkeypatch.setattr(changes, "SOURCE", file.parent)
    monkeypatch.syspath_prepend(file.parent)
    return file


def test_mutations_change_code_but_no_log_calls(module: Path) -> None:
    assert [(change.function, change.what) for change in changes.changes(module)] == [
        ("Kept.take", "return at once"),
        ("Kept.take", "if not twice and count < 3 → not"),
        ("Kept.take", "not twice and count < 3 → not twice or count < 3"),
        ("Kept.take", "not twice → twice"),
        ("Kept.take", "count < 3 → count <= 3"),
        ("Kept.take", "count < 3 → count >= 3"),
        ("Kept.take", "3 → 4"),
        ("Kept.take", "without self.count = count"),
        ("Kept.take", "return count → return None"),
        ("Kept.take", "without self.store(count, wait=True)"),
        ("Kept.take", "self.store(wait=True) → without"),
        ("Kept.take", "True → False"),
        ("opened", "[one for one in (1,) if one] → [one for one in (1,)]"),
        ("opened", "1 → 2"),
    ]


def test_a_change_replaces_the_function_for_all_holders(module: Path) -> None:
    imported = __import__("kept_here")
    opened = imported.opened
    assert changes.make(changes.changes(module)[-1])
    with opened() as value:
        assert value == [2]


def test_every_accepted_change_exists() -> None:
    entries = accepted()
    there = {
        (str(change.file), change.function, change.what)
        for file in {file for file, _, _ in entries}
        for change in changes.changes(Path(file))
    }
    assert entries.keys() <= there
    assert all(len(reason) > 20 for reason in entries.values())
