"""Behavior specific to IRC: signing in, nicks, identities, and protection against line injection."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from irc_server import FakeIrc, Person
from shoal_irc.wire import LINE_BYTES_MAX, MASK_BYTES_MAX, parse, pieces, plain, written
from test_contract import Irc

from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import make_thread_id
from shoal.kernel.posts import OutboundPost
from shoal.kernel.secret import NO_SECRET
from shoal.testing.contracts.chat_peer import Inbox, serving

Start = Callable[..., AbstractAsyncContextManager[tuple[Irc, Inbox]]]


@pytest.fixture
async def server() -> AsyncIterator[FakeIrc]:
    made = FakeIrc()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def start(server: FakeIrc, tmp_path: Path) -> Start:
    @asynccontextmanager
    async def started(**settings: object) -> AsyncGenerator[tuple[Irc, Inbox]]:
        peer, inbox = Irc(tmp_path, server, **settings), Inbox()
        async with serving(peer.adapter, inbox):
            await peer.adapter.connected.wait()
            yield peer, inbox

    return started


async def test_sasl_sign_in_happens_before_the_welcome(start: Start, server: FakeIrc) -> None:
    async with start(join=("#harbour",)):
        await server.until(lambda: "JOIN #harbour" in server.lines or None)
    assert server.lines.index("AUTHENTICATE PLAIN") < server.lines.index("CAP END")


async def test_nickserv_sign_in_happens_only_on_request(start: Start, server: FakeIrc) -> None:
    server.capabilities = ""
    async with start(login="nickserv"):
        line = "PRIVMSG NickServ :IDENTIFY shoal-account hunter2"
        await server.until(lambda: line in server.lines or None)


async def test_without_sasl_no_password_is_sent(server: FakeIrc, tmp_path: Path) -> None:
    server.capabilities = "message-tags"
    peer = Irc(tmp_path, server)
    async with serving(peer.adapter, Inbox()):
        await peer.adapter.failed.wait()
        assert 'login = "nickserv"' in peer.adapter.failure
    assert not any("hunter2" in line for line in server.lines)


async def test_a_taken_nick_is_extended(start: Start, server: FakeIrc) -> None:
    server.taken = {"shoal"}
    async with start() as (_, inbox):
        await server.says("#harbour", "shoal_: hi")
        (prompt,) = await inbox.prompts(1)
    assert prompt.text == "hi"


async def test_the_nick_addresses_the_bot_in_a_channel(start: Start, server: FakeIrc) -> None:
    async with start() as (_, inbox):
        for text in ("just talk", "shoaling is fun", "Shoal, what is the tide?", "ask shoal", "shoal: !status"):
            await server.says("#Harbour", text)
        await inbox.until(lambda: bool(inbox.requests))
    assert [(message.text, message.thread) for message in inbox.said()] == [
        ("what is the tide?", "irc:#harbour:0"),
        ("ask shoal", "irc:#harbour:0"),
    ]
    assert inbox.requests[0].name == "status"


async def test_a_person_is_identified_by_account_or_host(start: Start, server: FakeIrc) -> None:
    """A user who takes ada's nick gets a different identity and a separate conversation."""
    async with start(allow=("ada-account", "role:*!*@*.example")) as (_, inbox):
        await server.says("shoal", "it is me")
        server.people["ada"] = Person("ada", "~eve@elsewhere.example")
        await server.says("shoal", "it is me too")
        first, second = await inbox.prompts(2)
    assert (first.author.id, first.author.roles) == ("ada-account", ("*!*@*.example",))
    assert second.author.id == "~eve@elsewhere.example"
    assert first.thread != second.thread
    assert first.direct
    assert not first.author.trusted


async def test_a_private_answer_is_never_sent_to_a_new_owner_of_the_nick(start: Start, server: FakeIrc) -> None:
    async with start() as (peer, _):
        server.people["ada"] = Person("ada", "~eve@elsewhere.example")
        with pytest.raises(PlatformError, match="no longer belongs to ada-account") as caught:
            await peer.adapter.post(OutboundPost(peer.thread, "k", "the treasure"))
        del server.people["ada"]
        with pytest.raises(PlatformError, match="no longer belongs to ada-account"):
            await peer.adapter.post(OutboundPost(peer.thread, "k", "the treasure"))
    assert not caught.value.permanent
    assert not server.said


async def test_actions_and_colored_text_are_read(start: Start, server: FakeIrc) -> None:
    async with start() as (_, inbox):
        await server.says("shoal", "\x01VERSION\x01")
        await server.says("shoal", "\x01ACTION waves\x01")
        await server.says("shoal", "\x02bold\x02 \x0304,12red\x03")
        prompts = await inbox.prompts(2)
    assert [prompt.text for prompt in prompts] == ["(ada waves)", "bold red"]


async def test_a_refused_channel_is_reported_and_not_retried(start: Start, server: FakeIrc) -> None:
    async with start() as (peer, _):
        posting = asyncio.ensure_future(peer.adapter.post(OutboundPost(peer.other, "k", "hello")))
        server.troubles.append(("delay", 0.0))
        await server.until(lambda: server.said or None)
        server.tells(":irc.example 404 shoal #harbour :Cannot send to channel")
        with pytest.raises(PlatformError, match="Cannot send to channel") as caught:
            await posting
    assert caught.value.permanent


async def test_no_channel_name_breaks_out_of_its_line(start: Start, server: FakeIrc) -> None:
    async with start(password=NO_SECRET) as (peer, _):
        for channel in ("#a\r\nQUIT :bye", "#a\r\nQUIT", "#a\nQUIT", "#a b", "#a,#b", "#a\0"):
            with pytest.raises(PlatformError) as caught:
                await peer.adapter.post(OutboundPost(make_thread_id("irc", channel, "0"), "k", "hello"))
            assert caught.value.permanent
    assert {line.split()[0] for line in server.lines} <= {"CAP", "NICK", "USER", "PING"}


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 80), st.sampled_from(["ada", "#" + "x" * 49]))
def test_no_text_breaks_out_of_its_line_or_is_lost(part: str, times: int, target: str) -> None:
    text = part * times
    lines = pieces(plain(text), target)
    for line in lines:
        raw = written("PRIVMSG", target, line)
        assert len(raw) + MASK_BYTES_MAX <= LINE_BYTES_MAX
        assert raw.count(b"\r") == raw.count(b"\n") == 1
        assert b"\0" not in raw
        assert b"\x01" not in raw
        assert parse(raw).params == (target, line)
    kept = "".join("".join(lines).split())
    assert kept == "".join(plain(text).split())


@given(st.binary(max_size=200))
def test_any_server_line_is_parsed(raw: bytes) -> None:
    parse(raw)
