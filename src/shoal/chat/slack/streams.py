"""Slack's own streaming for previews: begun, appended to, and ended before the finished answer takes its place.

A stream is a preview only: Slack ends it by itself after some minutes, people may stop it, and where it stands in the
way of an edit it is ended. The finished answer always comes as an edit with the whole text.
Source: docs.slack.dev/reference/methods/chat.startStream and the two beside it.
"""

import logging
from collections import OrderedDict

import msgspec

from shoal.chat.slack.api import Refusal, SlackApi
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.posts import WRITING

log = logging.getLogger(__name__)

OPEN_MAX = 200
"""Streams written to at once; further previews are edited instead."""
IDLE_SECONDS = 60.0
"""A stream without news for so long is ended, and shows all it was given."""
NOT_OFFERED = frozenset(
    {"unknown_method", "missing_scope", "not_allowed_token_type", "access_denied", "feature_not_enabled"}
)


class _Made(msgspec.Struct, frozen=True):
    ts: str


class _Done(msgspec.Struct, frozen=True):
    pass


class _Stream:
    __slots__ = ("at", "channel", "sent", "whole")

    def __init__(self, channel: str, sent: str, whole: str, at: float) -> None:
        self.channel = channel
        self.sent = sent
        self.whole = whole
        self.at = at


class Streams:
    """The open streams of one account, by message id."""

    def __init__(self, api: SlackApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._open: OrderedDict[str, _Stream] = OrderedDict()
        self._offered = True

    async def start(self, channel: str, thread_ts: str, user: str, team: str, markdown: str) -> str:
        """Begin to stream to a person's thread; returns the message's id, empty where Slack does not stream.

        Raises PlatformError when it is not known whether the stream was begun.
        """
        text = markdown.removesuffix(WRITING).rstrip()
        if not (self._offered and text and len(self._open) < OPEN_MAX):
            return ""
        given = {
            "channel": channel, "thread_ts": thread_ts, "recipient_user_id": user, "recipient_team_id": team,
            "markdown_text": text,
        }  # fmt: skip
        try:
            made = await self._api.call("chat.startStream", _Made, given)
        except PlatformError as error:
            if error.outcome_unknown:
                raise
            if isinstance(error, Refusal) and error.code in NOT_OFFERED:
                self._offered = False
                log.info("Slack does not stream here; previews are edited", extra={"why": error.code})
            return ""
        self._open[made.ts] = _Stream(channel, text, markdown, self._clock.monotonic())
        return made.ts

    async def follow(self, ts: str, markdown: str) -> bool:
        """Append what is new of a preview; False when the message has to be edited instead. Raises PlatformError."""
        stream = self._open.get(ts)
        if stream is None:
            return False
        text = markdown.removesuffix(WRITING).rstrip()
        if not markdown.endswith(WRITING) or not text.startswith(stream.sent):
            await self.end(ts)
            return False
        stream.whole, stream.at = markdown, self._clock.monotonic()
        self._open.move_to_end(ts)
        if text == stream.sent:
            return True
        given = {"channel": stream.channel, "ts": ts, "markdown_text": text[len(stream.sent) :]}
        try:
            await self._api.call("chat.appendStream", _Done, given)
        except PlatformError as error:
            if error.retry_after_seconds:
                raise
            self._open.pop(ts, None)  # it ended, or what it shows is not known
            return False
        stream.sent = text
        return True

    async def end(self, ts: str) -> None:
        """End a stream, if it is one; a failure shows when the message is edited."""
        stream = self._open.pop(ts, None)
        if stream is not None:
            await self.stop(stream.channel, ts)

    async def stop(self, channel: str, ts: str) -> None:
        """Tell Slack that a message is complete; one that is so already is left."""
        try:
            await self._api.call("chat.stopStream", _Done, {"channel": channel, "ts": ts})
        except PlatformError as error:
            log.debug("a stream was not ended", extra={"why": str(error)})

    def idle(self) -> list[tuple[str, str, str]]:
        """Channel, id and whole text of streams without news for IDLE_SECONDS."""
        before = self._clock.monotonic() - IDLE_SECONDS
        return [(stream.channel, ts, stream.whole) for ts, stream in self._open.items() if stream.at <= before]
