"""Skills from an untrusted archive: the archive is bounded and can write only to the folders of its skills."""

import io
import stat
import zipfile
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest
from tests.e2e.test_http_setup import Stand, running

from shoal.agents.skill_files import ARCHIVE_BYTES_MAX, FETCH_SECONDS_MAX
from shoal.app import Overrides
from shoal.net.addresses import Fetched, FetchRequest

TEXT = "---\nname: {name}\ndescription: What it is for.\n---\n\n# How\n"
PLACE = "/api/skills?scope=global"


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncGenerator[Stand]:
    async with running(tmp_path / "home") as started:
        yield started


def archive(files: Mapping[str, str | bytes], links: tuple[str, ...] = ()) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = ((stat.S_IFLNK if name in links else stat.S_IFREG) | 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            opened.writestr(entry, content)
    return buffer.getvalue()


def skill(name: str) -> str:
    return TEXT.format(name=name)


async def install(stand: Stand, content: bytes, status: int, place: str = PLACE) -> str:
    answer = await stand.client.post(place, content=content, headers={"Content-Type": "application/zip"})
    assert answer.status_code == status, answer.text
    return answer.text


async def test_skills_include_the_files_of_their_folders(stand: Stand) -> None:
    files = {
        "pack-main/README.md": "# Pack", "pack-main/skills/tides/SKILL.md": skill("tides"),
        "pack-main/skills/tides/scripts/read.py": b"print(1)\n", "pack-main/skills/tides/deep/SKILL.md": "inner",
        "pack-main/skills/boats/SKILL.md": skill("boats"), "pack-main/skills/boats/.DS_Store": "x",
        "__MACOSX/tides/SKILL.md": "x",
    }  # fmt: skip
    said = await install(stand, archive(files), 201)
    assert '"name":"tides"' in said
    root = stand.home.data / "skills"
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) == [
        "boats/SKILL.md", "tides/SKILL.md", "tides/deep/SKILL.md", "tides/scripts/read.py",
    ]  # fmt: skip
    audit = (await stand.client.get("/api/audit")).json()
    assert [entry["entry"]["action"] for entry in audit if entry["entry"]["kind"] == "skill"] == [
        "write skill tides", "write skill boats",
    ]  # fmt: skip
    assert "The skill tides already exists" in await install(stand, archive({"tides/SKILL.md": skill("tides")}), 409)


async def test_a_skill_without_a_folder_is_named_by_its_front_matter(stand: Stand) -> None:
    content = archive({"SKILL.md": skill("tides"), "more.md": "More."})
    await install(stand, content, 201, "/api/skills?scope=agent&agent=main")
    folder = stand.home.agent("main") / "skills" / "tides"
    assert (folder / "more.md").read_text() == "More."


