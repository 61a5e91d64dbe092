"""An agent's files over HTTP: people read, write, add and remove files, and the history records the changes."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.e2e.test_http_setup import Stand, running

FILES = "/api/agents/main/files"
SOUL = f"{FILES}/SOUL.md"


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncGenerator[Stand]:
    async with running(tmp_path / "home") as started:
        yield started


async def test_a_persona_file_is_written_and_restored(stand: Stand) -> None:
    before = (await stand.client.get(SOUL)).json()
    await stand.put(SOUL, {"text": "Calm as the sea.\n", "digest": before["digest"]})
    file = stand.home.agent("main") / "SOUL.md"
    assert file.read_text() == "Calm as the sea.\n"
    after = (await stand.client.get(SOUL)).json()
    newest = after["changes"][0]
    assert (after["text"], newest["subject"], newest["author"]) == ("Calm as the sea.\n", "write SOUL.md", "web:owner")
    assert "write SOUL.md" in await stand.post("/api/agents/main/undo", {})
    assert (await stand.client.get(SOUL)).json()["text"] == before["text"]


async def test_a_concurrent_change_is_not_overwritten(stand: Stand) -> None:
    before = (await stand.client.get(SOUL)).json()
    (stand.home.agent("main") / "SOUL.md").write_text("Wild.\n")
    assert "has changed since it was read" in await stand.put(
        SOUL, {"text": "Calm.\n", "digest": before["digest"]}, 409
    )
    assert (await stand.client.get(SOUL)).json()["text"] == "Wild.\n"


async def test_a_document_is_added_searched_and_removed(stand: Stand) -> None:
    added = await stand.client.post(f"{FILES}/docs/tides.md", content=b"# Tides\n\nThe tide turns at six.\n")
    assert added.status_code == 201, added.text
    broken = await stand.client.post(f"{FILES}/docs/broken.docx", content=b"PK\x03\x04\xff\xfe")
    assert (broken.status_code, broken.json()["is_text"]) == (201, False)
    listed = {file["path"]: file for file in (await stand.client.get(FILES)).json()}
    assert (listed["docs/tides.md"]["searched"], listed["docs/tides.md"]["problem"]) == (True, "")
    assert (listed["docs/broken.docx"]["searched"], listed["docs/broken.docx"]["problem"]) == (False, "it is damaged")
    assert (await stand.client.delete(f"{FILES}/docs/tides.md")).json() == {"removed": True}
    assert "docs/tides.md" not in (await stand.client.get(FILES)).text


@pytest.mark.parametrize(
    "path",
    [
        "agent.toml",
        "docs/../agent.toml",
        "docs/../../../token",
        "workspace/x.md",
        "docs",
        "docs/.hidden",
        "skills/a.md",
    ],
)
async def test_no_other_file_can_be_reached(stand: Stand, path: str) -> None:
    encoded = path.replace("..", "%2e%2e").replace("/", "%2f")
    for method in ("GET", "PUT", "DELETE"):
        answer = await stand.client.request(
            method, f"{FILES}/{encoded}", json={"text": "x"} if method == "PUT" else None
        )
        assert answer.status_code in (400, 404), (method, answer.text)
    assert (stand.home.root / "token").exists()


async def test_a_link_is_not_followed(stand: Stand) -> None:
    (stand.home.agent("main") / "docs" / "out.md").symlink_to(stand.home.root / "token")
    for method, body in (("GET", None), ("PUT", {"text": "x"}), ("DELETE", None)):
        assert (await stand.client.request(method, f"{FILES}/docs/out.md", json=body)).status_code == 400


async def test_an_unknown_agent_has_no_files(stand: Stand) -> None:
    assert (await stand.client.get("/api/agents/nobody/files")).status_code == 404
    assert (await stand.client.delete(f"{FILES}/docs/none.md")).status_code == 404
