"""FakeHookChat: the other side of a webhook chat, on loopback: signs what it sends, checks what it gets.

Its people write with `says`, press buttons with `clicks`, and see `messages`. It takes each idempotency key once.
"""

import asyncio
import base64
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from shoal.domain.calls import HttpAnswer
from shoal.domain.clock import Clock
from shoal.domain.signing import is_genuine, proof
from shoal.testing.platforms.wire import BREAK, Answered, Called, LoopbackServer

SECRET = "a-secret-that-both-sides-know"
Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"
Deliver: TypeAlias = Callable[[Mapping[str, str], bytes], Awaitable[HttpAnswer]]


class HookPosted(msgspec.Struct):
    """A message as people see it now; edits change it in place."""

    id: str
    channel: str
    thread: str
    text: str
    kind: str = "text"
    buttons: tuple[tuple[str, str], ...] = ()
    file: tuple[str, bytes] | None = None
    reply_to: str = ""
    user: str = ""


class FakeHookChat:
    """One chat. `deliver` is `WebhookAdapter.receive`, or what calls it over HTTP."""

    def __init__(self, clock: Clock, secret: str = SECRET) -> None:
        self.server = LoopbackServer(self._respond)
        self.secret = secret
        self.messages: list[HookPosted] = []
        self.typed: list[str] = []
        self.troubles: deque[tuple[Literal["refuse", "lose", "fail"], float]] = deque()
        self.deliver: Deliver | None = None
        self._clock = clock
        self._keys: dict[str, str] = {}
        self._last: Mapping[str, Json] = {}
        self._count = 0
        self._change = asyncio.Event()

    # ---- people ----

    async def says(
        self, channel: str, thread: str, text: str, *, user: str = "ada", is_bot: bool = False, **more: Json
    ) -> str:
        """Somebody writes; returns the message's id."""
        self._count += 1
        message_id = f"in-{self._count}"
        author: Json = {"id": user, "name": user, "is_bot": is_bot}
        said: dict[str, Json] = {"type": "message", "id": message_id, "channel": channel, "thread": thread}
        await self.tells(said | {"author": author, "text": text} | more)
        return message_id

    async def clicks(self, message_id: str, label: str, *, user: str = "ada") -> None:
        """Somebody presses a button under a message."""
        message = next(found for found in self.messages if found.id == message_id)
        value = dict(message.buttons)[label]
        await self.tells(
            {
                "type": "click", "channel": message.channel, "thread": message.thread,
                "author": {"id": user, "name": user}, "value": value,
            }
        )  # fmt: skip

    async def redeliver(self) -> HttpAnswer:
        """The last call comes again."""
        return await self.tells(self._last)

    async def tells(self, call: Mapping[str, Json]) -> HttpAnswer:
        """Make a call, signed as it should be."""
        assert self.deliver is not None, "nobody takes calls"
        self._last = call
        body = msgspec.json.encode(call)
        return await self.deliver({"x-shoal-signature": proof(self.secret, body, self._clock.now())}, body)

    async def changed(self) -> None:
        """Wait until something is posted or edited."""
        self._change.clear()
        await self._change.wait()

    # ---- what comes ----

    async def _respond(self, called: Called) -> Answered:
        if not is_genuine(called.headers, called.body, self.secret, self._clock.now()):
            return Answered(401, b"{}")
        out = msgspec.json.decode(called.body)
        trouble = self.troubles.popleft() if self.troubles and out["type"] == "post" else None
        if trouble is not None and trouble[0] == "refuse":
            return Answered(429, b"{}", (("retry-after", str(int(trouble[1]))),))
        if trouble is not None and trouble[0] == "fail":
            return Answered(500, b"{}")
        answer = self._taken(out, called.headers.get("idempotency-key", ""))
        return BREAK if trouble is not None else answer

    def _taken(self, out: Mapping[str, Json], key: str) -> Answered:
        match out["type"]:
            case "post":
                message_id = self._keys.get(key) or self._posted(out, key)
                return Answered(200, msgspec.json.encode({"id": message_id}))
            case "edit":
                message = next((one for one in self.messages if one.id == out["id"]), None)
                if message is None:
                    return Answered(404, b"{}")
                message.text, message.buttons = str(out.get("text", "")), _buttons(out)
                self._change.set()
            case _:
                self.typed.append(str(out.get("text", "")))
        return Answered(200, b"{}")

    def _posted(self, out: Mapping[str, Json], key: str) -> str:
        message_id = f"out-{len(self.messages) + 1}"
        file = out.get("file")
        content = None
        if isinstance(file, Mapping):
            content = (str(file["name"]), base64.b64decode(str(file["data"])))
        self.messages.append(
            HookPosted(
                message_id, str(out["channel"]), str(out["thread"]), str(out.get("text", "")),
                str(out.get("kind", "text")), _buttons(out), content, str(out.get("reply_to", "")),
                str(out.get("user", "")),
            )
        )  # fmt: skip
        self._keys[key] = message_id
        self._change.set()
        return message_id


def _buttons(out: Mapping[str, Json]) -> tuple[tuple[str, str], ...]:
    found = out.get("buttons", [])
    rows = found if isinstance(found, Sequence) else ()
    return tuple((str(one["label"]), str(one["value"])) for one in rows if isinstance(one, Mapping))
