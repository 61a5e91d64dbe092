"""Parse cards like Teams: their visible content, or an error for invalid ones."""

import base64
from collections.abc import Mapping, Sequence

import msgspec

Attached = Mapping[str, object]
BUTTONS_MAX = 6


def _of(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError("no object")
    return value  # pyright: ignore[reportUnknownVariableType]


def _card(attached: Attached) -> tuple[Mapping[str, object], Sequence[object]]:
    content = _of(attached["content"])
    body, actions = content["body"], content["actions"]
    if (content["type"], content["version"]) != ("AdaptiveCard", "1.4"):
        raise ValueError("no card of a version that Teams knows")
    listed = msgspec.convert(actions, list[object])
    if len(listed) > BUTTONS_MAX:
        raise ValueError("too many actions")
    return _of(msgspec.convert(body, list[object])[0]), listed


def text_of(attached: Attached) -> str:
    """Return the text of an Adaptive Card."""
    block, _ = _card(attached)
    if block["type"] != "TextBlock" or block["wrap"] is not True:
        raise ValueError("a text that would be cut")
    return str(block["text"])


def buttons_of(attached: Attached) -> tuple[tuple[str, str], ...]:
    """Return the titles and values of its buttons."""
    _, actions = _card(attached)
    buttons: list[tuple[str, str]] = []
    for action in map(_of, actions):
        if action["type"] != "Action.Execute" or _of(action["fallback"])["data"] != action["data"]:
            raise ValueError("no action with the same fallback")
        buttons.append((str(action["title"]), str(_of(action["data"])["shoal"])))
    return tuple(buttons)


def offer_of(attached: Attached) -> str:
    """Return the value of an accepted file offer."""
    content = _of(attached["content"])
    size = content["sizeInBytes"]
    if not isinstance(size, int) or size <= 0:
        raise ValueError("a file of no size")
    return str(_of(content["acceptContext"])["shoal"])


def picture_of(attached: Attached) -> bytes:
    """Return the picture inside a message."""
    head, _, data = str(attached["contentUrl"]).partition(",")
    if head != f"data:{attached['contentType']};base64":
        raise ValueError("no picture")
    return base64.b64decode(data, validate=True)
