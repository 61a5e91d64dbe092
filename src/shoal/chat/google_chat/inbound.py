"""What Google Chat tells: the parts of an event that matter, and what they mean.

Sources: developers.google.com/workspace/chat, interaction events, and Google Workspace events for Chat by Pub/Sub.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from shoal.domain.commands import COMMANDS
from shoal.domain.foreign import UNREADABLE
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Author, Prompt

WHOLE = "0"
"""The thread part of direct messages, and of spaces without threads."""
EVENT = "google.workspace.chat."
"""How the types of Workspace events begin."""


class User(msgspec.Struct, frozen=True, rename="camel"):
    """Who."""

    name: str = ""
    display_name: str = ""
    type: str = ""


class Space(msgspec.Struct, frozen=True, rename="camel"):
    """Where."""

    name: str = ""
    type: str = ""
    space_type: str = ""
    space_threading_state: str = ""


class Thread(msgspec.Struct, frozen=True):
    """A conversation in a space."""

    name: str = ""


class DataRef(msgspec.Struct, frozen=True, rename="camel"):
    """What a file is fetched by."""

    resource_name: str = ""


class Attached(msgspec.Struct, frozen=True, rename="camel"):
    """A file of a message; those of Drive have no data."""

    content_name: str = ""
    content_type: str = ""
    attachment_data_ref: DataRef | None = None
    source: str = ""


class Quoted(msgspec.Struct, frozen=True):
    """The message that another quotes."""

    name: str = ""


class Slash(msgspec.Struct, frozen=True, rename="camel"):
    """Tells that a message is a slash command."""

    command_id: str | int = ""


class Message(msgspec.Struct, frozen=True, rename="camel"):
    """A message, as far as it is read."""

    name: str = ""
    sender: User = User()
    create_time: str = ""
    last_update_time: str = ""
    text: str = ""
    argument_text: str | None = None
    thread: Thread = Thread()
    space: Space = Space()
    attachment: tuple[Attached, ...] = ()
    quoted_message_metadata: Quoted | None = None
    slash_command: Slash | None = None


class Parameter(msgspec.Struct, frozen=True):
    """What a button brings back."""

    key: str = ""
    value: str = ""


class Action(msgspec.Struct, frozen=True, rename="camel"):
    """The button that was pressed."""

    action_method_name: str = ""
    parameters: tuple[Parameter, ...] = ()


class Command(msgspec.Struct, frozen=True, rename="camel"):
    """The command of the app that was chosen from its menu."""

    app_command_id: int | str = 0


class Event(msgspec.Struct, frozen=True, rename="camel"):
    """One thing somebody did with the app."""

    type: str = ""
    event_time: str = ""
    space: Space = Space()
    user: User = User()
    message: Message | None = None
    action: Action | None = None
    app_command_metadata: Command | None = None


class Reacted(msgspec.Struct, frozen=True):
    """An emoji; `unicode` is empty for a custom one."""

    unicode: str = ""


class ReactionEvent(msgspec.Struct, frozen=True):
    """An emoji that somebody put to a message; `name` begins with the message's."""

    name: str = ""
    user: User = User()
    emoji: Reacted = Reacted()


class _One(msgspec.Struct, frozen=True):
    message: Message | None = None
    reaction: ReactionEvent | None = None


class Changes(msgspec.Struct, frozen=True):
    """What a Workspace event tells: one message or reaction, or several of a kind."""

    message: Message | None = None
    reaction: ReactionEvent | None = None
    messages: tuple[_One, ...] = ()
    reactions: tuple[_One, ...] = ()

    def found(self) -> tuple[Sequence[Message], Sequence[ReactionEvent]]:
        """All messages and all reactions."""
        ones = (_One(self.message, self.reaction), *self.messages, *self.reactions)
        return (
            [one.message for one in ones if one.message is not None],
            [one.reaction for one in ones if one.reaction is not None],
        )


class Published(msgspec.Struct, frozen=True):
    """A message of Pub/Sub; `data` is in Base64."""

    data: str = ""
    attributes: Mapping[str, str] = {}
    publish_time: str = msgspec.field(name="publishTime", default="")

    @property
    def kind(self) -> str:
        """The type of a Workspace event; empty for what people do with the app itself."""
        return self.attributes.get("ce-type", "")

    def content(self) -> bytes:
        """What was published; empty for what is no Base64."""
        try:
            return base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError):
            return b""


class Push(msgspec.Struct, frozen=True):
    """A call of Pub/Sub's, whose body always names the subscription."""

    message: Published
    subscription: str


def push_in(body: bytes) -> Push | None:
    """The push that a body is; None for an event of Google Chat's own."""
    try:
        return msgspec.json.decode(body, type=Push)
    except UNREADABLE:
        return None


def channel_of(name: str) -> str:
    """The space of a resource's name, spaces/SPACE/…; empty for another."""
    parts = name.split("/")
    return parts[1] if len(parts) > 1 and parts[0] == "spaces" else ""


def message_name(reaction: str) -> str:
    """The message that a reaction stands at."""
    return "/".join(reaction.split("/")[:4])


def is_direct(space: Space) -> bool:
    """Whether nobody else reads along."""
    return space.space_type == "DIRECT_MESSAGE" or space.type == "DM"


def thread_of(platform: str, message: Message, space: Space) -> ThreadId:
    """The thread of a message. Raises InvalidId."""
    thread = message.thread.name.rpartition("/")[2]
    if is_direct(space) or space.space_threading_state == "UNTHREADED_MESSAGES":
        thread = WHOLE
    return make_thread_id(platform, channel_of(message.name or space.name), thread or WHOLE)


def beginning_of(platform: str, channel: str) -> str:
    """How the ids of a space's threads begin. Raises InvalidId."""
    return f"{make_thread_id(platform, channel, WHOLE).rpartition(':')[0]}:"


def author_of(user: User) -> Author:
    """Who, by the id they have in all of Google."""
    return Author(user.name.removeprefix("users/"), user.display_name, is_bot=user.type == "BOT", trusted=False)


def text_of(message: Message) -> str:
    """What was written, without the app's name; a slash command whole."""
    if message.slash_command is not None:
        at = message.text.find("/")
        return message.text[at:].strip() if at >= 0 else message.text.strip()
    text = message.argument_text if message.argument_text is not None else message.text
    return text.strip()


def time_of(text: str, now: datetime) -> datetime:
    """The time that is told, or now."""
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo is not None else now
    except (ValueError, OverflowError):
        return now


def prompt_of(platform: str, message: Message, space: Space, now: datetime) -> Prompt:
    """The prompt a message makes, without its files. Raises InvalidId."""
    quoted = message.quoted_message_metadata
    return Prompt(
        thread=thread_of(platform, message, space),
        key=message.name,
        text=text_of(message),
        author=author_of(message.sender),
        at=time_of(message.create_time, now),
        reply_to=quoted.name if quoted is not None else "",
        message_id=message.name,
        direct=is_direct(space),
    )


def command_of(event: Event) -> str:
    """The command that was chosen from the menu, as text; its number there is its place in our table."""
    chosen = event.app_command_metadata
    number = str(chosen.app_command_id) if chosen is not None else ""
    names = list(COMMANDS)
    if not (number.isascii() and number.isdecimal()) or not 1 <= int(number[:6]) <= len(names):
        return ""
    return f"/{names[int(number[:6]) - 1]}"


def pressed_in(event: Event) -> str:
    """The value of the button that was pressed; empty for another."""
    parameters = event.action.parameters if event.action is not None else ()
    return next((one.value for one in parameters if one.key == "shoal"), "")
