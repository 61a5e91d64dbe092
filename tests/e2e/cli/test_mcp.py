"""`shoal mcp` calls a running Shoal."""

import json
from pathlib import Path

from tests.processes import running
from tests.unit.features.mcp.test_cli import digest_of, make_home
from tests.unit.surfaces.cli.conftest import Shoal


def test_mcp_commands_use_the_running_server(shoal: Shoal, home: Path) -> None:
    make_home(shoal, home)
    digest = digest_of(shoal, "mcp_odd_echo")
    with running(home):
        assert shoal("mcp", "allow", "mcp_odd_echo", digest).code == 0
        rows = json.loads(shoal("mcp", "list", "--json").out)
    assert {row["name"]: row["state"] for row in rows}["mcp_odd_echo"] == "allowed"
