"""Runs Shoal's contract suite for tools against this package's tools."""

import json

import pytest
import shoal_hardware

from shoal import Tool
from shoal.testing.contracts.tool import ToolContract

EXAMPLES: dict[Tool, dict[str, int | str]] = {
    shoal_hardware.i2c_scan: {"bus": 1},
    shoal_hardware.i2c_read: {"bus": 1, "address": 32, "register": 5, "length": 2},
    shoal_hardware.i2c_write: {"bus": 1, "address": 32, "data": "05beef"},
    shoal_hardware.spi_transfer: {"bus": 0, "device": 0, "data": "ff00"},
}


@pytest.mark.parametrize("tool", list(EXAMPLES), ids=lambda tool: tool.spec.name)
class TestHardware(ToolContract):
    @pytest.fixture
    def good(self, tool: Tool) -> str:
        return json.dumps(EXAMPLES[tool])
