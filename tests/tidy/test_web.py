"""Only the guarded HTTP client connects to the web. No tool opens a connection itself."""

import ast
from pathlib import Path

import pytest

import shoal.tools
from tests.tidy.source import GROUP, nodes, tree

pytestmark = pytest.mark.xdist_group(GROUP)

ROOT = Path(shoal.tools.__file__).parent
GUARDED = {"fetch.py", "pinned.py"}
OF_THE_OWNER = {"mcp/transport.py"}  # opens only configured URLs, never one that a model chose
CLIENTS = {
    "aiohttp", "ftplib", "h11", "http", "httpcore", "httpcore2", "httpx", "httpx2", "requests", "smtplib", "socket",
    "ssl", "telnetlib", "urllib3", "websockets",
}  # fmt: skip
CALLS = {"urlopen", "open_connection", "create_connection", "getaddrinfo", "open_unix_connection"}


def reaches_out(module: ast.Module) -> list[str]:
    names: list[str] = []
    for node in nodes(module):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name.split(".")[0] in CLIENTS]
            names += [alias.name for alias in node.names if alias.name == "urllib.request"]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module] if node.module.split(".")[0] in CLIENTS or node.module == "urllib.request" else []
        elif isinstance(node, ast.Attribute) and node.attr in CALLS:
            names.append(node.attr)
    return names


def test_only_the_guarded_client_reaches_the_web() -> None:
    modules = {
        str(path.relative_to(ROOT)): reaches_out(tree(path))
        for path in ROOT.rglob("*.py")
        if path.name not in GUARDED and str(path.relative_to(ROOT)) not in OF_THE_OWNER
    }
    assert {name: reached for name, reached in modules.items() if reached} == {}


def test_a_network_connection_is_detected() -> None:
    assert reaches_out(ast.parse("import httpx2")) == ["httpx2"]
    assert reaches_out(ast.parse("from urllib.request import urlopen")) == ["urllib.request"]
    assert reaches_out(ast.parse("import asyncio\nasyncio.open_connection()")) == ["open_connection"]
