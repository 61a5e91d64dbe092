"""What goes to Matrix: the contents of events, and its limits."""

import hashlib
from typing import TypeAlias

import msgspec

from shoal.chat.matrix.api import Value
from shoal.chat.matrix.inbound import APPROVAL, WHOLE
from shoal.domain.errors import PlatformError
from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.markup import render_markup
from shoal.domain.posts import Button, ChatLimits, OutboundPost, Window

Contents: TypeAlias = dict[str, Value]

EVENT_BYTES_MAX = 65_536
CONTENT_BYTES_MAX = 44_000
"""A third is left for what encryption adds, and some for what the homeserver adds."""
FALLBACK_CHARS = 160
BY_REACTION = "\n\nOr put ✅ or ❌ to this message."

LIMITS = ChatLimits(
    text_chars_max=12_000,
    markup="matrix",
    text_unit="bytes",
    edit_seconds_min=2.0,
    windows=(Window(10, 10.0, "account"),),
    idempotent_posts=True,
    can_edit=True,
    can_upload=True,
    has_preview=True,
    has_ephemeral=True,
    has_history=True,
)
"""A message holds its text twice, as it was written and as HTML; bytes are those of the HTML."""

_KINDS = {"image": "m.image", "audio": "m.audio", "video": "m.video"}


class Target(msgspec.Struct, frozen=True):
    """Where a thread's posts go: a room, and the message whose thread it is (empty: the room itself)."""

    room: str
    root: str = ""


def target_of(thread: ThreadId) -> Target:
    """Where posts go. Raises PlatformError for an id that is not of Matrix' form."""
    address = thread_address(thread)
    root = "" if address.thread == WHOLE else address.thread
    if not address.channel.startswith("!") or (root and not root.startswith("$")):
        reason = f"Matrix has no thread {thread!r}; rooms begin with ! and messages with $."
        raise PlatformError(reason, permanent=True)
    return Target(address.channel, root)


def transaction_of(key: str) -> str:
    """The idempotency key as a transaction id."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def approval_of(buttons: tuple[Button, ...]) -> str:
    """The approval that buttons decide; empty where they decide none."""
    for button in buttons:
        verb, _, approval = button.value.partition(":")
        if verb == "allow" and approval:
            return approval
    return ""


def text_content(markdown: str, buttons: tuple[Button, ...] = ()) -> Contents:
    """A message's content: a notice, as programs write them; a question is a text, so that clients call for it."""
    approval = approval_of(buttons)
    written = markdown + BY_REACTION if approval else markdown
    content: Contents = {"msgtype": "m.text" if approval else "m.notice", "body": written, "m.mentions": {}}
    if approval:
        content[APPROVAL] = approval
    return styled(content, written)


def styled(content: Contents, markdown: str) -> Contents:
    """The content with its text as HTML too; without it where that would be too long for an event."""
    html = render_markup(markdown, "matrix")
    full: Contents = {**content, "format": "org.matrix.custom.html", "formatted_body": html}
    return full if len(msgspec.json.encode(full)) <= CONTENT_BYTES_MAX else content


def post_content(post: OutboundPost, target: Target) -> Contents:
    """A new message, in its thread and answering what it answers."""
    return text_content(post.markdown, post.buttons) | relation_of(target, post.reply_to)


def file_content(post: OutboundPost, target: Target, media_type: str, size: int) -> Contents:
    """A file's message without the file's address: its caption is the post's text."""
    assert post.file is not None
    content: Contents = {
        "msgtype": _KINDS.get(media_type.partition("/")[0], "m.file"),
        "body": post.markdown or post.file.name,
        "filename": post.file.name,
        "info": {"mimetype": media_type, "size": size},
        "m.mentions": {},
    }
    return (styled(content, post.markdown) if post.markdown else content) | relation_of(target, post.reply_to)


def relation_of(target: Target, reply_to: str) -> Contents:
    """How a post belongs to a thread and to what it answers; clients without threads see an answer to the root."""
    answered = reply_to if reply_to.startswith("$") else ""
    if target.root:
        shown: Value = {"event_id": answered or target.root}
        return {
            "m.relates_to": {
                "rel_type": "m.thread", "event_id": target.root, "is_falling_back": answered in ("", target.root),
                "m.in_reply_to": shown,
            }
        }  # fmt: skip
    return {"m.relates_to": {"m.in_reply_to": {"event_id": answered}}} if answered else {}


def edit_content(message_id: str, markdown: str, buttons: tuple[Button, ...]) -> Contents:
    """A change of a message; clients that know no changes see its beginning."""
    new = text_content(markdown, buttons)
    return {
        "msgtype": new["msgtype"],
        "body": f"* {markdown[:FALLBACK_CHARS]}",
        "m.mentions": {},
        "m.new_content": new,
        "m.relates_to": {"rel_type": "m.replace", "event_id": message_id},
    }


def cut(markdown: str) -> list[str]:
    """The text in pieces that fit, at lines where that goes; for short words of our own that came out long."""
    if len(render_markup(markdown, "matrix").encode()) <= LIMITS.text_chars_max or len(markdown) < 2:
        return [markdown]
    half = len(markdown) // 2
    at = markdown.rfind("\n", 1, half + 1) + 1 or half
    return [*cut(markdown[:at]), *cut(markdown[at:])]
