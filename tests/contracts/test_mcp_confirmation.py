"""The tools of a real MCP server get their traits when the owner confirms them."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contracts.mcp_stand import connected, odd
from tests.unit.features.mcp.test_pins_confirmation import OWNER, READS, known

from shoal.features.mcp.kinds import KINDS, TRAITS, UNCONFIRMED
from shoal.features.mcp.pins import Pins
from shoal.kernel.traits import Traits
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(SqliteDriver(empty_database(tmp_path / "shoal.db"), synchronous="OFF"), ManualClock())
    yield store
    await store.close()


async def test_tools_get_their_traits_on_confirmation_over_a_pipe(tmp_path: Path, store: Store) -> None:
    server = odd(tmp_path, tools=("echo", "grow", "where"))
    pins = Pins(store.settings, store.audit, ManualClock(), {"odd": server.settings})
    server.folder.mkdir(parents=True)
    more = server.folder / "more.json"
    more.write_text(json.dumps({"where": {"annotations": {"destructiveHint": True}}, "grow": {"annotations": READS}}))
    async with connected(tmp_path, server, pins=pins) as stand:
        state = await stand.becomes("up")
        assert state.unconfirmed == 3
        assert {stand.registry.traits.of(name).effect for name in state.tools} == {"unknown"}
        assert len(stand.asked) == 1
        await pins.confirm("odd", (await known(pins)).digest, {}, OWNER)
        assert (await stand.becomes("up")).unconfirmed == 0
        traits = {name: stand.registry.traits.of(f"mcp_odd_{name}") for name in ("echo", "grow", "where")}
        assert (traits["echo"], traits["grow"]) == (TRAITS["read_outside"], TRAITS["read"])
        assert traits["where"] == TRAITS["write"]
        await stand.call("mcp_odd_grow")
        state = await stand.becomes("up")
        assert state.waiting == 2, "the server's new file has none of these annotations"
        assert stand.registry.traits.of("mcp_odd_grow") == UNCONFIRMED
        assert stand.registry.traits.of("mcp_odd_echo") == TRAITS["read_outside"]


async def test_a_confirmation_is_effective_when_it_returns(tmp_path: Path, store: Store) -> None:
    server = odd(tmp_path)
    pins = Pins(store.settings, store.audit, ManualClock(), {"odd": server.settings})
    async with connected(tmp_path, server, pins=pins) as stand:
        await stand.becomes("up")

        def traits() -> Traits:
            tool = stand.registry.get("mcp_odd_echo")
            assert tool is not None
            return tool.traits

        assert traits() == UNCONFIRMED
        for kind in KINDS:
            await pins.confirm("odd", (await known(pins)).digest, {"echo": kind}, OWNER)
            assert traits().effect == TRAITS[kind].effect
