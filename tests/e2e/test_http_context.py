"""Saved conversations and stored results through the HTTP API, over the whole app with a scripted model."""

from pathlib import Path

from tests.e2e.test_http_app import PATH, THREAD, site

from shoal.testing.model import Call, FakeModel, Reply


async def test_a_conversation_is_saved_begun_anew_and_restored(tmp_path: Path) -> None:
    model = FakeModel("The tide is low.", "About the tide.", "What tide?", "It was low.")
    async with site(tmp_path, model) as found:
        await found.post(f"{PATH}/messages", {"text": "remember the tide"})
        await found.world.happens(THREAD, "turn_finished")
        begun = (await found.post(f"{PATH}/new", {})).json()
        assert begun["cleared"] is True
        assert begun["snapshot"]["description"] == "About the tide."
        (saved,) = (await found.client.get(f"{PATH}/snapshots")).json()
        assert (saved["thread"], saved["messages"], saved["id"]) == (THREAD, 2, begun["snapshot"]["id"])
        await found.post(f"{PATH}/messages", {"text": "well?"})
        await found.world.happens(THREAD, "turn_finished", 2)
        assert "remember the tide" not in str(model.requests[-1].messages)
        await found.post(f"{PATH}/snapshots/{saved['id']}/restore", {})
        await found.post(f"{PATH}/messages", {"text": "and now?"})
        await found.world.happens(THREAD, "turn_finished", 3)
        assert "remember the tide" in str(model.requests[-1].messages)


async def test_a_snapshot_can_be_described_by_who_saves_it(tmp_path: Path) -> None:
    async with site(tmp_path, FakeModel("ok")) as found:
        await found.post(f"{PATH}/messages", {"text": "hello"})
        await found.world.happens(THREAD, "turn_finished")
        saved = await found.client.post(f"{PATH}/snapshots", json={"description": "by hand"})
        assert (saved.status_code, saved.json()["description"]) == (201, "by hand")
        for body in ({"description": "x" * 501}, {"other": 1}, [1]):
            assert (await found.client.post(f"{PATH}/snapshots", json=body)).status_code == 400
        assert (await found.client.post(f"{PATH}/snapshots/none/restore")).status_code == 404
        assert (await found.client.post("/api/threads/web:lobby:nobody/new")).status_code == 404


async def test_a_long_result_is_listed_and_fetched_whole(tmp_path: Path) -> None:
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "seq 1 2000"}'),)), "done")
    async with site(tmp_path, model) as found:
        await found.post(f"{PATH}/messages", {"text": "count"})
        await found.world.happens(THREAD, "turn_finished")
        (one,) = (await found.client.get(f"{PATH}/artifacts")).json()
        whole = "".join(f"{number}\n" for number in range(1, 2001))
        assert (one["name"], one["tainted_by"]) == ("bash", "")
        answer = await found.client.get(f"{PATH}/artifacts/{one['artifact']}")
        assert whole.strip() in answer.text
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        other = await found.client.get(f"/api/threads/web:lobby:two/artifacts/{one['artifact']}")
        assert other.status_code == 404
        assert len(str(model.requests[-1].messages[-1])) < 3000
