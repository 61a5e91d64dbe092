"""Reading back what stands in a channel: for history, for what was missed, and for posts whose outcome is unknown."""

from collections import deque
from collections.abc import Sequence

import msgspec

from shoal.chat.slack.api import SlackApi, Value
from shoal.chat.slack.inbound import Message
from shoal.chat.slack.outbound import EVENT_TYPE
from shoal.domain.errors import PlatformError
from shoal.domain.foreign import UNREADABLE

PAGE = 200
PAGES_MAX = 20
"""Pages read of one conversation; what is older is left out."""


class _Next(msgspec.Struct, frozen=True):
    next_cursor: str = ""


class _Page(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...] = ()
    response_metadata: _Next = _Next()


class Reader:
    """Reads the conversations of one workspace."""

    def __init__(self, api: SlackApi) -> None:
        self._api = api

    async def newest(self, channel: str, thread_ts: str, oldest: str, limit: int) -> Sequence[Message]:
        """The newest `limit` messages after `oldest` (a timestamp, or empty), oldest first. Raises PlatformError.

        With `thread_ts` those of that thread, else those that stand in the channel itself.
        """
        found: deque[Message] = deque(maxlen=limit)
        cursor = ""
        for _ in range(PAGES_MAX):
            page = await self._page(channel, thread_ts, oldest, cursor, min(PAGE, limit))
            if thread_ts:  # Slack gives threads from their beginning, channels from their end
                found.extend(page.messages)
            else:
                found.extendleft(page.messages[: limit - len(found)])
            cursor = page.response_metadata.next_cursor
            if not cursor or (not thread_ts and len(found) >= limit):
                break
        return [msgspec.structs.replace(message, channel=channel) for message in found if message.ts > oldest]

    async def find(self, channel: str, thread_ts: str, oldest: str, key: str) -> str:
        """The id of our message that was posted with this key; empty when there is none. Raises PlatformError."""
        cursor = ""
        for _ in range(PAGES_MAX):
            page = await self._page(channel, thread_ts, oldest, cursor, PAGE)
            for message in page.messages:
                if _key_of(message) == key:
                    return message.ts
            cursor = page.response_metadata.next_cursor
            if not cursor:
                return ""
        raise PlatformError("Too much was written meanwhile to see whether a message was posted.")

    async def _page(self, channel: str, thread_ts: str, oldest: str, cursor: str, limit: int) -> _Page:
        given: dict[str, Value] = {
            "channel": channel,
            "limit": limit,
            "oldest": oldest or None,
            "cursor": cursor or None,
            "include_all_metadata": True,
        }
        if thread_ts:
            return await self._api.call("conversations.replies", _Page, {**given, "ts": thread_ts})
        return await self._api.call("conversations.history", _Page, given)


def _key_of(message: Message) -> str:
    metadata = message.metadata
    if metadata is None or metadata.event_type != EVENT_TYPE or "key" not in metadata.event_payload:
        return ""
    try:
        key: object = msgspec.json.decode(metadata.event_payload["key"])
    except UNREADABLE:
        return ""
    return key if isinstance(key, str) else ""
