"""Changed tool definitions of MCP servers over HTTP: Shoal shows a diff, and a confirmation applies only to the
definitions shown.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.e2e.http_stand import Served, served

from shoal.features.mcp.definitions import Definition, definition_digest, definition_text
from shoal.features.mcp.pins import CHAIN


@pytest.fixture
async def shoal(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path) as stand:
        yield stand


async def sees(shoal: Served, **tools: str) -> dict[str, str]:
    """Report that the server `odd` lists these tools, and return their descriptions as models see them."""
    offered = {
        name: (
            f"mcp_odd_{name}",
            Definition(definition_digest({"d": words}), definition_text({"d": words}), words, "{}"),
        )
        for name, words in tools.items()
    }
    return {name: pin.description for name, (_, pin, _) in (await shoal.pins.in_force("odd", offered)).items()}


async def test_a_change_is_shown_and_allowed(shoal: Served) -> None:
    assert (await shoal.client.get("/api/mcp")).json() == {"servers": []}
    await sees(shoal, echo="a")
    await sees(shoal, echo="b", late="c")
    (server,) = (await shoal.client.get("/api/mcp")).json()["servers"]
    assert server["server"] == "odd"
    echo, late = server["tools"]
    assert (echo["name"], echo["state"], late["state"]) == ("mcp_odd_echo", "changed", "new")
    assert echo["change"].splitlines()[1:] == ['-d: "a"', '+d: "b"']
    done = await shoal.client.post("/api/mcp/mcp_odd_echo", json={"decision": "allow", "digest": echo["digest"]})
    assert (done.status_code, done.json()["state"]) == (200, "allowed")
    assert await sees(shoal, echo="b", late="c") == {"echo": "b"}
    done = await shoal.client.post("/api/mcp/mcp_odd_late", json={"decision": "deny", "digest": late["digest"][:12]})
    assert (done.status_code, done.json()["state"]) == (200, "denied")
    rows = await shoal.store.audit.tail(2, chain_name=CHAIN)
    assert [(row.entry.decision, row.entry.user) for row in rows] == [("allow", "web:owner"), ("deny", "web:owner")]


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("mcp_odd_echo", {"decision": "allow", "digest": "0" * 64}, 409),
        ("mcp_odd_die", {"decision": "allow", "digest": "0" * 64}, 404),
        ("mcp_odd_none", {"decision": "allow", "digest": "0" * 64}, 404),
        ("bash", {"decision": "allow", "digest": "0" * 64}, 404),
        ("mcp_odd_echo", {"decision": "allow", "digest": ""}, 400),
        ("mcp_odd_echo", {"decision": "allow"}, 400),
        ("mcp_odd_echo", {"decision": "perhaps", "digest": "0" * 64}, 400),
    ],
)
async def test_an_invalid_decision_about_a_tool_changes_nothing(
    shoal: Served, name: str, body: dict[str, str], status: int
) -> None:
    await sees(shoal, echo="a", die="a")
    await sees(shoal, echo="b", die="a")
    assert (await shoal.client.post(f"/api/mcp/{name}", json=body)).status_code == status
    assert await sees(shoal, echo="b", die="a") == {"echo": "a", "die": "a"}
