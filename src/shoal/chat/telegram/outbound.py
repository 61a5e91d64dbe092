"""What goes to Telegram: the parameters of each call, and its limits."""

from shoal.chat.telegram.api import Parameters, Value
from shoal.chat.telegram.inbound import NO_TOPIC
from shoal.domain.errors import PlatformError
from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.markup import render_markup
from shoal.domain.posts import Button, ChatLimits, Window

CAPTION_CHARS_MAX = 1024
BUTTON_BYTES_MAX = 64
PARSE_MODE = "MarkdownV2"

LIMITS = ChatLimits(
    text_chars_max=4096,
    markup="telegram",
    text_unit="utf16",
    edit_seconds_min=1.1,
    group_edit_seconds_min=3.1,
    group_prefix="-",
    windows=(
        Window(1, 1.0),
        Window(20, 60.0, groups_only=True),
        Window(30, 1.0, "account"),
    ),
    button_bytes_max=BUTTON_BYTES_MAX,
    can_edit=True,
    can_upload=True,
    has_preview=True,
    has_buttons=True,
    upload_bytes_max=52_428_800,
)


def place_of(thread: ThreadId) -> dict[str, Value]:
    """The chat and topic of a thread. Raises PlatformError for an id that is not of Telegram's form."""
    address = thread_address(thread)
    topic = address.thread
    if not topic.isdecimal():
        raise PlatformError(f"Telegram has no topic {topic!r}; its ids are numbers.", permanent=True)
    chat: Value = int(address.channel) if address.channel.lstrip("-").isdecimal() else address.channel
    return {"chat_id": chat, "message_thread_id": int(topic) if topic != NO_TOPIC else None}


def keyboard_of(buttons: tuple[Button, ...]) -> Value:
    """An inline keyboard, a row a button. Raises PlatformError for a value that Telegram would not take."""
    if not buttons:
        return None
    rows: list[Value] = []
    for button in buttons:
        if len(button.value.encode()) > BUTTON_BYTES_MAX:
            raise PlatformError(f"A button's value may have {BUTTON_BYTES_MAX} bytes.", permanent=True)
        row: list[Value] = [{"text": button.label, "callback_data": button.value}]
        rows.append(row)
    return {"inline_keyboard": rows}


def styled(markdown: str, field: str = "text") -> Parameters:
    """The text in Telegram's markup."""
    return {field: render_markup(markdown, "telegram"), "parse_mode": PARSE_MODE}


def unstyled(markdown: str, field: str = "text") -> Parameters:
    """The text without markup, for when Telegram refuses the other; nothing of it is left out."""
    return {field: markdown}


def reply_to(message_id: str) -> Value:
    """What a post answers; it is posted also when that is gone."""
    if not message_id.isdecimal():
        return None
    return {"message_id": int(message_id), "allow_sending_without_reply": True}
