"""The chat contract for Matrix, against a fake homeserver."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contracts.matrix_peer import BEN, Matrix

from shoal.kernel.ids import make_thread_id
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat import ChatContract
from shoal.testing.contracts.chat_peer import Inbox, serving
from shoal.testing.platforms.matrix import FakeMatrix


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Matrix]:
    clock = ManualClock()
    server = FakeMatrix(clock)
    await server.start()
    counterpart = Matrix(tmp_path, server, clock)
    yield counterpart
    await counterpart.adapter.close()
    await server.stop()


class TestMatrix(ChatContract):
    """The contract in a room with only Ada and the bot."""


class TestMatrixThread(ChatContract):
    """The contract in a thread that the bot follows in a larger room."""

    @pytest.fixture
    async def peer(self, peer: Matrix) -> Matrix:
        peer.room = peer.server.add_room("@ada:harbour.example", BEN, name="harbour")
        peer.root = await peer.server.says(peer.room, "begin")
        peer.thread = make_thread_id("matrix", peer.room, peer.root)
        peer.kept.values["subscribed:matrix", peer.thread] = "1"
        peer.kept.values["matrix:matrix", "since"] = f"s{peer.server.world.position}"
        return peer


async def test_earlier_messages_are_shown_in_their_current_form(peer: Matrix) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        loose = await peer.in_channel("the buoy is loose")
        secret = await peer.in_channel("nobody should know")
        await peer.server.changes(peer.pier, loose, "the buoy is fast")
        await peer.server.deletes(peer.pier, secret)
        await peer.in_channel("what now?", named=True)
        (prompt,) = await inbox.prompts(1)
    assert [reference.text for reference in prompt.refers_to] == ["the buoy is fast"]
