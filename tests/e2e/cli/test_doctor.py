"""`shoal doctor` starts each MCP server."""

import logging
import sys
from pathlib import Path

import pytest
from tests.tidy.source import ROOT
from tests.unit.surfaces.cli.conftest import Shoal
from tests.unit.surfaces.cli.test_doctor import findings


def test_each_mcp_server_is_tried(shoal: Shoal, home: Path) -> None:
    pytest.importorskip("mcp", reason="the extra mcp is not installed")
    shoal("init")
    odd = ROOT / "tests" / "contracts" / "mcp_odd_server.py"
    (home / "shoal.toml").write_text(
        f"[mcp.odd]\ncommand = '{sys.executable}'\nargs = ['{odd}']\ntools = ['echo']\n"
        "[mcp.gone]\ncommand = '/nowhere/server'\n[mcp.off]\nenabled = false\ncommand = '/nowhere/server'\n"
    )
    checks = findings(shoal)
    assert checks["mcp odd"]["message"] == "1 tool (not pinned, so the first start allows all tools): mcp_odd_echo."
    assert checks["mcp gone"]["status"] == "fail"
    assert "[mcp.gone]" in checks["mcp gone"]["todo"]
    assert "mcp off" not in checks
    assert logging.getLogger("shoal.features.mcp.connection").level == logging.NOTSET, (
        "the log is silenced only during the check"
    )
