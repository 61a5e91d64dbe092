"""What goes to Google Chat: messages and cards, and its limits. Source: developers.google.com/workspace/chat."""

import hashlib
import re
import uuid

from shoal.chat.connection import Fields, Value
from shoal.chat.google_chat.inbound import WHOLE
from shoal.domain.errors import PlatformError
from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.markup import render_markup
from shoal.domain.posts import Button, ChatLimits, OutboundPost, Window

BUTTONS_MAX = 100
VALUE_BYTES_MAX = 512
EMPTY = "…"

LIMITS = ChatLimits(
    text_chars_max=4096,
    markup="google_chat",
    edit_seconds_min=2.0,
    windows=(Window(1, 1.0), Window(50, 1.0, "account")),
    button_bytes_max=VALUE_BYTES_MAX,
    idempotent_posts=True,
    can_edit=True,
    has_preview=True,
    has_buttons=True,
    has_ephemeral=True,
)

_EVERYBODY = re.compile(r"<(?=users/all>)")


def place_of(thread: ThreadId) -> tuple[str, str]:
    """The names of a thread's space, and of the thread itself; empty where the space has none."""
    address = thread_address(thread)
    space = f"spaces/{address.channel}"
    return space, "" if address.thread == WHOLE else f"{space}/threads/{address.thread}"


def text_of(markdown: str) -> str:
    """The text in Google Chat's markup; it may call people by <users/ID>, but not everybody."""
    return _EVERYBODY.sub("<\u200b", render_markup(markdown, "google_chat")) or EMPTY


def request_id(key: str) -> str:
    """A UUID that is the same for the same key, so that Google Chat posts it once."""
    return str(uuid.UUID(bytes=hashlib.sha256(key.encode()).digest()[:16], version=4))


def message_of(post: OutboundPost, *, private: bool, quoted_at: str = "") -> Fields:
    """A message in its thread; `private` to one person; quoting what it answers, which was last changed then."""
    _, thread = place_of(post.thread)
    made: dict[str, Value] = {**content_of(post.markdown, post.buttons)}
    if thread:
        made["thread"] = {"name": thread}
    if private:
        made["privateMessageViewer"] = {"name": f"users/{post.user}"}
    if quoted_at:
        made["quotedMessageMetadata"] = {"name": post.reply_to, "lastUpdateTime": quoted_at}
    return made


def content_of(markdown: str, buttons: tuple[Button, ...]) -> Fields:
    """What is seen of a message; without buttons the empty list takes away those that stand there."""
    cards: list[Value] = [{"cardId": "shoal", "card": card_of(buttons)}] if buttons else []
    return {"text": text_of(markdown), "cardsV2": cards}


def card_of(buttons: tuple[Button, ...]) -> Value:
    """A card of buttons. Raises PlatformError for what Google Chat would refuse."""
    if len(buttons) > BUTTONS_MAX:
        raise PlatformError(f"A card may have {BUTTONS_MAX} buttons.", permanent=True)
    listed: list[Value] = []
    for button in buttons:
        if len(button.value.encode()) > VALUE_BYTES_MAX:
            raise PlatformError(f"A button's value may have {VALUE_BYTES_MAX} bytes.", permanent=True)
        action: Value = {"function": "shoal", "parameters": [{"key": "shoal", "value": button.value}]}
        listed.append({"text": button.label, "onClick": {"action": action}})
    return {"sections": [{"widgets": [{"buttonList": {"buttons": listed}}]}]}
