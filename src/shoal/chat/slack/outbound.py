"""What goes to Slack: the parameters of each call, and its limits. Source: docs.slack.dev/reference."""

import re

from shoal.chat.slack.api import Parameters, Value
from shoal.chat.slack.inbound import NO_THREAD, is_direct
from shoal.domain.errors import PlatformError
from shoal.domain.ids import UNOPENED, ThreadId, thread_address
from shoal.domain.markup import render_markup
from shoal.domain.posts import Button, ChatLimits, OutboundPost, Window

TEXT_CHARS_MAX = 3000
"""What a section block holds, so that buttons can stand under any piece; a message would hold 4,000 well."""
BUTTON_CHARS_MAX = 2000
LABEL_CHARS_MAX = 75
BUTTONS_MAX = 25
CHANNEL_NAME_CHARS_MAX = 80
EVENT_TYPE = "shoal_post"
EMPTY = "…"
"""Stands where there is no text; Slack posts no empty message."""

LIMITS = ChatLimits(
    text_chars_max=TEXT_CHARS_MAX,
    markup="slack",
    edit_seconds_min=1.2,
    windows=(Window(1, 1.0, "channel"),),
    button_bytes_max=BUTTON_CHARS_MAX,
    idempotent_posts=True,
    can_edit=True,
    can_upload=True,
    can_stream=True,
    has_preview=True,
    has_buttons=True,
    has_ephemeral=True,
    has_history=True,
    upload_bytes_max=1_073_741_824,
)

_NAME = re.compile(r"[^\w-]+")


def place_of(thread: ThreadId) -> tuple[str, str]:
    """The channel of a thread, and the timestamp of the message it hangs from.

    That is empty for a direct conversation, and for what is to open a thread.
    """
    address = thread_address(thread)
    if address.thread == UNOPENED or (address.thread == NO_THREAD and is_direct(address.channel)):
        return address.channel, ""
    if not re.fullmatch(r"[0-9]+\.[0-9]+", address.thread):
        raise PlatformError(f"Slack has no thread {address.thread!r}; its ids are timestamps.", permanent=True)
    return address.channel, address.thread


def text_of(markdown: str) -> str:
    """The text in Slack's markup."""
    return render_markup(markdown, "slack") or EMPTY


def message_of(post: OutboundPost) -> Parameters:
    """The parameters of chat.postMessage. No address in it is opened by Slack, which would tell others of it."""
    channel, thread_ts = place_of(post.thread)
    text = text_of(post.markdown)
    return {
        "channel": channel,
        "thread_ts": thread_ts or None,
        "text": text,
        "blocks": blocks_of(text, post.buttons) or None,
        "metadata": metadata_of(post.key),
        "unfurl_links": False,
        "unfurl_media": False,
    }


def change_of(channel: str, ts: str, markdown: str, buttons: tuple[Button, ...]) -> Parameters:
    """The parameters of chat.update; without buttons the empty list takes away those that stand there."""
    text = text_of(markdown)
    mark = metadata_of(f"edited:{ts}")
    return {"channel": channel, "ts": ts, "text": text, "blocks": blocks_of(text, buttons), "metadata": mark}


def metadata_of(key: str) -> Value:
    """What is kept beside each message of ours; only a stream that nobody finished has none."""
    return {"event_type": EVENT_TYPE, "event_payload": {"key": key}}


def blocks_of(text: str, buttons: tuple[Button, ...]) -> "list[Value]":
    """The text with buttons under it; no blocks without buttons. Raises PlatformError for what Slack would refuse."""
    if not buttons:
        return []
    if len(buttons) > BUTTONS_MAX:
        raise PlatformError(f"A message may have {BUTTONS_MAX} buttons.", permanent=True)
    elements: list[Value] = []
    for number, button in enumerate(buttons):
        if len(button.value) > BUTTON_CHARS_MAX or len(button.label) > LABEL_CHARS_MAX:
            reason = f"A button may have {LABEL_CHARS_MAX} characters, its value {BUTTON_CHARS_MAX}."
            raise PlatformError(reason, permanent=True)
        elements.append(
            {
                "type": "button",
                "action_id": f"choice-{number}",
                "text": {"type": "plain_text", "text": button.label},
                "value": button.value,
            }
        )
    section: Value = {"type": "section", "text": {"type": "mrkdwn", "text": text[:TEXT_CHARS_MAX]}, "expand": True}
    return [section, {"type": "actions", "elements": elements}]


def channel_name(name: str) -> str:
    """A name that Slack takes for a channel: small letters, digits, hyphens and underscores."""
    return _NAME.sub("-", name.lower()).strip("-_")[:CHANNEL_NAME_CHARS_MAX] or "channel"
