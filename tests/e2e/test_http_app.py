"""The HTTP API of the complete application with a scripted model."""

import base64
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import msgspec
import pytest
from tests.e2e.http_stand import TOKEN

from shoal.kernel.clock import Clock
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import ToolMessage, UserMessage
from shoal.net.connections import default_tls
from shoal.permissions.access import AccessRules
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import serve
from shoal.testing.chat import OPEN
from shoal.testing.model import Call, FakeModel, Gate, Reply
from shoal.testing.scenario import World, scenario

THREAD = ThreadId("web:lobby:one")
PATH = f"/api/threads/{THREAD}"


class Event(msgspec.Struct):
    """An event as the API returns it."""

    seq: int
    type: str
    data: dict[str, msgspec.Raw]


class Site:
    """The running application and a client of its API."""

    def __init__(self, world: World, client: httpx2.AsyncClient) -> None:
        self.world = world
        self.client = client

    async def post(self, path: str, body: object) -> httpx2.Response:
        answer = await self.client.post(path, json=body)
        assert answer.is_success, answer.text
        return answer

    async def types(self) -> list[str]:
        events = msgspec.json.decode((await self.client.get(f"{PATH}/events")).content, type=list[Event])
        return [event.type for event in events]


@asynccontextmanager
async def site(
    home: Path, model: FakeModel, profile: str = "open", clock: Clock | None = None, access: AccessRules = OPEN
) -> AsyncGenerator[Site]:
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(scenario(home, model, profile=profile, clock=clock, access=access))
        address = await stack.enter_async_context(serve(world.app, WebOptions(token=TOKEN, port=0)))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        client = httpx2.AsyncClient(verify=default_tls(), base_url=address, headers=headers, timeout=60)
        yield Site(world, await stack.enter_async_context(client))


async def test_a_message_is_answered(tmp_path: Path) -> None:
    async with site(tmp_path, FakeModel("Good morning.")) as served:
        await served.post(f"{PATH}/messages", {"text": "hello", "message_id": "m1"})
        await served.world.happens(THREAD, "turn_finished")
        assert await served.types() == ["turn_started", "user_message", "assistant_message", "turn_finished"]
        again = await served.post(f"{PATH}/messages", {"text": "hello", "message_id": "m1"})
        assert again.json()["duplicate"] is True
        assert served.world.model.calls == 1


async def test_a_card_is_decided_by_call_numbers(tmp_path: Path) -> None:
    commands = [f'{{"command": "echo {number} | tee -a out"}}' for number in (1, 2, 3)]
    model = FakeModel(Reply(calls=tuple(Call("bash", command) for command in commands)), "done")
    async with site(tmp_path, model, profile="standard") as served:
        await served.post(f"{PATH}/messages", {"text": "run them"})
        await served.world.happens(THREAD, "approval_requested", 3)
        asked = (await served.client.get("/api/approvals")).json()
        (card,) = {approval["item"]["card"] for approval in asked}
        refused = await served.client.post(f"/api/approvals/{card}", json={"decision": "allow", "calls": [4]})
        assert (refused.status_code, refused.json()["error"]) == (400, "invalid_input")
        decided = await served.post(f"/api/approvals/{card}", {"decision": "allow", "calls": [1, 3]})
        assert decided.json() == {"id": card, "state": "allow", "message": "Allowed 1 and 3. Denied 2."}
        again = await served.client.post(f"/api/approvals/{card}", json={"decision": "deny"})
        assert again.status_code == 409
        states = {
            approval["item"]["number"]: approval["state"]
            for approval in (await served.client.get("/api/approvals?pending=false")).json()
        }
        assert states[2] == "deny"


async def test_an_allowed_call_runs(tmp_path: Path) -> None:
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "echo tide | tee out"}'),)), "done")
    async with site(tmp_path, model, profile="standard") as served:
        await served.post(f"{PATH}/messages", {"text": "run it"})
        await served.world.happens(THREAD, "approval_requested")
        (asked,) = (await served.client.get("/api/approvals")).json()
        assert asked["shown"] == "echo tide | tee out"
        decided = await served.post(f"/api/approvals/{asked['id']}", {"decision": "allow"})
        assert decided.json() == {"id": asked["id"], "state": "allow"}
        await served.world.happens(THREAD, "turn_finished")
        results = [message for message in model.requests[-1].messages if isinstance(message, ToolMessage)]
        assert "tide" in results[0].text


