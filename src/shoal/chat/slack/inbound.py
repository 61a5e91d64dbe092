"""What Slack tells: the parts of an event that matter, and the prompt, edit or deletion it makes."""

import hashlib
import hmac
import re
from datetime import UTC, datetime

import msgspec

from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Author, Prompt

NO_THREAD = "0"
"""The thread part of a direct conversation's own messages, as opposed to threads under them."""
SIGNED_SECONDS_MAX = 300
"""How old a signed call may be. Source: docs.slack.dev/authentication/verifying-requests-from-slack."""
DIRECT = "D"
"""What the ids of direct conversations begin with."""

_CHANNEL = re.compile(r"[A-Z0-9]{2,40}")
_TIMESTAMP = re.compile(r"[0-9]{1,11}\.[0-9]{1,9}")
_MARKED = re.compile(r"<([^<>]*)>")
_SUBTYPES = frozenset({"", "file_share", "thread_broadcast", "me_message"})
"""Messages that somebody wrote; all others are notes of what happened in the channel."""
_DIGITS_MAX = 20


class SlackFile(msgspec.Struct, frozen=True):
    """A file that came with a message."""

    id: str = ""
    name: str | None = None
    title: str | None = None
    mimetype: str = ""
    size: int = 0
    url_private: str = ""
    url_private_download: str = ""
    is_external: bool = False
    file_access: str = ""

    @property
    def label(self) -> str:
        """What people call it."""
        return self.name or self.title or "file"


class Item(msgspec.Struct, frozen=True):
    """What a reaction is put to."""

    type: str = ""
    channel: str = ""
    ts: str = ""


class Metadata(msgspec.Struct, frozen=True):
    """What an app keeps beside its message; ours has the post's key."""

    event_type: str = ""
    event_payload: dict[str, msgspec.Raw] = {}


class Message(msgspec.Struct, frozen=True):
    """A message, or an event that is about one, as far as it is read."""

    type: str = ""
    subtype: str = ""
    channel: str = ""
    user: str = ""
    bot_id: str | None = None
    text: str | None = ""
    ts: str = ""
    thread_ts: str = ""
    parent_user_id: str = ""
    files: tuple[SlackFile, ...] = ()
    message: "Message | None" = None
    previous_message: "Message | None" = None
    deleted_ts: str = ""
    reaction: str = ""
    item: Item | None = None
    metadata: Metadata | None = None


class Authorization(msgspec.Struct, frozen=True):
    """An installation of the app that may see an event."""

    team_id: str | None = None


class EventCall(msgspec.Struct, frozen=True):
    """What the Events API sends, by HTTP or inside an envelope."""

    type: str = ""
    challenge: str = ""
    team_id: str = ""
    event: Message | None = None
    authorizations: tuple[Authorization, ...] = ()

    def is_of(self, team: str) -> bool:
        """Whether it is for the app as it is installed in this workspace."""
        teams = {found.team_id for found in self.authorizations if found.team_id} or {self.team_id}
        return not team or team in teams or teams == {""}


class Actor(msgspec.Struct, frozen=True):
    """Who clicked."""

    id: str = ""
    name: str = ""
    username: str = ""


class Room(msgspec.Struct, frozen=True):
    """Where a click was made."""

    id: str = ""


class Action(msgspec.Struct, frozen=True):
    """What was clicked."""

    action_id: str = ""
    value: str = ""


class Click(msgspec.Struct, frozen=True):
    """An interaction; only buttons of messages are ours."""

    type: str = ""
    user: Actor = Actor()
    channel: Room | None = None
    message: Message | None = None
    actions: tuple[Action, ...] = ()
    response_url: str = ""


class Slash(msgspec.Struct, frozen=True):
    """A slash command. Slack does not say in which thread it was written."""

    command: str = ""
    text: str = ""
    user_id: str = ""
    user_name: str = ""
    channel_id: str = ""
    response_url: str = ""
    trigger_id: str = ""


class Me(msgspec.Struct, frozen=True):
    """Who the bot is, as auth.test says."""

    user_id: str = ""
    bot_id: str = ""
    team_id: str = ""
    team: str = ""
    user: str = ""


