"""Memory and skills over the API: reading, writing, forgetting, undo, access and invalid input."""

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.e2e.http_stand import Served, served

PUT = {"scope": "global", "text": "- tea\n- cake\n"}
SKILL = "---\nname: tide-table\ndescription: Reads tide tables.\n---\nLook at the moon.\n"


@pytest.fixture
async def shoal(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path) as stand:
        yield stand


async def test_memory_is_written_read_and_forgotten(shoal: Served) -> None:
    written = (await shoal.client.put("/api/memory", json=PUT)).json()
    assert written["text"] == "- tea\n- cake\n"
    assert (shoal.home.data / "MEMORY.md").read_text() == "- tea\n- cake\n"
    (file,) = (await shoal.client.get("/api/memory", params={"notes": 0})).json()
    assert file == written
    left = await shoal.client.delete("/api/memory", params={"scope": "global", "entry": "Tea."})
    assert left.json()["text"] == "- cake\n"
    assert (await shoal.client.delete("/api/memory", params={"scope": "global", "entry": "tea"})).status_code == 404
    assert (await shoal.client.delete("/api/memory", params={"scope": "global"})).json()["text"] == ""


async def test_memory_files_of_a_thread_and_a_day_have_their_own_text(shoal: Served) -> None:
    for body in (
        {"scope": "platform", "thread": "telegram:7:0", "text": "- p"},
        {"scope": "channel", "thread": "telegram:7:0", "text": "- c"},
        {"scope": "note", "day": "2026-01-02", "text": "- n"},
    ):
        assert (await shoal.client.put("/api/memory", json=body)).json()["text"] == f"{body['text']}\n"
    files = (await shoal.client.get("/api/memory", params={"thread": "telegram:7:0"})).json()
    assert [(file["scope"], file["day"], file["text"]) for file in files] == [
        ("global", "", ""), ("platform", "", "- p\n"), ("channel", "", "- c\n"), ("note", "2026-01-02", "- n\n"),
    ]  # fmt: skip
    (note,) = (await shoal.client.get("/api/memory", params={"day": "2026-01-02"})).json()
    assert note["text"] == "- n\n"


async def test_a_change_is_listed_and_undone(shoal: Served) -> None:
    await shoal.client.put("/api/memory", json=PUT)
    await shoal.client.put("/api/memory", json={"scope": "global", "text": "- tea\n- bread\n- cake\n"})
    newest, first = (await shoal.client.get("/api/memory/changes")).json()
    assert (newest["line"], newest["removed"], newest["added"]) == (1, [], ["- bread"])
    assert (newest["changed_by"], first["undone"]) == ("web:owner", False)
    assert (await shoal.client.post(f"/api/memory/changes/{newest['id']}/undo", json={})).status_code == 200
    assert (shoal.home.data / "MEMORY.md").read_text() == "- tea\n- cake\n"
    assert (await shoal.client.post(f"/api/memory/changes/{newest['id']}/undo", json={})).status_code == 409
    assert (await shoal.client.post("/api/memory/changes/nosuch/undo", json={})).status_code == 404
    entries = [row.entry for row in await shoal.store.audit.tail(1000, chain_name="memory")]
    assert [(entry.action, entry.user) for entry in entries] == [("change data/MEMORY.md", "web:owner")] * 3


async def test_a_file_changed_since_it_was_read_is_not_overwritten(shoal: Served) -> None:
    digest = (await shoal.client.put("/api/memory", json=PUT)).json()["digest"]
    (shoal.home.data / "MEMORY.md").write_text("- by hand\n")
    late = await shoal.client.put("/api/memory", json={**PUT, "text": "", "digest": digest})
    assert (late.status_code, (shoal.home.data / "MEMORY.md").read_text()) == (409, "- by hand\n")


@pytest.mark.parametrize(
    "body",
    [
        {"scope": "channel", "text": "x"},
        {"scope": "note", "text": "x"},
        {"scope": "note", "day": "2026-02-31", "text": "x"},
        {"scope": "channel", "thread": "../..", "text": "x"},
        {"scope": "everywhere", "text": "x"},
        {"scope": "global", "text": "x" * 300_000},
    ],
)
async def test_a_path_outside_memory_is_rejected(shoal: Served, body: object) -> None:
    assert (await shoal.client.put("/api/memory", json=body)).status_code == 400


async def test_skills_are_written_checked_and_deleted(shoal: Served) -> None:
    created = await shoal.client.put("/api/skills/tide-table", json={"scope": "global", "text": SKILL})
    assert "tide-table" in [skill["name"] for skill in created.json()["skills"]]
    (skill,) = [
        skill for skill in (await shoal.client.get("/api/skills")).json()["skills"] if skill["name"] == "tide-table"
    ]
    assert (skill["scope"], skill["text"]) == ("global", "Look at the moon.")
    for name, text in (("tide-table", "no front matter"), ("other", SKILL), ("..", SKILL)):
        refused = await shoal.client.put(f"/api/skills/{name}", json={"scope": "global", "text": text})
        assert refused.status_code in (400, 404)
    query = {"scope": "global"}
    assert (await shoal.client.delete("/api/skills/tide-table", params=query)).status_code == 200
    assert not (shoal.home.data / "skills/tide-table").exists()
    assert (await shoal.client.delete("/api/skills/tide-table", params=query)).status_code == 404


async def test_changes_to_an_agents_skill_are_in_its_history(shoal: Served) -> None:
    body = {"scope": "agent", "agent": "main", "text": SKILL}
    assert (await shoal.client.put("/api/skills/tide-table", json=body)).status_code == 200
    log = ["git", "-C", str(shoal.home.agent("main")), "log", "-1", "--format=%s"]
    result = subprocess.run(log, capture_output=True, text=True, check=True)  # noqa: ASYNC221 (a test may wait)
    assert result.stdout == "write skill tide-table\n"
    assert (await shoal.client.put("/api/skills/tide-table", json={**body, "agent": "nobody"})).status_code == 404
