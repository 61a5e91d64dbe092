"""Recorded platform events in their published form, each with its expected outcome.

`recorded/PLATFORM.json` has one event per line. Each event names the section of the platform's documentation that
shows it, and an expected outcome in `then`:

    turn: TEXT            a turn receives TEXT: the message, a file name, or a reference as KIND: WORDS
    told                  the person gets a reply that the message is unreadable or no longer exists
    command: NAME         Shoal runs the command
    edit: TEXT            Shoal processes an edit
    deletion              Shoal processes a deletion
    reaction: EMOJI       Shoal processes a reaction
    decision              Shoal records a decision on an approval
    greeting              Shoal greets the conversation
    logged: KIND          Shoal logs the event once, however often it arrives
    nothing: REASON       Shoal ignores the event

The test delivers each event twice and fails on any other outcome.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from urllib.parse import urlencode

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.contracts import slack_peer, teams_peer, test_chat_telegram
from tests.contracts.google_chat_peer import DIRECT, HARBOUR, GoogleChat
from tests.contracts.matrix_peer import Matrix
from tests.contracts.test_chat_discord import Discord

from shoal.kernel.clock import iso
from shoal.kernel.messages import Deletion, Edit, Prompt, Reaction
from shoal.kernel.secret import Secret
from shoal.kernel.webhooks import HttpAnswer
from shoal.platforms.account import GREETING, ChatAccount
from shoal.platforms.telegram.settings import TelegramSettings
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat_peer import WAIT_SECONDS, Inbox, Peer, serving
from shoal.testing.platforms.discord import FakeDiscord
from shoal.testing.platforms.discord_world import ADA, BOT
from shoal.testing.platforms.fake import FakePlatform
from shoal.testing.platforms.google_chat import PUSH_ACCOUNT, FakeGoogleChat
from shoal.testing.platforms.matrix import FakeMatrix
from shoal.testing.platforms.matrix_world import ADA as MATRIX_ADA
from shoal.testing.platforms.slack_methods import BOT as SLACK_BOT
from shoal.testing.platforms.slack_methods import TEAM
from shoal.testing.platforms.teams import BOT as TEAMS_BOT
from shoal.testing.platforms.teams import TENANT, FakeTeams
from shoal.testing.platforms.telegram import TOKEN, FakeTelegram
from shoal.testing.platforms.wire import Json

FOLDER = Path(__file__).parent / "recorded"


class Recorded(msgspec.Struct):
    """A platform event. The content is in `form` if it is form-encoded, and in `payload` otherwise.

    `event` is the event type, for platforms that send it outside the payload.
    """

    name: str
    source: str
    then: str
    payload: dict[str, object] = {}
    form: dict[str, object] = {}
    event: str = ""


Send = Callable[[Recorded], Awaitable[object]]
"""Delivers an event as the platform does."""


def recorded(platform: str) -> list[Recorded]:
    return msgspec.json.decode((FOLDER / f"{platform}.json").read_bytes(), type=list[Recorded])


EVENTS = [(path.stem, event) for path in sorted(FOLDER.glob("*.json")) for event in recorded(path.stem)]


def filled(content: object, peer: Peer, **names: str) -> bytes:
    now = peer.clock.now()
    text = msgspec.json.encode(content).decode().replace('"$now"', str(int(now.timestamp())))
    return Template(text).safe_substitute(names, iso=iso(now)).encode()


# ---- the platforms ----

Stand = tuple[FakePlatform, Peer, Send]


async def telegram(home: Path) -> Stand:
    server = FakeTelegram()
    server.add_chat(7)
    server.add_chat(-100, "supergroup", (41,))
    await server.start()
    peer = test_chat_telegram.Telegram(home, server)
    secret = test_chat_telegram.SECRET
    peer.settings = TelegramSettings(
        token=Secret("value", TOKEN), api_base=server.server.address, mode="webhook",
        webhook_secret=Secret("value", secret),
    )  # fmt: skip
    peer.adapter = peer.make()
    server.deliver = peer.adapter.receive

    async def send(one: Recorded) -> object:
        return await peer.adapter.receive({"x-telegram-bot-api-secret-token": secret}, filled(one.payload, peer))

    return server, peer, send


async def slack(home: Path) -> Stand:
    server = slack_peer.workspace()
    await server.start()
    peer = slack_peer.Slack(home, server, "http")
    names = {
        "direct": slack_peer.DIRECT, "channel": slack_peer.CHANNEL, "team": TEAM, "bot": SLACK_BOT,
        "address": server.address,
    }  # fmt: skip

    async def send(one: Recorded) -> object:
        kind, body = "application/json", filled(one.payload, peer, **names)
        if one.form:
            fields = msgspec.json.decode(filled(one.form, peer, **names), type=dict[str, object])
            texts = {
                name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
                for name, value in fields.items()
            }
            kind, body = "application/x-www-form-urlencoded", urlencode(texts).encode()
        return await peer.adapter.receive(server.signed(body, kind), body)

    return server, peer, send


async def teams(home: Path) -> Stand:
    clock = ManualClock()
    server = FakeTeams(clock)
    await server.start()
    server.add(teams_peer.DIRECT, "personal")
    server.add(teams_peer.GROUP, "groupChat")
    server.add(teams_peer.CHANNEL, "channel")
    peer = teams_peer.Teams(home, server, clock)
    names = {
        "direct": teams_peer.DIRECT, "group": teams_peer.GROUP, "channel": teams_peer.CHANNEL, "tenant": TENANT,
        "bot": TEAMS_BOT, "service": server.service_url, "address": server.server.address,
    }  # fmt: skip

    async def send(one: Recorded) -> object:
        sent_id = inbox_of(peer).said()[0].message_id
        body = filled(one.payload, peer, **names, known=sent_id)
        return await peer.adapter.receive(server.signed(service_url=server.service_url), body)

    return server, peer, send


async def google_chat(home: Path) -> Stand:
    clock = ManualClock()
    server = FakeGoogleChat(clock)
    await server.start()
    server.add(DIRECT, "DIRECT_MESSAGE")
    server.add(HARBOUR, "SPACE")
    peer = GoogleChat(home, server, clock)
    peer.adapter = peer.make(addon_account=PUSH_ACCOUNT)

    async def send(one: Recorded) -> object:
        body = filled(one.payload, peer, direct=DIRECT, space=HARBOUR)
        return await peer.adapter.receive(server.signed(push="commonEventObject" in one.payload), body)

    return server, peer, send


async def discord(home: Path) -> Stand:
    clock = ManualClock()
    server = FakeDiscord(clock)
    await server.start()
    peer = Discord(home, server, clock)
    names = {
        "direct": peer.channel, "harbour": peer.harbour, "guild": peer.guild, "ada": ADA, "bot": BOT,
        "address": server.api_base.removesuffix("/api/v10"), "later": "2026-01-05T09:30:00+00:00",
    }  # fmt: skip

    async def send(one: Recorded) -> object:
        sent_id = inbox_of(peer).said()[0].message_id
        ids = {f"id{number:02d}": str(int(sent_id) + 10_000 + number) for number in range(60)}
        await server.happens(one.event, msgspec.json.decode(filled(one.payload, peer, **names, **ids, known=sent_id)))
        return None

    return server, peer, send


async def matrix(home: Path) -> Stand:
    """Unlike other platforms, a homeserver sends each event only once."""
    clock = ManualClock()
    server = FakeMatrix(clock)
    await server.start()
    await server.sends_file(server.add_room(), "tides.txt", b"tides")  # sent before the bot starts to listen
    peer = Matrix(home, server, clock)
    address = f"mxc://{MATRIX_ADA.partition(':')[2]}/{next(iter(server.world.files))}"

    async def send(one: Recorded) -> object:
        sent_id = inbox_of(peer).said()[0].message_id
        content = msgspec.json.decode(filled(one.payload, peer, known=sent_id, mxc=address))
        await server.happens(peer.room, MATRIX_ADA, one.event, content, redacts=str(content.get("redacts", "")))
        return None

    return server, peer, send


STANDS = {
    "telegram": telegram, "slack": slack, "teams": teams, "google_chat": google_chat, "discord": discord,
    "matrix": matrix,
}  # fmt: skip
_inboxes: dict[int, Inbox] = {}


@asynccontextmanager
async def standing(platform: str, home: Path) -> AsyncGenerator[tuple[Peer, Send, Inbox]]:
    server, peer, send = await STANDS[platform](home)
    assert isinstance(peer.adapter, ChatAccount)
    inbox = _inboxes[id(peer)] = Inbox()
    try:
        yield peer, send, inbox
    finally:
        await peer.adapter.close()
        await server.stop()


def inbox_of(peer: Peer) -> Inbox:
    return _inboxes[id(peer)]


# ---- outcomes ----


def told_of(prompt: Prompt) -> str:
    files = (file.name for file in prompt.attachments)
    referred = (f"{reference.kind}: {reference.text}" for reference in prompt.refers_to)
    return "\n".join((prompt.text, *files, *referred))


def outcomes(peer: Peer, inbox: Inbox, posted: list[str], warned: list[str]) -> list[str]:
    results = [f"command: {asked.name}" for asked in inbox.requests]
    results += ["decision" for _ in inbox.decided]
    results += [f"logged: {kind}" for kind in warned]
    for event in inbox.came:
        match event:
            case Prompt() if event.text not in ("begin", "end"):
                results.append(f"turn: {told_of(event)}")
            case Edit():
                results.append(f"edit: {event.text}")
            case Deletion():
                results.append("deletion")
            case Reaction():
                results.append(f"reaction: {event.emoji}")
            case _:
                pass
    return results + [("greeting" if text == GREETING else "told") for text in posted if not text.startswith("Did /")]


async def until_some(came: Callable[[], Sequence[object]]) -> None:
    """Wait for an event's first outcome. A timeout raises no error, because the test then asserts which outcomes
    arrived.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT_SECONDS):
            while not came():  # noqa: ASYNC110 (the platforms set no event)
                await asyncio.sleep(0)


