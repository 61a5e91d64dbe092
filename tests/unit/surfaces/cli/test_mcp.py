"""`shoal mcp`: what servers changed is listed, shown and decided, with and without a Shoal that runs."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Shoal, running

from shoal.config import load_config
from shoal.kernel.clock import SystemClock
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.tools.mcp.definitions import Definition, definition_digest, definition_text
from shoal.tools.mcp.pins import Pins

SETTINGS = f"[mcp.odd]\ncommand = {sys.executable!r}\nargs = ['-c', 'pass']\n"


@pytest.fixture(autouse=True)
def configured(shoal: Shoal, home: Path) -> None:
    """A home with an MCP server that changed a tool and has a new one."""
    assert shoal("init").code == 0
    (home / "shoal.toml").write_text(SETTINGS)
    assert sees(home, echo="a") == {"echo": "a"}
    assert sees(home, echo="b\u200b", late="c") == {"echo": "a"}


def sees(home: Path, **tools: str) -> dict[str, str]:
    """What models are told when the server lists these."""

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
        used = await Pins(store.settings, store.audit, clock, load_config(home, {}).mcp).in_force("odd", offered)
        await store.close()
        return {name: found.description for name, (_, found) in used.items()}

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
    assert "is allowed as its server offers it" in shoal("mcp", "show", "mcp_odd_echo").out


def test_what_does_not_wait_is_told(shoal: Shoal) -> None:
    for name in ("bash", "mcp_odd_none"):
        assert "There is no tool" in shoal("mcp", "allow", name, "0" * 12).err
    assert "There is no tool" in shoal("mcp", "show", "bash").err


def test_while_a_shoal_runs_it_is_asked(shoal: Shoal, home: Path) -> None:
    digest = digest_of(shoal, "mcp_odd_echo")
    with running(home):
        assert shoal("mcp", "allow", "mcp_odd_echo", digest).code == 0
        rows = json.loads(shoal("mcp", "list", "--json").out)
    assert {row["name"]: row["state"] for row in rows}["mcp_odd_echo"] == "allowed"
