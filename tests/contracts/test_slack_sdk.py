"""Uses Slack's own SDK as an independent client of the fake workspace, to show that the fake behaves like Slack.

The SDK's source also serves as a machine-readable list of the Web API's methods and parameters.
"""

import asyncio
import inspect
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contracts.slack_peer import CHANNEL, DIRECT, Slack, workspace

from shoal.kernel.posts import WRITING, Button
from shoal.platforms.slack.wire import is_signed, signature_of
from shoal.testing.clock import START
from shoal.testing.contracts.chat_peer import Inbox, post, serving
from shoal.testing.platforms.slack import APP_TOKEN, BOT_TOKEN, SIGNING_SECRET, STARTED_AT, FakeSlack
from shoal.testing.platforms.slack_wire import READS

pytest.importorskip("slack_sdk", reason="slack-sdk, a development dependency, is not installed")

from slack_sdk.errors import SlackApiError
from slack_sdk.signature import SignatureVerifier
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse
from slack_sdk.web.async_client import AsyncWebClient

_CALL = re.compile(r'self\.api_call\(\s*"([\w.]+)"')


@pytest.fixture
async def server() -> AsyncIterator[FakeSlack]:
    fake = workspace()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def client(server: FakeSlack) -> AsyncWebClient:
    return AsyncWebClient(token=BOT_TOKEN, base_url=f"{server.address}/api/", retry_handlers=[])


def described() -> dict[str, set[str]]:
    methods: dict[str, set[str]] = {}
    for _, function in inspect.getmembers(AsyncWebClient, inspect.isfunction):
        called = _CALL.findall(inspect.getsource(function))
        if called:
            methods[called[-1]] = set(inspect.signature(function).parameters)
    return methods


def test_the_fakes_methods_are_those_of_the_web_api() -> None:
    own = {*workspace().methods, "apps.connections.open"}
    assert len(own) >= 35
    assert own - set(described()) == set()
    assert not READS - own


async def test_the_adapters_parameters_are_those_of_the_web_api(server: FakeSlack, tmp_path: Path) -> None:
    peer = Slack(tmp_path, server)
    file = tmp_path / "tides.txt"
    file.write_text("high")
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.move_to_thread()
        await peer.says("go")
        await inbox.prompts(1)
        ts = await peer.adapter.post(post(peer, "one" + WRITING, key="preview:T"))
        await peer.adapter.edit(peer.thread, ts, "one two" + WRITING)
        await peer.adapter.edit(peer.thread, ts, "one two three")
        await peer.adapter.post(post(peer, "May I?", buttons=(Button("Yes", "allow:A"),), maybe_posted=True))
        await peer.adapter.post(post(peer, "you", kind="ephemeral", user="UADA"))
        await peer.adapter.post(post(peer, "", kind="file", file=file))
        await peer.adapter.typing(peer.thread, "…")
        await peer.adapter.open_thread("UBEA", "hello")
        await peer.adapter.create_channel("tides", "C00000002")
        assert [prompt async for prompt in peer.adapter.history(peer.thread, None, 5)]
    known = described() | {"files.getUploadURLExternal": {"filename", "length"}}
    assert len({method for method, _ in server.calls}) > 15
    for method, arguments in server.calls:
        assert set(arguments) <= known[method] | {"token"}, method


def test_we_and_the_sdk_accept_each_others_signatures() -> None:
    verifier = SignatureVerifier(SIGNING_SECRET)
    own = verifier.generate_signature(timestamp=str(STARTED_AT), body=b'{"a": "\xc3\xa9"}')
    assert own is not None
    assert signature_of(SIGNING_SECRET, str(STARTED_AT), b'{"a": "\xc3\xa9"}') == own
    assert is_signed(SIGNING_SECRET, str(STARTED_AT), own, b'{"a": "\xc3\xa9"}', START)


async def test_the_sdk_posts_edits_and_reads_back(server: FakeSlack, client: AsyncWebClient) -> None:
    posted = await client.chat_postMessage(channel=CHANNEL, text="one")
    await client.chat_update(channel=CHANNEL, ts=str(posted["ts"]), text="two")
    await client.chat_postMessage(channel=CHANNEL, text="under it", thread_ts=str(posted["ts"]))
    history = await client.conversations_history(channel=CHANNEL)
    replies = await client.conversations_replies(channel=CHANNEL, ts=str(posted["ts"]))
    assert [message["text"] for message in history.get("messages", [])] == ["two"]
    assert [message["text"] for message in replies.get("messages", [])] == ["two", "under it"]


async def test_the_sdk_uploads_a_file(server: FakeSlack, client: AsyncWebClient, tmp_path: Path) -> None:
    file = tmp_path / "tides.bin"
    file.write_bytes(bytes(range(256)))
    await client.files_upload_v2(channel=CHANNEL, file=str(file), initial_comment="The table.")
    (message,) = server.said(CHANNEL)
    assert server.contents[message.file_ids[0]] == bytes(range(256))
    assert message.text == "The table."


async def test_the_sdk_streams(server: FakeSlack, client: AsyncWebClient) -> None:
    message_id = await server.says(CHANNEL, "go")
    stream = await client.chat_stream(
        channel=CHANNEL, thread_ts=message_id, recipient_user_id="UADA", recipient_team_id="T1", buffer_size=1
    )
    await stream.append(markdown_text="The **tide**")
    await stream.append(markdown_text=" is high")
    await stream.stop()
    (message,) = server.said(CHANNEL)
    assert (message.text, message.streaming) == ("The **tide** is high", False)


async def test_the_sdk_understands_refusals(server: FakeSlack, client: AsyncWebClient) -> None:
    server.troubles.append(("refuse", 7.0))
    with pytest.raises(SlackApiError) as caught:
        await client.chat_postMessage(channel=CHANNEL, text="later")
    assert (caught.value.response.status_code, caught.value.response.headers["retry-after"]) == (429, "7")
    for channel, text, code in (("C0", "x", "channel_not_found"), (CHANNEL, "x" * 40_001, "msg_too_long")):
        with pytest.raises(SlackApiError, match=code):
            await client.chat_postMessage(channel=channel, text=text)


async def test_the_sdk_receives_by_socket_mode(server: FakeSlack, client: AsyncWebClient) -> None:
    requests: asyncio.Queue[SocketModeRequest] = asyncio.Queue()

    async def take(socket: AsyncBaseSocketModeClient, request: SocketModeRequest) -> None:
        await socket.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))
        await requests.put(request)

    socket = SocketModeClient(app_token=APP_TOKEN, web_client=client)
    socket.socket_mode_request_listeners.append(take)
    await socket.connect()
    try:
        await server.says(DIRECT, "hello")
        await server.slashes(DIRECT, "/shoal", "help")
        kinds = [(await asyncio.wait_for(requests.get(), 60)).type for _ in range(2)]
        assert kinds == ["events_api", "slash_commands"]
        await asyncio.wait_for(server.until(lambda: not server.socket.pending), 60)
    finally:
        await socket.close()
