"""How Slack reaches the bot: Socket Mode or signed calls, kept up, and what was missed meanwhile read in.

Every event is confirmed after it was stored; one that is not comes again, and its key makes that harmless. Clicks and
commands are confirmed at once, since Slack waits three seconds, and answered at their response_url.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Literal, TypeVar
from urllib.parse import parse_qs

import anyio
import anyio.abc
import msgspec

from shoal.chat.account import NOT_READY, NOT_STORED, UNAUTHORIZED, ChatAccount
from shoal.chat.commands import parse_command
from shoal.chat.slack.api import Refusal, SlackApi
from shoal.chat.slack.followed import Followed
from shoal.chat.slack.inbound import Click, EventCall, Me, Message, Slash, is_addressed, is_direct, is_signed, text_of
from shoal.chat.slack.intake import Intake
from shoal.chat.slack.outbound import place_of
from shoal.chat.slack.outbound import text_of as shown
from shoal.chat.slack.reading import Reader
from shoal.chat.slack.sockets import Confirm, Envelope, Opened, listen
from shoal.domain.calls import HttpAnswer
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError, StoreError
from shoal.domain.foreign import UNREADABLE
from shoal.domain.ids import ThreadId
from shoal.domain.ports import InboxPort

log = logging.getLogger(__name__)
T = TypeVar("T")

MISSED_MAX = 100
"""Messages of one conversation that are taken in when they came while nobody was connected."""
TAKEN = HttpAnswer(200)
"""Without a body: Slack would show one as the answer to a command."""
UNREADABLE_BODY = HttpAnswer(400, b'{"error":"bad_request","message":"The body is none of Slack\'s."}')


class SlackSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One app in one workspace. The secrets are asked for when they are needed."""

    account: str = "main"
    bot_token: Callable[[], str]
    app_token: Callable[[], str] = str
    signing_secret: Callable[[], str] = str
    api_base: str = "https://slack.com/api/"
    mode: Literal["socket", "http"] = "socket"
    agent: str = ""


