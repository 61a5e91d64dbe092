"""How the Slack adapter posts: exactly-once delivery, streamed previews, files, ephemeral messages and channels."""

import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.contracts.slack_peer import CHANNEL, DIRECT, SECRET_ROOM, Slack, workspace

from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import make_thread_id, thread_address
from shoal.kernel.ports import ChannelHost, channel_names
from shoal.kernel.posts import WRITING, Button
from shoal.kernel.webhooks import HttpInbound
from shoal.testing.contracts.chat_peer import Inbox, post, serving
from shoal.testing.platforms.slack import STARTED_AT, FakeSlack
from shoal.testing.platforms.slack_methods import BOT
from shoal.testing.platforms.slack_wire import Room, Sent, refused
from shoal.testing.platforms.wire import Given


@pytest.fixture
async def server() -> AsyncIterator[FakeSlack]:
    fake = workspace()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def peer(tmp_path: Path, server: FakeSlack) -> AsyncIterator[Slack]:
    counterpart = Slack(tmp_path, server)
    yield counterpart
    await counterpart.adapter.close()


async def test_the_adapter_implements_the_ports(peer: Slack) -> None:
    assert isinstance(peer.adapter, HttpInbound)
    assert isinstance(peer.adapter, ChannelHost)


async def test_a_channel_is_found_by_its_name(peer: Slack) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        for number, channel in enumerate((CHANNEL, SECRET_ROOM, DIRECT, CHANNEL), 1):
            await peer.server.says(channel, f"<@{BOT}> hello")
            await inbox.prompts(number)
    names = {key[1]: value for key, value in peer.kept.values.items() if key[0] == channel_names("slack")}
    assert names == {CHANNEL: "#harbour", SECRET_ROOM: "#vault"}
    assert [name for name, _ in peer.server.calls].count("conversations.info") == 2


BOTS_OWN: Given = {"type": "message", "user": "UOTHERBOT", "bot_id": "BOTHER", "text": "tide", "ts": "1.1"}


ITEM: Given = {"type": "message", "channel": CHANNEL, "ts": "1.1"}
LEFT_OUT = ("ignored event", "unsupported event type")


@pytest.mark.parametrize(
    "event",
    [
        {"type": "message", "subtype": "message_changed", "channel": CHANNEL, "message": BOTS_OWN},
        {"type": "message", "channel": CHANNEL, **BOTS_OWN},
        {"type": "reaction_added", "user": "UOTHERBOT", "reaction": "x", "item": ITEM},
        {"type": "app_home_opened", "user": "UADA", "tab": "messages", "channel": DIRECT},
        {"type": "channel_rename", "channel": {"id": CHANNEL, "name": "pier"}},
        {"type": "channel_archive", "channel": CHANNEL, "user": "UADA"},
        {"type": "reaction_removed", "user": "UADA", "reaction": "x", "item": ITEM},
        {"type": "user_change", "user": {"id": "UADA"}},
    ],
    ids=lambda event: f"{event['type']} {event.get('subtype', '')}",
)  # fmt: skip
async def test_ignored_events_are_logged_once_per_kind(
    peer: Slack, caplog: pytest.LogCaptureFixture, event: Given
) -> None:
    caplog.set_level(logging.INFO)
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        for _ in range(3):
            await peer.server.happens(event)
        await peer.says("is it?")
        await inbox.prompts(1)
    records = [
        record
        for record in caplog.records
        if record.message == "ignored event" or "unsupported event type" in record.message
    ]
    assert len(records) == 1
    assert [prompt.text for prompt in inbox.said()] == ["is it?"]


# ---- exactly-once delivery ----


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_possibly_sent_post_is_looked_up_after_a_restart(peer: Slack, threaded: bool) -> None:
    if threaded:
        await peer.move_to_thread()
    peer.lose_answer()
    with pytest.raises(PlatformError):
        await peer.adapter.post(post(peer, "maybe"))
    again = peer.make()
    (standing,) = peer.shown()
    assert await again.post(post(peer, "maybe", maybe_posted=True)) == standing.id
    assert await again.post(post(peer, "another", key="k2:0", maybe_posted=True)) != standing.id
    await again.close()
    assert [message.text for message in peer.shown()] == ["maybe", "another"]


async def test_a_retried_post_is_marked_as_a_possible_duplicate_without_read_access(peer: Slack) -> None:
    peer.server.scopes_missing.add("history")
    peer.lose_answer()
    with pytest.raises(PlatformError):
        await peer.adapter.post(post(peer, "maybe"))
    await peer.adapter.post(post(peer, "maybe"))
    assert [message.text for message in peer.shown()] == ["maybe", "(possible duplicate)\nmaybe"]


@pytest.mark.parametrize("kind", ["text", "preview", "stream", "file"])
async def test_no_post_leaks_out_of_a_thread_with_a_deleted_root(peer: Slack, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "tides.txt"
    file.write_bytes(b"high at noon")
    async with serving(peer.adapter, Inbox()):
        if kind == "stream":
            await peer.move_to_thread()
            await peer.says("is it high?")
            asked = next(message for message in peer.server.messages if message.thread_ts == peer.root)
            await peer.server.until(lambda: peer.server.socket.pending == {})
            peer.server.messages.remove(asked)
        else:
            peer.thread, peer.root = peer.other, thread_address(peer.other).thread
        await peer.server.deletes(peer.root)
        key = "preview:k" if kind in ("preview", "stream") else "k"
        outbound = post(peer, "High at six.", key=key)
        if kind == "file":
            outbound = post(peer, "High at six.", kind="file", file=file)
        for _ in range(2):
            with pytest.raises(PlatformError) as caught:
                await peer.adapter.post(outbound)
            assert (caught.value.barred, caught.value.permanent) == (True, True)
    assert peer.server.said(CHANNEL) == []


async def test_a_misplaced_post_from_before_a_restart_is_deleted(peer: Slack) -> None:
    peer.thread = peer.other
    await peer.server.deletes(thread_address(peer.other).thread)
    peer.lose_answer()
    with pytest.raises(PlatformError):
        await peer.adapter.post(post(peer, "High at six."))
    assert [message.text for message in peer.server.said(CHANNEL)] == ["High at six."]
    again = peer.make()
    with pytest.raises(PlatformError) as caught:
        await again.post(post(peer, "High at six.", maybe_posted=True))
    await again.close()
    assert caught.value.barred
    assert peer.server.said(CHANNEL) == []


async def test_a_deleted_message_with_replies_keeps_its_thread(peer: Slack) -> None:
    peer.thread, root = peer.other, thread_address(peer.other).thread
    await peer.server.says(CHANNEL, "and tomorrow?", thread_ts=root)
    await peer.server.deletes(root)
    message_id = await peer.adapter.post(post(peer, "High at six."))
    assert peer.server.message(message_id).thread_ts == root


async def test_a_post_is_found_among_many_others(peer: Slack) -> None:
    peer.lose_answer()
    with pytest.raises(PlatformError):
        await peer.adapter.post(post(peer, "maybe"))
    for number in range(450):
        peer.server.keep(Sent(peer.server.stamp(), DIRECT, "UADA", f"number {number}"))
    await peer.adapter.post(post(peer, "maybe"))
    assert len(peer.shown()) == 1


async def test_a_file_is_shared_once(peer: Slack, tmp_path: Path) -> None:
    file = tmp_path / "tides.txt"
    file.write_text("high")
    peer.lose_answer()
    with pytest.raises(PlatformError) as caught:
        await peer.adapter.post(post(peer, "The table.", kind="file", file=file))
    assert caught.value.outcome_unknown
    again = peer.make()
    await again.post(post(peer, "The table.", kind="file", file=file, maybe_posted=True))
    await again.close()
    assert [message.text for message in peer.shown()] == ["The table."]


async def test_slack_unfurls_nothing_in_a_post(peer: Slack) -> None:
    await peer.adapter.post(post(peer, "see https://example.com/?secret=1"))
    (_, arguments), *_ = peer.server.calls
    assert (arguments["unfurl_links"], arguments["unfurl_media"]) == ("false", "false")


async def test_no_text_mentions_anyone_by_accident(peer: Slack) -> None:
    await peer.adapter.post(post(peer, "<!channel> look, <@UADA>, not `<@UBEA>`"))
    (_, arguments), *_ = peer.server.calls
    assert arguments["text"] == "&lt;!channel&gt; look, <@UADA>, not `&lt;@UBEA&gt;`"


# ---- rejected posts ----


@pytest.mark.parametrize(
    ("channel", "advice"),
    [("C09999999", "Invite the bot to the channel"), ("C00000003", "Invite the bot"), ("C00000004", "archived")],
)
async def test_a_channel_that_rejects_posts_is_reported(peer: Slack, channel: str, advice: str) -> None:
    peer.server.add_room(Room("C00000003", "elsewhere", "channel", ["UADA"]))
    peer.server.add_room(Room("C00000004", "old", "channel", [BOT], is_archived=True))
    with pytest.raises(PlatformError, match=advice) as caught:
        await peer.adapter.open_thread(channel, "hello")
    assert caught.value.barred


async def test_an_overlong_button_is_rejected_before_slack_sees_it(peer: Slack) -> None:
    for button in (Button("x" * 76, "allow:A"), Button("Allow", "x" * 2001)):
        with pytest.raises(PlatformError, match="button") as caught:
            await peer.adapter.post(post(peer, "May I?", buttons=(button,)))
        assert caught.value.permanent
    assert not peer.server.calls


async def test_the_longest_text_has_room_for_buttons(peer: Slack) -> None:
    buttons = (Button("Allow", "allow:A"), Button("Deny", "deny:A"))
    ts = await peer.adapter.post(post(peer, "x" * peer.adapter.limits.text_chars_max, buttons=buttons))
    await peer.adapter.edit(peer.thread, ts, "Allowed.")
    (message,) = peer.shown()
    assert (message.text, message.buttons) == ("Allowed.", ())


async def test_a_failing_platform_is_retried(peer: Slack) -> None:
    peer.server.failed = refused("service_unavailable").answer
    peer.server.troubles.append(("fail", 0.0))
    with pytest.raises(PlatformError) as caught:
        await peer.adapter.post(post(peer, "later"))
    assert not caught.value.permanent
    assert not caught.value.outcome_unknown
    assert not peer.shown()


# ---- ephemeral messages, status, streams ----


async def test_an_ephemeral_post_is_seen_by_one_person(peer: Slack) -> None:
    await peer.move_to_thread()
    await peer.adapter.post(post(peer, "only you", kind="ephemeral", user="UADA"))
    (message,) = peer.server.said(CHANNEL)
    assert (message.only_for, message.thread_ts) == ("UADA", peer.root)


async def test_a_status_is_shown_in_threads_and_not_repeated(peer: Slack) -> None:
    await peer.adapter.typing(peer.thread, "is thinking…")
    assert not peer.server.statuses
    await peer.move_to_thread()
    for _ in range(3):
        await peer.adapter.typing(peer.thread, "is thinking…")
    await peer.clock.advance(31)
    await peer.adapter.typing(peer.thread, "is thinking…")
    await peer.adapter.typing(peer.thread, "")
    shown = [status for _, _, status in peer.server.statuses]
    assert shown == ["is thinking…", "is thinking…", ""]


async def preview(peer: Slack, text: str) -> str:
    await peer.move_to_thread()
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.says("go")
        await inbox.prompts(1)
    return await peer.adapter.post(post(peer, text + WRITING, key="preview:T1"))


async def test_a_preview_is_streamed_and_replaced_by_the_answer(peer: Slack) -> None:
    ts = await preview(peer, "The **tide**")
    await peer.adapter.edit(peer.thread, ts, "The **tide** is" + WRITING)
    message = peer.server.message(ts)
    assert (message.text, message.streaming) == ("The **tide** is", True)
    await peer.adapter.edit(peer.thread, ts, "The **tide** is high.")
    assert (message.text, message.streaming) == ("The *tide* is high.", False)
    started = next(arguments for method, arguments in peer.server.calls if method == "chat.startStream")
    assert (started["recipient_user_id"], started["recipient_team_id"]) == ("UADA", "T1")


async def test_a_stream_that_slack_ended_continues_as_edits(peer: Slack) -> None:
    ts = await preview(peer, "one")
    peer.server.message(ts).streaming = False
    for text in ("one two" + WRITING, "one two three" + WRITING, "one two three four"):
        await peer.adapter.edit(peer.thread, ts, text)
        assert peer.server.message(ts).text == text


async def test_a_preview_that_starts_again_is_edited(peer: Slack) -> None:
    ts = await preview(peer, "first thought")
    await peer.adapter.edit(peer.thread, ts, "second" + WRITING)
    message = peer.server.message(ts)
    assert (message.text, message.streaming) == ("second" + WRITING, False)


async def test_a_stream_from_before_a_restart_is_ended_by_the_answer(peer: Slack) -> None:
    ts = await preview(peer, "The tide")
    again = peer.make()
    await again.edit(peer.thread, ts, "The tide is high.")
    await again.close()
    message = peer.server.message(ts)
    assert (message.text, message.streaming) == ("The tide is high.", False)


async def test_a_preview_continues_the_stream_of_a_killed_process(peer: Slack) -> None:
    ts = await preview(peer, "The tide")
    again = peer.make()
    assert await again.post(post(peer, "The tide is" + WRITING, key="preview:T1", maybe_posted=True)) == ts
    await again.edit(peer.thread, ts, "The tide is high.")
    assert await again.post(post(peer, "Another" + WRITING, key="preview:T2")) != ts
    await again.close()
    assert [message.text for message in peer.shown()] == ["The tide is high.", "Another" + WRITING]


async def test_previews_are_edited_where_slack_does_not_stream(peer: Slack) -> None:
    peer.server.streaming_offered = False
    ts = await preview(peer, "The tide")
    assert peer.server.message(ts).text == "The tide" + WRITING
    await peer.adapter.post(post(peer, "more" + WRITING, key="preview:T2"))
    assert [method for method, _ in peer.server.calls].count("chat.startStream") == 1


async def test_an_idle_stream_is_closed_and_shows_its_whole_text(peer: Slack) -> None:
    ts = await preview(peer, "and so on")
    async with serving(peer.adapter, Inbox()):
        await peer.adapter.connected.wait()
        await peer.clock.sleepers(1)
        await peer.clock.advance(121)
        await peer.server.until(lambda: not peer.server.message(ts).streaming and peer.server.message(ts).edits > 0)
    assert peer.server.message(ts).text == "and so on" + WRITING


# ---- incoming files ----


async def test_only_slack_receives_the_token(peer: Slack) -> None:
    inbox = Inbox()
    file = peer.server.new_file("plan.txt", 4, "UADA")
    peer.server.files[file] |= {"is_external": False, "url_private_download": "http://127.0.0.1:9/plan.txt"}
    other = peer.server.new_file("sheet", 4, "UADA")
    peer.server.files[other] |= {"is_external": True}
    async with serving(peer.adapter, inbox):
        await peer.server.says(DIRECT, "see", files=(file, other))
        (prompt,) = await inbox.prompts(1)
    assert all("outside Slack" in attachment.error for attachment in prompt.attachments)


async def test_an_oversized_file_is_named_but_not_fetched(peer: Slack) -> None:
    inbox = Inbox()
    file = peer.server.new_file("film.mp4", 26_214_401, "UADA")
    async with serving(peer.adapter, inbox):
        await peer.server.says(DIRECT, "", files=(file,))
        (prompt,) = await inbox.prompts(1)
    assert (prompt.attachments[0].name, prompt.attachments[0].path) == ("film.mp4", "")
    assert "Shoal downloads at most" in prompt.attachments[0].error


async def test_a_file_is_not_fetched_for_an_untrusted_person(peer: Slack) -> None:
    inbox = Inbox()
    inbox.strangers.add("USTRANGER")
    file = peer.server.new_file("bomb.txt", 4, "USTRANGER")
    peer.server.contents[file] = b"boom"
    async with serving(peer.adapter, inbox):
        await peer.server.says(DIRECT, "open it", user="USTRANGER", files=(file,))
        await peer.says("after")
        assert [prompt.text for prompt in await inbox.prompts(1)] == ["after"]
    assert not peer.home.attachments(peer.thread).exists()


# ---- history and channels ----


@pytest.mark.parametrize("threaded", [False, True])
async def test_history_lists_other_peoples_messages_oldest_first(peer: Slack, threaded: bool) -> None:
    if threaded:
        await peer.move_to_thread()
    async with serving(peer.adapter, Inbox()):
        await peer.adapter.connected.wait()
    before = len(peer.server.messages)
    for number in range(5):
        await peer.says(f"number {number}")
        await peer.says("mine", author="itself")
    await peer.says("an alert", author="bot")
    prompts = [prompt async for prompt in peer.adapter.history(peer.thread, None, 7)]
    assert [prompt.text for prompt in prompts] == ["number 2", "number 3", "number 4", "an alert"]
    assert [prompt.author.is_bot for prompt in prompts] == [False, False, False, True]
    assert {prompt.thread for prompt in prompts} == {peer.thread}
    third = peer.server.messages[before + 4]
    after = peer.clock.now() + timedelta(seconds=float(third.ts) - STARTED_AT)
    later = [prompt.text async for prompt in peer.adapter.history(peer.thread, after, 9)]
    assert later == ["number 3", "number 4", "an alert"]


async def test_a_channel_created_next_to_a_private_one_has_the_same_members(peer: Slack) -> None:
    async with serving(peer.adapter, Inbox()):
        await peer.adapter.connected.wait()
    channel = await peer.adapter.create_channel("Tide Table!", SECRET_ROOM)
    again = await peer.adapter.create_channel("Tide Table!", CHANNEL)
    first, second = peer.server.rooms[channel], peer.server.rooms[again]
    assert (first.name, first.kind, sorted(first.members)) == ("tide-table", "private", ["UADA", "UBEA", BOT])
    assert (second.name, second.kind, second.members) == ("tide-table-2", "channel", [BOT])


async def test_an_archived_channel_counts_as_missing(peer: Slack) -> None:
    assert await peer.adapter.has_channel(CHANNEL)
    assert await peer.adapter.has_channel(DIRECT)
    assert not await peer.adapter.has_channel("C09999999")
    peer.server.rooms[CHANNEL].is_archived = True
    assert not await peer.adapter.has_channel(CHANNEL)


async def test_a_thread_can_be_opened_with_a_person(peer: Slack) -> None:
    assert await peer.adapter.open_thread("UADA", "hello") == make_thread_id("slack", DIRECT, "0")
    assert [message.text for message in peer.shown()] == ["hello"]
