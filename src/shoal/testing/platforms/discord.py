"""A fake of Discord's HTTP API and gateway, on loopback. Source: docs.discord.com, API v10."""

import re
from collections import deque
from urllib.parse import unquote

import msgspec

from shoal.kernel.clock import Clock, SystemClock
from shoal.testing.platforms.discord_gateway import FakeGateway
from shoal.testing.platforms.discord_routes import Routes
from shoal.testing.platforms.discord_wire import Heard, Room, Sent, body_of
from shoal.testing.platforms.discord_world import ADA, APPLICATION, BOT, DiscordWorld
from shoal.testing.platforms.fake import FakePlatform
from shoal.testing.platforms.wire import Answered, Called, Given, Json, Part, Refused, ok, query_of

TOKEN = "OTAw.fake.token-for-tests-only"
PREFIX = "/api/v10"
POSTS_MAX = 5
WINDOW_SECONDS = 5.0
_MADE = re.compile(r".*/threads|/guilds/\d+/channels")
_LIMITED = re.compile(r"POST /channels/\d+/messages|(?:PATCH|DELETE) /channels/\d+/messages/\d+")


class FakeDiscord(FakePlatform):
    """A fake Discord with one bot. It rejects invalid calls with Discord's error codes.

    Add servers with `add_server`. Use `says`, `clicks` and `commands` to act as a person. `said` returns the bot's
    messages in a channel, and `calls` lists all of its calls.

    Each channel allows five posts and five edits in five seconds of `clock`. Response headers report the remaining
    budget, and `exceeded` counts the calls that were rejected with 429. `gateway` controls the WebSocket
    connections.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self.clock = clock or SystemClock()
        self.world = DiscordWorld(self.clock)
        self.gateway = FakeGateway(self)
        self.calls: list[tuple[str, str, Json]] = []
        self.answers: list[tuple[str, str, Json, int, Json]] = []
        self.exceeded = 0
        self.posted: list[tuple[float, str]] = []
        self.world.barred = self.barred
        self._routes = Routes(self.world)
        self._everywhere = False
        self._windows: dict[str, deque[float]] = {}

    async def start(self) -> None:
        await super().start()
        self.world.address = self.server.address
        await self.gateway.start()

    async def stop(self) -> None:
        await self.gateway.stop()
        await super().stop()

    def drop(self) -> None:
        self.gateway.drop()
        super().drop()

    @property
    def api_base(self) -> str:
        return f"{self.server.address}{PREFIX}"

    # ---- people ----

    def add_server(self) -> tuple[str, str]:
        """Add a server with one channel. Return the ids of the server and the channel."""
        guild = self.world.fresh()
        return guild, self.add_channel(guild)

    def add_channel(self, guild: str, *, name: str = "harbour", kind: int = 0) -> str:
        room = Room(self.world.fresh(), kind, guild, name=name)
        self.world.rooms[room.id] = room
        return room.id

    def direct(self, user: str = ADA) -> str:
        return self.world.direct(user).id

    def open_thread(self, channel: str, message_id: str, name: str = "a thread") -> str:
        guild = self.world.rooms[channel].guild
        self.world.rooms[message_id] = Room(message_id, 11, guild, channel, name)
        return message_id

    async def says(
        self, channel: str, text: str, *, user: str = ADA, reply_to: str = "", file: tuple[str, bytes] | None = None,
        more: Given | None = None,
    ) -> str:  # fmt: skip
        self.world.names.setdefault(user, f"User{user[-3:]}")
        sent = Sent(self.world.fresh(), channel, user, "", text, reply_to=reply_to, file=file, more=more or {})
        await self.happens("MESSAGE_CREATE", self.world.event(self.world.keep(sent)))
        return sent.id

    def quietly(self, channel: str, text: str, *, user: str, file: tuple[str, bytes] | None = None) -> str:
        """Write a message or send a file without an event for the bot, and return the message's id."""
        return self.world.keep(Sent(self.world.fresh(), channel, user, "", text, file=file)).id

    async def changes(self, message_id: str, text: str) -> None:
        sent = self._sent(message_id)
        sent.raw = text
        sent.edits += 1
        self.world.retext(sent)
        await self.happens("MESSAGE_UPDATE", self.world.event(sent))

    async def deletes(self, message_id: str) -> None:
        sent = self._sent(message_id)
        self.world.messages.remove(sent)
        gone: Given = {"id": sent.id, "channel_id": sent.channel}
        guild = self.world.rooms[sent.channel].guild
        await self.happens("MESSAGE_DELETE", {**gone, "guild_id": guild} if guild else gone)

    async def reacts(self, message_id: str, emoji: str, *, user: str = ADA) -> None:
        sent = self._sent(message_id)
        data: Given = {
            "user_id": user, "channel_id": sent.channel, "message_id": sent.id, "message_author_id": sent.user,
            "emoji": {"id": None, "name": emoji}, "burst": False, "type": 0,
        }  # fmt: skip
        guild = self.world.rooms[sent.channel].guild
        if guild:
            data |= {"guild_id": guild, "member": {**self.world.member(user), "user": self.world.user(user)}}
        await self.happens("MESSAGE_REACTION_ADD", data)

    async def clicks(self, message_id: str, label: str, *, user: str = ADA) -> Heard:
        sent = self._sent(message_id)
        data: Given = {"component_type": 2, "custom_id": dict(sent.buttons)[label], "id": 2}
        return await self._interacts(3, sent.channel, user, data, {"message": self.world.message(sent)})

    async def commands(self, channel: str, name: str, text: str = "", *, user: str = ADA) -> Heard:
        known = next(command for command in self.world.commands if command["name"] == name)
        options: list[Json] = [{"type": 3, "name": "text", "value": text}] if text else []
        data: Given = {"id": known["id"], "name": name, "type": 1, "options": options}
        return await self._interacts(2, channel, user, data, {})

    async def types(self, channel: str, name: str, text: str, *, user: str = ADA) -> list[str]:
        """Type a slash command as a person, and return the suggested choices."""
        known = next(command for command in self.world.commands if command["name"] == name)
        options: list[Json] = [{"type": 3, "name": "text", "value": text, "focused": True}]
        data: Given = {"id": known["id"], "name": name, "type": 1, "options": options}
        heard = await self._interacts(4, channel, user, data, {})
        await self.until(lambda: heard.choices is not None)
        return heard.choices or []

    async def happens(self, name: str, data: Given) -> None:
        """Deliver an event to the bot. A repeated delivery gets a new sequence number, as in a resumed session."""
        await self.happen(lambda: self.gateway.tell(name, data))

    def said(self, channel: str) -> list[Sent]:
        return [
            message
            for message in self.world.messages
            if message.channel == channel and message.user == BOT and not message.hidden
        ]

    async def sees(self, channel: str, part: str) -> Sent:
        return await self.seen(lambda: self.said(channel), part, lambda message: message.text)

    async def hears(self, heard: Heard) -> str:
        """Wait for the bot's answer to a command or click, and return its text."""
        return (await self.until(lambda: heard.message)).text

    # ---- for the gateway ----

    def welcomes(self, token: str) -> bool:
        return token == TOKEN and not self.token_refused

    def ready(self, session: str, url: str) -> Given:
        guilds = dict.fromkeys(room.guild for room in self.world.rooms.values() if room.guild)
        return {
            "v": 10, "user": self.world.user(BOT), "guilds": [{"id": guild, "unavailable": True} for guild in guilds],
            "session_id": session, "resume_gateway_url": url, "application": {"id": APPLICATION, "flags": 0},
        }  # fmt: skip

    def servers(self) -> list[Given]:
        guilds = dict.fromkeys(room.guild for room in self.world.rooms.values() if room.guild)
        return [self.world.server(guild) for guild in guilds]

    # ---- HTTP ----

    async def respond(self, called: Called) -> Answered:
        path = unquote(called.path.partition("?")[0])
        if path.startswith("/attachments/"):
            found = self.world.files.get(path)
            return Answered(200, found[1]) if found else Answered(404)
        path = path.removeprefix(PREFIX)
        token = called.headers.get("authorization", "").removeprefix("Bot ")
        if not path.startswith(("/interactions/", "/webhooks/")) and not self.welcomes(token):
            return Answered(401, b'{"message": "401: Unauthorized", "code": 0}')
        given, files = body_of(called)
        self.calls.append((called.method, path, given))
        if path == "/gateway/bot":
            start: Json = {"total": 1000, "remaining": 999, "reset_after": 0, "max_concurrency": 1}
            content: Given = {"url": self.gateway.url, "shards": 1, "session_start_limit": start}
            self.answers.append((called.method, path, given, 200, content))
            return await self.weathered(lambda: ok(content), polls=True)
        if not _LIMITED.fullmatch(f"{called.method} {path}"):
            return self._answer(called, path, given, files)
        # Posts and edits are rate-limited and subject to faults.
        self._everywhere = bool(self.troubles) and self.troubles[0][0] == "refuse_all"
        route = f"{called.method} {path.split('/')[2]}"

        def make() -> Answered:
            budget = self._budget(route)
            if budget is None:
                return self.too_many(self._wait(route))
            answer = self._answer(called, path, given, files)
            return answer._replace(headers=(*answer.headers, *budget))

        return await self.weathered(make)

    def too_many(self, seconds: float) -> Answered:
        """Return a 429 response. After the fault `refuse_all`, it applies to all calls of the account."""
        content: Given = {"message": "You are being rate limited.", "retry_after": seconds, "global": self._everywhere}
        headers = (("retry-after", f"{max(1, round(seconds))}"), ("via", "1.1 google"))
        scope = (("x-ratelimit-scope", "user"),)
        if self._everywhere:
            scope = (("x-ratelimit-global", "true"), ("x-ratelimit-scope", "global"))
        return ok(content, 429, (*headers, *scope))

    def _answer(self, called: Called, path: str, given: Json, files: tuple[Part, ...]) -> Answered:
        query = query_of(called)
        try:
            known, content = self._routes.answer(called.method, path, (given, files, query))
        except Refused as refused:
            return refused.answer
        if not known:
            return Answered(404, b'{"message": "404: Not Found", "code": 0}')
        if called.method == "POST" and path.endswith("/messages"):
            self.posted.append((self.clock.monotonic(), path.split("/")[2]))
        made = called.method == "POST" and _MADE.fullmatch(path)
        status = 204 if content is None else 201 if made else 200
        self.answers.append((called.method, path, given, status, content))
        return Answered(status, msgspec.json.encode(content) if content is not None else b"")

    def _budget(self, route: str) -> tuple[tuple[str, str], ...] | None:
        """Count one call against the rate limit of a route. Return the headers, or None if the limit is exhausted."""
        taken = self._windows.setdefault(route, deque())
        now = self.clock.monotonic()
        while taken and taken[0] <= now - WINDOW_SECONDS:
            taken.popleft()
        if len(taken) >= POSTS_MAX:
            self.exceeded += 1
            return None
        taken.append(now)
        return (
            ("x-ratelimit-limit", str(POSTS_MAX)),
            ("x-ratelimit-remaining", str(POSTS_MAX - len(taken))),
            ("x-ratelimit-reset-after", f"{self._wait(route):.3f}"),
            ("x-ratelimit-reset", f"{self.clock.now().timestamp() + self._wait(route):.3f}"),
            ("x-ratelimit-bucket", f"bucket-{route.partition(' ')[0].lower()}"),
        )

    def _wait(self, route: str) -> float:
        return max(0.0, self._windows[route][0] + WINDOW_SECONDS - self.clock.monotonic())

    async def tell(self) -> None:
        """Send the events of the bot's own actions to the gateway, and notify waiting tasks."""
        while self.world.coming:
            await self.gateway.tell(*self.world.coming.popleft())
        await super().tell()

    async def _interacts(self, kind: int, channel: str, user: str, data: Given, more: Given) -> Heard:
        room = self.world.rooms[channel]
        heard = Heard(self.world.fresh(), f"token-{self.world.fresh()}", channel, user)
        self.world.heard[heard.token] = heard
        who: Given = {"user": self.world.user(user)}
        if room.guild:
            member: Given = {**self.world.member(user), **who, "permissions": "1125899906842623"}
            who = {"member": member, "guild_id": room.guild}
        told: Given = {
            "id": heard.id, "application_id": APPLICATION, "type": kind, "data": data, "channel_id": channel,
            "channel": self.world.channel(room), "token": heard.token, "version": 1, "locale": "en-US",
            "entitlements": [], "authorizing_integration_owners": {}, "app_permissions": "0", **who, **more,
        }  # fmt: skip
        await self.happens("INTERACTION_CREATE", told)
        return heard

    def _sent(self, message_id: str) -> Sent:
        return next(message for message in self.world.messages if message.id == message_id)
