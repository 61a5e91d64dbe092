"""What goes to Matrix: its limits, its markup, and the contents of events."""

import hashlib
import html
from collections.abc import Sequence

import msgspec

from shoal.chat.http import Json
from shoal.chat.matrix.wire import WHOLE, JsonObject
from shoal.domain.errors import PlatformError
from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.markup import Dialect, around, is_link, language_in, plain_link, render_markup
from shoal.domain.posts import Button, ChatLimits, OutboundPost, Window
from shoal.domain.speech import seconds_of

EVENT_BYTES_MAX = 65_536
CONTENT_BYTES_MAX = 44_000
"""A third is left for what encryption adds, and some for what the homeserver adds."""
FALLBACK_CHARS = 160

_KINDS = {"image": "m.image", "audio": "m.audio", "video": "m.video"}
_BLOCKS = ("<p>", "<h", "<pre", "<ul", "<ol", "<blockquote", "<table", "<hr")


def _fence(content: str, info: str) -> str:
    language = f' class="language-{language_in(info)}"' if info else ""
    return f"<pre><code{language}>{html.escape(content)}</code></pre>"


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [
        "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in row) + "</tr>"
        for row, tag in zip(rows, ["th", *["td"] * len(rows)], strict=False)
    ]
    return f"<table>{''.join(lines)}</table>"


MATRIX_HTML = Dialect(
    text=html.escape,
    styles={"strong": around("<strong>", "</strong>"), "em": around("<em>", "</em>"), "s": around("<del>", "</del>")},
    code=lambda code: f"<code>{html.escape(code)}</code>",
    fence=_fence,
    link=lambda label, url: (
        f'<a href="{html.escape(url)}">{label}</a>' if is_link(url) else plain_link(label, html.escape(url))
    ),
    heading=lambda text, level: f"<h{level}>{text}</h{level}>",
    quote=around("<blockquote>", "</blockquote>"),
    item=around("<li>", "</li>"),
    rule="<hr>",
    blocks=lambda blocks, tight: "".join(
        part if tight or part.startswith(_BLOCKS) else f"<p>{part.replace(chr(10), '<br>')}</p>"
        for part in blocks
        if part
    ),
    table=_table,
)
LIMITS = ChatLimits(
    opens_threads=True,
    text_chars_max=12_000,
    markup=MATRIX_HTML,
    text_unit="bytes",
    edit_seconds_min=2.0,
    windows=(Window(10, 10.0, "account"),),
    idempotent_posts=True,
    can_edit=True,
    can_upload=True,
    has_preview=True,
    has_history=True,
    reactions="all",
    voice="ogg",
)
"""A message holds its text twice, as it was written and as HTML; bytes are those of the HTML."""


class MatrixTarget(msgspec.Struct, frozen=True):
    """Where a thread's posts go: a room, and the message whose thread it is (empty: the room itself)."""

    room: str
    root: str = ""


def target_of(thread: ThreadId) -> MatrixTarget:
    """Where posts go. Raises PlatformError for an id that is not of Matrix' form."""
    address = thread_address(thread)
    root = "" if address.thread == WHOLE else address.thread
    if not address.channel.startswith("!") or (root and not root.startswith("$")):
        reason = f"Matrix has no thread {thread!r}; rooms begin with ! and messages with $."
        raise PlatformError(reason, permanent=True)
    return MatrixTarget(address.channel, root)


def transaction_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def text_content(markdown: str, buttons: tuple[Button, ...] = ()) -> JsonObject:
    """A message's content: a notice, as programs write them; a question is a text, so that clients notify of it."""
    kind = "m.text" if any(button.value.startswith("allow:") for button in buttons) else "m.notice"
    return styled({"msgtype": kind, "body": markdown, "m.mentions": {}}, markdown)


def styled(content: JsonObject, markdown: str) -> JsonObject:
    """The content with its text as HTML too; without it where that would be too long for an event."""
    body = render_markup(markdown, MATRIX_HTML)
    full: JsonObject = {**content, "format": "org.matrix.custom.html", "formatted_body": body}
    return full if len(msgspec.json.encode(full)) <= CONTENT_BYTES_MAX else content


def post_content(post: OutboundPost, target: MatrixTarget) -> JsonObject:
    """A new message, in its thread and answering what it answers."""
    return text_content(post.markdown, post.buttons) | relation_of(target, post.reply_to)


def file_content(post: OutboundPost, name: str, target: MatrixTarget, media_type: str, data: bytes) -> JsonObject:
    """A file's message without the file's address: its caption is the post's text. Clients show a voice message as one
    by the marks of MSC3245 and MSC1767, which all of them use until the specification has it."""
    size, info = len(data), dict[str, Json]()
    if post.kind == "voice":
        info["duration"] = round(seconds_of(data) * 1000)
    content: JsonObject = {
        "msgtype": _KINDS.get(media_type.partition("/")[0], "m.file"),
        "body": post.markdown or name,
        "filename": name,
        "info": {"mimetype": media_type, "size": size, **info},
        "m.mentions": {},
    }
    if post.kind == "voice":
        content |= {"org.matrix.msc3245.voice": {}, "org.matrix.msc1767.audio": info}
    return (styled(content, post.markdown) if post.markdown else content) | relation_of(target, post.reply_to)


def relation_of(target: MatrixTarget, reply_to: str) -> JsonObject:
    """How a post belongs to a thread and to what it answers; clients without threads see an answer to the root."""
    answered = reply_to if reply_to.startswith("$") else ""
    if target.root:
        shown: Json = {"event_id": answered or target.root}
        return {
            "m.relates_to": {
                "rel_type": "m.thread", "event_id": target.root, "is_falling_back": answered in ("", target.root),
                "m.in_reply_to": shown
            },
        }  # fmt: skip
    return {"m.relates_to": {"m.in_reply_to": {"event_id": answered}}} if answered else {}


def edit_content(message_id: str, markdown: str, buttons: tuple[Button, ...]) -> JsonObject:
    """A change of a message; clients without edits see its beginning."""
    new = text_content(markdown, buttons)
    return {
        "msgtype": new["msgtype"],
        "body": f"* {markdown[:FALLBACK_CHARS]}",
        "m.mentions": {},
        "m.new_content": new,
        "m.relates_to": {"rel_type": "m.replace", "event_id": message_id},
    }
