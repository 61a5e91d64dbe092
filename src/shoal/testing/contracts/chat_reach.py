"""Contract tests for chats that refuse posts, chats that get a new id, and messages that mention the bot."""

import logging

import pytest

from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import channel_of
from shoal.kernel.messages import Edit
from shoal.kernel.ports import OwnerNotifier
from shoal.kernel.posts import HasAround, OutboundPost
from shoal.platforms.account import MOVED
from shoal.testing.contracts.chat_peer import Inbox, Peer, needs, serving

TIDE = "High tide is at six."


class ChatReach:
    """Tests of refused posts, moved chats and mentions, mixed into `ChatContract`."""

    @pytest.mark.parametrize("gone", [False, True])
    async def test_a_closed_threads_channel_still_accepts_posts(self, peer: Peer, inbox: Inbox, gone: bool) -> None:
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
            assert list(peer.around()).count(TIDE) == 1

    async def test_a_closed_chat_may_open_again(self, peer: Peer, inbox: Inbox) -> None:
        async with serving(peer.adapter, inbox):
            thread = await peer.bars("chat")
            with pytest.raises(PlatformError) as caught:
                await peer.adapter.post(OutboundPost(thread, "k", TIDE))
            assert (caught.value.barred, caught.value.permanent) == (True, False), str(caught.value)
            peer.server.barred.clear()
            assert await peer.adapter.post(OutboundPost(thread, "k", TIDE))

    async def test_a_mention_added_by_an_edit_starts_one_turn(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people", "channels", "edits")
        async with serving(peer.adapter, inbox):
            wrote = await peer.in_channel("is the tide high?")
            await peer.names_by_edit(wrote, "is the tide high or low?")
            (prompt,) = await inbox.prompts(1)
            await peer.server.redeliver()
            await peer.names_by_edit(wrote, "is the tide high, or is it low?")
            await inbox.until(lambda: any(isinstance(event, Edit) for event in inbox.came))
        assert prompt.text == "is the tide high or low?"
        assert [prompt_seen.text for prompt_seen in inbox.said()] == [prompt.text]
        assert not any("is the tide high?" in reference.text for reference in prompt.refers_to), (
            "a message is not part of its own context"
        )

    async def test_a_longer_name_is_not_a_mention_of_the_bot(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people", "channels")
        async with serving(peer.adapter, inbox):
            await peer.resembles("what now?")
            await peer.in_channel("is it?", named=True)
            (prompt,) = await inbox.prompts(1)
        assert prompt.text == "is it?"

    async def test_an_alert_of_another_app_is_untrusted_context(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people", "channels", "before", "bots", "bots_heard")
        async with serving(peer.adapter, inbox):
            await peer.alerts("ALERT: disk full on db1")
            await peer.in_channel("why?", named=True)
            (prompt,) = await inbox.prompts(1)
        reference = prompt.refers_to[-1]
        assert (reference.kind, reference.author.trusted, reference.author.is_bot) == ("before", False, True)
        assert "ALERT: disk full on db1" in reference.text

    async def test_ignored_messages_are_logged_once(
        self, peer: Peer, inbox: Inbox, caplog: pytest.LogCaptureFixture
    ) -> None:
        needs(peer, "people", "channels", "bots")
        caplog.set_level(logging.INFO)
        async with serving(peer.adapter, inbox):
            for _ in range(3):
                await peer.in_channel("The tide is in.", author="bot")
            await peer.in_channel("is it?", named=True)
            await inbox.prompts(1)
        assert [record.message for record in caplog.records].count("ignored event") == 1

    async def test_an_encrypted_message_is_delivered_once_when_its_key_arrives(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people")
        await peer.seals("is the tide high?")
        async with serving(peer.adapter, inbox):
            await peer.says("in the clear")
            await inbox.prompts(1)
        await peer.hands_keys()
        async with serving(peer.adapter, inbox):
            await inbox.prompts(2)
            await peer.says("thanks")
            prompts = await inbox.prompts(3)
        assert [prompt.text for prompt in prompts] == ["in the clear", "is the tide high?", "thanks"]
        assert {prompt.thread for prompt in prompts} == {peer.thread}

    async def test_an_anonymous_channel_post_that_mentions_the_bot_is_delivered(self, peer: Peer, inbox: Inbox) -> None:
        """The author of an anonymous post is the channel, so the post does not count as the owner's."""
        needs(peer, "people", "channels")
        async with serving(peer.adapter, inbox):
            await peer.announces("The tide is in.")
            await peer.announces("how high?", named=True)
            (prompt,) = await inbox.prompts(1)
            assert await peer.adapter.post(OutboundPost(prompt.thread, "k", TIDE))
        assert (prompt.text, prompt.direct, prompt.author.trusted) == ("how high?", False, False)
        assert [reference.text for reference in prompt.refers_to] == ["The tide is in."]

    @pytest.mark.parametrize("in_other_order", [False, True])
    async def test_a_chat_continues_under_a_new_id(self, peer: Peer, inbox: Inbox, in_other_order: bool) -> None:
        """Thread ids stay the same, even after a restart. The chat and the owner each get one notice."""
        needs(peer, "people", "channels")
        texts: list[str] = []

        async def tell(text: str) -> None:
            texts.append(text)

        assert isinstance(peer.adapter, OwnerNotifier)
        peer.adapter.notify_owner = tell
        async with serving(peer.adapter, inbox):
            await peer.in_channel("is the tide high?", named=True)
            (before,) = await inbox.prompts(1)
            await peer.moves(in_other_order=in_other_order)
            await peer.in_channel("and now?", named=True)
            after = (await inbox.prompts(2))[-1]
            await peer.adapter.post(OutboundPost(after.thread, "k", TIDE))
        assert channel_of(after.thread) == channel_of(before.thread)
        assert after.key != before.key
        assert [TIDE in text for text in peer.around()].count(True) == 1
        assert [text for text in peer.around() if MOVED in text] == [MOVED]
        assert len(texts) == 1
