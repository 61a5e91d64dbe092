"""`shoal mcp`: listing, showing and deciding on changes by MCP servers, with and without a running Shoal."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Shoal

from shoal.config import load_config
from shoal.features.mcp.definitions import Definition, definition_digest, definition_text
from shoal.features.mcp.kinds import Kind, hints_of
from shoal.features.mcp.pins import Pins
from shoal.features.mcp.settings import servers_of
from shoal.kernel.clock import SystemClock
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store

SETTINGS = f"[mcp.odd]\ncommand = {sys.executable!r}\nargs = ['-c', 'pass']\n"


@pytest.fixture(autouse=True)
def configured(shoal: Shoal, home: Path) -> None:
    make_home(shoal, home)


def make_home(shoal: Shoal, home: Path) -> None:
    assert shoal("init").code == 0
    (home / "shoal.toml").write_text(SETTINGS)
    assert sees(home, echo="a") == {"echo": "a"}
    assert sees(home, echo="b\u200b", late="c") == {"echo": "a"}


def sees(home: Path, **tools: str) -> dict[str, str]:
    async def work() -> dict[str, str]:
        clock = SystemClock()
        store = Store(SqliteDriver(home / "shoal.db"), clock)
        offered = {
            name: (
                f"mcp_odd_{name}",
                Definition(definition_digest({"d": words}), definition_text({"d": words}), words, "{}"),
            )
            for name, words in tools.items()
        }
        servers = servers_of(load_config(home, {}))
        used = await Pins(store.settings, store.audit, clock, servers).in_force("odd", offered)
        await store.close()
        return {name: found.description for name, (_, found, _) in used.items()}

    return asyncio.run(work())


def digest_of(shoal: Shoal, name: str) -> str:
    rows = json.loads(shoal("mcp", "list", "--json").out)
    return next(row["digest"] for row in rows if row["name"] == name)


def test_a_change_is_shown_and_allowed(shoal: Shoal, home: Path) -> None:
    rows = json.loads(shoal("mcp", "list", "--json").out)
    assert {row["name"]: row["state"] for row in rows} == {"mcp_odd_echo": "changed", "mcp_odd_late": "new"}
    shown = shoal("mcp", "show", "mcp_odd_echo").out
    assert '-d: "a"\n+d: "b\\u{200b}"' in shown
    digest = digest_of(shoal, "mcp_odd_echo")
    assert f"shoal mcp allow mcp_odd_echo {digest}" in shown
    assert shoal("mcp", "allow", "mcp_odd_echo", "0" * 12).code == 1
    assert shoal("mcp", "allow", "mcp_odd_echo", digest).code == 0
    assert shoal("mcp", "deny", "mcp_odd_late", digest_of(shoal, "mcp_odd_late")).code == 0
    assert sees(home, echo="b\u200b", late="c") == {"echo": "b\u200b"}
    assert "is allowed with this definition" in shoal("mcp", "show", "mcp_odd_echo").out


def test_a_change_that_is_not_pending_is_reported(shoal: Shoal) -> None:
    for name in ("bash", "mcp_odd_none"):
        assert "No MCP tool named" in shoal("mcp", "allow", name, "0" * 12).err
    assert "No MCP tool named" in shoal("mcp", "show", "bash").err


def test_kinds_are_confirmed_and_moved(shoal: Shoal, home: Path) -> None:
    (home / "shoal.toml").write_text(SETTINGS.replace("odd", "mail"))
    tools = {"find": {"readOnlyHint": True, "openWorldHint": False}, "send": {}}
    assert lists(home, tools) == {"find": None, "send": None}
    rows = json.loads(shoal("mcp", "list", "--json").out)
    assert {row["name"]: row["kind"] for row in rows} == {"mcp_mail_find": "", "mcp_mail_send": ""}
    asked = shoal("mcp", "confirm", "mail", stdin="n\n")
    assert "1 read: find\n1 write: send" in asked.out
    assert "Nothing was changed." in asked.out + asked.err
    assert lists(home, tools) == {"find": None, "send": None}
    assert shoal("mcp", "confirm", "mail", stdin="y\n").code == 0
    assert lists(home, tools) == {"find": "read", "send": "write"}
    assert shoal("mcp", "confirm", "mail", "--read-outside", "find", "--yes").code == 0
    assert lists(home, tools) == {"find": "read_outside", "send": "write"}
    for wrong in (("odd",), ("none",), ("mail", "--read", "x"), ("mail", "--read", "find", "--write", "find")):
        assert shoal("mcp", "confirm", *wrong, "--yes").code == 1
    assert lists(home, {**tools, "find": {}}) == {"find": None, "send": "write"}
    assert "Proposed kind, from the tool's annotations: write" in shoal("mcp", "show", "mcp_mail_find").out
    digest = digest_of(shoal, "mcp_mail_find")
    assert shoal("mcp", "allow", "mcp_mail_find", digest, "--kind", "read").code == 0
    assert lists(home, {**tools, "find": {}}) == {"find": "read", "send": "write"}


def lists(home: Path, tools: Mapping[str, object]) -> dict[str, Kind | None]:
    async def work() -> dict[str, Kind | None]:
        clock = SystemClock()
        store = Store(SqliteDriver(home / "shoal.db"), clock)
        offered = dict[str, tuple[str, Definition]]()
        for name, annotations in tools.items():
            said: dict[str, object] = {"name": name, "annotations": annotations}
            offered[name] = (
                f"mcp_mail_{name}",
                Definition(definition_digest(said), definition_text(said), name, "{}", {}, hints_of(said)),
            )
        servers = servers_of(load_config(home, {}))
        used = await Pins(store.settings, store.audit, clock, servers).in_force("mail", offered)
        await store.close()
        return {name: one.kind for name, one in used.items()}

    return asyncio.run(work())
