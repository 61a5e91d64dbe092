"""Agents, bindings, commands and system status over HTTP."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.e2e.http_stand import Served, served

from shoal.testing.chat import FakeChat


@pytest.fixture
async def shoal(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path) as stand:
        yield stand


async def test_an_agent_is_created_changed_and_deleted(shoal: Served) -> None:
    created = await shoal.client.post("/api/agents", json={"name": "ops", "settings": {"system_prompt": "Watch."}})
    assert created.status_code == 201
    assert created.json()["agent"]["system_prompt"] == "Watch."
    again = await shoal.client.post("/api/agents", json={"name": "ops"})
    assert (again.status_code, again.json()["error"]) == (409, "conflict")
    changed = await shoal.client.patch("/api/agents/ops", json={"settings": {"tools": "read", "taint": "false"}})
    assert changed.json()["tools"] == ["read"]
    assert (await shoal.client.get("/api/agents/ops")).json()["tools"] == ["read"]
    assert [agent["name"] for agent in (await shoal.client.get("/api/agents")).json()] == ["main", "ops"]
    deleted = await shoal.client.delete("/api/agents/ops", params={"keep_files": "true"})
    assert deleted.json()["files"].startswith("removed/ops-")
    assert (await shoal.client.get("/api/agents/ops")).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ({"name": "../x"}, 400, "is not a valid agent name"),
        ({"name": "x", "settings": {"colour": "red"}}, 400, "is not an agent setting"),
        ({"name": "x", "settings": {"tools": "nosuch"}}, 400, "No tool named"),
        ({"name": "x", "colour": 1}, 400, "colour"),
        ({"name": "x", "beside": "nowhere"}, 400, "PLATFORM:CHANNEL"),
    ],
)
async def test_invalid_input_creates_no_agent(shoal: Served, body: object, status: int, part: str) -> None:
    answer = await shoal.client.post("/api/agents", json=body)
    assert answer.status_code == status
    assert part in answer.json()["message"]
    assert [agent["name"] for agent in (await shoal.client.get("/api/agents")).json()] == ["main"]


async def test_a_channel_is_bound_and_unbound(shoal: Served) -> None:
    await shoal.client.post("/api/agents", json={"name": "ops"})
    shoal.adapters["matrix"] = FakeChat("matrix")
    body = {"platform": "matrix", "channel": "!a:b.c", "agent": "ops"}
    assert (await shoal.client.put("/api/bindings", json=body)).status_code == 200
    (bound,) = (await shoal.client.get("/api/bindings")).json()
    assert {key: bound[key] for key in body} == body
    assert bound["bound_by"] == "web:owner"
    assert bound["listen"] == "all"
    ops = (await shoal.client.get("/api/agents/ops")).json()
    assert (ops["channels"], ops["listen"]) == (["matrix:!a:b.c"], {"matrix:!a:b.c": "all"})
    assert (await shoal.client.put("/api/bindings", json={**body, "listen": "named"})).json()["listen"] == "named"
    assert (await shoal.client.put("/api/bindings", json={**body, "listen": "never"})).status_code == 400
    assert (await shoal.client.get("/api/agents/ops")).json()["listen"] == {"matrix:!a:b.c": "named"}
    assert (await shoal.client.delete("/api/bindings/matrix/!a%3Ab.c")).status_code == 200
    assert (await shoal.client.delete("/api/bindings/matrix/!a%3Ab.c")).status_code == 404
    assert (await shoal.client.put("/api/bindings", json={**body, "agent": "nobody"})).status_code == 404
    assert (await shoal.client.put("/api/bindings", json={**body, "platform": "nowhere"})).status_code == 400


async def test_commands_over_http_run_as_the_owner(shoal: Served) -> None:
    path = "/api/threads/telegram:7:0/command"
    answer = await shoal.client.post(path, json={"text": "/agent create ops"})
    assert "Created the agent **ops**" in answer.json()["answer"]
    unknown = await shoal.client.post(path, json={"text": "/nosuch thing"})
    assert unknown.json()["answer"].startswith("No command named /nosuch")


async def test_the_system_status_is_reported(shoal: Served) -> None:
    info = (await shoal.client.get("/api/info")).json()
    assert (info["agents"], info["model"], info["notes"]) == (["main"], "demo", ["a note"])
