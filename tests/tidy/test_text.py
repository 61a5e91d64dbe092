"""Texts that no file may contain: paths of one machine, hosts of package indexes, and folders outside the project."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.tidy.source import GROUP, ROOT, project_files, where

pytestmark = pytest.mark.xdist_group(GROUP)

# Split, because this file must not contain them either.
INDEX_HOSTS = (
    "pypi" + ".org",
    "python" + "hosted.org",
    "npmjs" + ".org",
    "npmjs" + ".com",
    "deb." + "debian.org",
    "crates" + ".io",
)
FORBIDDEN = {
    "the host of a package index": "|".join(re.escape(host) for host in INDEX_HOSTS),
    "a folder outside the project": r"(?:^|[\s\"'`(=])(?:\.\./)*" + "sha" + r"red/(?:seeds|design|bench|hooks)?",
    "a path of one machine": "/wo"
    + r"rk/(?:main|sha"
    + r"red|\.library)|/ro"
    + r"ot/\.\w|/opt/(?:whe"
    + r"els|py"
    + "pi)",
}


def offences(text: str) -> list[str]:
    return [
        f"line {number}: {what}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in FORBIDDEN.items()
        if re.search(pattern, line)
    ]


@cache
def read(path: Path) -> str:
    """Return a file's text, or an empty string for a binary file."""
    content = path.read_bytes()
    return "" if b"\0" in content[:8192] else content.decode("utf-8", errors="replace")


def test_no_file_mentions_a_machine_or_an_index() -> None:
    assert not [f"{where(path)} {offence}" for path in project_files() for offence in offences(read(path))]


@pytest.mark.parametrize(
    "line",
    [
        "see https://" + INDEX_HOSTS[0] + "/project/x",
        "open('../sha" + "red/seeds/a.txt')",
        "cd /wo" + "rk/main",
        "/ro" + "ot/.cache",
    ],
)
def test_a_violation_is_detected(line: str) -> None:
    assert offences(line)


def test_no_file_mentions_this_checkouts_path() -> None:
    checkout = str(ROOT)
    assert len(checkout) > len("/app")
    assert not [where(path) for path in project_files() if checkout in read(path)]


@pytest.mark.parametrize("name", ["run.txt", "dev.txt"])
def test_requirements_are_pinned_by_hash_and_name_no_address(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if not entry.startswith("#")]
    assert entries
    assert not [entry for entry in entries if "==" not in entry or "--hash=sha256:" not in entry]
    assert "://" not in text
    assert "--find-links" not in text


def test_every_dependency_is_pinned() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split("\ndependencies = [")[1].split("\n]")[0]
    wanted = {name.lower().replace("_", "-") for name in re.findall(r'^    "([\w.-]+)', project, re.MULTILINE)}
    pinned = set(
        re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / "run.txt").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert wanted
    assert wanted <= pinned