async def test_a_skill_with_an_irregular_name_and_file_is_installed_and_deleted(stand: Stand) -> None:
    await install(stand, archive({"x/Tidal Notes/skill.md": skill("Tidal Notes"), "x/Tidal Notes/a.md": "A"}), 201)
    folder = stand.home.data / "skills" / "tidal-notes"
    assert sorted(path.name for path in folder.iterdir()) == ["SKILL.md", "a.md"]
    folder.rename(folder.with_name("Renamed"))
    answer = await stand.client.delete("/api/skills/tidal-notes?scope=global")
    assert answer.status_code == 200, answer.text
    assert not (folder.with_name("Renamed") / "SKILL.md").exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"PK no archive", "not a readable zip archive"),
        (b"---\nno name", "cannot be installed"),
        (archive({"README.md": "x"}), "The archive contains no SKILL.md"),
        (archive({"a/SKILL.md": skill("a"), "../../evil": "x"}), "points outside the archive"),
        (archive({"a/SKILL.md": skill("a"), "/etc/evil": "x"}), "points outside the archive"),
        (archive({"a/SKILL.md": skill("a"), "a\\..\\evil": "x"}), "points outside the archive"),
        (
            archive({"a/SKILL.md": skill("a"), "a/link": "/etc/passwd"}, links=("a/link",)),
            "not a regular file",
        ),
        (archive({"a/SKILL.md": skill("a"), "a/x": "1", "a/X": "2"}), "twice"),
        (archive({"a/SKILL.md": skill("a"), **{f"a/{n}": "x" for n in range(500)}}), "The maximum is 500"),
        (archive({"a/SKILL.md": skill("a"), "a/zeros": b"\0" * 27_000_000}), "unpacks to more than 25 MiB"),
        (archive({"a/SKILL.md": skill("a"), "a/b/c/d/e/f/g/h/i": "x"}), "too deep"),
        (archive({"a/SKILL.md": skill("other"), "b/SKILL.md": skill("Other")}), "two skills named 'other'"),
        (archive({"a/SKILL.md": skill("a"), "b/SKILL.md": "no front matter"}), "cannot be installed"),
        (archive({"a/SKILL.md": skill("a"), "a/x": "1", "a/x/y": "2"}), "below a path that is also a file"),
        (archive({"b/SKILL.md": skill("b"), "a/SKILL.md": skill("a") + "x" * 70_000}), "may have at most 65,536 bytes"),
        (archive({"a/SKILL.md": b"\xff\xfe"}), "not UTF-8 text"),
    ],
)
async def test_a_rejected_archive_leaves_nothing_behind(stand: Stand, content: bytes, why: str) -> None:
    assert why in await install(stand, content, 400)
    assert [path for path in (stand.home.data / "skills").rglob("*") if path.is_file()] == []
    assert not (stand.home.root / "evil").exists()


async def test_an_oversized_archive_is_not_read(stand: Stand) -> None:
    await install(stand, b"x" * 5_242_881, 413)


class Internet:
    """A fake network that returns the same response for every URL."""

    def __init__(self, status: int, body: bytes, *, cut: bool = False) -> None:
        self.asked: list[FetchRequest] = []
        self._answer = status, body, cut

    async def fetch(self, request: FetchRequest) -> Fetched:
        self.asked.append(request)
        status, body, cut = self._answer
        return Fetched(request.url, status, (), body, cut)


@pytest.mark.parametrize("content", [archive({"tides/SKILL.md": skill("tides")}), skill("tides").encode()])
async def test_skills_are_installed_from_an_address(tmp_path: Path, content: bytes) -> None:
    internet = Internet(200, content)
    async with running(tmp_path / "home", overrides=Overrides(fetcher=internet)) as stand:
        said = await install(stand, b"", 201, f"{PLACE}&url=https://example.org/tides.zip")
    assert '"installed":["tides"]' in said
    assert [(request.url, request.tls_only, request.bytes_max, request.seconds_max) for request in internet.asked] == [
        ("https://example.org/tides.zip", True, ARCHIVE_BYTES_MAX, FETCH_SECONDS_MAX)
    ]


@pytest.mark.parametrize(
    ("status", "body", "cut", "why"),
    [
        (404, b"", False, "returned status 404. Check the URL"),
        (200, b"PK", True, "is larger than 5 MiB"),
        (200, b"<html>", False, "not a readable zip archive"),
    ],
)
async def test_a_url_without_skills_is_rejected(tmp_path: Path, status: int, body: bytes, cut: bool, why: str) -> None:
    async with running(tmp_path / "home", overrides=Overrides(fetcher=Internet(status, body, cut=cut))) as stand:
        assert why in await install(stand, b"", 400, f"{PLACE}&url=https://example.org/x")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://127.0.0.1/x.zip", "not a public address"),
        ("https://169.254.169.254/x.zip", "not a public address"),
        ("http://example.org/x.zip", "Only https:// is allowed here"),
        ("file:///etc/passwd", "Only http:// and https:// URLs"),
    ],
)
async def test_addresses_blocked_for_agents_are_blocked_for_skills(stand: Stand, url: str, why: str) -> None:
    assert why in await install(stand, b"", 400, f"{PLACE}&url={url}")
