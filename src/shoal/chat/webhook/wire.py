"""The JSON of the webhook chat, both ways; docs/platforms/webhook.md describes it for who writes the other side."""

import base64
import hashlib
from datetime import datetime
from typing import Literal, TypeAlias
from urllib.parse import quote

import msgspec

from shoal.domain.ids import ThreadId, make_thread_id, thread_address
from shoal.domain.messages import Author, Deletion, Edit, Prompt, Reaction
from shoal.domain.posts import Button, OutboundPost

MAIN_THREAD = "main"
"""The thread of a channel where none is named."""
KEY_HEADER_CHARS_MAX = 255
"""Longest key that a header carries; of a longer one it has the SHA-256."""
_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))


class Person(msgspec.Struct, frozen=True):
    """Who did it, as the other side vouches for them."""

    id: str
    name: str = ""
    roles: tuple[str, ...] = ()
    is_bot: bool = False


class FileIn(msgspec.Struct, frozen=True):
    """A file with a message: `data` in base64, or a public `url`."""

    name: str
    media_type: str = "application/octet-stream"
    data: str = ""
    url: str = ""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where something happened, and who did it."""

    channel: str
    thread: str = MAIN_THREAD
    author: Person


class Said(Place, frozen=True, kw_only=True, tag="message", tag_field="type"):
    """Somebody wrote. `id` is unique within the platform; the same id again is the same message."""

    id: str
    text: str = ""
    at: datetime | None = None
    direct: bool = False
    reply_to: str = ""
    files: tuple[FileIn, ...] = ()


class Changed(Place, frozen=True, kw_only=True, tag="edit", tag_field="type"):
    """Somebody changed message `id`."""

    id: str
    text: str


class Gone(Place, frozen=True, kw_only=True, tag="deletion", tag_field="type"):
    """Somebody deleted message `id`."""

    id: str


class Reacted(Place, frozen=True, kw_only=True, tag="reaction", tag_field="type"):
    """Somebody put an emoji to message `id`."""

    id: str
    emoji: str


class Clicked(Place, frozen=True, kw_only=True, tag="click", tag_field="type"):
    """Somebody pressed a button; `value` is the button's."""

    value: str


Call: TypeAlias = Said | Changed | Gone | Reacted | Clicked


def place_of(platform: str, call: Call) -> ThreadId:
    """The thread something happened in. Raises InvalidId."""
    return make_thread_id(platform, call.channel, call.thread)


def author_of(person: Person) -> Author:
    """Who, for the core."""
    return Author(person.id, person.name, person.roles, person.is_bot, trusted=False)


def prompt_of(platform: str, said: Said, now: datetime, *, agent: str, joins: bool) -> Prompt:
    """The prompt a message makes, without its files. Raises InvalidId."""
    at = said.at if said.at is not None and said.at.tzinfo is not None else now
    return Prompt(
        thread=place_of(platform, said), key=said.id, text=said.text, author=author_of(said.author), at=at,
        agent=agent, reply_to=said.reply_to, message_id=said.id, direct=said.direct, joins=joins,
    )  # fmt: skip


def revision_of(platform: str, call: Changed | Gone | Reacted) -> Edit | Deletion | Reaction:
    """What a call about an earlier message means. Raises InvalidId."""
    thread, author = place_of(platform, call), author_of(call.author)
    match call:
        case Changed():
            return Edit(thread, call.id, call.text, author, call.id)
        case Gone():
            return Deletion(thread, call.id, author, call.id)
        case Reacted():
            return Reaction(thread, call.emoji, author, call.id)


class _ButtonOut(msgspec.Struct, frozen=True):
    label: str
    value: str


class _FileOut(msgspec.Struct, frozen=True):
    name: str
    data: str


class Out(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is sent: a `post`, an `edit` of message `id`, or `typing` with a status.

    `key` is the post's idempotency key; it is the message's id unless the answer names another.
    """

    type: Literal["post", "edit", "typing"]
    channel: str
    thread: str
    key: str = ""
    id: str = ""
    kind: str = "text"
    text: str = ""
    buttons: tuple[_ButtonOut, ...] = ()
    file: _FileOut | None = None
    reply_to: str = ""
    user: str = ""


class Made(msgspec.Struct, frozen=True):
    """The answer to a post, if there is one."""

    id: str = ""


def key_header(key: str) -> str:
    """A key as a header can carry it: percent-encoded where it is not visible ASCII; a long one as its digest."""
    visible = quote(key, safe=_VISIBLE, errors="surrogatepass")
    return visible if len(visible) <= KEY_HEADER_CHARS_MAX else hashlib.sha256(visible.encode()).hexdigest()


def post_out(post: OutboundPost, content: bytes | None) -> Out:
    """A post; `content` is that of its file."""
    address = thread_address(post.thread)
    file = None
    if post.file is not None and content is not None:
        file = _FileOut(post.file.name, base64.b64encode(content).decode())
    return Out(
        "post", address.channel, address.thread, key=post.key, kind=post.kind, text=post.markdown,
        buttons=buttons_out(post.buttons), file=file, reply_to=post.reply_to, user=post.user,
    )  # fmt: skip


def edit_out(thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...]) -> Out:
    """A changed message."""
    address = thread_address(thread)
    return Out("edit", address.channel, address.thread, id=message_id, text=markdown, buttons=buttons_out(buttons))


def typing_out(thread: ThreadId, status: str) -> Out:
    """A sign of life; an empty status ends it."""
    address = thread_address(thread)
    return Out("typing", address.channel, address.thread, text=status)


def buttons_out(buttons: tuple[Button, ...]) -> tuple[_ButtonOut, ...]:
    """Buttons as they are sent."""
    return tuple(_ButtonOut(button.label, button.value) for button in buttons)
