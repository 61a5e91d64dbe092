"""What goes to Teams: activities, cards and files, and its limits.

Sources: learn.microsoft.com, Teams platform: message size, rate limits, Adaptive Cards, files for bots.
"""

import base64
import re
from collections.abc import Mapping

from shoal.chat.connection import Fields, Value
from shoal.chat.teams.inbound import Upload
from shoal.domain.errors import PlatformError
from shoal.domain.markup import render_markup
from shoal.domain.posts import Button, ChatLimits, OutboundPost, Window

TEXT_UNITS_MAX = 6_000
"""A message may have 28 KB in UTF-16, all of its JSON counted: that holds even if every character is escaped."""
BUTTONS_MAX = 6
LABEL_CHARS_MAX = 75
VALUE_BYTES_MAX = 512
IMAGE_BYTES_MAX = 1_048_576
"""Teams shows pictures of at most this size inside a message."""
UPLOAD_BYTES_MAX = 26_214_400
IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif"}
CARD = "application/vnd.microsoft.card.adaptive"
CONSENT = "application/vnd.microsoft.teams.card.file.consent"
INFO = "application/vnd.microsoft.teams.card.file.info"
EMPTY = "…"

LIMITS = ChatLimits(
    text_chars_max=TEXT_UNITS_MAX,
    markup="teams",
    text_unit="utf16",
    edit_seconds_min=2.0,
    windows=(Window(6, 1.0), Window(8, 2.0), Window(60, 30.0), Window(1800, 3600.0), Window(40, 1.0, "account")),
    button_bytes_max=VALUE_BYTES_MAX,
    can_edit=True,
    can_upload=True,
    has_preview=True,
    has_buttons=True,
    has_ephemeral=True,
    upload_bytes_max=UPLOAD_BYTES_MAX,
)

_NAMED = re.compile(r"&lt;at&gt;(.{1,100}?)&lt;/at&gt;")


def message_of(markdown: str, people: Mapping[str, str], buttons: tuple[Button, ...] = ()) -> Fields:
    """A message; `<at>NAME</at>` calls somebody whose id `people` has. With buttons it is a card, and all in it."""
    text = render_markup(markdown, "teams") or EMPTY
    if buttons:
        card: Value = {"contentType": CARD, "content": card_of(text, buttons)}
        return {"type": "message", "attachments": [card]}
    entities: list[Value] = []

    def name(found: re.Match[str]) -> str:
        shown = found[1].replace("\\", "")
        if shown not in people:
            return found[0]
        entities.append(
            {"type": "mention", "text": f"<at>{shown}</at>", "mentioned": {"id": people[shown], "name": shown}}
        )
        return f"<at>{shown}</at>"

    text = _NAMED.sub(name, text)
    made: dict[str, Value] = {"type": "message", "textFormat": "markdown", "text": text}
    return {**made, "entities": entities} if entities else made


def card_of(text: str, buttons: tuple[Button, ...]) -> Value:
    """An Adaptive Card with the text and buttons under it. Raises PlatformError for what Teams would refuse."""
    if len(buttons) > BUTTONS_MAX:
        raise PlatformError(f"A card may have {BUTTONS_MAX} buttons.", permanent=True)
    actions: list[Value] = []
    for button in buttons:
        if len(button.value.encode()) > VALUE_BYTES_MAX or len(button.label) > LABEL_CHARS_MAX:
            reason = f"A button may have {LABEL_CHARS_MAX} characters, its value {VALUE_BYTES_MAX} bytes."
            raise PlatformError(reason, permanent=True)
        data: Value = {"shoal": button.value}
        submit: Value = {"type": "Action.Submit", "title": button.label, "data": data}
        actions.append(
            {"type": "Action.Execute", "verb": "shoal", "title": button.label, "data": data, "fallback": submit}
        )
    return {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [{"type": "TextBlock", "text": text, "wrap": True}],
        "actions": actions,
    }


def picture_of(post: OutboundPost, content: bytes, people: Mapping[str, str]) -> Fields:
    """A message with a picture inside."""
    assert post.file is not None
    kind = IMAGES[post.file.suffix.lower()]
    address = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    picture: Value = {"contentType": kind, "contentUrl": address, "name": post.file.name}
    return {**message_of(post.markdown or post.file.name, people), "attachments": [picture]}


def offer_of(name: str, description: str, size: int, offer: str) -> Fields:
    """A card that asks whether to take a file; the answer brings `offer` back."""
    context: Value = {"shoal": offer}
    content: Value = {
        "description": description, "sizeInBytes": size, "acceptContext": context, "declineContext": context,
    }  # fmt: skip
    return {"type": "message", "attachments": [{"contentType": CONSENT, "name": name, "content": content}]}


def delivered_of(upload: Upload) -> Fields:
    """A card with the file that was put where it was accepted."""
    content: Value = {"uniqueId": upload.unique_id, "fileType": upload.file_type}
    return {
        "type": "message",
        "attachments": [
            {"contentType": INFO, "contentUrl": upload.content_url, "name": upload.name, "content": content}
        ],
    }
