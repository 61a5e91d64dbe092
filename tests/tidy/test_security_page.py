"""What docs/security.md and docs/households-and-teams.md promise is shown by tests that exist."""

import re
from pathlib import Path

from tests.fuzz.target import names

ROOT = Path(__file__).parents[2]
PAGE, PEOPLE = (
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("security.md", "households-and-teams.md")
)


def test_every_test_that_the_page_names_exists() -> None:
    folders = ("tests/**/test_*.py", "packages/*/tests/**/test_*.py", "src/shoal/testing/contracts/*.py")
    sources = [path for folder in folders for path in ROOT.glob(folder)]
    found = {name for path in sources for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))}
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 60
    promised = set(re.findall(r"`(test_\w+)`", PEOPLE))
    assert len(promised) > 20
    assert (named | promised) - found == set()


def test_every_target_that_the_page_names_exists() -> None:
    named = set(re.findall(r"target `(\w+)`", PAGE))
    assert named
    assert named <= set(names())
