"""Processes and schedules over the API of the complete application."""

import json
from pathlib import Path

from tests.e2e.test_http_app import site

from shoal.kernel.ids import ThreadId
from shoal.testing.model import Call, FakeModel, Reply

THREAD = ThreadId("web:lobby:one")


async def test_a_process_is_listed_read_and_killed(tmp_path: Path) -> None:
    start = Reply(calls=(Call("process_start", json.dumps({"command": "echo up; sleep 60", "name": "srv"})),))
    async with site(tmp_path, FakeModel(start, "Started.")) as served:
        await served.post(f"/api/threads/{THREAD}/messages", {"text": "start it"})
        await served.world.happens(THREAD, "turn_finished")
        (one,) = (await served.client.get("/api/processes", params={"running": True})).json()
        assert (one["name"], one["state"], one["agent"], one["thread"]) == ("srv", "running", "main", THREAD)
        assert one["pid"] > 0
        path = f"/api/processes/{one['id']}"
        lines: list[str] = []
        while not lines:
            lines = (await served.client.get(f"{path}/log", params={"tail": 5})).json()["lines"]
        assert lines == ["up"]
        assert (await served.client.delete(path)).status_code == 202
        while (await served.client.get(path)).json()["state"] == "running":
            pass
        assert (await served.client.get(path)).json()["state"] == "killed"
        assert (await served.client.delete(path)).status_code == 409
        assert (await served.client.get("/api/processes/nobody")).status_code == 404


async def test_a_schedule_is_paused_and_resumed(tmp_path: Path) -> None:
    async with site(tmp_path, FakeModel("unused")) as served:
        spec = {"kind": "periodic", "schedule": "0 9 * * *", "text": "look", "thread": THREAD}
        trigger = (await served.post("/api/triggers", spec)).json()
        path = f"/api/triggers/{trigger['id']}"
        assert (await served.post(f"{path}/pause", {})).json()["state"] == "paused"
        assert (await served.client.post(f"{path}/pause")).status_code == 409
        assert (await served.post(f"{path}/resume", {})).json()["state"] == "active"
        assert (await served.client.post(f"{path}/resume")).status_code == 409
        assert (await served.client.post("/api/triggers/none/pause")).status_code == 404
