"""The contract of `shoal.kernel.ports.ChatAdapter`. It runs against every platform adapter.

    class TestMyAdapter(ChatContract):
        @pytest.fixture
        async def peer(self): ...  # yields a new Counterpart and stops it after the test

A `Counterpart` connects your adapter to a fake of its platform and acts as the people there. Add the features that
the platform does not have to `Counterpart.lacks`, and the suite skips their tests.
"""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import msgspec
import pytest

from shoal.kernel.agents import LISTENS, Listen
from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import parse_thread_id, thread_address
from shoal.kernel.messages import STOP_SIGNS, Deletion, Edit, Reaction, verdict_of
from shoal.kernel.posts import Button, OutboundPost
from shoal.kernel.webhooks import HttpAnswer
from shoal.markdown.pieces import pieces_of
from shoal.markdown.render import rendered_length
from shoal.store.cards import CARD_CALLS_MAX, LABEL_CHARS_MAX
from shoal.testing.clock import in_time
from shoal.testing.contracts.chat_inbound import ChatInbound
from shoal.testing.contracts.chat_order import ChatOrder
from shoal.testing.contracts.chat_outages import ChatOutages
from shoal.testing.contracts.chat_peer import WAIT_SECONDS, Inbox, Peer, needs, post, serving
from shoal.testing.contracts.chat_reach import ChatReach
from shoal.testing.model.speech import recording

_CLICK = '{"type":"block_actions","channel":{"id":"D1"},"message":{"ts":"1.1"},"actions":[{"value":"allow:1"}]}'
FORGED = f"payload={quote(_CLICK)}&x="
"""Form fields that an adapter would accept as a button click if it parsed the text of a message as a form."""
PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000000020001e221bc33"
    "0000000049454e44ae426082"
)
CHANGED_HEADERS: tuple[Mapping[str, str], ...] = (
    {},
    {"content-type": "application/x-www-form-urlencoded"},
    {"content-type": "application/json"},
    {"content-type": "text/plain; charset=utf-16"},
    {"idempotency-key": "other", "x-github-delivery": "other", "x-request-id": "other", "webhook-id": "other"},
    {"x-slack-retry-num": "1", "x-slack-retry-reason": "http_error", "date": "Thu, 01 Jan 1970 00:00:00 GMT"},
    {"content-encoding": "identity", "x-forwarded-for": "192.0.2.1"},
)
"""Headers that no signature covers. Anyone who captured a request can change them."""


def words(text: str) -> list[str]:
    """Return the words of a text, ignoring line breaks and zero-width spaces."""
    return text.replace("\u200b", "").split()


def shown_words(peer: Peer) -> list[str]:
    text = peer.shown()[-1].text
    return words(text) if peer.adapter.limits.markup is not None else read(text)


def read(markdown: str) -> list[str]:
    return words(markdown.replace("*", "").replace("~~", ""))


