"""Staged calls that meet a limit, a stop, a failure, a schedule, another surface, or a removed person, on both
databases.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import httpx2
import pytest
from tests.postgres import empty
from tests.scenarios.delegation import cast, children_of, delegates
from tests.scenarios.kit import in_time
from tests.scenarios.test_staging import ADA, Outside, pressed, sends

from shoal.accounts import OWNERS
from shoal.features.triggers.records import NewTrigger
from shoal.features.triggers.service import TriggerService
from shoal.kernel.errors import ToolError
from shoal.kernel.files import Folders
from shoal.kernel.home import Home
from shoal.kernel.messages import Author, Usage
from shoal.kernel.ports import Tool
from shoal.kernel.records import Approval
from shoal.kernel.traits import Traits
from shoal.permissions.access import AccessRules, Links, People
from shoal.platforms.inbox import press
from shoal.store.store import Store
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import serve
from shoal.testing.clock import ManualClock
from shoal.testing.model import FakeModel, Reply
from shoal.testing.scenario import Person, World, scenario
from shoal.threads.access_gate import Admissions, OpenInbox
from shoal.tools.executor import LiveToolServices
from shoal.tools.functions import tool
from shoal.tools.storage import delete_thread

Sections = Mapping[str, Mapping[str, object]]
STAGES = Traits(effect="outward", can_stage=True, origin="own", changes="nothing", harm="message")
GONE = "This approval is no longer available. `shoal approvals list` shows the pending approvals."
LOST = "Accepted, but it did not run: the person who asked for it no longer has access."
TOKEN = "a-token-of-a-test-that-nobody-can-guess"
WITH_BEN = AccessRules(owners=("ada",), allow=("ben",))
WITHOUT_BEN = AccessRules(owners=("ada",))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))])
def settings(request: pytest.FixtureRequest) -> Sections:
    standard: Sections = {"permissions": {"default_profile": "standard"}}
    if request.param == "sqlite":
        return standard
    url: str = request.getfixturevalue("postgres_database")
    empty(url)
    return {**standard, "database": {"url": f"postgresql:///?{'&'.join(url.split())}"}}


class Slow:
    """Provides a tool `send` that blocks until the test sets `open` and fails for some recipients."""

    def __init__(self, *fails_for: str) -> None:
        self.begun: list[str] = []
        self.sent: list[str] = []
        self.entered, self.open = asyncio.Event(), asyncio.Event()
        self._fails_for = fails_for

    def tool(self) -> Tool:
        @tool(STAGES)
        async def send(to: str, text: str = "") -> str:
            """Send something to somebody."""
            self.begun.append(to)
            self.entered.set()
            await self.open.wait()
            if to in self._fails_for:
                raise ToolError(f"{to} is away")
            self.sent.append(to)
            return f"delivered to {to}"

        return send


async def approvals(world: World) -> list[Approval]:
    found = await world.app[Store].approvals.search(pending=False, thread=world.ada.thread)
    return sorted(found, key=lambda one: one.item.number)


def used(reply: Reply, tokens: int) -> Reply:
    return Reply(reply.text, calls=reply.calls, usage=Usage(tokens, 0))


async def test_the_step_limit_ends_the_turn_with_its_card(tmp_path: Path, settings: Sections) -> None:
    outside, model = Outside(tmp_path / "sent"), FakeModel(sends("bob"), "I had to stop here.")
    settings = {**settings, "turns": {"steps_max": 1}}
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=settings) as world:
        await world.ada.says("write to bob and many more")
        await world.ada.sees("I had to stop here.")
        assert "limit_reached" in await world.types()
        assert await pressed(world, "Run this action?", "Do it") == "Accepted."
        await world.happens(world.ada.thread, "turn_finished", 2)
        assert outside.sent == ["bob"]


async def test_the_budget_ends_the_turn_with_its_card(tmp_path: Path, settings: Sections) -> None:
    outside, model = Outside(tmp_path / "sent"), FakeModel(used(sends("bob"), 9_000), "never said")
    settings = {**settings, "budget": {"tokens_per_turn": 9_000}, "model": {"max_output_tokens": 100}}
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=settings) as world:
        await world.ada.says("write to bob")
        await world.ada.sees("I stopped: the budget")
        assert await pressed(world, "Run this action?", "Do it") == "Accepted."
        await world.happens(world.ada.thread, "turn_finished", 2)
        assert outside.sent == ["bob"], "what was accepted costs nothing"


async def test_stop_prevents_accepted_calls_from_starting(tmp_path: Path, settings: Sections) -> None:
    slow, model = Slow(), FakeModel(sends("one", "two", "three"), "prepared", "I see.")
    async with scenario(tmp_path, model, tools=[slow.tool()], settings=settings) as world:
        await world.ada.says("write")
        card = await world.ada.sees("Run these 3 actions?")
        await pressed(world, "Run these 3 actions?", "Do all")
        await slow.entered.wait()
        await world.ada.stops()
        await world.happens(world.ada.thread, "turn_finished", 2)
        slow.open.set()
        await world.rests()
        assert slow.begun == ["one"]
        assert slow.sent == []
        assert [one.outcome for one in await approvals(world)] == ["stopped", "not_run", "not_run"]
        assert "Accepted, but it was stopped while it ran" in card.markdown
        assert card.markdown.count("Accepted, but stopped before it ran") == 2
        await world.ada.says("well")
        await world.ada.sees("I see.")
        assert model.requests[-1].messages[-1].text.count("- failed: ") == 3


async def test_calls_after_a_failed_call_run(tmp_path: Path, settings: Sections) -> None:
    slow, model = Slow("two"), FakeModel(sends("one", "two", "three"), "prepared", "I see.")
    slow.open.set()
    async with scenario(tmp_path, model, tools=[slow.tool()], settings=settings) as world:
        await world.ada.says("write")
        card = await world.ada.sees("Run these 3 actions?")
        await pressed(world, "Run these 3 actions?", "Do all")
        await world.happens(world.ada.thread, "turn_finished", 2)
        await world.rests()
        assert slow.sent == ["one", "three"]
        assert [one.outcome for one in await approvals(world)] == ["ran", "failed", "ran"]
        assert card.markdown.count("✅ Done.") == 2
        assert card.markdown.count("⚠️ Accepted, but it failed.") == 1
        await world.ada.says("well")
        await world.ada.sees("I see.")
        notes = model.requests[-1].messages[-1].text
        assert "- failed: " in notes
        assert "two is away" in notes
        assert notes.count("- done: ") == 2


async def test_a_schedules_staged_calls_ask_in_its_conversation(tmp_path: Path, settings: Sections) -> None:
    clock, outside = ManualClock(), Outside(tmp_path / "sent")
    model = FakeModel(sends("bob"), "I prepared the weekly mail.")
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=settings, clock=clock) as world:
        weekly = NewTrigger("periodic", "10 9 * * *", "send the weekly mail", ADA, "", thread=world.ada.thread)
        await world.app[TriggerService].add(weekly)
        await in_time(clock, world.ada.sees("I prepared the weekly mail."))
        await in_time(clock, world.ada.sees("Run this action?"))
        assert outside.sent == []
        assert await pressed(world, "Run this action?", "Do it") == "Accepted."
        await in_time(clock, world.happens(world.ada.thread, "turn_finished", 2))
        assert outside.sent == ["bob"]


def shut_ben_out(world: World) -> None:
    links = world.app[Admissions].links
    people = People(owners=(*OWNERS, "fake:ada"))
    links.become(Links(people, {**links.rules, "fake": WITHOUT_BEN}))


async def owner_presses(world: World, value: str, ada: Person) -> str:
    assert world.chat.inbox is not None
    return await press(value, ada.thread, Author("ada", "ada", trusted=True), world.chat.inbox)


async def test_a_card_of_a_person_who_lost_access_runs_nothing(tmp_path: Path, settings: Sections) -> None:
    outside, model = Outside(tmp_path / "sent"), FakeModel(sends("bob"), "prepared")
    settings = {**settings, "permissions": {**settings["permissions"], "approvers": ["fake:ada"]}}
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=settings, access=WITH_BEN) as world:
        ben, ada = world.person("ben", "1", "square"), world.person("ada", "1", "square")
        await ben.says("write to bob")
        card = await ada.sees("Run this action?")
        value = card.buttons[0].value
        shut_ben_out(world)
        assert await owner_presses(world, value, ada) == "Accepted."
        await world.is_quiet()
        assert LOST in card.markdown
        assert outside.sent == []


async def test_deleting_a_conversation_deletes_its_card(tmp_path: Path, settings: Sections) -> None:
    outside, model = Outside(tmp_path / "sent"), FakeModel(sends("bob"), "prepared")
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=settings) as world:
        await world.ada.says("write")
        card = await world.ada.sees("Run this action?")
        value = card.buttons[0].value
        await world.is_quiet()
        services = world.app[LiveToolServices]
        await delete_thread(
            world.app[Store], world.app[Home], services.artifacts, world.app[Folders], world.ada.thread, "web:owner"
        )
        assert await press(value, world.ada.thread, ADA, world.app[OpenInbox]) == GONE
        await world.is_quiet()
        assert outside.sent == []
        assert await world.app[Store].approvals.search(pending=False) == []


async def test_an_openai_client_gets_the_answer_and_the_person_gets_the_card(
    tmp_path: Path, settings: Sections
) -> None:
    outside, model = Outside(tmp_path / "sent"), FakeModel(sends("bob"), "I prepared a message.", "It was sent.")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        scenario(tmp_path, model, tools=[outside.tool()], settings=settings) as world,
        serve(world.app, WebOptions(token=TOKEN, port=0)) as address,
        httpx2.AsyncClient(base_url=address, headers=headers, timeout=30) as client,
    ):
        lines = [{"role": "user", "content": "write to bob"}]
        body = {"model": "main", "messages": lines}
        answer = (await client.post("/v1/chat/completions", json=body)).raise_for_status()
        said = answer.json()["choices"][0]["message"]
        assert said["content"] == "I prepared a message."
        assert outside.sent == []
        thread = answer.headers["X-Shoal-Thread"]
        (asked,) = (await client.get("/api/approvals", params={"thread": thread})).json()
        card = asked["item"]["card"]
        (await client.post(f"/api/approvals/{card}", json={"decision": "allow"})).raise_for_status()
        await world.is_quiet()
        assert outside.sent == ["bob"]
        lines += [said, {"role": "user", "content": "and?"}]
        answer = (await client.post("/v1/chat/completions", json=body)).raise_for_status()
        assert answer.headers["X-Shoal-Thread"] == thread
        assert answer.json()["choices"][0]["message"]["content"] == "It was sent."
        assert "delivered to bob" in model.requests[-1].messages[-1].text


async def test_a_subagent_asks_immediately(tmp_path: Path, settings: Sections) -> None:
    outside = Outside(tmp_path / "sent")
    model = cast(boss=[delegates("subagent", "courier, write to bob"), "done"], courier=[sends("bob"), "delivered"])
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=settings) as world:
        await world.ada.says("boss, write to bob")
        await world.ada.sees("send")
        (child,) = await children_of(world)
        (asked,) = await world.app[Store].approvals.search()
        assert asked.thread == child
        assert not asked.item.staged
        await world.ada.decides(asked.id, allow=True)
        await world.ada.sees("done")
        assert outside.sent == ["bob"]
