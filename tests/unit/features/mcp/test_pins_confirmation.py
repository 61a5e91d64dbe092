"""Shoal asks before every call of a tool until the owner confirms the tool's kind for exactly its current
definition.
"""

from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.features.mcp.definitions import Definition, definition_digest, definition_text
from shoal.features.mcp.kinds import KINDS, Kind, hints_of
from shoal.features.mcp.pins import CHAIN, InForce, Pins, ServerPins
from shoal.features.mcp.settings import McpServerSettings
from shoal.kernel.errors import Conflict, NotFound
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat_peer import MemorySettings
from shoal.testing.database import empty_database

READS = {"readOnlyHint": True, "openWorldHint": False}
READS_OUTSIDE = {"readOnlyHint": True}
SERVERS = {"odd": McpServerSettings(command="python odd")}
OWNER = "web:owner"


def offer(**annotations: object) -> dict[str, tuple[str, Definition]]:
    tools = {name: {"name": name, "annotations": given} for name, given in annotations.items()}
    return {name: (f"mcp_odd_{name}", definition(tool)) for name, tool in tools.items()}


def definition(tool: Mapping[str, object]) -> Definition:
    return Definition(definition_digest(tool), definition_text(tool), "", "{}", {}, hints_of(tool))


def kinds_of(used: Mapping[str, InForce]) -> dict[str, Kind | None]:
    return {own: one.kind for own, one in used.items()}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(SqliteDriver(empty_database(tmp_path / "shoal.db"), synchronous="OFF"), ManualClock())
    yield store
    await store.close()


@pytest.fixture
def pins(store: Store) -> Pins:
    return Pins(store.settings, store.audit, ManualClock(), SERVERS)


async def known(pins: Pins) -> ServerPins:
    (server,) = await pins.listed()
    return server


async def confirmed(pins: Pins, **kinds: Kind) -> ServerPins:
    return await pins.confirm("odd", (await known(pins)).digest, kinds, OWNER)


async def test_only_the_servers_connection_is_notified_of_a_decision(pins: Pins) -> None:
    await pins.in_force("odd", offer(find=READS))
    heard: list[str] = []

    async def hear(server: str) -> None:
        heard.append(server)

    for server in ("odd", "even"):
        pins.watchers.append((server, partial(hear, server)))
    await confirmed(pins)
    assert heard == ["odd"]


async def test_no_tool_has_a_kind_before_the_owner_confirms_it(pins: Pins) -> None:
    asked: list[str] = []

    async def tell(text: str) -> None:
        asked.append(text)

    offered = offer(find=READS, look=READS_OUTSIDE, send={})
    for _ in range(3):
        assert set(kinds_of(await pins.in_force("odd", offered, tell)).values()) == {None}
    (question,) = asked
    assert question.startswith(
        "The MCP server odd offers 3 tools: 1 read, 1 read data outside this machine (look), 1 write (send)."
    )
    digest = (await known(pins)).digest[:12]
    assert f"`/mcp confirm odd {digest}`" in question
    await pins.confirm("odd", digest, {}, OWNER)
    used = await pins.in_force("odd", offered, tell)
    assert kinds_of(used) == {"find": "read", "look": "read_outside", "send": "write"}
    assert len(asked) == 1


async def test_the_owner_moves_a_tool_to_another_kind(pins: Pins) -> None:
    offered = offer(find=READS, send={})
    await pins.in_force("odd", offered)
    await confirmed(pins, find="write")
    assert kinds_of(await pins.in_force("odd", offered)) == {"find": "write", "send": "write"}
    await confirmed(pins, mcp_odd_send="read")
    assert kinds_of(await pins.in_force("odd", offered)) == {"find": "write", "send": "read"}


@pytest.mark.parametrize(
    "changed",
    [
        {"readOnlyHint": False, "openWorldHint": False},
        {"readOnlyHint": True},
        {"readOnlyHint": True, "openWorldHint": False, "idempotentHint": True},
        {},
    ],
)
async def test_only_a_tool_with_changed_annotations_asks_again(pins: Pins, changed: dict[str, object]) -> None:
    await pins.in_force("odd", offer(find=READS, send={}))
    await confirmed(pins)
    offered = offer(find=changed, send={})
    assert kinds_of(await pins.in_force("odd", offered)) == {"find": None, "send": "write"}
    await confirmed(pins)
    assert kinds_of(await pins.in_force("odd", offered)) == {"find": None, "send": "write"}, (
        "only `allow` decides on it"
    )
    find = (await known(pins)).tools["find"]
    assert find.offered is not None
    await pins.decide("mcp_odd_find", find.offered.digest, True, OWNER, confirms=True)
    assert kinds_of(await pins.in_force("odd", offered))["find"] == find.offered.hints.kind