@pytest.mark.parametrize(("platform", "one"), EVENTS, ids=[f"{platform}: {event.name}" for platform, event in EVENTS])
async def test_every_kind_of_message_is_delivered_or_answered(
    platform: str, one: Recorded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with standing(platform, tmp_path) as (peer, send, inbox):
        async with serving(peer.adapter, inbox):
            begun = await peer.says("begin")
            (first,) = await inbox.prompts(1)
            for known in ("55", "1767603600.000055", begun, first.key, "7/3", "D00000001/1767603600.000101"):
                inbox.threads[known] = first.thread
            before = len(list(peer.told()))
            for _ in range(1 if platform == "matrix" else 2):
                await send(one)
            await peer.says("end")
            await inbox.until(lambda: inbox.said()[-1].text == "end")
            kind, _, what = one.then.partition(": ")

            def came() -> list[str]:
                logged = [
                    record.args
                    for record in caplog.records
                    if isinstance(record.args, tuple) and "event type" in record.msg
                ]
                posted = [*list(peer.told())[before:], *elsewhere(peer)]
                return outcomes(peer, inbox, posted, [str(args[1]) for args in logged])

            if kind != "nothing":
                await until_some(came)
            results = came()
        if kind == "nothing":
            assert not results
            assert what
        else:
            assert results, "silence"
            kinds = {got.partition(": ")[0] for got in results}
            assert kinds - ({"logged"} if kind == "told" else set()) == {kind}, results
            assert len(results) == 1 or kind in ("edit", "deletion", "reaction", "decision", "told"), results
            assert all(part in results[0] for part in what.split("|")), results


ODD: tuple[Json, ...] = (5, True, "odd", [], ["odd"], {}, {"odd": 1}, None)
USED = [(platform, event) for platform, event in EVENTS if not event.then.startswith(("nothing", "logged"))]


def changed(content: Json, draw: Callable[[Sequence[Json]], Json]) -> tuple[Json, Json]:
    if content and draw([True, True, True, False]):
        if isinstance(content, dict):
            key = str(draw(list(content)))
            value, put = changed(content[key], draw)
            return {**content, key: value}, put
        if isinstance(content, list):
            value, put = changed(content[0], draw)
            return [value, *content[1:]], put
    put = draw([value for value in ODD if type(value) is not type(content)])
    return put, put


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("platform", ["slack", "teams", "google_chat"])
def test_a_signed_event_of_any_form_is_accepted_and_reported(platform: str, data: st.DataObject) -> None:
    """Platforms disable webhooks that reject calls, so even a malformed event must be accepted. It must also be
    reported, because a person may be waiting for a reply.
    """
    one = data.draw(st.sampled_from([event for name, event in USED if name == platform]))
    content, put = changed(whole(one), lambda choices: data.draw(st.sampled_from(choices)))
    assume(isinstance(content, dict))
    assume(met(platform, one, content, put) != 401)  # the signature covers the changed value


@pytest.mark.parametrize("put", [{}, 5], ids=str)
@pytest.mark.parametrize(
    ("platform", "name", "path"),
    [
        ("teams", "a file is declined that is offered no more", "value/action"),
        ("teams", "a button of ours", "value/action/data/shoal"),
        ("slack", "a message that is linked to is shown", "event/message/attachments/0/is_msg_unfurl"),
    ],
)
def test_a_malformed_field_that_used_to_be_ignored_is_reported(platform: str, name: str, path: str, put: Json) -> None:
    (one,) = (event for where, event in USED if (where, event.name) == (platform, name))
    assert met(platform, one, with_put(whole(one), path.split("/"), put), put) == 200


def with_put(content: Json, path: Sequence[str], put: Json) -> Json:
    """Return a document with another value at a path. A path through a list leads to its first entry."""
    if not path:
        return put
    if isinstance(content, dict):
        return {**content, path[0]: with_put(content[path[0]], path[1:], put)}
    assert isinstance(content, list)
    return [with_put(content[0], path[1:], put), *content[1:]]


def whole(one: Recorded) -> Json:
    return msgspec.json.decode(msgspec.json.encode(one.form or one.payload))


def met(platform: str, one: Recorded, content: Json, put: Json) -> int:
    """Deliver a changed event and return the response's status. Fails if the event had no visible effect and was
    not logged.
    """
    kinds, part = Told(), "form" if one.form else "payload"

    async def attempt(home: Path) -> int:
        async with standing(platform, home) as (peer, send, inbox), serving(peer.adapter, inbox):
            begun = await peer.says("begin")
            (first,) = await inbox.prompts(1)
            for known in ("55", "1767603600.000055", begun, first.key, "D00000001/1767603600.000101"):
                inbox.threads[known] = first.thread
            kinds.kinds.clear()
            answer = await send(msgspec.structs.replace(one, **{part: content}))
            assert isinstance(answer, HttpAnswer)
            await peer.says("end")
            await inbox.until(lambda: inbox.said()[-1].text == "end")
            if answer.status == 401:
                return 401
            assert answer.status == 200 or (answer.status == 501 and one.payload["type"] == "invoke")

            def came() -> list[object]:
                # ephemeral messages, visible to one person
                alone = peer.server.answers if isinstance(peer, slack_peer.Slack) else ()
                # visible to the person who pressed the button
                shown = [answer.body] if answer.body.strip(b"{}") else []
                posted = [*peer.told(), *elsewhere(peer), *alone, *shown]
                return [*inbox.came[2:], *inbox.requests, *inbox.decided, *posted, *kinds.kinds]

            if put is not None and answer.status != 501:
                await until_some(came)
                assert came(), "silence"
            return answer.status

    logging.getLogger().addHandler(kinds)
    try:
        with TemporaryDirectory() as home:
            return asyncio.run(attempt(Path(home)))
    finally:
        logging.getLogger().removeHandler(kinds)


class Told(logging.Handler):
    """Log handler that collects the types of the events reported to the operator."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and "event type" in record.msg:
            self.kinds.append(str(record.args[1]))


def elsewhere(peer: Peer) -> list[str]:
    match peer:
        case test_chat_telegram.Telegram():
            return [message.text for message in peer.server.said(-100)]
        case slack_peer.Slack():
            return [peer.server.shown(message) for message in peer.server.said(slack_peer.CHANNEL)]
        case teams_peer.Teams():
            return [
                message.text for place in (teams_peer.GROUP, teams_peer.CHANNEL) for message in peer.server.said(place)
            ]
        case GoogleChat():
            return [message.shown for message in peer.server.said(HARBOUR)]
        case _:
            return []
