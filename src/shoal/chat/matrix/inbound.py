"""What a homeserver tells: the parts of events that matter, and their prompts. Source: spec.matrix.org, v1.15."""

import re
from datetime import UTC, datetime

import msgspec

from shoal.domain.commands import ALIASES, COMMANDS
from shoal.domain.foreign import UNREADABLE
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Author, Prompt

WHOLE = "0"
"""The thread part of conversations that are a whole room."""
APPROVAL = "dev.shoal.approval"
POST = "dev.shoal.post"
"""Where our messages have their transaction's id, also outside of what is encrypted."""
"""In a card's content: the approval that a ✅ or ❌ put to it decides."""
MEDIA = frozenset({"m.file", "m.image", "m.audio", "m.video"})
_SAID = MEDIA | {"m.text", "m.emote"}
"""Kinds of messages that people write; programs write m.notice."""

_QUOTED = re.compile(r"^(?:>.*\n?)+\n?")
_BANG = re.compile(r"^!([A-Za-z]+)")


class Answered(msgspec.Struct, frozen=True):
    """The message that is answered."""

    event_id: str = ""


class Relation(msgspec.Struct, frozen=True):
    """How an event belongs to another one."""

    rel_type: str = ""
    event_id: str = ""
    key: str = ""
    is_falling_back: bool = False
    answered: Answered = msgspec.field(name="m.in_reply_to", default=Answered())


class Mentions(msgspec.Struct, frozen=True):
    """Who is meant."""

    user_ids: tuple[str, ...] = ()


class Info(msgspec.Struct, frozen=True):
    """What is told of a file."""

    mimetype: str = ""
    size: int = 0


class SealedFile(msgspec.Struct, frozen=True):
    """Where an encrypted file lies; its key is in the event's raw content."""

    url: str = ""


class NewContent(msgspec.Struct, frozen=True):
    """What an edited message says now."""

    body: str = ""
    formatted_body: str = ""
    msgtype: str = "m.text"
    mentions: Mentions | None = msgspec.field(name="m.mentions", default=None)


class Content(msgspec.Struct, frozen=True):
    """What an event says, as far as it is read."""

    msgtype: str = ""
    body: str = ""
    formatted_body: str = ""
    filename: str = ""
    url: str = ""
    file: SealedFile | None = None
    info: Info = Info()
    membership: str = ""
    redacts: str = ""
    relation: Relation = msgspec.field(name="m.relates_to", default=Relation())
    mentions: Mentions | None = msgspec.field(name="m.mentions", default=None)
    new_content: NewContent | None = msgspec.field(name="m.new_content", default=None)
    approval: str = msgspec.field(name=APPROVAL, default="")
    post: str = msgspec.field(name=POST, default="")


class Membership(msgspec.Struct, frozen=True):
    """How somebody stood to a room."""

    membership: str = ""


class Unsigned(msgspec.Struct, frozen=True):
    """What a homeserver adds to an event."""

    prev_content: Membership = Membership()


class Event(msgspec.Struct, frozen=True):
    """Something that happened in a room."""

    type: str
    sender: str = ""
    event_id: str = ""
    origin_server_ts: int = 0
    state_key: str | None = None
    redacts: str = ""
    unsigned: Unsigned = Unsigned()
    content: msgspec.Raw = msgspec.Raw(b"{}")


class Timeline(msgspec.Struct, frozen=True):
    """What is new in a room; `limited`: there was more before it, back from `prev_batch`."""

    events: tuple[Event, ...] = ()
    limited: bool = False
    prev_batch: str = ""


class JoinedRoom(msgspec.Struct, frozen=True):
    """News of a room we are in."""

    timeline: Timeline = Timeline()


class InviteState(msgspec.Struct, frozen=True):
    """What is shown of a room before joining it."""

    events: tuple[Event, ...] = ()


class InvitedRoom(msgspec.Struct, frozen=True):
    """A room we are invited to."""

    invite_state: InviteState = InviteState()


class Rooms(msgspec.Struct, frozen=True):
    """News by room."""

    join: dict[str, JoinedRoom] = {}
    invite: dict[str, InvitedRoom] = {}


class Synced(msgspec.Struct, frozen=True):
    """What is new since the last answer."""

    next_batch: str
    rooms: Rooms = Rooms()


class Me(msgspec.Struct, frozen=True):
    """The bot: its user id and the name it shows."""

    user_id: str
    name: str = ""


