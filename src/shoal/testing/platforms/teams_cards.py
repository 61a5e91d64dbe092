"""Parse attachments as Teams does. The functions return the visible content, or raise ValueError if Teams
rejects it.
"""

import base64
from collections.abc import Mapping, Sequence

import msgspec

Attached = Mapping[str, object]
BUTTONS_MAX = 6


def _of(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError("not an object")
    return value  # pyright: ignore[reportUnknownVariableType]


def _card(attached: Attached) -> tuple[Mapping[str, object], Sequence[object]]:
    content = _of(attached["content"])
    body, actions = content["body"], content["actions"]
    if (content["type"], content["version"]) != ("AdaptiveCard", "1.4"):
        raise ValueError("not a version 1.4 Adaptive Card")
    listed = msgspec.convert(actions, list[object])
    if len(listed) > BUTTONS_MAX:
        raise ValueError("too many actions")
    return _of(msgspec.convert(body, list[object])[0]), listed


def text_of(attached: Attached) -> str:
    """Return the text of an Adaptive Card. Raises ValueError if Teams would reject or truncate it."""
    block, _ = _card(attached)
    if block["type"] != "TextBlock" or block["wrap"] is not True:
        raise ValueError("the text does not wrap, so Teams truncates it")
    return str(block["text"])


def buttons_of(attached: Attached) -> tuple[tuple[str, str], ...]:
    _, actions = _card(attached)
    buttons: list[tuple[str, str]] = []
    for action in map(_of, actions):
        if action["type"] != "Action.Execute" or _of(action["fallback"])["data"] != action["data"]:
            raise ValueError("the fallback differs from the action")
        buttons.append((str(action["title"]), str(_of(action["data"])["shoal"])))
    return tuple(buttons)


def offer_of(attached: Attached) -> str:
    """Return the value that Teams sends back when a person accepts the file. Raises ValueError if the offer is
    invalid.
    """
    content = _of(attached["content"])
    size = content["sizeInBytes"]
    if not isinstance(size, int) or size <= 0:
        raise ValueError("the file has no size")
    return str(_of(content["acceptContext"])["shoal"])


def picture_of(attached: Attached) -> bytes:
    head, _, data = str(attached["contentUrl"]).partition(",")
    if head != f"data:{attached['contentType']};base64":
        raise ValueError("not an inline picture")
    return base64.b64decode(data, validate=True)
