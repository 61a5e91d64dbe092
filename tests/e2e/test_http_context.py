"""Saved conversations and stored results over the HTTP API, with the complete application and a scripted model."""

from pathlib import Path

from tests.e2e.test_http_app import PATH, THREAD, site

from shoal.testing.model import Call, FakeModel, Reply


async def test_a_conversation_is_saved_cleared_and_restored(tmp_path: Path) -> None:
    model = FakeModel("The tide is low.", "About the tide.", "What tide?", "It was low.")
    async with site(tmp_path, model) as served:
        await served.post(f"{PATH}/messages", {"text": "remember the tide"})
        await served.world.happens(THREAD, "turn_finished")
        begun = (await served.post(f"{PATH}/new", {})).json()
        assert begun["cleared"] is True
        assert begun["snapshot"]["description"] == "About the tide."
        (saved,) = (await served.client.get(f"{PATH}/snapshots")).json()
        assert (saved["thread"], saved["messages"], saved["id"]) == (THREAD, 2, begun["snapshot"]["id"])
        await served.post(f"{PATH}/messages", {"text": "well?"})
        await served.world.happens(THREAD, "turn_finished", 2)
        assert "remember the tide" not in str(model.requests[-1].messages)
        await served.post(f"{PATH}/snapshots/{saved['id']}/restore", {})
        await served.post(f"{PATH}/messages", {"text": "and now?"})
        await served.world.happens(THREAD, "turn_finished", 3)
        assert "remember the tide" in str(model.requests[-1].messages)


async def test_a_snapshot_can_have_a_description(tmp_path: Path) -> None:
    async with site(tmp_path, FakeModel("ok")) as served:
        await served.post(f"{PATH}/messages", {"text": "hello"})
        await served.world.happens(THREAD, "turn_finished")
        saved = await served.client.post(f"{PATH}/snapshots", json={"description": "by hand"})
        assert (saved.status_code, saved.json()["description"]) == (201, "by hand")
        for body in ({"description": "x" * 501}, {"other": 1}, [1]):
            assert (await served.client.post(f"{PATH}/snapshots", json=body)).status_code == 400
        assert (await served.client.post(f"{PATH}/snapshots/none/restore")).status_code == 404
        assert (await served.client.post("/api/threads/web:lobby:nobody/new")).status_code == 404


async def test_a_long_result_is_listed_and_fetched_completely(tmp_path: Path) -> None:
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "seq 1 2000"}'),)), "done")
    async with site(tmp_path, model) as served:
        await served.post(f"{PATH}/messages", {"text": "count"})
        await served.world.happens(THREAD, "turn_finished")
        (one,) = (await served.client.get(f"{PATH}/artifacts")).json()
        whole = "".join(f"{number}\n" for number in range(1, 2001))
        assert (one["name"], one["tainted_by"]) == ("bash", "")
        answer = await served.client.get(f"{PATH}/artifacts/{one['artifact']}")
        assert whole.strip() in answer.text
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        other = await served.client.get(f"/api/threads/web:lobby:two/artifacts/{one['artifact']}")
        assert other.status_code == 404
        assert len(str(model.requests[-1].messages[-1])) < 3000


async def test_the_size_of_each_part_of_a_request_is_shown(tmp_path: Path) -> None:
    model = FakeModel("The tide is low. " * 50, "It was low.")
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / "MEMORY.md").write_text("- The harbour has four boats.\n")
    async with site(tmp_path, model) as served:
        new = (await served.client.get("/api/threads/web:lobby:new/context")).json()
        await served.post(f"{PATH}/messages", {"text": "remember the tide"})
        await served.world.happens(THREAD, "turn_finished")
        costs = (await served.client.get(f"{PATH}/context")).json()
        await served.post(f"{PATH}/messages", {"text": "well?"})
        await served.world.happens(THREAD, "turn_finished", 2)
    first, second = model.requests
    parts = {part["name"]: part["bytes"] for part in costs["parts"]}
    told = (text for tool in first.tools for text in (tool.name, tool.description, tool.parameters))
    assert parts["tools"] == sum(len(text.encode()) for text in told)
    assert parts["transcript"] == sum(len(message.text.encode()) for message in second.messages[:2])
    in_system = sum(size for name, size in parts.items() if name not in ("tools", "transcript", "summary"))
    assert 0 <= len(first.system.encode()) - in_system < 40, "except for blank lines between sections"
    assert parts["memory"] > len("- The harbour has four boats.")
    assert {part["name"]: part["bytes"] for part in new["parts"]} == {**parts, "transcript": 0}
    assert costs["found_tools"] == len(first.further)
    assert (costs["left_out"], costs["fitted"], costs["window_tokens"]) == (0, False, 200_000)
    assert abs(costs["tokens"] - sum(part["tokens"] for part in costs["parts"])) < 200
