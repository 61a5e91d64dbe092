"""A server that runs elsewhere, over streamable HTTP: its tools come and go with it, and the token goes along."""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.unit.tools.mcp_servers.stand import configured, connected

from shoal.domain.secret import Secret
from shoal.tools.mcp.transport import McpServer

pytest.importorskip("mcp", reason="the extra mcp is not installed")
PROGRAM = Path(__file__).with_name("http_server.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def serving(port: int) -> AsyncGenerator[None]:
    """The server in a process of its own, until the block ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), str(port), "the-token", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        await process.wait()


def scales(port: int, token: str = "the-token") -> McpServer:
    headers = {"Authorization": Secret("value", f"Bearer {token}")}
    return configured("scales", url=f"http://127.0.0.1:{port}/mcp", headers=headers, timeout_seconds=10)


@pytest.mark.slow
async def test_its_tools_come_and_go_with_it(tmp_path: Path) -> None:
    port = free_port()
    async with connected(tmp_path, scales(port)) as stand:
        await stand.becomes("down")
        async with serving(port):
            await stand.clock.advance_to_next()
            assert (await stand.becomes("up")).tools == ("mcp_scales_weigh",)
            output = await stand.call("mcp_scales_weigh", '{"name": "pear", "grams": 7}')
            assert "pear: 7 g" in output.text
            assert output.tainted_by == "mcp:scales"
        await stand.clock.advance_to_next()
        await stand.becomes("lost")
        await stand.becomes("down")
        assert stand.registry.names() == ()


@pytest.mark.slow
async def test_a_refused_token_is_a_state_that_does_not_tell_it(tmp_path: Path) -> None:
    port = free_port()
    async with serving(port), connected(tmp_path, scales(port, "another-token")) as stand:
        state = await stand.becomes("down")
    assert "another-token" not in state.why
