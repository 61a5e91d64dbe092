"""The state of the fake Discord: servers, channels, people and messages, in the format of Discord's API."""

from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime

from shoal.kernel.clock import Clock
from shoal.testing.platforms.discord_markup import shown_text
from shoal.testing.platforms.discord_wire import EPOCH_MS, Heard, Refusal, Room, Sent, user_json
from shoal.testing.platforms.wire import Given, Json

BOT = "900000000000000001"
BOT_NAME = "Shoal"
APPLICATION = "900000000000000002"
OWN_ROLE, OTHER_ROLE = "800000000000000001", "800000000000000002"
"""Roles that exist in every server: the bot's own role, and a role that people can have."""
ADA = "700000000000000001"
NONCE_SECONDS = 300.0
MESSAGES_MAX_A_PAGE = 100


class DiscordWorld:
    """The state of the fake Discord. `coming` lists the events that the gateway has not delivered yet."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.rooms: dict[str, Room] = {}
        self.messages: list[Sent] = []
        self.names: dict[str, str] = {BOT: BOT_NAME, ADA: "Ada"}
        self.bots: set[str] = {BOT}
        self.roles: dict[str, tuple[str, ...]] = {}
        self.shut: set[str] = set()
        self.barred: dict[str, str] = {}
        self.replies_refused = 0
        """Error code with which replies are rejected, or 0 to accept them. Source:
        github.com/discord/discord-api-docs/pull/8424.
        """
        self.commands: list[Given] = []
        self.heard: dict[str, Heard] = {}
        self.files: dict[str, tuple[str, bytes]] = {}
        self.coming: deque[tuple[str, Given]] = deque()
        self.address = ""
        self._count = 0

    def fresh(self) -> str:
        self._count += 1
        return str(((int(self.clock.now().timestamp() * 1000) - EPOCH_MS) << 22) + self._count)

    def room(self, room_id: str) -> Room:
        if room_id not in self.rooms:
            raise Refusal(10003)
        if self.rooms[room_id].locked:
            raise Refusal(50001)
        return self.rooms[room_id]

    def find(self, room_id: str, message_id: str) -> Sent:
        self.room(room_id)
        for message in self.messages:
            if message.id == message_id and message.channel == room_id and not message.hidden:
                return message
        raise Refusal(10008)

    def direct(self, user: str) -> Room:
        """Return the direct channel with a person, and create it if needed.

        Raises Refusal if the person accepts no messages.
        """
        if user in self.shut:
            raise Refusal(50007)
        known = next((room for room in self.rooms.values() if room.type == 1 and room.user == user), None)
        if known is None:
            known = Room(self.fresh(), 1, user=user)
            self.rooms[known.id] = known
        return known

    def keep(self, sent: Sent) -> Sent:
        sent.at = self.clock.now().timestamp()
        sent.text = shown_text(sent.raw)
        self.messages.append(sent)
        if not sent.hidden:
            self.rooms[sent.channel].last = sent.id
        return sent

    def retext(self, sent: Sent) -> None:
        sent.text = shown_text(sent.raw)

    def repeated(self, nonce: str, user: str) -> Sent | None:
        """Return the message that this person created with this nonce within NONCE_SECONDS, or None."""
        since = self.clock.now().timestamp() - NONCE_SECONDS
        matches = (
            message
            for message in self.messages
            if message.nonce == nonce and message.user == user and message.at >= since
        )
        return next(matches, None)

    # ---- API objects ----

    def user(self, user: str) -> Given:
        return user_json(user, self.names.get(user, f"User{user[-3:]}"), bot=user in self.bots)

    def member(self, user: str) -> Given:
        return {
            "roles": list[Json](self.roles.get(user, ())), "nick": None, "joined_at": "2025-01-01T00:00:00+00:00",
            "deaf": False, "mute": False, "flags": 0, "premium_since": None, "pending": False, "avatar": None,
            "banner": None, "communication_disabled_until": None,
        }  # fmt: skip

    def message(self, sent: Sent, *, whole: bool = True) -> Given:
        """Return a message object. If `whole` is set, the object includes the message that was replied to."""
        edited: Json = self.time(sent.at + sent.edits) if sent.edits else None
        described: Given = {
            "id": sent.id, "channel_id": sent.channel, "author": self.user(sent.user), "content": sent.raw,
            "timestamp": self.time(sent.at), "edited_timestamp": edited,
            "tts": False, "mention_everyone": False, "mentions": self._mentions(sent),
            "mention_roles": [role for role in (OWN_ROLE, OTHER_ROLE) if f"<@&{role}>" in sent.raw],
            "attachments": self._attachments(sent), "embeds": [], "pinned": False, "flags": 0,
            "type": 19 if sent.reply_to else 0, "components": _components(sent.buttons),
        }  # fmt: skip
        if sent.reply_to:
            described["message_reference"] = {"message_id": sent.reply_to, "channel_id": sent.channel, "type": 0}
            answered = next((message for message in self.messages if message.id == sent.reply_to), None)
            if whole:
                described["referenced_message"] = self.message(answered, whole=False) if answered else None
        return described | dict(sent.more)

    def event(self, sent: Sent) -> Given:
        described = self.message(sent)
        room = self.rooms[sent.channel]
        if room.guild:
            described |= {"guild_id": room.guild, "member": self.member(sent.user)}
        if sent.nonce:
            described["nonce"] = sent.nonce
        return described

    def channel(self, room: Room) -> Given:
        described: Given = {
            "id": room.id, "type": room.type, "last_message_id": room.last or None, "flags": 0,
        }  # fmt: skip
        if room.type == 1:
            return {**described, "recipients": [self.user(room.user)]}
        described |= {"guild_id": room.guild, "name": room.name or "harbour", "parent_id": room.parent or None}
        if room.type in (10, 11, 12):
            data: Json = {"archived": False, "auto_archive_duration": 1440, "archive_timestamp": self.time(0),
                           "locked": False, "create_timestamp": self.time(0)}  # fmt: skip
            count = sum(1 for message in self.messages if message.channel == room.id)
            return described | {
                "owner_id": BOT, "thread_metadata": data, "message_count": count, "member_count": 2,
                "total_message_sent": count, "rate_limit_per_user": 0,
            }  # fmt: skip
        return described | {"position": 0, "permission_overwrites": [], "topic": None, "nsfw": False,
                            "rate_limit_per_user": 0}  # fmt: skip

    def server(self, guild: str) -> Given:
        rooms = [room for room in self.rooms.values() if room.guild == guild]
        bot: Json = {**self.member(BOT), "user": self.user(BOT)}
        return {
            "id": guild, "name": "Pier", "icon": None, "owner_id": ADA, "roles": self.guild_roles(guild), "emojis": [],
            "features": [], "verification_level": 0, "default_message_notifications": 0, "explicit_content_filter": 0,
            "mfa_level": 0, "system_channel_flags": 0, "premium_tier": 0, "premium_subscription_count": 0,
            "preferred_locale": "en-US", "nsfw_level": 0, "stickers": [], "member_count": 2, "large": False,
            "joined_at": "2025-01-01T00:00:00+00:00", "unavailable": False, "members": [bot], "presences": [],
            "channels": [self.channel(room) for room in rooms if room.type not in (10, 11, 12)],
            "threads": [self.channel(room) for room in rooms if room.type in (10, 11, 12)],
            "voice_states": [], "stage_instances": [], "guild_scheduled_events": [], "soundboard_sounds": [],
        }  # fmt: skip

    def guild_roles(self, guild: str) -> list[Json]:
        """Return the roles of a server: @everyone, a role that people have, and the role that Discord creates for the
        bot.

        Source: docs.discord.com/developers/topics/permissions, role tags.
        """
        own: Json = {"bot_id": BOT}
        named: tuple[tuple[str, str, Mapping[str, Json]], ...] = (
            (guild, "@everyone", {}), (OTHER_ROLE, "crew", {}), (OWN_ROLE, BOT_NAME, {"managed": True, "tags": own}),
        )  # fmt: skip
        return [
            {
                "id": role, "name": name, "color": 0, "colors": {"primary_color": 0}, "hoist": False, "position": 0,
                "permissions": "1125899906842623", "managed": False, "mentionable": False, "flags": 0, "icon": None,
                "unicode_emoji": None, **more,
            }
            for role, name, more in named
        ]  # fmt: skip

    def application(self) -> Given:
        return {
            "id": APPLICATION, "name": BOT_NAME, "description": "", "icon": None, "bot_public": False, "flags": 0,
            "bot_require_code_grant": False, "verify_key": "0" * 64, "bot": self.user(BOT), "owner": self.user(ADA),
            "summary": "", "team": None, "type": None,
        }  # fmt: skip

    def time(self, at: float) -> str:
        return datetime.fromtimestamp(at, UTC).isoformat()

    def _mentions(self, sent: Sent) -> list[Json]:
        return [self.user(user) for user in self.names if f"<@{user}>" in sent.raw]

    def _attachments(self, sent: Sent) -> list[Json]:
        if sent.file is None:
            return []
        name, content = sent.file
        url = f"{self.address}/attachments/{sent.channel}/{sent.id}/{len(content)}"
        self.files[url.removeprefix(self.address)] = sent.file
        return [
            {"id": sent.id, "filename": name, "size": len(content), "url": url, "proxy_url": url,
             "content_type": "application/octet-stream"}
        ]  # fmt: skip


def _components(buttons: tuple[tuple[str, str], ...]) -> list[Json]:
    if not buttons:
        return []
    row: list[Json] = [
        {"type": 2, "id": place, "style": 2, "label": label, "custom_id": value}
        for place, (label, value) in enumerate(buttons, 2)
    ]
    return [{"type": 1, "id": 1, "components": row}]
