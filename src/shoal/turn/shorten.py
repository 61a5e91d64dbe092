"""The last resort of a budget: cut the longest texts in the middle until the messages fit."""

from collections.abc import Iterable, Sequence

import msgspec

from shoal.domain.messages import AssistantMessage, ModelMessage, ToolMessage, UserMessage
from shoal.turn.files import cut_middle
from shoal.turn.tokens import MESSAGE_UNITS, Meter

SHARE_UNITS_MIN = 16
"""A message is not cut below this; rather, the step it belongs to is left out."""

_NOTICE_CHARS = 70
_IMAGE_LEFT_OUT = "[an image was left out here]"


def shorten(messages: Sequence[ModelMessage], units_max: int, meter: Meter) -> tuple[ModelMessage, ...]:
    """Bring messages down to `units_max`: texts of people and tools that exceed an equal share are cut to it.

    What the model said is never cut. Where that alone is too much, only what people said stays.
    """
    share = _share(messages, units_max, meter)
    if share < SHARE_UNITS_MIN:
        messages = [message for message in messages if isinstance(message, UserMessage)]
        share = _share(messages, units_max, meter)
    return tuple(
        message
        if isinstance(message, AssistantMessage) or meter.message(message) <= share
        else _cut(message, share, meter)
        for message in messages
    )


def _share(messages: Sequence[ModelMessage], units_max: int, meter: Meter) -> int:
    """The most that each may have so that together they have no more than `units_max`."""
    fixed = sum(meter.message(message) for message in messages if isinstance(message, AssistantMessage))
    sizes = sorted(meter.message(message) for message in messages if not isinstance(message, AssistantMessage))
    return _level(sizes, units_max - fixed)


def _level(sizes: Iterable[int], left: int) -> int:
    """The height at which vessels of these sizes, smallest first, hold `left` together."""
    ascending = list(sizes)
    for filled, size in enumerate(ascending):
        level = left // (len(ascending) - filled)
        if size > level:
            return level
        left -= size
    return ascending[-1] if ascending else (SHARE_UNITS_MIN if left >= 0 else left)


def _cut(message: UserMessage | ToolMessage, units_max: int, meter: Meter) -> UserMessage | ToolMessage:
    whole = "\n".join([message.text, *[_IMAGE_LEFT_OUT] * len(message.images)])
    text, chars, text_max = whole, len(whole), units_max - MESSAGE_UNITS
    while (units := meter.count(text)) > text_max and chars:
        chars = min(chars - 1, int(chars * text_max / units))
        text = cut_middle(whole, chars - _NOTICE_CHARS) if chars > 4 * _NOTICE_CHARS else whole[:chars]
    return msgspec.structs.replace(message, text=text, images=())
