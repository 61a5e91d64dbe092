"""The HTTP routes of the fake Discord. They reject the calls that Discord rejects."""

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from shoal.testing.platforms.discord_wire import (
    Heard,
    Refusal,
    Room,
    Sent,
    buttons_of,
    checked_choices,
    checked_commands,
    checked_message,
    is_voice,
    refused,
)
from shoal.testing.platforms.discord_world import APPLICATION, BOT, MESSAGES_MAX_A_PAGE, DiscordWorld
from shoal.testing.platforms.wire import Given, Json, Part

Asked: TypeAlias = tuple[Json, tuple[Part, ...], Mapping[str, str]]
Handler: TypeAlias = Callable[["Routes", tuple[str, ...], Asked], Json]
NOTHING: Json = None
"""Result of a route that responds with status 204 and no content."""


class Routes:
    def __init__(self, world: DiscordWorld) -> None:
        self.world = world

    def answer(self, method: str, path: str, asked: Asked) -> tuple[bool, Json]:
        """Return True and the result of the route, or False and None if the route is unknown.

        Raises Refusal if Discord would reject the call.
        """
        for known, pattern, handler in TABLE:
            match = pattern.fullmatch(path) if known == method else None
            if match is not None:
                return True, handler(self, match.groups(), asked)
        return False, None

    # ---- the bot ----

    def application(self, ids: tuple[str, ...], asked: Asked) -> Json:
        return self.world.application()

    def me(self, ids: tuple[str, ...], asked: Asked) -> Json:
        return self.world.user(BOT)

    def servers(self, ids: tuple[str, ...], asked: Asked) -> Json:
        guilds = dict.fromkeys(room.guild for room in self.world.rooms.values() if room.guild)
        return [{"id": guild, "name": "Pier", "icon": None, "owner": False, "features": []} for guild in guilds]

    def register(self, ids: tuple[str, ...], asked: Asked) -> Json:
        """Replace all slash commands."""
        if ids[0] != APPLICATION:
            raise Refusal(50001)
        self.world.commands = [
            {**command, "id": self.world.fresh(), "application_id": APPLICATION, "version": self.world.fresh(),
             "default_member_permissions": None}
            for command in checked_commands(asked[0])
        ]  # fmt: skip
        return list[Json](self.world.commands)

    # ---- channels ----

    def channel(self, ids: tuple[str, ...], asked: Asked) -> Json:
        return self.world.channel(self.world.room(ids[0]))

    def open_direct(self, ids: tuple[str, ...], asked: Asked) -> Json:
        return self.world.channel(self.world.direct(str(_object(asked).get("recipient_id"))))

    def typing(self, ids: tuple[str, ...], asked: Asked) -> Json:
        self.world.room(ids[0])
        return NOTHING

    def make_channel(self, ids: tuple[str, ...], asked: Asked) -> Json:
        given = _object(asked)
        if not any(room.guild == ids[0] for room in self.world.rooms.values()):
            raise Refusal(10004)
        name = str(given.get("name", "")).lower().replace(" ", "-")
        if not 1 <= len(name) <= 100:
            raise refused("name", "Must be between 1 and 100 in length.")
        room = Room(self.world.fresh(), 0, ids[0], str(given.get("parent_id") or ""), name)
        self.world.rooms[room.id] = room
        self.world.coming.append(("CHANNEL_CREATE", self.world.channel(room)))
        return self.world.channel(room)

    def open_thread(self, ids: tuple[str, ...], asked: Asked) -> Json:
        """Open a thread on a message. The thread gets the id of the message."""
        parent, message_id = ids
        given = _object(asked)
        room = self.world.room(parent)
        if room.type not in (0, 5):
            raise Refusal(50024)
        self.world.find(parent, message_id)
        if message_id in self.world.rooms:
            raise Refusal(160004)
        if not 1 <= len(str(given.get("name", ""))) <= 100:
            raise refused("name", "Must be between 1 and 100 in length.")
        if given.get("auto_archive_duration", 1440) not in (60, 1440, 4320, 10080):
            raise refused("auto_archive_duration", "Value must be one of {60, 1440, 4320, 10080}.")
        thread = Room(message_id, 11, room.guild, parent, str(given["name"]))
        self.world.rooms[message_id] = thread
        self.world.coming.append(("THREAD_CREATE", {**self.world.channel(thread), "newly_created": True}))
        return self.world.channel(thread)

    def open_in_forum(self, ids: tuple[str, ...], asked: Asked) -> Json:
        """Open a forum thread with its first message. The thread and the message get the same id."""
        room, given = self.world.room(ids[0]), _object(asked)
        if room.type not in (15, 16):
            raise Refusal(50024)
        message = given.get("message")
        if not isinstance(message, dict) or not 1 <= len(str(given.get("name", ""))) <= 100:
            raise refused("message", "This field is required.")
        checked_message(message, asked[1], new=True)
        thread = Room(self.world.fresh(), 11, room.guild, room.id, str(given["name"]))
        self.world.rooms[thread.id] = thread
        sent = self._made(thread.id, message, asked[1])
        sent.id = thread.id
        self.world.keep(sent)
        return self.world.channel(thread)

    def roles(self, ids: tuple[str, ...], asked: Asked) -> Json:
        return self.world.guild_roles(ids[0])

    def member(self, ids: tuple[str, ...], asked: Asked) -> Json:
        if ids[1] not in self.world.names:
            raise Refusal(10007)
        return {**self.world.member(ids[1]), "user": self.world.user(ids[1])}

    # ---- messages ----

    def post(self, ids: tuple[str, ...], asked: Asked) -> Json:
        """Post a message as the bot. A repeated nonce returns the first message."""
        given = _object(asked)
        room = self.world.room(ids[0])
        if room.type == 1 and room.user in self.world.shut:
            raise Refusal(50007)
        if room.id in self.world.barred:
            raise Refusal(int(self.world.barred[room.id]))
        if room.type in (15, 16):
            raise Refusal(40058)
        checked_message(given, asked[1], new=True)
        nonce = str(given.get("nonce") or "")
        repeated = self.world.repeated(nonce, BOT) if nonce and given.get("enforce_nonce") else None
        if repeated is not None:
            return {**self.world.message(repeated), "nonce": nonce}
        sent = self._made(ids[0], given, asked[1])
        sent.reply_to, sent.nonce = self._answered(ids[0], given), nonce
        self.world.keep(sent)
        self.world.coming.append(("MESSAGE_CREATE", self.world.event(sent)))
        return {**self.world.message(sent), "nonce": nonce} if nonce else self.world.message(sent)

    def change(self, ids: tuple[str, ...], asked: Asked) -> Json:
        given = _object(asked)
        sent = self.world.find(ids[0], ids[1])
        if sent.user != BOT:
            raise Refusal(50005)
        checked_message(given, asked[1], new=False)
        self._edited(sent, given)
        self.world.coming.append(("MESSAGE_UPDATE", self.world.event(sent)))
        return self.world.message(sent)

    def remove(self, ids: tuple[str, ...], asked: Asked) -> Json:
        self.world.messages.remove(self.world.find(ids[0], ids[1]))
        gone: Given = {"id": ids[1], "channel_id": ids[0]}
        guild = self.world.rooms[ids[0]].guild
        self.world.coming.append(("MESSAGE_DELETE", {**gone, "guild_id": guild} if guild else gone))
        return NOTHING

    def message(self, ids: tuple[str, ...], asked: Asked) -> Json:
        return self.world.message(self.world.find(ids[0], ids[1]))

    def page(self, ids: tuple[str, ...], asked: Asked) -> Json:
        """Return a page of messages in a channel, before or after an id, newest first."""
        self.world.room(ids[0])
        query = asked[2]
        limit = int(query.get("limit", 50))
        if not 1 <= limit <= MESSAGES_MAX_A_PAGE:
            raise refused("limit", "int value should be between 1 and 100.")
        messages = [message for message in self.world.messages if message.channel == ids[0] and not message.hidden]
        if "before" in query:
            messages = [message for message in messages if int(message.id) < int(query["before"])]
        if "after" in query:
            messages = [message for message in messages if int(message.id) > int(query["after"])][:limit]
        return [self.world.message(message) for message in reversed(messages[-limit:])]

    # ---- interactions ----

    def callback(self, ids: tuple[str, ...], asked: Asked) -> Json:
        """Answer, defer or acknowledge an interaction. Discord requires this call before any other answer."""
        given = _object(asked)
        heard = self._heard(ids[1])
        if heard.id != ids[0]:
            raise Refusal(10062)
        if heard.state != "new":
            raise Refusal(40060)
        data = given.get("data") or {}
        assert isinstance(data, dict)
        if given.get("type") == 4:
            checked_message(data, asked[1], new=True)
            self._say(heard, data)
        elif given.get("type") in (5, 6):
            heard.state = "deferred"
        elif given.get("type") == 8:
            heard.state, heard.choices = "answered", checked_choices(data)
        else:
            raise refused("type", "Value must be one of {4, 5, 6, 8}.")
        return NOTHING

    def original(self, ids: tuple[str, ...], asked: Asked) -> Json:
        """Send the deferred answer to an interaction, or edit the answer."""
        given = _object(asked)
        heard = self._heard(ids[1])
        if heard.state == "new":
            raise Refusal(10015)
        checked_message(given, asked[1], new=False)
        if heard.message is None:
            self._say(heard, given)
        else:
            self._edited(heard.message, given)
        assert heard.message is not None
        return self.world.message(heard.message)

    def follow_up(self, ids: tuple[str, ...], asked: Asked) -> Json:
        given = _object(asked)
        heard = self._heard(ids[1])
        if heard.state == "new":
            raise Refusal(10015)
        checked_message(given, asked[1], new=True)
        self._say(heard, given)
        assert heard.message is not None
        return self.world.message(heard.message)

    # ---- state ----

    def _heard(self, token: str) -> Heard:
        if token not in self.world.heard:
            raise Refusal(10062)
        return self.world.heard[token]

    def _say(self, heard: Heard, given: Given) -> None:
        sent = self._made(heard.channel, given, ())
        sent.hidden = True
        heard.state, heard.message = "answered", self.world.keep(sent)

    def _made(self, room: str, given: Given, files: tuple[Part, ...]) -> Sent:
        files_sent = tuple((file.filename, file.content) for file in files)
        sent = Sent(self.world.fresh(), room, BOT, "", str(given.get("content") or ""), buttons=buttons_of(given))
        sent.file, sent.album = next(iter(files_sent), None), files_sent[1:]
        sent.kind = "voice" if is_voice(given) else ""
        return sent

    def _edited(self, sent: Sent, given: Given) -> None:
        if "content" in given:
            sent.raw = str(given["content"] or "")
        if "components" in given:
            sent.buttons = buttons_of(given)
        sent.edits += 1
        self.world.retext(sent)

    def _answered(self, room: str, given: Given) -> str:
        reference = given.get("message_reference")
        if not isinstance(reference, dict):
            return ""
        if self.world.replies_refused:
            raise Refusal(self.world.replies_refused)
        answered = str(reference.get("message_id"))
        if any(message.id == answered and message.channel == room for message in self.world.messages):
            return answered
        if reference.get("fail_if_not_exists", True):
            raise refused("message_reference", "Unknown message")
        return ""


