"""A fake Matrix homeserver, on loopback. Source: spec.matrix.org, v1.15."""

import asyncio
import mimetypes
from urllib.parse import unquote

import msgspec

from shoal.kernel.clock import Clock, SystemClock
from shoal.testing.platforms.fake import FakePlatform
from shoal.testing.platforms.matrix_routes import Routes
from shoal.testing.platforms.matrix_wire import Happened, Refusal, Written, shown_text, text_in
from shoal.testing.platforms.matrix_world import ADA, BOT, SERVER, MatrixWorld, Room
from shoal.testing.platforms.wire import Answered, Called, Given, Json, ok, query_of

TOKEN = "syt_fake_token-for-tests-only"
PASSWORD = "a fake password"
_CLIENT = "/_matrix/client"
_UPLOAD = "/_matrix/media/v3/upload"
_DOWNLOAD = f"{_CLIENT}/v1/media/download/{SERVER}/"


class FakeMatrix(FakePlatform):
    """A fake homeserver with one bot. It rejects invalid calls with Matrix's error codes.

    Add rooms with `add_room`. Use `says`, `reacts` and `invites` to act as a person. `said` returns the bot's
    messages in a room. The fake does not implement encryption, so the bot cannot read messages in encrypted rooms.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self.clock = clock or SystemClock()
        self.world = MatrixWorld(self.clock)
        self.world.barred = self.barred
        self.logins: list[Given] = []
        self.calls: list[tuple[str, str, Given]] = []
        self.timeline_max = 50
        self.syncs = 0
        self._routes = Routes(self.world)

    @property
    def address(self) -> str:
        return self.server.address

    # ---- people ----

    def add_room(self, *people: str, name: str = "", encrypted: bool = False) -> str:
        """Add a room with the bot and these people, by default ada, and return its id."""
        return self.world.add_room(BOT, *(people or (ADA,)), name=name, encrypted=encrypted).id

    async def invites_to(self, room: str, *, user: str = ADA) -> None:
        self.world.move(self.world.rooms[room], BOT, "invite", user)
        await self.tell()

    async def invites(self, *, user: str = ADA, name: str = "", direct: bool = False) -> str:
        """Create a room as a person, invite the bot, and return the id of the room."""
        room = self.world.add_room(user, name=name)
        self.world.move(room, BOT, "invite", user, direct=direct)
        await self.tell()
        return room.id

    async def says(
        self, room: str, text: str, *, user: str = ADA, thread: str = "", reply_to: str = "", kind: str = "m.text",
        more: Given | None = None,
    ) -> str:  # fmt: skip
        """Write as a person and return the event's id. A text that contains the bot's id mentions the bot."""
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
        uploaded = self._routes.upload(name, content)
        info: Given = {"mimetype": mimetypes.guess_type(name)[0] or "text/plain", "size": len(content)}
        more: Given = {"url": uploaded["content_uri"], "info": info}
        return await self.says(room, name, user=user, thread=thread, kind="m.file", more=more)

    async def sends_key(self) -> None:
        """Send the bot an encryption key from a device. Matrix does not report which events the key decrypts.

        Source: spec.matrix.org, client-server API, send-to-device messaging and m.room_key.
        """
        self.world.position += 1
        sealed: Given = {"algorithm": "m.olm.v1.curve25519-aes-sha2"}
        event: Given = {"type": "m.room.encrypted", "sender": ADA, "content": sealed}
        self.world.to_device.append((self.world.position, event))
        await self.tell()

    async def upgrades(self, room: str, *, public: bool = True) -> str:
        """Upgrade a room as ada and return the id of the new room. If `public` is set, anyone may join the new room.

        Source: spec.matrix.org, client-server API, room upgrades (m.room.tombstone).
        """
        new = self.world.add_room(*(user for user in self.world.rooms[room].joined() if user != BOT))
        new.public = public
        event = self.world.happen(
            self.world.rooms[room], ADA, "m.room.tombstone", {"body": "moved", "replacement_room": new.id}, state_key=""
        )
        self.barred[room] = "You don't have permission to post that to the room."
        await self.tell()
        assert event.event_id
        return new.id

    async def changes(self, room: str, event_id: str, text: str, *, user: str = ADA) -> None:
        named: Given = {"user_ids": [BOT]} if text.startswith(BOT) else {}
        new: Given = {"msgtype": "m.text", "body": text, "m.mentions": named}
        relation: Given = {"rel_type": "m.replace", "event_id": event_id}
        content: Given = {"msgtype": "m.text", "body": f"* {text}", "m.new_content": new, "m.relates_to": relation}
        await self.happens(room, user, "m.room.message", content)

    async def deletes(self, room: str, event_id: str, *, user: str = ADA) -> None:
        self.world.event(self.world.rooms[room], event_id).content = {}
        await self.happens(room, user, "m.room.redaction", {"redacts": event_id}, redacts=event_id)

    async def reacts(self, room: str, event_id: str, emoji: str, *, user: str = ADA) -> None:
        relation: Given = {"rel_type": "m.annotation", "event_id": event_id, "key": emoji}
        await self.happens(room, user, "m.reaction", {"m.relates_to": relation})

    async def happens(self, room: str, user: str, kind: str, content: Given, *, redacts: str = "") -> str:
        event = self.world.written(self.world.rooms[room], user, kind, content, redacts=redacts)

        async def deliver() -> None:
            self.world.tell(event)

        await self.happen(deliver)
        return event.event_id

    # ---- what people see ----

    def said(self, room: str, *, thread: str | None = None) -> list[Written]:
        """Return the bot's messages in a room, oldest first.

        `thread` selects a thread. An empty string selects messages outside threads, and None selects all messages.
        """
        messages = [self._written(self.world.rooms[room], event) for event in self.world.rooms[room].events]
        return [message for message in messages if message is not None and thread in (None, message.thread)]

    async def sees(self, room: str, part: str) -> Written:
        return await self.seen(lambda: self.said(room), part, lambda message: message.text)

    def _written(self, room: Room, event: Happened) -> Written | None:
        replaces = event.relation.get("rel_type") == "m.replace"
        if event.sender != BOT or event.type != "m.room.message" or replaces or not event.content:
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
            kind="voice" if "org.matrix.msc3245.voice" in event.content else text_in(content, "msgtype")[2:],
            edits=edits,
        )

    # ---- HTTP ----

    async def respond(self, called: Called) -> Answered:
        path = unquote(called.path.partition("?")[0])
        if path == f"{_CLIENT}/v3/login":
            login: Given = msgspec.json.decode(called.body)
            if self.token_refused or login.get("password") != PASSWORD:
                raise Refusal("M_FORBIDDEN", "Invalid username or password")
            self.logins.append(login)
            return ok({"user_id": BOT, "device_id": login.get("device_id") or "HARBOUR", "access_token": TOKEN})
        token = called.headers.get("authorization", "")
        if not token:
            raise Refusal("M_MISSING_TOKEN", "Missing access token")
        if token != f"Bearer {TOKEN}" or self.token_refused:
            raise Refusal("M_UNKNOWN_TOKEN", "Invalid access token passed.")
        if path == f"{_CLIENT}/v3/sync":
            return await self._sync(query_of(called))
        if path == _UPLOAD:
            return ok(self._routes.upload(query_of(called).get("filename", ""), called.body))
        if path.startswith(_DOWNLOAD):
            content = self.world.files.get(path.removeprefix(_DOWNLOAD))
            return Answered(200, content[1]) if content else Refusal("M_NOT_FOUND", "Not found").answer
        given: Given = msgspec.json.decode(called.body) if called.body else {}
        parts = called.path.partition("?")[0].removeprefix(_CLIENT).split("/")
        path = "/".join(unquote(part).replace("/", "%2F") for part in parts)
        self.calls.append((called.method, path, given))

        def make() -> Answered:
            return ok(self._routes.answer(called.method, path, given, query_of(called)))

        if called.method == "PUT" and ("/send/" in path or "/redact/" in path):
            return await self.weathered(make)
        return make()

    def too_many(self, seconds: float) -> Answered:
        return Refusal("M_LIMIT_EXCEEDED", "Too Many Requests", int(seconds * 1000)).answer

    async def _sync(self, query: dict[str, str]) -> Answered:
        since = int(query.get("since", "s0")[1:])
        self.syncs += "since" in query
        await self.tell()
        seconds = int(query.get("timeout", "0")) / 1000
        try:
            async with asyncio.timeout(seconds):
                await self.until(lambda: self.token_refused or self.world.news(since, self.timeline_max))
        except TimeoutError:
            pass
        if self.token_refused:
            raise Refusal("M_UNKNOWN_TOKEN", "Invalid access token passed.")
        keys: Given = {"signed_curve25519": 50}
        news = self.world.news(since, self.timeline_max) or {}
        sent: list[Json] = [event for position, event in self.world.to_device if position > since]
        data: Given = {
            "next_batch": f"s{self.world.position}", "rooms": news, "device_one_time_keys_count": keys,
            "to_device": {"events": sent},
        }  # fmt: skip
        return await self.weathered(lambda: ok(data), polls=True)
