"""FakeMatrix: a homeserver's client-server API on loopback, strict about what a real one refuses, with troubles.

Its people write with `says`, put emojis with `reacts`, invite with `invites`, and see `said`. Encryption is no part of
it: rooms may be encrypted, and what is written there then cannot be read. Source: spec.matrix.org, v1.15.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote

import msgspec

from shoal.domain.clock import Clock, SystemClock
from shoal.testing.platforms.matrix_routes import Routes, encoded
from shoal.testing.platforms.matrix_wire import (
    Given,
    Happened,
    Refusal,
    Trouble,
    Written,
    query_of,
    shown_text,
    text_in,
)
from shoal.testing.platforms.matrix_world import ADA, BOT, SERVER, MatrixWorld, Room
from shoal.testing.platforms.wire import BREAK, Answered, Called, LoopbackServer

T = TypeVar("T")

TOKEN = "syt_fake_token-for-tests-only"
PASSWORD = "a fake password"
_CLIENT = "/_matrix/client"
_UPLOAD = "/_matrix/media/v3/upload"
_DOWNLOAD = f"{_CLIENT}/v1/media/download/{SERVER}/"


class FakeMatrix:
    """One bot, its rooms and the people in them."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.world = MatrixWorld(self.clock)
        self.server = LoopbackServer(self._respond)
        self.troubles: deque[Trouble] = deque()
        self.token_refused = False
        self.logins: list[Given] = []
        self.calls: list[tuple[str, str, Given]] = []
        self.timeline_max = 50
        self.syncs = 0
        self._routes = Routes(self.world)
        self._last: Happened | None = None
        self._changed = asyncio.Condition()

    async def start(self) -> None:
        """Serve; after `stop` on the same port."""
        await self.server.start()

    async def stop(self) -> None:
        """Stop serving; what happened is kept, and people go on writing."""
        await self.server.stop()

    @property
    def address(self) -> str:
        """The homeserver's address."""
        return self.server.address

    # ---- people ----

    def add_room(self, *people: str, name: str = "", encrypted: bool = False) -> str:
        """A room with the bot and these people, ada alone unless told; returns its id."""
        return self.world.add_room(BOT, *(people or (ADA,)), name=name, encrypted=encrypted).id

    async def invites(self, *, user: str = ADA, name: str = "") -> str:
        """Somebody makes a room and invites the bot; returns its id."""
        room = self.world.add_room(user, name=name)
        self.world.move(room, BOT, "invite", user)
        await self._tell()
        return room.id

    async def says(
        self, room: str, text: str, *, user: str = ADA, thread: str = "", reply_to: str = "", kind: str = "m.text",
        more: Given | None = None,
    ) -> str:  # fmt: skip
        """Somebody writes; returns the event's id. Naming the bot by its id mentions it."""
        mentioned: Given = {"user_ids": [BOT]} if BOT in text else {}
        content: Given = {"msgtype": kind, "body": text, "m.mentions": mentioned}
        relation: Given = {"m.in_reply_to": {"event_id": reply_to}} if reply_to else {}
        if thread:
            shown: Given = {"event_id": reply_to or thread}
            relation = {
                "rel_type": "m.thread", "event_id": thread, "is_falling_back": not reply_to, "m.in_reply_to": shown,
            }  # fmt: skip
        if relation:
            content["m.relates_to"] = relation
        return await self.happens(room, user, "m.room.message", content | (more or {}))

    async def sends_file(self, room: str, name: str, content: bytes, *, user: str = ADA, thread: str = "") -> str:
        """Somebody sends a file without words; returns the event's id."""
        uploaded = self._routes.upload(name, content)
        info: Given = {"mimetype": "text/plain", "size": len(content)}
        more: Given = {"url": uploaded["content_uri"], "info": info}
        return await self.says(room, name, user=user, thread=thread, kind="m.file", more=more)

    async def changes(self, room: str, event_id: str, text: str, *, user: str = ADA) -> None:
        """Somebody edits what they wrote."""
        new: Given = {"msgtype": "m.text", "body": text, "m.mentions": {}}
        relation: Given = {"rel_type": "m.replace", "event_id": event_id}
        content: Given = {"msgtype": "m.text", "body": f"* {text}", "m.new_content": new, "m.relates_to": relation}
        await self.happens(room, user, "m.room.message", content)

    async def deletes(self, room: str, event_id: str, *, user: str = ADA) -> None:
        """Somebody deletes what they wrote."""
        self.world.event(self.world.rooms[room], event_id).content = {}
        await self.happens(room, user, "m.room.redaction", {"redacts": event_id}, redacts=event_id)

    async def reacts(self, room: str, event_id: str, emoji: str, *, user: str = ADA) -> None:
        """Somebody puts an emoji to a message."""
        relation: Given = {"rel_type": "m.annotation", "event_id": event_id, "key": emoji}
        await self.happens(room, user, "m.reaction", {"m.relates_to": relation})

    async def redeliver(self) -> None:
        """The last thing that happened is told again."""
        assert self._last is not None
        self.world.again(self._last)
        await self._tell()

    async def happens(self, room: str, user: str, kind: str, content: Given, *, redacts: str = "") -> str:
        """Something happens in a room; returns the event's id."""
        self._last = self.world.happen(self.world.rooms[room], user, kind, content, redacts=redacts)
        await self._tell()
        return self._last.event_id

    # ---- what people see ----

    def said(self, room: str, *, thread: str | None = None) -> list[Written]:
        """What the bot has in a room; `thread` "" is the room itself, None is everywhere in it."""
        found = [self._written(self.world.rooms[room], event) for event in self.world.rooms[room].events]
        return [one for one in found if one is not None and thread in (None, one.thread)]

    async def sees(self, room: str, part: str) -> Written:
        """Wait until a message of the bot in the room contains `part` and is no preview that ends so: ` …`."""

        def found() -> Written | None:
            said = [message for message in self.said(room) if not message.text.endswith(" …")]
            return next((message for message in said if part in message.text), None)

        return await self.until(found)

    async def until(self, found: Callable[[], T | None]) -> T:
        """Wait until something is there."""
        async with self._changed:
            await self._changed.wait_for(lambda: found() is not None)
        seen = found()
        assert seen is not None
        return seen

    def _written(self, room: Room, event: Happened) -> Written | None:
        replaces = event.relation.get("rel_type") == "m.replace"
        if event.sender != BOT or event.type != "m.room.message" or replaces:
            return None
        content, edits = self.world.latest(event)
        html = text_in(content, "formatted_body")
        name = text_in(event.content, "filename")
        media = text_in(event.content, "url").rpartition("/")[2]
        answered = event.relation.get("m.in_reply_to")
        falls_back = bool(event.relation.get("is_falling_back"))
        return Written(
            id=event.event_id,
            room=room.id,
            text=shown_text(html) if html else text_in(content, "body"),
            html=html,
            thread=self.world.thread_root(event),
            reply_to=text_in(answered, "event_id") if isinstance(answered, dict) and not falls_back else "",
            file=(name, self.world.files[media][1]) if media else None,
            edits=edits,
        )

    # ---- the wire ----

    async def _respond(self, called: Called) -> Answered:
        path = unquote(called.path.partition("?")[0])
        try:
            if path == f"{_CLIENT}/v3/login":
                return self._login(called)
            self._check_token(called)
            if path == f"{_CLIENT}/v3/sync":
                return await self._sync(query_of(called))
            if path == _UPLOAD:
                return Answered(200, encoded(self._routes.upload(query_of(called).get("filename", ""), called.body)))
            if path.startswith(_DOWNLOAD):
                found = self.world.files.get(path.removeprefix(_DOWNLOAD))
                return Answered(200, found[1]) if found else Refusal("M_NOT_FOUND", "Not found").answer()
            return await self._call(called)
        except Refusal as refusal:
            return refusal.answer()

    def _login(self, called: Called) -> Answered:
        given: Given = msgspec.json.decode(called.body)
        if self.token_refused or given.get("password") != PASSWORD:
            raise Refusal("M_FORBIDDEN", "Invalid username or password")
        self.logins.append(given)
        device = given.get("device_id") or "HARBOUR"
        return Answered(200, encoded({"user_id": BOT, "device_id": device, "access_token": TOKEN}))

    def _check_token(self, called: Called) -> None:
        given = called.headers.get("authorization", "")
        if not given:
            raise Refusal("M_MISSING_TOKEN", "Missing access token")
        if given != f"Bearer {TOKEN}" or self.token_refused:
            raise Refusal("M_UNKNOWN_TOKEN", "Invalid access token passed.")

    async def _call(self, called: Called) -> Answered:
        given: Given = msgspec.json.decode(called.body) if called.body else {}
        parts = called.path.partition("?")[0].removeprefix(_CLIENT).split("/")
        path = "/".join(unquote(part).replace("/", "%2F") for part in parts)
        self.calls.append((called.method, path, given))
        posts = called.method == "PUT" and "/send/" in path
        kind, seconds = self.troubles.popleft() if posts and self.troubles else ("", 0.0)
        if kind == "refuse":
            raise Refusal("M_LIMIT_EXCEEDED", "Too Many Requests", int(seconds * 1000))
        if kind == "fail":
            return Answered(502, b"<html>Bad Gateway</html>")
        answer = Answered(200, encoded(self._routes.answer(called.method, path, given, query_of(called))))
        await self._tell()
        return BREAK if kind == "lose" else answer

    async def _sync(self, query: dict[str, str]) -> Answered:
        since = int(query.get("since", "s0")[1:])
        self.syncs += "since" in query
        await self._tell()
        seconds = int(query.get("timeout", "0")) / 1000
        try:
            async with asyncio.timeout(seconds or None), self._changed:
                news = self.world.news(since, self.timeline_max)
                while news is None and seconds and not self.token_refused:
                    await self._changed.wait()
                    news = self.world.news(since, self.timeline_max)
        except TimeoutError:
            news = None
        if self.token_refused:
            raise Refusal("M_UNKNOWN_TOKEN", "Invalid access token passed.")
        keys: Given = {"signed_curve25519": 50}
        told: Given = {"next_batch": f"s{self.world.position}", "rooms": news or {}, "device_one_time_keys_count": keys}
        return Answered(200, encoded(told))

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