def is_signed(secret: str, timestamp: str, signature: str, body: bytes, now: datetime) -> bool:
    """Whether Slack signed this call, not longer ago than SIGNED_SECONDS_MAX."""
    if not secret or not (timestamp.isascii() and timestamp.isdecimal()) or len(timestamp) > _DIGITS_MAX:
        return False
    if abs(now.timestamp() - int(timestamp)) > SIGNED_SECONDS_MAX:
        return False
    return hmac.compare_digest(signature_of(secret, timestamp, body).encode(), signature.encode())


def signature_of(secret: str, timestamp: str, body: bytes) -> str:
    """What Slack writes into X-Slack-Signature."""
    signed = hmac.new(secret.encode(), b"v0:" + timestamp.encode() + b":" + body, hashlib.sha256)
    return f"v0={signed.hexdigest()}"


def key_of(channel: str, ts: str) -> str:
    """A message's key, the same in each of the events that tell of it."""
    return f"{channel}/{ts}"


def is_direct(channel: str) -> bool:
    """Whether only one person and the bot are there."""
    return channel.startswith(DIRECT)


def thread_of(platform: str, channel: str, ts: str, thread_ts: str) -> ThreadId:
    """The thread a message belongs to: the one it stands in, or would begin; in direct conversations the whole."""
    alone = NO_THREAD if is_direct(channel) else ts
    return make_thread_id(platform, channel, thread_ts or alone)


def is_written(message: Message, me: Me) -> bool:
    """Whether a person wrote it: not the bot itself, no other bot, no note of the platform."""
    if message.subtype not in _SUBTYPES or message.bot_id or message.user in ("", me.user_id, "USLACKBOT"):
        return False
    return _is_place(message.channel, message.ts, message.thread_ts)


def was_said(message: Message, me: Me) -> bool:
    """Whether somebody else said it, another bot maybe."""
    own = message.user == me.user_id or (message.bot_id is not None and message.bot_id == me.bot_id)
    said = message.subtype in _SUBTYPES or message.subtype == "bot_message"
    return said and not own and _is_place(message.channel, message.ts, message.thread_ts)


def is_about_message(event: Message) -> bool:
    """Whether an edit or a deletion names a message that can be."""
    about = event.previous_message or event.message
    return about is not None and _is_place(event.channel, event.deleted_ts or about.ts, about.thread_ts)


def _is_place(channel: str, ts: str, thread_ts: str) -> bool:
    threaded = not thread_ts or _TIMESTAMP.fullmatch(thread_ts) is not None
    return _CHANNEL.fullmatch(channel) is not None and _TIMESTAMP.fullmatch(ts) is not None and threaded


def is_addressed(message: Message, me: Me) -> bool:
    """Whether it names the bot."""
    text = message.text or ""
    return f"<@{me.user_id}>" in text or f"<@{me.user_id}|" in text


def prompt_of(platform: str, message: Message, me: Me) -> Prompt:
    """The prompt a written message makes, without its files; the author has no name yet."""
    channel = message.channel
    return Prompt(
        thread=thread_of(platform, channel, message.ts, message.thread_ts),
        key=key_of(channel, message.ts),
        text=text_of(message.text or "", me),
        author=Author(message.user, is_bot=bool(message.bot_id), trusted=False),
        at=time_of(message.ts),
        reply_to=message.thread_ts if is_direct(channel) and message.thread_ts != message.ts else "",
        message_id=message.ts,
        direct=is_direct(channel),
    )


def time_of(ts: str) -> datetime:
    """When a message was written; its id says so."""
    return datetime.fromtimestamp(float(ts), UTC)


def text_of(text: str, me: Me) -> str:
    """The text without the bot's own name, and with Slack's marks read: links, channels, announcements, entities.

    Other people stay `<@ID>`, which is how one writes to them.
    """
    own = re.compile(rf"<@{re.escape(me.user_id)}(\|[^<>]*)?>[ \t]*") if me.user_id else None
    if own is not None:
        text = own.sub("", text)
    plain = _MARKED.sub(lambda found: _read(found[1]), text)
    return plain.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()


def _read(inner: str) -> str:
    target, _, label = inner.partition("|")
    if target.startswith("@"):
        return f"<{target}>"
    if target.startswith("#"):
        return f"#{label}" if label else f"<{target}>"
    if target.startswith("!"):
        return label or f"@{target[1:].partition('^')[0]}"
    if not label or label == target or target.removeprefix("mailto:") == label:
        return label or target
    return f"{label} ({target})"