async def test_a_new_tool_has_no_kind_until_it_is_allowed(pins: Pins) -> None:
    await pins.in_force("odd", offer(find=READS))
    await confirmed(pins)
    offered = offer(find=READS, late=READS)
    assert kinds_of(await pins.in_force("odd", offered)) == {"find": "read"}
    late = (await known(pins)).tools["late"]
    assert late.offered is not None
    await pins.decide("mcp_odd_late", late.offered.digest, True, OWNER, "write", confirms=True)
    assert kinds_of(await pins.in_force("odd", offered)) == {"find": "read", "late": "write"}


async def test_an_admin_can_allow_a_definition_but_not_confirm_its_kind(pins: Pins) -> None:
    await pins.in_force("odd", offer(find=READS))
    await confirmed(pins)
    offered = offer(find=READS_OUTSIDE)
    await pins.in_force("odd", offered)
    find = (await known(pins)).tools["find"]
    assert find.offered is not None
    await pins.decide("mcp_odd_find", find.offered.digest, True, "web:admin", "read")
    assert kinds_of(await pins.in_force("odd", offered)) == {"find": None}
    assert (await known(pins)).unconfirmed


async def test_only_the_displayed_definition_is_confirmed(pins: Pins) -> None:
    await pins.in_force("odd", offer(find=READS, send={}))
    digest = (await known(pins)).digest
    for wrong in ("", digest[:11], "0" * 64):
        with pytest.raises(Conflict):
            await pins.confirm("odd", wrong, {}, OWNER)
    with pytest.raises(NotFound):
        await pins.confirm("even", digest, {}, OWNER)
    with pytest.raises(NotFound):
        await pins.confirm("odd", digest, {"late": "read"}, OWNER)
    await pins.confirm("odd", digest, {"find": "write"}, OWNER)
    with pytest.raises(Conflict):
        await pins.confirm("odd", digest, {"find": "read"}, OWNER)
    assert kinds_of(await pins.in_force("odd", offer(find=READS, send={}))) == {"find": "write", "send": "write"}


async def test_a_confirmation_is_in_the_audit_log(store: Store, pins: Pins) -> None:
    await pins.in_force("odd", offer(find=READS))
    await confirmed(pins)
    (row,) = await store.audit.tail(1, chain_name=CHAIN)
    assert row.entry.action.startswith("confirm mcp_odd_find read ")
    assert (row.entry.decision, row.entry.user) == ("allow", OWNER)


async def test_a_different_server_under_the_same_name_asks_again(store: Store, pins: Pins) -> None:
    await pins.in_force("odd", offer(find=READS))
    await confirmed(pins)
    other = Pins(store.settings, store.audit, ManualClock(), {"odd": McpServerSettings(command="python other")})
    assert kinds_of(await other.in_force("odd", offer(find=READS))) == {"find": None}


HINTS = st.dictionaries(
    st.sampled_from(["readOnlyHint", "openWorldHint", "destructiveHint", "idempotentHint"]), st.booleans()
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("list"), st.dictionaries(st.sampled_from("abc"), HINTS)),
        st.tuples(st.just("confirm"), st.dictionaries(st.sampled_from("abc"), st.sampled_from(KINDS))),
        st.tuples(st.sampled_from(["allow", "deny"]), st.sampled_from("abc")),
    ),
    max_size=20,
)


class NoAudit:
    async def record(self, chain: str, entries: object) -> None:
        return None


@settings(deadline=None)
@given(STEPS)
async def test_a_kind_applies_only_to_the_confirmed_definition(steps: list[tuple[str, object]]) -> None:
    pins = Pins(MemorySettings(), NoAudit(), ManualClock(), SERVERS)  # pyrefly: ignore[bad-argument-type]
    yes: dict[str, tuple[str, Kind]] = {}
    listing: dict[str, object] = {}
    for step, about in [*steps, ("list", None)]:
        servers = await pins.listed()
        match step:
            case "list":
                listing = about if isinstance(about, dict) else listing
                offered = offer(**listing)
                for own, (_, definition, kind) in (await pins.in_force("odd", offered)).items():
                    digest = offered[own][1].digest
                    assert kind is None or yes[own] == (digest, kind), (own, kind)
                    assert definition.digest == digest or kind is None
            case "confirm" if servers:
                wanted = {own: kind for own, kind in dict(about).items() if f"mcp_odd_{own}" in servers[0].kinds}  # pyrefly: ignore
                after = await pins.confirm("odd", servers[0].digest, wanted, OWNER)
                for own, pin in after.tools.items():
                    if pin.state == "allowed" and pin.allowed is not None and pin.confirmed is not None:
                        yes[own] = (pin.allowed.digest, pin.confirmed)
            case "allow" | "deny" if servers and (pin := servers[0].tools.get(str(about))) and pin.offered is not None:
                await pins.decide(pin.name, pin.offered.digest, step == "allow", OWNER, confirms=True)
                if step == "allow":
                    yes[str(about)] = (pin.offered.digest, pin.offered.hints.kind)
            case _:
                pass