class ChatContract(ChatInbound, ChatOrder, ChatReach, ChatOutages):
    """Contract suite for a platform adapter. Subclass it and provide a `peer` fixture that yields a `Counterpart`."""

    @pytest.fixture
    async def inbox(self) -> Inbox:
        """Return the inbox that records the adapter's calls."""
        return Inbox()

    # ---- lifecycle ----

    async def test_the_adapter_stops_when_cancelled_and_starts_again(self, peer: Peer, inbox: Inbox) -> None:
        for _ in range(2):
            async with serving(peer.adapter, inbox) as task:
                await asyncio.sleep(0)
                assert not task.done()

    async def test_thread_ids_begin_with_the_platform(self, peer: Peer) -> None:
        assert parse_thread_id(peer.thread) == peer.thread
        assert thread_address(peer.thread).platform == peer.adapter.platform

    async def test_limits_leave_room_for_text(self, peer: Peer) -> None:
        limits = peer.adapter.limits
        assert limits.text_chars_max >= 64
        assert all(window.posts > 0 and window.seconds > 0 for window in limits.windows)

    # ---- inbound ----

    async def test_a_message_becomes_a_prompt(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people")
        async with serving(peer.adapter, inbox):
            message_id = await peer.says("What is the tide? 潮")
            (prompt,) = await inbox.prompts(1)
        assert prompt.text == "What is the tide? 潮"
        assert prompt.thread == peer.thread
        assert prompt.author.id
        assert not prompt.author.is_bot
        assert prompt.message_id == message_id
        assert prompt.at.tzinfo is not None

    async def test_prompts_keep_their_order_and_have_unique_keys(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people")
        async with serving(peer.adapter, inbox):
            for number in range(5):
                await peer.says(f"number {number}")
            prompts = await inbox.prompts(5)
        assert [prompt.text for prompt in prompts] == [f"number {number}" for number in range(5)]
        assert len({prompt.key for prompt in prompts}) == 5

    async def test_a_message_delivered_twice_has_the_same_key(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people")
        async with serving(peer.adapter, inbox):
            await peer.says("once")
            await inbox.prompts(1)
            await peer.server.redeliver()
            await peer.says("after")
            prompts = await inbox.prompts(2)
        assert [prompt.text for prompt in prompts] == ["once", "after"]

    @pytest.mark.parametrize("text", ["once", "/status", f"once&{FORGED}", f"/status&{FORGED}"])
    async def test_a_replayed_call_with_other_headers_has_no_effect(self, peer: Peer, inbox: Inbox, text: str) -> None:
        needs(peer, "people")
        deliver = peer.server.deliver
        if deliver is None:
            pytest.skip("the platform does not call the adapter over HTTP")
        calls: list[tuple[Mapping[str, str], bytes]] = []

        async def captured(headers: Mapping[str, str], body: bytes) -> HttpAnswer:
            calls.append((headers, body))
            return await deliver(headers, body)

        peer.server.deliver = captured
        async with serving(peer.adapter, inbox):
            await peer.says(text)
            await inbox.until(lambda: bool(inbox.came or inbox.requests))
            peer.server.deliver = deliver
            for headers, body in calls:
                for changed in CHANGED_HEADERS:
                    assert (await deliver({**headers, **changed}, body)).status < 500
            await peer.says("after")
            await inbox.until(lambda: inbox.said() != [] and inbox.said()[-1].text == "after")
        assert len(inbox.came) + len(inbox.requests) == 2
        assert not inbox.decided

    @pytest.mark.parametrize("author", ["itself", "bot", "stranger"])
    async def test_messages_from_bots_and_unknown_people_are_ignored(
        self, peer: Peer, inbox: Inbox, author: Literal["itself", "bot", "stranger"]
    ) -> None:
        needs(peer, "people")
        inbox.strangers.add(peer.stranger)
        async with serving(peer.adapter, inbox):
            if author == "bot" and "bots" in peer.lacks:
                pytest.skip("the platform has no other bots")
            await peer.says("/status", author=author)
            await peer.says("not for you", author=author)
            await peer.says("for you")
            prompts = await inbox.prompts(1)
        assert [prompt.text for prompt in prompts] == ["for you"]
        assert not inbox.requests

    @pytest.mark.parametrize(
        ("listen", "heard"),
        [("all", "plain named inside again"), ("named", "named again"), ("threads", "named inside again")],
    )
    async def test_a_channel_delivers_the_messages_that_its_binding_selects(
        self, peer: Peer, inbox: Inbox, listen: Listen, heard: str
    ) -> None:
        needs(peer, "people", "channels")
        inbox.listen = listen
        if listen == "threads" and "threads" in peer.lacks:
            heard = heard.replace("inside ", "")
        async with serving(peer.adapter, inbox):
            await peer.in_channel("plain")
            if "bots" not in peer.lacks:
                await peer.in_channel("from a bot", author="bot")
                await peer.in_channel("from a bot, to it", named=True, author="bot")
            asked = await peer.in_channel("named", named=True)
            await inbox.until(lambda: any(prompt.text == "named" for prompt in inbox.said()))
            await peer.in_channel("inside", inside=asked)
            await peer.in_channel("again", named=True)
            await inbox.until(lambda: inbox.said()[-1].text == "again")
        assert [prompt.text for prompt in inbox.said()] == heard.split()

    @pytest.mark.parametrize("listen", LISTENS)
    async def test_a_reply_to_the_bot_is_always_delivered(self, peer: Peer, inbox: Inbox, listen: Listen) -> None:
        needs(peer, "people", "channels", "answers")
        inbox.listen = listen
        async with serving(peer.adapter, inbox):
            asked = await peer.in_channel("named", named=True)
            (prompt,) = await inbox.prompts(1)
            made = await peer.adapter.post(OutboundPost(prompt.thread, "k1", "Six.", reply_to=asked))
            inbox.threads[made] = prompt.thread
            await peer.in_channel("and tomorrow?", inside=asked, answers=made)
            assert [prompt.text for prompt in await inbox.prompts(2)] == ["named", "and tomorrow?"]
        assert {prompt_seen.thread for prompt_seen in inbox.said()} == {prompt.thread}

    async def test_an_inbound_file_keeps_its_name(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people", "files_in")
        async with serving(peer.adapter, inbox):
            await peer.sends_file("tide table.txt", b"high at noon\n")
            (prompt,) = await inbox.prompts(1)
        (file,) = prompt.attachments
        assert file.name == "tide table.txt"
        assert file.error == ""
        assert await asyncio.to_thread(Path(file.path).read_bytes) == b"high at noon\n"

    async def test_a_command_is_not_a_prompt(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people")
        async with serving(peer.adapter, inbox):
            await peer.says("/stop all")
            await inbox.until(lambda: bool(inbox.requests))
        (asked,) = inbox.requests
        assert (asked.name, asked.argument, asked.thread) == ("stop", "all", peer.thread)
        assert asked.author.id
        assert not inbox.came

    async def test_an_edit_names_the_message_it_changes(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people", "edits")
        async with serving(peer.adapter, inbox):
            message_id = await peer.says("low tide")
            (prompt,) = await inbox.prompts(1)
            inbox.threads[message_id] = inbox.threads[prompt.key] = prompt.thread
            await peer.changes(message_id, "high tide")
            await inbox.until(lambda: len(inbox.came) > 1)
        (edit,) = inbox.came[1:]
        assert isinstance(edit, Edit)
        assert (edit.key, edit.thread, edit.text) == (prompt.key, prompt.thread, "high tide")
        assert edit.author.id == prompt.author.id

    async def test_a_deletion_names_the_message(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people", "deletions")
        async with serving(peer.adapter, inbox):
            message_id = await peer.says("never mind")
            (prompt,) = await inbox.prompts(1)
            inbox.threads[message_id] = inbox.threads[prompt.key] = prompt.thread
            await peer.deletes(message_id)
            await inbox.until(lambda: len(inbox.came) > 1)
        (deletion,) = inbox.came[1:]
        assert isinstance(deletion, Deletion)
        assert (deletion.key, deletion.thread) == (prompt.key, prompt.thread)

    async def test_a_reaction_names_its_message(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people", "reactions", "view")
        async with serving(peer.adapter, inbox):
            await peer.says("well?")
            await inbox.prompts(1)
            message_id = await peer.adapter.post(post(peer, "Let me see"))
            inbox.threads[message_id] = peer.thread
            await peer.reacts(message_id, "❌")
            await inbox.until(lambda: len(inbox.came) > 1)
        (reaction,) = inbox.came[1:]
        assert isinstance(reaction, Reaction)
        assert (reaction.message_id, reaction.thread) == (message_id, peer.thread)
        assert reaction.emoji in STOP_SIGNS

    @pytest.mark.parametrize(("emoji", "allow"), [("👍", True), ("👎", False)])
    async def test_a_reaction_decides_an_approval_and_a_late_one_is_answered(
        self, peer: Peer, inbox: Inbox, emoji: str, allow: bool
    ) -> None:
        needs(peer, "people", "reactions", "view")
        async with serving(peer.adapter, inbox):
            await peer.says("make it")
            await inbox.prompts(1)
            card = await peer.adapter.post(post(peer, "May I?", kind="card", buttons=(Button("Allow", "allow:1"),)))
            inbox.threads[card], inbox.reacted = peer.thread, "It was decided already."
            await peer.reacts(card, emoji)
            async with asyncio.timeout(WAIT_SECONDS):
                while not any("decided already" in text for text in peer.told()):
                    await in_time(peer.clock, inbox.until(lambda: len(inbox.came) > 1), 1)
        (reaction,) = inbox.came[1:]
        assert isinstance(reaction, Reaction)
        assert (reaction.message_id, reaction.thread, verdict_of(reaction.emoji)) == (card, peer.thread, allow)
        assert (reaction.author.id, reaction.trust) == (inbox.said()[0].author.id, "untrusted")

    # ---- outbound ----

    async def test_a_post_is_visible_and_has_an_id(self, peer: Peer) -> None:
        message_id = await peer.adapter.post(post(peer, "Low tide is at **six**."))
        assert message_id
        needs(peer, "view")
        assert [(shown.id, shown.text) for shown in peer.shown()] == [(message_id, "Low tide is at six.")]

    async def test_an_edit_changes_the_message(self, peer: Peer) -> None:
        if not peer.adapter.limits.can_edit:
            pytest.skip("the platform does not let bots edit messages")
        message_id = await peer.adapter.post(post(peer, "one"))
        await peer.adapter.edit(peer.thread, message_id, "two")
        await peer.adapter.edit(peer.thread, message_id, "two")
        needs(peer, "view")
        assert [shown.text for shown in peer.shown()] == ["two"]

    async def test_typing_is_harmless(self, peer: Peer) -> None:
        await peer.adapter.typing(peer.thread, "thinking")
        await peer.adapter.typing(peer.thread, "")

    async def test_the_longest_text_fits_in_one_post(self, peer: Peer) -> None:
        text = "x" * min(peer.adapter.limits.text_chars_max, 100_000)
        await peer.adapter.post(post(peer, text))
        needs(peer, "view")
        assert [shown.text for shown in peer.shown()] == [text]

    @pytest.mark.parametrize("text", ["**open", "`", "[a](b", "_*~[]()#+-=|{}.!\\", "漢字 🦈 <b>&", "# T\n- [x] a | b"])
    async def test_broken_markup_is_posted(self, peer: Peer, text: str) -> None:
        assert await peer.adapter.post(post(peer, text))

    @pytest.mark.parametrize(
        "text",
        [
            "See https://docs.example/pkg/__init__.py and https://wiki.example/Kelp_(x)_y, or src/pkg/__init__.py.",
            "请看 https://docs.example/a_b_c。然后问 keeper_of_tides@pier.example 或 @tide_keeper_two",
            "tide_table_2 in ~/my_dir/__x__ (https://docs.example/~ada/*/q?a_b=c_d&e=f)",
        ],
    )
    async def test_urls_and_paths_stay_unchanged(self, peer: Peer, text: str) -> None:
        needs(peer, "view")
        await peer.adapter.post(post(peer, text))
        assert shown_words(peer) == (words(text) if peer.adapter.limits.markup is not None else read(text))

    @pytest.mark.parametrize(
        ("text", "seen"),
        [
            ("**标题：**正文", "标题：正文"),
            ("这是*重点*内容，~~旧（x）~~新", "这是重点内容，旧（x）新"),
            ("un*believ*able and **“so”**한국어", "unbelievable and “so”한국어"),
        ],
    )
    async def test_emphasis_shows_no_marks_within_words(self, peer: Peer, text: str, seen: str) -> None:
        needs(peer, "view")
        await peer.adapter.post(post(peer, text))
        assert shown_words(peer) == (words(seen) if peer.adapter.limits.markup is not None else read(text))

    async def test_a_split_table_repeats_its_header_and_a_split_list_keeps_its_numbers(self, peer: Peer) -> None:
        needs(peer, "view")
        limits = msgspec.structs.replace(peer.adapter.limits, text_chars_max=400)
        rows = "\n".join(f"| tide{number} | 潮 {number} |" for number in range(12))
        items = "\n".join(
            f"{number}. **low ebb{number}** at [pier](https://docs.example/{number})" for number in range(12)
        )
        pieces = pieces_of(f"| tide | at |\n|---|---|\n{rows}\n\n{items}", limits)
        assert all(rendered_length(piece, limits) <= 400 for piece in pieces)
        for number, piece in enumerate(pieces):
            await peer.adapter.post(post(peer, piece, f"piece{number}"))
        texts = [shown.text for shown in peer.shown()]
        assert all("at" in text for text in texts if "潮" in text)
        numbers = [int(number) for text in texts for number in re.findall(r"\bebb(\d+)", text)]
        assert numbers == list(range(12))
        assert limits.markup is None or "**" not in "".join(texts)

    async def test_code_in_quotes_and_lists_keeps_its_indentation(self, peer: Peer) -> None:
        needs(peer, "view")
        if peer.adapter.limits.markup is None:
            pytest.skip("the platform shows Markdown as plain text")
        await peer.adapter.post(
            post(peer, "> ```py\n> if tide:\n>   go()\n> ```\n\n1. so:\n   ```\n   a\n     b\n   ```")
        )
        lines = peer.shown()[-1].text.splitlines()
        for code in (["if tide:", "  go()"], ["a", "  b"]):
            at = next(number for number, line in enumerate(lines) if line.endswith(code[0]))
            indent = lines[at].removesuffix(code[0])
            assert lines[at + 1] == indent + code[1]

    async def test_a_reply_names_the_message_it_answers(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people", "view", "replies")
        async with serving(peer.adapter, inbox):
            asked = await peer.says("well?")
            await inbox.prompts(1)
        await peer.adapter.post(post(peer, "well.", reply_to=asked))
        assert peer.shown()[-1].reply_to == asked

    async def test_a_file_is_sent_unchanged(self, peer: Peer, tmp_path: Path) -> None:
        if not peer.adapter.limits.can_upload:
            pytest.skip("the platform does not let bots send files")
        file = tmp_path / "tides.bin"
        file.write_bytes(bytes(range(256)) * 40)
        assert await peer.adapter.post(post(peer, "The table.", kind="file", file=file))
        needs(peer, "view")
        assert peer.shown()[-1].file == ("tides.bin", file.read_bytes())

    async def test_an_image_is_sent_as_an_image(self, peer: Peer, tmp_path: Path) -> None:
        if not peer.adapter.limits.can_upload:
            pytest.skip("the platform does not let bots send files")
        file = tmp_path / "chart.png"
        file.write_bytes(PICTURE)
        assert await peer.adapter.post(post(peer, "The tide.", kind="file", file=file))
        needs(peer, "view")
        (shown,) = peer.shown()
        assert (shown.text, shown.file) == ("The tide.", ("chart.png", PICTURE))
        assert shown.kind in ("", "image")

    async def test_several_files_are_one_message_if_the_platform_has_albums(self, peer: Peer, tmp_path: Path) -> None:
        count = peer.adapter.limits.album_max
        if not peer.adapter.limits.can_upload:
            pytest.skip("the platform does not let bots send files")
        if count < 2:
            pytest.skip("the platform has no albums")
        files = [tmp_path / f"chart-{number}.png" for number in range(count)]
        for number, file in enumerate(files):
            file.write_bytes(PICTURE + bytes([number]))
        first, *album = files
        assert await peer.adapter.post(post(peer, "The tides.", kind="file", file=first, album=tuple(album)))
        needs(peer, "view")
        (shown,) = peer.shown()
        assert shown.text == "The tides."
        assert (shown.file, *shown.album) == tuple((file.name, file.read_bytes()) for file in files)

    async def test_a_spoken_answer_can_be_played(self, peer: Peer, inbox: Inbox, tmp_path: Path) -> None:
        form = peer.adapter.limits.voice
        if not form:
            pytest.skip("the platform does not play audio")
        file = tmp_path / f"answer.{form}"
        file.write_bytes(recording("At six.", form))
        asked = ""
        if not peer.lacks & {"people", "replies"}:
            async with serving(peer.adapter, inbox):
                asked = await peer.says("well?")
                await inbox.prompts(1)
        assert await peer.adapter.post(post(peer, "", kind="voice", file=file, reply_to=asked))
        needs(peer, "view")
        shown = peer.shown()[-1]
        assert shown.file is not None
        assert shown.file[1] == file.read_bytes()
        assert shown.kind == ("voice" if form == "ogg" else "")
        assert (shown.text in ("", "…", shown.file[0]), shown.reply_to) == (True, asked)

    @pytest.mark.parametrize("key", ["café:reply:0", "鍵\r\nx: y\x7f", "k" * 5000, " "])
    async def test_an_idempotency_key_may_contain_any_character(self, peer: Peer, key: str) -> None:
        made = msgspec.structs.replace(post(peer, "High at noon."), key=key)
        assert await peer.adapter.post(made)
        if peer.adapter.limits.idempotent_posts:
            await peer.adapter.post(msgspec.structs.replace(made, maybe_posted=True))
        if "view" not in peer.lacks:
            assert [shown.text for shown in peer.shown()].count("High at noon.") == 1

    @pytest.mark.parametrize("name", ["café “潮”.txt", 'a\nb"c.txt', "n" * 250 + ".txt", "%2e%2e.txt"])
    async def test_a_file_name_may_contain_any_character(self, peer: Peer, tmp_path: Path, name: str) -> None:
        if not peer.adapter.limits.can_upload:
            pytest.skip("the platform does not let bots send files")
        file = tmp_path / name
        file.write_bytes(b"high at noon")
        assert await peer.adapter.post(post(peer, "The table.", kind="file", file=file))

    async def test_a_missing_file_fails_permanently(self, peer: Peer, tmp_path: Path) -> None:
        if not peer.adapter.limits.can_upload:
            pytest.skip("the platform does not let bots send files")
        needs(peer, "troubles")
        with pytest.raises(PlatformError) as caught:
            await peer.adapter.post(post(peer, "", kind="file", file=tmp_path / "gone"))
        assert caught.value.permanent

    async def test_a_click_decides_an_approval(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people", "view")
        if not peer.adapter.limits.has_buttons:
            pytest.skip("the platform has no buttons")
        approval = "01" + "K" * 24
        buttons = (Button("Allow", f"allow:{approval}"), Button("Deny", f"deny:{approval}"))
        async with serving(peer.adapter, inbox):
            message_id = await peer.adapter.post(post(peer, "May I?", kind="card", buttons=buttons))
            assert peer.shown()[-1].buttons == ("Allow", "Deny")
            await peer.clicks(message_id, "Deny")
            await inbox.until(lambda: bool(inbox.decided))
        ((decided, allow, by, scope),) = inbox.decided
        assert (decided, allow, scope) == (approval, False, "once")
        assert by.platform == peer.adapter.platform
        assert by.user

    async def test_an_approval_of_several_calls_can_be_ticked_and_decided(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people", "view")
        limits, card = peer.adapter.limits, "01" + "K" * 24
        if not limits.has_buttons or not limits.can_edit:
            pytest.skip("the platform has no buttons that a bot can change")
        calls = min(CARD_CALLS_MAX, limits.buttons_max - 2)
        label = "W" * LABEL_CHARS_MAX
        first = (Button(label, f"all:{card}"), Button("Choose", f"pick:{card}:{1:x}"), Button("Deny", f"none:{card}"))
        ticked = (1 << calls) - 1
        ticks = tuple(
            Button(f"☑ {number}: {label}"[:LABEL_CHARS_MAX], f"pick:{card}:{ticked ^ 1 << (number - 1):x}")
            for number in range(1, calls + 1)
        )
        last = (Button(f"Allow {calls}", f"take:{card}:{ticked:x}"), Button("Deny all", f"none:{card}"))
        async with serving(peer.adapter, inbox):
            message_id = await peer.adapter.post(post(peer, "May I?", kind="card", buttons=first))
            await peer.clicks(message_id, "Choose")
            await inbox.until(lambda: bool(inbox.chosen))
            await peer.adapter.edit(peer.thread, message_id, "May I?", ticks + last)
            assert peer.shown()[-1].buttons == tuple(button.label for button in ticks + last)
            await peer.clicks(message_id, f"Allow {calls}")
            await inbox.until(lambda: bool(inbox.decided_cards))
        assert inbox.chosen == [(card, (1,))]
        assert inbox.decided_cards == [(card, True, tuple(range(1, calls + 1)))]

    async def test_too_many_buttons_fail_permanently(self, peer: Peer) -> None:
        limits = peer.adapter.limits
        if not limits.has_buttons or limits.buttons_max >= 100:
            pytest.skip("the platform does not limit buttons per message")
        many = tuple(Button(str(number), f"x:{number}") for number in range(limits.buttons_max + 1))
        with pytest.raises(PlatformError) as caught:
            await peer.adapter.post(post(peer, "May I?", kind="card", buttons=many))
        assert caught.value.permanent

    # ---- history ----

    async def test_history_respects_its_limit(self, peer: Peer) -> None:
        assert len([prompt async for prompt in peer.adapter.history(peer.thread, None, 10)]) <= 10
