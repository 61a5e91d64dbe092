"""The servers of the fakes stop cleanly while clients are connecting."""

import asyncio
import gc
import socket

import pytest

from shoal.testing.model import FakeModel
from shoal.testing.platforms.wire import Answered, Called, LoopbackServer


async def nothing(called: Called) -> Answered:
    return Answered(200)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("kind", ["platform", "model"])
async def test_a_half_open_connection_is_closed_when_a_server_stops(kind: str, steps: int) -> None:
    """An open connection would make a later test fail with a warning from garbage collection."""
    server = LoopbackServer(nothing) if kind == "platform" else FakeModel()
    address = await server.start()
    _, _, port = address.rpartition(":")
    with socket.create_connection(("127.0.0.1", int(port))):
        for _ in range(steps):
            await asyncio.sleep(0)
        await server.stop()
    gc.collect()
