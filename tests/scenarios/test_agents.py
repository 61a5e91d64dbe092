"""Agents in chats: creation, channels, settings and deletion. Each agent has its own model and rules."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.scenarios.kit import Door, calls

from shoal.agents.registry import AgentRegistry
from shoal.kernel.clock import Clock
from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Author, Prompt
from shoal.notices import Notices
from shoal.store.store import Store
from shoal.testing.model import FakeModel, Seen
from shoal.testing.scenario import SECONDS_MAX, Person, World, scenario
from shoal.threads.orchestrator import Orchestrator

MANAGED: Mapping[str, object] = {"agents": {"managers": ["fake:ada", "fake:role:captain"]}}


def named(seen: Seen) -> str:
    return f"{seen.system.split('You are ')[1].split(',')[0]} by {seen.model}"


async def deletes(person: Person, what: str) -> str:
    asked = await person.asks(f"/agent delete {what}")
    return await person.asks(asked.partition("write `")[2].partition("`")[0])


async def answer(world: World, channel: str, text: str = "who?") -> str:
    thread = await world.chat.writes(channel, text)
    await world.happens(thread, "turn_finished")
    async with asyncio.timeout(SECONDS_MAX):
        return (await world.chat.sees(thread, "by")).markdown


async def test_a_channels_response_mode_is_chosen_and_shown(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=named), settings=MANAGED) as world:
        made = await world.ada.asks("/agent create deck listen=threads Keeps the deck clean.")
        place = made.rpartition(" ")[2].rstrip(".")
        assert f"in {place}: threads" in await world.ada.asks("/agent list")
        assert f"{place} (threads)" in await world.ada.asks("/agent show deck")
        assert world.app[AgentRegistry].spec("deck").system_prompt == "Keeps the deck clean."
        assert "answers mentions in this channel" in await world.ada.asks("/agent bind deck listen=named")
        assert "in fake:harbour: named" in await world.ada.asks("/agent list")
        assert "every message in this channel" in await world.ada.asks("/agent bind deck")
        assert "`listen=` takes all, named or threads." in await world.ada.asks("/agent bind deck listen=never")
        assert "[listen=all|named|threads]" in await world.ada.asks("/agent bind deck listen=all named")
        assert "in fake:harbour: all" in await world.ada.asks("/agent list")


async def test_an_agent_is_created_with_the_chosen_settings(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=named), settings=MANAGED) as world:
        await world.ada.asks("/agent create deck model=demo permissions=locked listen=named Keeps it clean, a=b.")
        spec = world.app[AgentRegistry].spec("deck")
        assert (spec.model, spec.profile, spec.system_prompt) == ("demo", "locked", "Keeps it clean, a=b.")
        assert "in fake:deck: named" in await world.ada.asks("/agent list")
        told = await world.ada.asks("/agent create x colour=red")
        assert "`colour` is not a setting. Settings: listen, model" in told
        assert "Created" not in await world.ada.asks("/agent create x permissions=nope")
        assert world.app[AgentRegistry].names() == ["deck", "main"]
        await world.ada.asks("/agent config deck permissions standard")
        assert world.app[AgentRegistry].spec("deck").profile == "standard"
        await world.ada.asks("/agent config permissions guarded")
        assert world.app[AgentRegistry].spec("main").profile == "guarded"


async def test_a_failed_channel_creation_is_reported_and_the_agent_kept(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=named), settings=MANAGED) as world:
        world.chat.channel_trouble = PlatformError("The bot may not manage channels.")
        told = await world.ada.asks("/agent create deck listen=named")
        assert "may not manage channels. To use another channel, write `/agent bind deck listen=named` there." in told
        await world.ada.asks("/agent bind deck")
        assert (await answer(world, "harbour")).startswith("deck by")


@pytest.mark.parametrize(
    "command",
    ["/agent create x", "/agent bind main", "/agent unbind", "/agent config model demo", "/agent destroy x",
     "/settings model demo", "/settings validate-keys"],
)  # fmt: skip
async def test_only_permitted_people_change_agents(tmp_path: Path, command: str) -> None:
    async with scenario(tmp_path, FakeModel(), settings=MANAGED) as world:
        eve = world.person("eve", "1")
        assert "Only my owner" in await eve.asks(command)
        assert "Only my owner" not in await eve.asks(command, roles=("captain",))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("profile nosuch", "No permission profile is named 'nosuch'. Profiles:"),
        ("tools bash, nosuch", "No tool named 'nosuch'. Tools:"),
        ("colour red", "No agent named 'colour'"),
        ("main colour red", "'colour' is not an agent setting. Available: model,"),
        ("taint maybe", "Cannot set taint to 'maybe'"),
        ("budget.usd_per_day -1", "Cannot set budget.usd_per_day to '-1'"),
    ],
)
async def test_an_invalid_setting_is_refused_and_the_valid_ones_are_listed(
    tmp_path: Path, line: str, problem: str
) -> None:
    async with scenario(tmp_path, FakeModel(), settings=MANAGED) as world:
        await world.ada.asks("/agent create deck")
        before = (tmp_path / "agents/deck/agent.toml").read_text()
        await world.ada.asks("/agent bind deck")
        assert problem in await world.ada.asks(f"/agent config {line}")
        assert (tmp_path / "agents/deck/agent.toml").read_text() == before


async def test_changed_agent_settings_apply_from_the_next_turn(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=named), settings=MANAGED) as world:
        await world.ada.asks("/agent create deck")
        for line in ("deck model other/one", "deck tools read, write", "deck budget.tokens_per_day 500000"):
            assert "takes effect on the next turn" in await world.ada.asks(f"/agent config {line}")
        assert await answer(world, "deck") == "deck by other/one"
        shown = await world.ada.asks("/agent show deck")
        assert "- model `other/one`" in shown
        assert "- tools: read, write" in shown
        assert "tokens_per_day 500,000" in shown
        audited = [entry.entry.action for entry in await world.app[Store].audit.tail(1000, chain_name="agents")]
        assert audited == ["agent:create", "agent:bind", "agent:config model", "agent:config tools",
                           "agent:config budget.tokens_per_day"]  # fmt: skip


async def test_a_destroyed_agent_is_stopped_and_its_files_kept_or_deleted(tmp_path: Path) -> None:
    door = Door()
    model = FakeModel(calls("wait"), "main by demo")
    async with scenario(tmp_path, model, tools=[door.tool()], settings=MANAGED, changes=("instructions",)) as world:
        await world.ada.asks("/agent create deck")
        thread = await world.chat.writes("deck", "scrub")
        await door.entered.wait()
        (tmp_path / "agents/deck/workspace/soap").write_text("green")
        told = await deletes(world.ada, "deck keep")
        assert "removed/deck-" in told
        assert (await world.types(thread))[-1] == "turn_finished"
        assert door.left == 0
        assert [path.read_text() for path in tmp_path.glob("removed/deck-*/workspace/soap")] == ["green"]
        assert await world.app[Store].registry.bindings() == []
        assert (await answer(world, "deck")).startswith("main")
        await world.ada.asks("/agent create deck")
        assert "deleted" in await deletes(world.ada, "deck")
        assert not (tmp_path / "agents/deck").exists()
        assert "default agent" in await world.ada.asks("/agent destroy main")


async def test_channel_settings_fill_in_what_agents_leave_open(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=named), settings=MANAGED) as world:
        await world.ada.asks("/settings model wide/one")
        await world.ada.asks("/agent create deck")
        await world.ada.asks("/agent config deck model own/one")
        assert await answer(world, "harbour") == "main by wide/one"
        assert await answer(world, "deck") == "deck by own/one"
        await world.chat.asks("deck", "1", "/settings here model narrow/one")
        assert await answer(world, "deck") == "deck by narrow/one"
        assert "`main`" not in await world.ada.asks("/settings")
        assert "everywhere on fake: model `wide/one`" in await world.ada.asks("/settings show")
        await world.ada.asks("/settings model default")
        assert await answer(world, "harbour") == "main by demo"


async def test_channel_permissions_apply_in_that_channel(tmp_path: Path) -> None:
    model = FakeModel(calls("bash", arguments=json.dumps({"command": "touch made"})), "done by it")
    async with scenario(tmp_path, model, settings=MANAGED) as world:
        await world.ada.asks("/settings here permissions locked")
        thread = await world.chat.writes("harbour", "go")
        await world.happens(thread, "turn_finished")
        assert not (tmp_path / "agents/main/workspace/made").exists()
        assert "bash" not in {tool.name for tool in model.requests[0].tools}
        assert "No permission profile is named" in await world.ada.asks("/settings permissions nosuch")


async def test_a_message_that_names_its_agent_goes_to_it(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=named), settings=MANAGED) as world:
        for name in ("deck", "mast"):
            await world.ada.asks(f"/agent create {name}")
        await world.ada.asks("/agent bind deck")
        at = world.app[Clock].now()
        prompt = Prompt(ThreadId("fake:harbour:77"), "k77", "who?", Author("ada", trusted=True), at, agent="mast")
        await world.app[Orchestrator].send(prompt)
        assert (await world.chat.sees(prompt.thread, "by")).markdown.startswith("mast by")


async def test_inconsistent_settings_are_reported_at_the_start(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(), settings=MANAGED) as world:
        for name in ("deck", "mast"):
            await world.ada.asks(f"/agent create {name}")
    (tmp_path / "agents/deck").rename(tmp_path / "elsewhere")
    (tmp_path / "agents/mast/agent.toml").write_text("colour = 1\n")
    (tmp_path / "agents/keel").mkdir()
    async with scenario(tmp_path, FakeModel(), settings=MANAGED) as world:
        told = "\n".join(world.app[Notices].notes)
        assert "The agent deck is known, but agents/deck/ is missing" in told
        assert "fake:deck is bound to the agent deck, which does not exist" in told
        assert "mast/agent.toml" in told
        assert "keel" in {row.name for row in await world.app[Store].registry.all()}
        assert "deleted" in await deletes(world.ada, "deck")
    async with scenario(tmp_path, FakeModel(), settings=MANAGED) as world:
        assert not any("deck" in note for note in world.app[Notices].notes)


async def test_an_agent_stops_at_its_own_budget_and_others_continue(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=named), settings=MANAGED) as world:
        await world.ada.asks("/agent create deck")
        await world.ada.asks("/agent config deck budget.tokens_per_day 10")
        thread = await world.chat.writes("deck", "who?")
        await world.happens(thread, "turn_finished")
        assert "the budget does not allow another model call" in (await world.chat.sees(thread, "I stopped")).markdown
        assert (await answer(world, "harbour")).startswith("main by")


async def test_an_account_whose_agent_does_not_exist_is_reported_at_the_start(tmp_path: Path) -> None:
    account = {"token": "1:x", "api_base": "http://127.0.0.1:9", "agent": "nosuch"}
    async with scenario(tmp_path, FakeModel(), settings={"platforms": {"telegram": [account]}}) as world:
        (told,) = [note for note in world.app[Notices].notes if "nosuch" in note]
    assert told.startswith(
        "The account telegram uses the agent 'nosuch', which does not exist. The default agent answers"
    )