class Place(msgspec.Struct, frozen=True):
    """A room; `direct` where one person is alone in it with the bot."""

    room: str
    direct: bool = False

    def prefix(self, platform: str) -> str:
        """What the ids of the room's threads begin with."""
        return self.thread(platform).removesuffix(WHOLE)

    def thread(self, platform: str) -> ThreadId:
        """The thread that the room is by itself."""
        return make_thread_id(platform, self.room, WHOLE)


def content_of(event: Event) -> Content | None:
    """What an event says; None where it has another form than is known."""
    try:
        return msgspec.json.decode(bytes(event.content), type=Content)
    except UNREADABLE:
        return None


def is_said(event: Event, content: Content, me: str) -> bool:
    """Whether a person wrote it: no notice of another program, not this bot, no change of another message."""
    return (
        event.type == "m.room.message"
        and event.sender != me
        and content.msgtype in _SAID
        and content.relation.rel_type != "m.replace"
    )  # fmt: skip


def root_of(content: Content) -> str:
    """The message whose thread an event stands in; empty for none."""
    return content.relation.event_id if content.relation.rel_type == "m.thread" else ""


def answered_id(content: Content) -> str:
    """The message that an event answers; empty for none, and where a thread only names its last one."""
    return "" if content.relation.is_falling_back else content.relation.answered.event_id


def thread_of(platform: str, place: Place, event: Event, content: Content) -> ThreadId:
    """The thread that a message belongs to when it answers nothing known. Raises InvalidId for ids without an end."""
    return make_thread_id(platform, place.room, root_of(content) or (WHOLE if place.direct else event.event_id))


def is_addressed(content: Content | NewContent, me: Me) -> bool:
    """Whether a message names the bot; clients say so, and where an old one does not, its words do."""
    if content.mentions is not None:
        return me.user_id in content.mentions.user_ids
    named = f"matrix.to/#/{me.user_id}" in content.formatted_body or me.user_id in content.body
    return named or bool(me.name and _leading(me).match(content.body))


def text_of(body: str, me: Me, *, answers: bool) -> str:
    """What a message says: without the quotation that old clients repeat, and without the bot's name in front.

    `!stop` is `/stop` to us, since clients keep what begins with a slash for themselves.
    """
    text = _QUOTED.sub("", body, count=1) if answers else body
    text = _leading(me).sub("", text, count=1).strip()
    found = _BANG.match(text)
    if found is not None and ALIASES.get(found[1].lower(), found[1].lower()) in COMMANDS:
        text = f"/{text[1:]}"
    return text


def _leading(me: Me) -> re.Pattern[str]:
    local = me.user_id.removeprefix("@").partition(":")[0]
    names = [me.user_id, f"@{local}", *([f"@{me.name}", me.name] if me.name else ()), local]
    return re.compile(rf"\s*(?:{'|'.join(map(re.escape, names))})(?![\w@])\s*[:,]?\s*", re.IGNORECASE)


def file_name(content: Content) -> str:
    """The name of the file that a message is; empty for text."""
    return (content.filename or content.body or "file") if content.msgtype in MEDIA else ""


def prompt_of(thread: ThreadId, event: Event, content: Content, author: Author, me: Me) -> Prompt:
    """The prompt a message makes, without its file; a file's name is no text, its caption is."""
    captioned = bool(content.filename) and content.filename != content.body
    body = "" if content.msgtype in MEDIA and not captioned else content.body
    text = text_of(body, me, answers=bool(content.relation.answered.event_id))
    return Prompt(
        thread=thread,
        key=event.event_id,
        text=f"* {text}" if content.msgtype == "m.emote" else text,
        author=author,
        at=time_of(event),
        reply_to=answered_id(content),
        message_id=event.event_id,
    )


def time_of(event: Event) -> datetime:
    """When it was sent, by its homeserver; nonsense counts as the first moment."""
    milliseconds = event.origin_server_ts if 0 <= event.origin_server_ts < 1 << 47 else 0
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def unseen(events: tuple[Event, ...], me: str) -> tuple[Event, ...]:
    """Those of a room's events that came after the bot was invited, or joined; all where neither is among them."""
    entries = [number for number, event in enumerate(events) if _entry(event, me)]
    invitations = [number for number in entries if _entry(events[number], me) == "invite"]
    last = (invitations or entries or [-1])[-1]
    return events[last + 1 :]


def _entry(event: Event, me: str) -> str:
    """`invite` or `join` where the bot comes into the room with this event; a new name is no coming."""
    content = content_of(event) if event.type == "m.room.member" and event.state_key == me else None
    if content is None or content.membership not in ("invite", "join"):
        return ""
    return "" if event.unsigned.prev_content.membership == "join" else content.membership
