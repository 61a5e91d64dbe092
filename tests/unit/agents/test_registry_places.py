"""Choosing the agent that answers a message, and binding channels to agents."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.agents.registry import NO_CHOICES, SECONDS, ChannelBindings, ChannelChoices
from shoal.kernel.agents import Binding
from shoal.kernel.ids import make_thread_id
from shoal.platforms.inbox import ChannelServers
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock

HERE = make_thread_id("matrix", "!room:b.c", "1")


class World:
    """Two machines that share a database."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.here = ChannelBindings(store.registry, clock, {"matrix": "account"})
        self.there = ChannelBindings(store.registry, clock, {})

    def binding(self, agent: str) -> Binding:
        return Binding("matrix", "!room:b.c", agent, "matrix:ada", self.clock.now())


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = ManualClock()
    store = Store(SqliteDriver(tmp_path / "shoal.db", synchronous="OFF"), clock)
    yield World(store, clock)
    await store.close()


async def test_an_agent_is_chosen_by_name_then_by_channel_then_by_account(world: World) -> None:
    assert await world.here.agent_for(HERE, "") == "account"
    await world.here.bind(world.binding("bound"))
    assert await world.here.agent_for(HERE, "") == "bound"
    assert await world.here.agent_for(HERE, "account") == "bound", "adapters name their account's agent in each message"
    assert await world.here.agent_for(HERE, "named") == "named"
    assert await world.here.agent_for(make_thread_id("matrix", "!other:b.c", "1"), "") == "account"
    assert await world.there.agent_for(make_thread_id("slack", "C1", "1"), "") == ""


async def test_another_machine_sees_a_change_shortly_after(world: World) -> None:
    assert await world.there.agent_for(HERE, "") == ""
    await world.here.bind(world.binding("bound"))
    assert await world.there.agent_for(HERE, "") == ""
    await world.clock.advance(SECONDS)
    assert await world.there.agent_for(HERE, "") == "bound"
    assert await world.here.unbind(HERE)
    assert await world.here.agent_for(HERE, "") == "account"


async def test_a_channel_combines_its_accounts_settings_with_its_own(world: World) -> None:
    await world.here.choose("matrix", ChannelChoices(model="wide"))
    await world.here.choose("matrix:!room:b.c", ChannelChoices(profile="locked"))
    assert await world.here.chosen(HERE) == (ChannelChoices(model="wide"), ChannelChoices(profile="locked"))
    await world.here.choose("matrix", NO_CHOICES)
    assert await world.here.chosen(HERE) == (NO_CHOICES, ChannelChoices(profile="locked"))
    assert await world.store.registry.choices() == {"matrix:!room:b.c": '{"profile":"locked"}'}


async def test_settings_of_a_server_override_those_of_its_account(world: World) -> None:
    await world.here.choose("matrix", ChannelChoices(model="wide", profile="standard"))
    await world.here.choose("matrix@guild", ChannelChoices(model="server"))
    assert await world.here.widest(HERE) == "matrix"
    assert await world.here.chosen(HERE) == (ChannelChoices(model="wide", profile="standard"), NO_CHOICES)
    await ChannelServers("matrix", world.store.settings).note("!room:b.c", "guild")
    assert await world.here.widest(HERE) == "matrix@guild"
    assert await world.here.chosen(HERE) == (ChannelChoices(model="server", profile="standard"), NO_CHOICES)
    assert await world.here.chosen_for("matrix@guild") == ChannelChoices(model="server")
    elsewhere = make_thread_id("matrix", "!other:b.c", "1")
    assert await world.here.chosen(elsewhere) == (ChannelChoices(model="wide", profile="standard"), NO_CHOICES)


async def test_a_moved_channel_belongs_to_its_new_server(world: World) -> None:
    servers = ChannelServers("matrix", world.store.settings)
    for name in ("guild", "other", ""):
        await servers.note("!room:b.c", name)
    assert await world.here.widest(HERE) == "matrix@other"


async def test_unreadable_settings_are_ignored(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.store.registry.choose("matrix", "no JSON")
    assert await world.here.chosen(HERE) == (NO_CHOICES, NO_CHOICES)
    assert "ignoring unreadable channel settings" in caplog.text