def _object(asked: Asked) -> Given:
    if not isinstance(asked[0], dict):
        raise refused("_", "Expected an object.")
    return asked[0]


def _route(method: str, template: str, handler: Handler) -> tuple[str, re.Pattern[str], Handler]:
    return method, re.compile(re.sub(r"\{(\w+)\}", r"([^/]+)", template)), handler


TABLE = (
    _route("GET", "/users/@me", Routes.me),
    _route("GET", "/users/@me/guilds", Routes.servers),
    _route("POST", "/users/@me/channels", Routes.open_direct),
    _route("GET", "/oauth2/applications/@me", Routes.application),
    _route("PUT", "/applications/{application_id}/commands", Routes.register),
    _route("GET", "/channels/{channel_id}", Routes.channel),
    _route("POST", "/channels/{channel_id}/typing", Routes.typing),
    _route("POST", "/channels/{channel_id}/threads", Routes.open_in_forum),
    _route("POST", "/guilds/{guild_id}/channels", Routes.make_channel),
    _route("GET", "/guilds/{guild_id}/roles", Routes.roles),
    _route("GET", "/guilds/{guild_id}/members/{user_id}", Routes.member),
    _route("GET", "/channels/{channel_id}/messages", Routes.page),
    _route("POST", "/channels/{channel_id}/messages", Routes.post),
    _route("GET", "/channels/{channel_id}/messages/{message_id}", Routes.message),
    _route("PATCH", "/channels/{channel_id}/messages/{message_id}", Routes.change),
    _route("DELETE", "/channels/{channel_id}/messages/{message_id}", Routes.remove),
    _route("POST", "/channels/{channel_id}/messages/{message_id}/threads", Routes.open_thread),
    _route("POST", "/interactions/{interaction_id}/{interaction_token}/callback", Routes.callback),
    _route("PATCH", "/webhooks/{webhook_id}/{webhook_token}/messages/@original", Routes.original),
    _route("POST", "/webhooks/{webhook_id}/{webhook_token}", Routes.follow_up),
)
"""Methods, paths and handlers of the routes. Path parameters have the same names as in Discord's API description."""
