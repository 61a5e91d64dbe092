"""What a chat adapter's contract says of whom it reaches: places that take no posts, and what is meant for the bot."""

import pytest

from shoal.domain.errors import PlatformError
from shoal.domain.posts import HasAround, OutboundPost
from shoal.testing.contracts.chat_peer import Inbox, Peer, serving

TIDE = "High tide is at six."


class ChatReach:
    """Mixed into the contract."""

    @pytest.mark.parametrize("gone", [False, True])
    async def test_a_barred_thread_lies_in_a_chat_that_takes_posts(self, peer: Peer, inbox: Inbox, gone: bool) -> None:
        async with serving(peer.adapter, inbox):
            thread = await peer.bars("thread", gone=gone)
            with pytest.raises(PlatformError) as caught:
                await peer.adapter.post(OutboundPost(thread, "k", TIDE))
            assert caught.value.barred, str(caught.value)
            assert isinstance(peer.adapter, HasAround)
            around = peer.adapter.around(thread)
            assert around is not None
            assert peer.adapter.around(around) is None
            await peer.adapter.post(OutboundPost(around, "k", TIDE))
            assert TIDE in peer.around()

    async def test_a_closed_chat_may_open_again(self, peer: Peer, inbox: Inbox) -> None:
        """So what was to be posted there is kept."""
        async with serving(peer.adapter, inbox):
            thread = await peer.bars("chat")
            with pytest.raises(PlatformError) as caught:
                await peer.adapter.post(OutboundPost(thread, "k", TIDE))
            assert (caught.value.barred, caught.value.permanent) == (True, False), str(caught.value)
            peer.server.barred.clear()
            assert await peer.adapter.post(OutboundPost(thread, "k", TIDE))
