"""The page's files: nothing from other hosts, nothing inline, and vendored modules identical to their packages."""

import hashlib
import re
from pathlib import Path

import pytest

from shoal.surfaces.console import CONTENT_SECURITY_POLICY, FILES

VENDOR = FILES / "vendor"
OWN = sorted(path for path in FILES.rglob("*.*") if path.suffix != ".png" and VENDOR not in path.parents)
ROW = re.compile(r"^\| `(?P<name>[\w./-]+)` \|.*\| (?P<digest>[0-9a-f]{64}) \|$", re.MULTILINE)


def vendored() -> dict[str, str]:
    return {row["name"]: row["digest"] for row in ROW.finditer((VENDOR / "VENDORED.md").read_text(encoding="utf-8"))}


def test_vendored_modules_are_unmodified() -> None:
    digests = {
        path.relative_to(VENDOR).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.rglob("*")
        if path.suffix in (".js", ".css", ".woff2")
    }
    assert digests == vendored()


def test_vendored_modules_have_their_licenses() -> None:
    text = (VENDOR / "VENDORED.md").read_text(encoding="utf-8")
    licences = set(re.findall(r"`(LICENSE-\w+)`", text))
    assert licences == {path.name for path in VENDOR.glob("LICENSE-*")}
    assert len(licences) == 6


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.relative_to(FILES).as_posix())
def test_page_files_mention_no_other_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(r"https?://[\w.-]+", text))
    assert named <= {"http://www.w3.org", "http://127.0.0.1", "https://example.org"}, (
        "the last is a placeholder of input fields"
    )
    assert "innerHTML" not in text
    assert "eval(" not in text


def test_the_document_has_no_inline_code() -> None:
    document = (FILES / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?![^>]*\ssrc=)", document)
    addresses = re.findall(r'(?:src|href)="([^"]+)"', document)
    assert addresses
    assert all((FILES / address.removeprefix("/console/")).is_file() for address in addresses)


def test_every_import_leads_to_a_file() -> None:
    for path in FILES.rglob("*.js"):
        if VENDOR in path.parents:
            continue
        for target in re.findall(r'from "([^"]+)"', path.read_text(encoding="utf-8")):
            assert target.startswith("."), f"{path.name} imports {target}"
            assert (path.parent / target).is_file(), f"{path.name} imports {target}"


def test_the_policy_allows_no_inline_or_foreign_code() -> None:
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY
