"""The chat contract for Microsoft Teams, and rules specific to Teams: signed activities, cards and file consent."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.contracts.teams_peer import CHANNEL, DIRECT, GROUP, Teams

from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import thread_address
from shoal.kernel.posts import OutboundPost
from shoal.platforms.teams.wire import TeamsActivity, TeamsConversation, conversation_of, thread_of
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat import ChatContract
from shoal.testing.contracts.chat_peer import Inbox, serving
from shoal.testing.platforms.teams import APP_ID, FakeTeams, Json
from shoal.testing.platforms.tokens import signer


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Teams]:
    clock = ManualClock()
    server = FakeTeams(clock)
    await server.start()
    server.add(DIRECT, "personal")
    server.add(GROUP, "groupChat")
    server.add(CHANNEL, "channel")
    counterpart = Teams(tmp_path, server, clock)
    yield counterpart
    await counterpart.adapter.close()
    await server.stop()


class TestTeams(ChatContract):
    async def test_a_file_is_sent_unchanged(self, peer: Teams, inbox: Inbox, tmp_path: Path) -> None:  # pyrefly: ignore[bad-override]
        """Teams uploads a file only after the person accepts it."""
        file = tmp_path / "tides.bin"
        file.write_bytes(bytes(range(256)) * 40)
        async with serving(peer.adapter, inbox):
            await peer.says("the table, please")
            await inbox.prompts(1)
            offered = await peer.adapter.post(OutboundPost(peer.thread, "k1", "The table.", "file", file))
            assert [message.text for message in peer.shown()] == ["The table.", "tides.bin"]
            assert (await peer.server.accepts(offered)).status == 200
        assert peer.shown()[-1].file == ("tides.bin", file.read_bytes())


class TestTeamsGroup(ChatContract):
    """The contract in a group chat, which has several people and no threads."""

    @pytest.fixture
    async def peer(self, peer: Teams) -> Teams:
        peer.place = GROUP
        peer.lacks = frozenset({"polls", "threads", "bots_heard"})
        return peer

    @pytest.mark.skip(reason="bots send files in direct chats alone there, and say so elsewhere")
    async def test_a_file_is_sent_unchanged(self) -> None:  # pyrefly: ignore[bad-override]
        ...


# ---- callers ----


async def answered(peer: Teams, headers: Mapping[str, str], **more: Json) -> int:
    activity = peer.server.activity("message", DIRECT, "ada", "", **{"text": "hi", **more})
    return (await peer.adapter.receive(headers, msgspec.json.encode(activity))).status


async def test_only_activities_that_teams_signed_for_this_bot_are_accepted(peer: Teams) -> None:
    inbox, url = Inbox(), peer.server.service_url
    sign = peer.server.signed
    stranger = signer("teams-1")._replace(key=signer("stranger").key)
    async with serving(peer.adapter, inbox):
        await peer.ready()
        now = int(peer.clock.now().timestamp())
        for headers in (
            {},
            {"authorization": "Bearer x.y.z"},
            {"authorization": f"Bearer {'x' * 20_000}"},
            sign(service_url=url, by=stranger),
            sign(service_url=url, by=signer("unknown")),
            sign(service_url=url, aud="another-bot"),
            sign(service_url=url, iss="https://sts.windows.net/d6d49420/"),
            sign(service_url=url, exp=now - 301),
            sign(service_url=url, nbf=now + 301),
            sign(service_url="https://evil.example/"),
            {"authorization": f"Bearer {signer('teams-1').token({'aud': APP_ID}, algorithm='HS256')}"},
        ):
            assert await answered(peer, headers) == 401
        assert await answered(peer, sign(service_url=url), channelId="webchat") == 401
        assert not inbox.came
        assert await answered(peer, sign(service_url=url)) == 200
    assert len(inbox.came) == 1


async def test_no_token_is_sent_to_an_untrusted_service(peer: Teams) -> None:
    evil = "https://evil.example/service/"
    assert await answered(peer, peer.server.signed(service_url=evil), serviceUrl=evil) == 401
    await peer.kept.put("service:teams", DIRECT, f'{{"service_url":"{evil}"}}')
    with pytest.raises(PlatformError, match=r"evil\.example.*service_hosts"):
        await peer.adapter.post(OutboundPost(peer.thread, "k1", "hi"))


async def test_rotated_keys_are_fetched_and_old_ones_survive_an_outage(peer: Teams) -> None:
    inbox, url = Inbox(), peer.server.service_url
    async with serving(peer.adapter, inbox):
        await peer.ready()
        assert await answered(peer, peer.server.signed(service_url=url)) == 200
        peer.server.published = (signer("teams-2"),)
        rotated = peer.server.signed(service_url=url, by=signer("teams-2"))
        assert await answered(peer, rotated) == 401  # the adapter fetches keys again only after a pause
        peer.clock.skip(61)
        assert await answered(peer, rotated) == 200
        await peer.server.stop()
        peer.clock.skip(86_500)
        assert await answered(peer, peer.server.signed(service_url=url, by=signer("teams-2"))) == 200
        await peer.server.start()


async def test_unsigned_activities_are_only_accepted_from_a_local_emulator(peer: Teams) -> None:
    inbox = Inbox()
    assert await answered(peer, {}) == 401
    peer.adapter = peer.make(emulator=True)
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        assert await answered(peer, {}, serviceUrl="https://smba.trafficmanager.net/teams/") == 401
        assert await answered(peer, {}) == 200


async def test_another_organization_is_rejected(peer: Teams) -> None:
    peer.adapter = peer.make(tenant="22222222-2222-2222-2222-222222222222")
    assert await answered(peer, peer.server.signed(service_url=peer.server.service_url)) == 401


# ---- mentions and threads ----


async def test_a_group_is_answered_on_mention_and_commands_privately(peer: Teams) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.ready()
        await peer.server.says(GROUP, "not for you")
        await peer.server.says(GROUP, "look", named=True)
        (prompt,) = await inbox.prompts(1)
        await peer.server.says(GROUP, "/status", named=True)
    assert (prompt.text, prompt.direct, len(inbox.said())) == ("look", False, 1)
    assert [message.text for message in peer.server.said("a:aad-ada")] == ["Did /status."]
    assert not peer.server.said(GROUP)


async def test_an_author_can_be_mentioned_by_name(peer: Teams) -> None:
    async with serving(peer.adapter, Inbox()):
        await peer.says("hello")
        await peer.adapter.post(OutboundPost(peer.thread, "k1", "<at>Ada</at> and <at>Bob</at>: <b>look</b>"))
    (message,) = peer.server.said(DIRECT)
    assert message.text == "@Ada and <at>Bob</at>: <b>look</b>"
    assert message.entities == [
        {"type": "mention", "text": "<at>Ada</at>", "mentioned": {"id": "29:ada", "name": "Ada"}}
    ]


async def test_a_thread_is_opened_in_a_channel(peer: Teams) -> None:
    thread = await peer.adapter.open_thread(CHANNEL, "The tide turns")
    await peer.adapter.post(OutboundPost(thread, "k1", "now"))
    first, second = peer.server.said(CHANNEL)
    assert (first.conversation, second.conversation) == (f"{CHANNEL};messageid={first.id}",) * 2


async def test_a_picture_is_shown_and_opened_with_the_token(peer: Teams, tmp_path: Path) -> None:
    inbox, file = Inbox(), tmp_path / "tide.png"
    file.write_bytes(b"\x89PNG" * 9000)
    async with serving(peer.adapter, inbox):
        await peer.ready()
        await peer.server.sends_file(DIRECT, "", b"\x89PNG", picture=True)
        (prompt,) = await inbox.prompts(1)
    assert (prompt.attachments[0].error, prompt.attachments[0].size_bytes) == ("", 4)
    await peer.adapter.post(OutboundPost(peer.thread, "k1", "", "file", file))
    assert peer.server.said(DIRECT)[-1].file == ("tide.png", file.read_bytes())


async def test_a_declined_file_is_not_uploaded_and_an_accepted_one_only_once(peer: Teams, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"x")
    async with serving(peer.adapter, Inbox()):
        await peer.says("the file?")
        first = await peer.adapter.post(OutboundPost(peer.thread, "k1", "", "file", file))
        second = await peer.adapter.post(OutboundPost(peer.thread, "k2", "", "file", file))
        await peer.server.accepts(first, accepted=False)
        for _ in range(2):
            await peer.server.accepts(second)
    assert [message.file for message in peer.server.said(DIRECT) if message.file] == [("a.txt", b"x")]


async def test_a_file_accepted_without_an_upload_url_stays_offered(peer: Teams, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"x")
    async with serving(peer.adapter, Inbox()):
        await peer.says("the file?")
        offered = await peer.adapter.post(OutboundPost(peer.thread, "k1", "", "file", file))
        value = {"type": "fileUpload", "context": {"shoal": peer.server.message(offered).offer}, "action": "accept"}
        for place in ({}, {"uploadInfo": 5}, {"uploadInfo": None}):
            invoke = peer.server.activity(
                "invoke", DIRECT, "ada", "", name="fileConsent/invoke", value={**value, **place}
            )
            assert (await peer.server.tells(invoke)).status == 200
            assert "Sending the file failed" in peer.server.said(DIRECT)[-1].text
        await peer.server.accepts(offered)
    assert [message.file for message in peer.server.said(DIRECT) if message.file] == [("a.txt", b"x")]


async def test_a_revoked_token_is_renewed(peer: Teams) -> None:
    await peer.adapter.post(OutboundPost(peer.thread, "k1", "one"))
    peer.server.forget_tokens()
    await peer.adapter.post(OutboundPost(peer.thread, "k2", "two"))
    assert [message.text for message in peer.shown()] == ["one", "two"]


@given(st.text(min_size=1, max_size=40), st.text("0123456789", min_size=1, max_size=15))
def test_thread_ids_identify_the_conversation(channel: str, root: str) -> None:
    assume(";messageid=" not in channel)
    activity = TeamsActivity(conversation=TeamsConversation(f"{channel};messageid={root}"))
    address = thread_address(thread_of("teams", activity))
    assert conversation_of(address.channel, address.thread) == activity.conversation.id or root == "0"


@pytest.mark.parametrize("accepted", [True, False])
async def test_the_file_consent_card_is_removed_after_use(peer: Teams, tmp_path: Path, accepted: bool) -> None:
    file = tmp_path / "tide.bin"
    file.write_bytes(b"high")
    async with serving(peer.adapter, Inbox()):
        await peer.says("hello")
        offered = await peer.adapter.post(OutboundPost(peer.thread, "k", "", kind="file", file=file))
        await peer.server.accepts(offered, accepted=accepted)
    assert offered not in [message.id for message in peer.server.messages]
    assert [message.file for message in peer.server.said(DIRECT) if message.file] == (
        [("tide.bin", b"high")] if accepted else []
    )


@pytest.mark.parametrize("count", [1, 3])
async def test_a_file_in_a_channel_is_mentioned_although_teams_withholds_it(peer: Teams, count: int) -> None:
    """In a channel, Teams does not send the file itself, only a placeholder in the message's HTML."""
    inbox = Inbox()
    places = "".join(f'<attachment id="00-{number}"></attachment>' for number in range(count))
    page: Json = {"contentType": "text/html", "content": f"<div><at>Shoal</at> see{places}</div>"}
    async with serving(peer.adapter, inbox):
        await peer.ready()
        await peer.server.says(CHANNEL, "see", named=True, attachments=[page])
        (prompt,) = await inbox.prompts(1)
    assert prompt.text == "see"
    assert [(file.name, "Bots cannot download files from Teams" in file.error) for file in prompt.attachments] == [
        ("a file", True)
    ] * count