async def test_a_denied_call_does_not_run(tmp_path: Path) -> None:
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "touch here"}'),)), "as you wish")
    async with site(tmp_path, model, profile="standard") as served:
        await served.post(f"{PATH}/messages", {"text": "run it"})
        await served.world.happens(THREAD, "approval_requested")
        (asked,) = (await served.client.get("/api/approvals")).json()
        await served.post(f"/api/approvals/{asked['id']}", {"decision": "deny"})
        await served.world.happens(THREAD, "turn_finished")
        assert "tool_started" not in await served.types()


async def test_a_running_turn_is_steered_and_stopped(tmp_path: Path) -> None:
    gate = Gate()
    async with site(tmp_path, FakeModel(Reply("never", gate=gate))) as served:
        await served.post(f"{PATH}/messages", {"text": "work"})
        await gate.reached.wait()
        steered = await served.post(f"{PATH}/steer", {"text": "differently"})
        stopped = await served.post(f"{PATH}/abort", {})
        await served.world.happens(THREAD, "turn_finished")
        assert (steered.json(), stopped.json()) == ({"delivered": True}, {"delivered": True})
        late = await served.post(f"{PATH}/abort", {})
        assert late.json() == {"delivered": False}
        gate.open()


async def numbers_until_the_end(client: httpx2.AsyncClient, seen: int) -> list[int]:
    numbers: list[int] = []
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(seen)}
    async with client.stream("GET", f"{PATH}/events", headers=headers) as response:
        async for line in response.aiter_lines():
            numbers += [int(line.removeprefix("id: "))] if line.startswith("id: ") else []
            if line.startswith("data: ") and '"type":"turn_finished"' in line:
                return numbers
    raise AssertionError("the stream ended")


async def test_a_stream_continues_after_a_restart(tmp_path: Path) -> None:
    seen: list[int] = []
    for answer in ("one", "two"):
        async with site(tmp_path, FakeModel(answer)) as served:
            await served.post(f"{PATH}/messages", {"text": "go on"})
            seen += await numbers_until_the_end(served.client, len(seen))
    assert seen == list(range(1, 9))


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def test_a_file_reaches_the_model(tmp_path: Path) -> None:
    model = FakeModel("nice")
    async with site(tmp_path, model) as served:
        stored = await served.client.post(f"{PATH}/attachments", params={"name": "reef.png"}, content=PNG)
        body = {"text": "look", "attachments": [{"file": stored.json()["file"]}]}
        await served.post(f"{PATH}/messages", body)
        await served.world.happens(THREAD, "turn_finished")
    last = model.requests[-1].messages[-1]
    assert isinstance(last, UserMessage)
    assert "reef.png" in last.text
    assert [image.media_type for image in last.images] == ["image/png"]


async def test_a_message_to_a_channel_is_posted_there(tmp_path: Path) -> None:
    async with site(tmp_path, FakeModel("Aye.")) as served:
        platform = served.world.chat.platform
        opened = await served.post(f"/api/channels/{platform}/harbour/messages", {"text": "all hands"})
        thread = ThreadId(opened.json()["thread"])
        await served.world.happens(thread, "turn_finished")
        await served.world.chat.sees(thread, "Aye.")


async def test_a_trigger_that_never_occurs_is_rejected(tmp_path: Path) -> None:
    async with site(tmp_path, FakeModel()) as served:
        body = {"kind": "one-shot", "schedule": "yesterday", "text": "hi", "thread": THREAD}
        answer = await served.client.post("/api/triggers", json=body)
        assert (answer.status_code, answer.json()["error"]) == (400, "invalid_input")


@pytest.mark.xdist_group("providers-clients")
async def test_openais_client_talks_to_an_agent_that_uses_tools(tmp_path: Path) -> None:
    import openai

    model = FakeModel(Reply("Looking. ", calls=(Call("bash", '{"command": "echo tide"}'),)), "The tide is in.")
    async with site(tmp_path, model) as served:
        base_url = str(served.client.base_url).rstrip("/") + "/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key=TOKEN, timeout=60) as client:
            messages = [{"role": "user", "content": "how is the tide?"}]
            stream = await client.chat.completions.create(model="main", messages=messages, stream=True)  # pyrefly: ignore[no-matching-overload]
            texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(texts) == "Looking. \n\nThe tide is in."


async def test_metrics_follow_the_turns(tmp_path: Path) -> None:
    async with site(tmp_path, FakeModel("hi")) as served:
        await served.post(f"{PATH}/messages", {"text": "hello"})
        await served.world.happens(THREAD, "turn_finished")
        lines = (await served.client.get("/metrics")).text.splitlines()
        assert 'shoal_turns_total{outcome="done"} 1' in lines
        assert "shoal_turns_running 0" in lines
