"""All tests named in tests/GUARANTEES.md exist."""

import re
from pathlib import Path

from tests.fuzz.target import names

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "tests" / "GUARANTEES.md").read_text(encoding="utf-8")


def test_every_listed_test_exists() -> None:
    folders = ("tests/**/test_*.py", "packages/*/tests/**/test_*.py", "src/shoal/testing/contracts/*.py")
    sources = [path for folder in folders for path in ROOT.glob(folder)]
    existing = {name for path in sources for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))}
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 200
    assert named - existing == set()


def test_every_listed_target_exists() -> None:
    named = set(re.findall(r"target `(\w+)`", PAGE))
    assert named
    assert named <= set(names())