class Connection:
    """Receives for one account."""

    def __init__(
        self,
        settings: SlackSettings,
        api: SlackApi,
        intake: Intake,
        followed: Followed,
        clock: Clock,
        account: ChatAccount,
    ) -> None:
        self._platform = account.platform
        self._settings = settings
        self._api = api
        self._intake = intake
        self._followed = followed
        self._reader = Reader(api)
        self._clock = clock
        self._inbox: InboxPort | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._account = account

    async def run(self, inbox: InboxPort, beside: Callable[[], Coroutine[None, None, None]]) -> None:
        """Receive until cancelled, and do `beside` all the while; reconnect with backoff."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(beside)
                await self._account.keep_connected(lambda: self._connect(inbox, tasks))
        finally:
            self._inbox = self._tasks = None

    async def _connect(self, inbox: InboxPort, tasks: anyio.abc.TaskGroup) -> None:
        self._intake.me = await self._api.call("auth.test", Me, {})
        self._inbox = inbox
        if self._settings.mode == "http":
            self._stands(inbox, tasks)
            await asyncio.Event().wait()
        opened = await self._api.call("apps.connections.open", Opened, {}, token=self._settings.app_token())
        await listen(
            opened.url,
            lambda: self._stands(inbox, tasks),
            lambda envelope, confirm: tasks.start_soon(self._serve, envelope, confirm, inbox),
        )

    def _stands(self, inbox: InboxPort, tasks: anyio.abc.TaskGroup) -> None:
        self._account.works()
        me = self._intake.me
        log.info("connected", extra={"platform": self._platform, "bot": me.user, "workspace": me.team})
        self._account.connected.set()
        tasks.start_soon(self._catch_up, inbox)

    # ---- by socket ----

    async def _serve(self, envelope: Envelope, confirm: Confirm, inbox: InboxPort) -> None:
        match envelope.type:
            case "events_api":
                call = _decoded(envelope.payload, EventCall)
                if call is None or await self._take(call, inbox):
                    await confirm()
            case "interactive":
                await confirm()
                click = _decoded(envelope.payload, Click)
                if click is not None:
                    await self._click(click, inbox)
            case "slash_commands":
                await confirm()
                slash = _decoded(envelope.payload, Slash)
                if slash is not None:
                    await self._slash(slash, inbox)
            case _:
                await confirm()

    # ---- by HTTP ----

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """A call of Slack's. Answers 401 without its signature, 503 when it has to come again."""
        timestamp, signature = headers.get("x-slack-request-timestamp", ""), headers.get("x-slack-signature", "")
        secret = self._settings.signing_secret()
        if self._settings.mode != "http" or not is_signed(secret, timestamp, signature, body, self._clock.now()):
            return UNAUTHORIZED
        if not body.lstrip().startswith(b"{"):  # the signature does not cover the type that a header tells
            return self._receive_form(body)
        call = _decoded(body, EventCall)
        if call is None:
            return UNREADABLE_BODY
        if call.type == "url_verification":
            return HttpAnswer(200, call.challenge.encode(), "text/plain")
        if self._inbox is None:
            return NOT_READY
        return TAKEN if await self._take(call, self._inbox) else NOT_STORED

    def _receive_form(self, body: bytes) -> HttpAnswer:
        fields = {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
        if self._inbox is None or self._tasks is None:
            return NOT_READY
        if "payload" not in fields:
            slash = msgspec.convert(fields, Slash)
            if not (slash.command and slash.channel_id and slash.user_id):
                return UNREADABLE_BODY
            self._tasks.start_soon(self._slash, slash, self._inbox)
            return TAKEN
        click = _decoded(fields["payload"].encode(), Click)
        if click is None:
            return UNREADABLE_BODY
        self._tasks.start_soon(self._click, click, self._inbox)
        return TAKEN

    # ---- both ----

    async def _take(self, call: EventCall, inbox: InboxPort) -> bool:
        """Take an event in; False when it could not be stored and has to come again."""
        if call.event is None or not call.is_of(self._intake.me.team_id):
            return True
        try:
            await self._intake.take(call.event, inbox)
        except StoreError:
            log.exception("an event was not stored; Slack sends it again", extra={"platform": self._platform})
            return False
        return True

    async def _click(self, click: Click, inbox: InboxPort) -> None:
        told = await self._intake.click(click, inbox)
        message = click.message
        await self._respond(click.response_url, told, message.thread_ts if message is not None else "")

    async def _slash(self, slash: Slash, inbox: InboxPort) -> None:
        await self._respond(slash.response_url, await self._intake.slash(slash, inbox), "")

    async def _respond(self, url: str, told: str, thread_ts: str) -> None:
        """Tell who clicked or asked, and nobody else; if it cannot be said it is not said."""
        if not (url and told):
            return
        content = {"response_type": "ephemeral", "replace_original": False, "text": shown(told)}
        if thread_ts:
            content["thread_ts"] = thread_ts
        try:
            await self._api.respond(url, content)
        except PlatformError as error:
            log.info("an answer was lost", extra={"platform": self._platform, "why": str(error)})

    # ---- what was missed ----

    async def _catch_up(self, inbox: InboxPort) -> None:
        """Take in what was written while nobody was connected, where the bot spoke last; commands come too late."""
        try:
            for message in await self._missed():
                await self._intake.take(msgspec.structs.replace(message, type="message"), inbox)
        except (PlatformError, StoreError) as error:
            log.warning(
                "what was missed could not be read; what people wrote meanwhile may stay unanswered: %s", error,
                extra={"platform": self._platform},
            )  # fmt: skip

    async def _missed(self) -> list[Message]:
        """The messages that came after the newest one taken in, oldest first."""
        threads, seen = await self._followed.recent()
        found: list[Message] = []
        for channel, thread_ts in _places(threads):
            for message in await self._newest(channel, thread_ts, seen):
                text = text_of(message.text or "", self._intake.me)
                meant = is_direct(channel) or thread_ts or is_addressed(message, self._intake.me)
                if meant and parse_command(text) is None:
                    found.append(message)
        return sorted(found, key=lambda message: message.ts)

    async def _newest(self, channel: str, thread_ts: str, seen: str) -> Sequence[Message]:
        """What came in one conversation; nothing where the bot may not read any more."""
        try:
            return await self._reader.newest(channel, thread_ts, seen, MISSED_MAX)
        except Refusal as refusal:
            log.info("a conversation was not read", extra={"platform": self._platform, "why": str(refusal)})
            return ()


def _places(threads: Sequence[ThreadId]) -> list[tuple[str, str]]:
    """The conversations to look into: these threads, and the channels they stand in."""
    found = dict.fromkeys(place_of(thread) for thread in threads)
    return list(found | dict.fromkeys((channel, "") for channel, _ in found))


def _decoded(body: bytes | msgspec.Raw, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE:
        return None
