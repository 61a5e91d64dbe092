"""Late decisions on an approval: every surface explains the next step in one sentence, and no call runs."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from tests.scenarios.kit import calls, echo, in_time
from tests.scenarios.test_staging import Outside, sends

from shoal.agents.registry import AgentRegistry
from shoal.assembly.outside import Adapters
from shoal.kernel.events import ToolFinished
from shoal.kernel.messages import Author
from shoal.kernel.records import Approval
from shoal.platforms.inbox import press
from shoal.store.store import Store
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import serve
from shoal.testing.clock import ManualClock
from shoal.testing.model import FakeModel
from shoal.testing.scenario import World, scenario
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.registry import Registry

EXPIRED = "This approval expired, and nothing ran. Ask the agent again."
CHANGED = "The approved call would now do something different, because something it depends on has changed. Ask again."
TOKEN = "a-token-of-a-test-that-nobody-can-guess"
SURFACES = pytest.mark.parametrize("surface", ["words", "chat", "api"])
DECIDED = "This approval was already decided: it was denied. To change the decision, ask the agent again."
AWAY = (
    "fake is not connected, so nobody there would see what happens. "
    "Connect the account with `shoal setup`, or deny the request."
)
STANDARD = {"permissions": {"default_profile": "standard"}}
CAREFUL = {"permissions": {"default_profile": "careful", "profiles": {"careful": {"ask": ["tool:.*"]}}}}
EDIT = '{"path": "note.txt", "old_string": "one", "new_string": "two"}'


@asynccontextmanager
async def surface_of(world: World, surface: str) -> AsyncGenerator[Callable[[Approval], Awaitable[str]]]:
    if surface == "chat":

        async def presses(approval: Approval) -> str:
            assert world.chat.inbox is not None
            author = Author("ada", "ada", trusted=False)
            value = f"all:{approval.item.card}" if approval.item.card else f"allow:{approval.id}"
            return await press(value, world.ada.thread, author, world.chat.inbox)

        yield presses
        return
    if surface == "words":

        async def writes(approval: Approval) -> str:
            named = approval.item.card or approval.id
            await world.ada.says(f"{'do' if approval.item.staged else 'allow'} {named[-8:]}", message_id="late")
            await world.rests()
            answers = (one for one in world.chat.posted if one.post.key.startswith(f"door:{world.ada.thread}:late"))
            return next((one.markdown for one in answers), "")

        yield writes
        return
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        serve(world.app, WebOptions(token=TOKEN, port=0)) as address,
        httpx2.AsyncClient(base_url=address, headers=headers, timeout=30) as client,
    ):

        async def posts(approval: Approval) -> str:
            path = f"/api/approvals/{approval.item.card or approval.id}"
            answer = await client.post(path, json={"decision": "allow"})
            return str(answer.json().get("message", ""))

        yield posts


def note(world: World) -> Path:
    return world.app[AgentRegistry].spec("main").workspace / "note.txt"


async def result(world: World) -> str:
    event = await world.happens(world.ada.thread, "tool_result")
    assert isinstance(event.data, ToolFinished)
    return event.data.text


async def asked(world: World) -> Approval:
    note(world).write_text("one")
    await world.ada.says("edit it")
    return await world.ada.is_asked()


@SURFACES
async def test_an_expired_card_explains_itself(tmp_path: Path, surface: str) -> None:
    clock = ManualClock()
    model = FakeModel(calls("edit", arguments=EDIT), "nobody was there")
    async with scenario(tmp_path, model, settings=CAREFUL, clock=clock) as world, surface_of(world, surface) as allows:
        approval = await asked(world)
        await clock.advance(3700)
        await in_time(clock, world.ada.sees("nobody was there"))
        assert await allows(approval) == EXPIRED
        assert note(world).read_text() == "one"


@SURFACES
async def test_a_decided_card_explains_itself(tmp_path: Path, surface: str) -> None:
    model = FakeModel(calls("edit", arguments=EDIT), "it was denied")
    async with scenario(tmp_path, model, settings=CAREFUL) as world, surface_of(world, surface) as allows:
        approval = await asked(world)
        await world.ada.decides(approval.id, allow=False)
        assert await allows(approval) == DECIDED
        await world.ada.sees("it was denied")
        assert note(world).read_text() == "one"


@SURFACES
async def test_a_card_with_a_changed_file_explains_itself(tmp_path: Path, surface: str) -> None:
    model = FakeModel(calls("edit", arguments=EDIT), "it had changed")
    async with scenario(tmp_path, model, settings=CAREFUL) as world, surface_of(world, surface) as allows:
        approval = await asked(world)
        note(world).write_text("one and more")
        await allows(approval)
        await world.ada.sees("it had changed")
        assert await result(world) == CHANGED
        assert note(world).read_text() == "one and more"


@SURFACES
async def test_a_card_with_a_removed_tool_explains_itself(tmp_path: Path, surface: str) -> None:
    model = FakeModel(calls("echo", arguments='{"text": "x"}'), "it is gone")
    async with (
        scenario(tmp_path, model, settings=CAREFUL, tools=(echo,), changes=("tools",)) as world,
        surface_of(world, surface) as allows,
    ):
        approval = await asked(world)
        world.app[Registry].remove("echo")
        await allows(approval)
        await world.ada.sees("it is gone")
        assert (await result(world)).startswith("No tool is named 'echo'. Tools: ")


async def staged(world: World) -> Approval:
    await world.ada.says("write to bob")
    await world.ada.sees("Run this action?")
    (approval,) = await world.app[Store].approvals.search(thread=world.ada.thread)
    return approval


@SURFACES
@pytest.mark.parametrize("end", ["expired", "denied", "allowed"])
async def test_a_finished_card_of_staged_calls_explains_itself(tmp_path: Path, surface: str, end: str) -> None:
    clock, outside = ManualClock(), Outside(tmp_path / "sent")
    async with (
        scenario(
            tmp_path, FakeModel(sends("bob"), "prepared"), settings=STANDARD, tools=(outside.tool(),), clock=clock
        ) as world,
        surface_of(world, surface) as allows,
    ):
        approval = await staged(world)
        if end == "expired":
            await clock.advance(3700)
            await in_time(clock, world.happens(world.ada.thread, "approval_decided"))
        else:
            card, allow = approval.item.card, end == "allowed"
            await world.app[Orchestrator].decide_card(card, allow, world.ada.asker)
        await world.rests()
        assert await allows(approval) == (EXPIRED if end == "expired" else DECIDED.replace("denied", end))
        await world.is_quiet()
        assert outside.sent == (["bob"] if end == "allowed" else [])


@SURFACES
@pytest.mark.parametrize("is_staged", [True, False])
async def test_a_card_of_an_unreachable_platform_explains_itself(tmp_path: Path, surface: str, is_staged: bool) -> None:
    outside = Outside(tmp_path / "sent")
    model = FakeModel(sends("bob"), "prepared") if is_staged else FakeModel(calls("edit", arguments=EDIT), "denied")
    async with (
        scenario(tmp_path, model, settings=STANDARD if is_staged else CAREFUL, tools=(outside.tool(),)) as world,
        surface_of(world, surface) as allows,
    ):
        approval = await (staged(world) if is_staged else asked(world))
        account = world.app[Adapters].pop("fake")  # as if the account was removed or disabled
        assert await allows(approval) == AWAY
        (still,) = await world.app[Store].approvals.search(thread=world.ada.thread)
        assert still.state == "pending"
        await world.app[Orchestrator].decide(approval.id, False, world.ada.asker)
        world.app[Adapters]["fake"] = account
        await world.rests()
        assert outside.sent == []
        assert is_staged or note(world).read_text() == "one"
