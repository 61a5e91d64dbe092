"""A fake chat that is connected by webhook, on loopback."""

import base64
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from shoal.kernel.clock import Clock, SystemClock
from shoal.kernel.webhooks import HttpAnswer, proof, proofs
from shoal.testing.platforms.fake import FakePlatform
from shoal.testing.platforms.wire import Answered, Called, ok

SECRET = "a-secret-that-both-sides-know"
Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"


class HookPosted(msgspec.Struct):
    """A message in its current state. Edits change it in place."""

    id: str
    channel: str
    thread: str
    text: str
    kind: str = "text"
    buttons: tuple[tuple[str, str], ...] = ()
    file: tuple[str, bytes] | None = None
    reply_to: str = ""
    user: str = ""


class FakeHookChat(FakePlatform):
    """A fake webhook chat. It signs its calls and checks the bot's signatures.

    Use `says` and `clicks` to act as a person. `messages` lists the messages, oldest first, and `typed` lists the
    typing statuses. A repeated idempotency key returns the first message.
    """

    def __init__(self, clock: Clock | None = None, secret: str = SECRET) -> None:
        super().__init__()
        self.secret = secret
        self.messages: list[HookPosted] = []
        self.typed: list[str] = []
        self._clock = clock or SystemClock()
        self._keys: dict[str, str] = {}
        self.status = 0
        self._count = 0

    # ---- people ----

    async def says(
        self, channel: str, thread: str, text: str, *, user: str = "ada", is_bot: bool = False, **more: Json
    ) -> str:
        """Write as a person and return the message's id. `status` is set to the HTTP status of the bot's response."""
        self._count += 1
        message_id = f"in-{self._count}"
        author: Json = {"id": user, "name": user, "is_bot": is_bot}
        body: dict[str, Json] = {"type": "message", "id": message_id, "channel": channel, "thread": thread}
        self.status = (await self.tells(body | {"author": author, "text": text} | more)).status
        return message_id

    async def clicks(self, message_id: str, label: str, *, user: str = "ada") -> None:
        message = next(post for post in self.messages if post.id == message_id)
        value = dict(message.buttons)[label]
        await self.tells(
            {
                "type": "click", "channel": message.channel, "thread": message.thread,
                "author": {"id": user, "name": user}, "value": value,
            }
        )  # fmt: skip

    async def tells(self, call: Mapping[str, Json]) -> HttpAnswer:
        """Send a correctly signed call to the bot and return its response. The status is 0 if delivery is being
        held back.
        """
        body = msgspec.json.encode(call)

        async def deliver() -> HttpAnswer:
            assert self.deliver is not None, "set FakeHookChat.deliver or call FakeHookChat.call first"
            return await self.deliver({"x-shoal-signature": proof(self.secret, body, self._clock.now())}, body)

        return await self.happen(deliver) or HttpAnswer(0)

    async def sees(self, part: str) -> HookPosted:
        return await self.seen(lambda: self.messages, part, lambda post: post.text)

    # ---- calls of the bot ----

    async def respond(self, called: Called) -> Answered:
        if not proofs(called.headers, called.body, self.secret, self._clock.now()):
            return Answered(401, b"{}")
        out = msgspec.json.decode(called.body)
        key = called.headers.get("idempotency-key", "")
        if out["type"] in ("post", "edit"):
            return await self.weathered(lambda: self._taken(out, key))
        self.typed.append(str(out.get("text", "")))
        return Answered(200, b"{}")

    def _taken(self, out: Mapping[str, Json], key: str) -> Answered:
        if out["type"] == "post":
            message_id = self._keys.get(key) or self._posted(out, key)
            return ok({"id": message_id})
        message = next((message for message in self.messages if message.id == out["id"]), None)
        if message is None:
            return Answered(404, b"{}")
        message.text, message.buttons = str(out.get("text", "")), _buttons(out)
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
        return message_id


def _buttons(out: Mapping[str, Json]) -> tuple[tuple[str, str], ...]:
    buttons = out.get("buttons", [])
    rows = buttons if isinstance(buttons, Sequence) else ()
    return tuple((str(row["label"]), str(row["value"])) for row in rows if isinstance(row, Mapping))
