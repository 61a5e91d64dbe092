"""What stands before the conversation, fitted to a small window: the instructions and the tools.

Where they leave less than a quarter of a request, they are fitted to three fifths of it. Tools that do not fit are
found with `more_tools`, those that are needed least first; of the text, the longest sections lose their middles. The
same instructions, tools and room give the same result, so that requests still begin with the same bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from shoal.domain.messages import ToolSpec
from shoal.tools.offer import CORE, Offer, offer
from shoal.turn.budget import CALL_UNITS, MESSAGE_UNITS, Meter, cut_to, level_of
from shoal.turn.prompt import SystemPrompt

WHOLE_SHARE = 0.75
"""Instructions and tools that take no more of the input are sent as they are."""
FITTED_SHARE = 0.6
"""Of the input, what they get where they would take more."""
TOOLS_SHARE = 0.4
"""Of that, what tools get at least, as far as they need it."""
_FIRST = frozenset({"identity", "rules"})


class Prefix(NamedTuple):
    """What is sent before the conversation, and which tools are found. `sections`: what is sent of each, by name, where
    that is not all."""

    system: str
    tools: tuple[ToolSpec, ...]
    further: tuple[ToolSpec, ...]
    units: int
    sections: tuple[tuple[str, str], ...] = ()


def fit_prefix(meter: Meter, prompt: SystemPrompt, tools: Offer, units_max: int) -> Prefix:
    """Bring instructions and tools down to `units_max`."""
    tools_max = max(int(units_max * TOOLS_SHARE), units_max - MESSAGE_UNITS - meter.count(prompt.text))
    told, names = tools, set[str]()
    if _units(tools.listed, meter) > tools_max:  # as many as fit, the core in its order first
        told = offer((), tools.all, may_find=tools.may_find)
        order = {name: number for number, name in enumerate(CORE)}
        listed = [one.name for one in tools.all if one not in tools.deferred]
        for name in sorted(listed, key=lambda name: (order.get(name, len(CORE)), name)):
            kept = [one for one in tools.all if one.name in names or one.name == name]
            tried = offer(kept, [one for one in tools.all if one not in kept], may_find=tools.may_find)
            if _units(tried.listed, meter) <= tools_max:
                told, names = tried, names | {name}
    room = units_max - MESSAGE_UNITS - _units(told.listed, meter)
    kept = [section for section in prompt.sections if section.text]
    first = [meter.count(section.text) + 1 for section in kept if section.name in _FIRST]
    others = [meter.count(section.text) + 1 for section in kept if section.name not in _FIRST]
    least = level_of(first, max(room, 0))
    level = level_of(others, max(0, room - sum(min(one, least) for one in first)))
    texts = tuple(
        cut_to(section.text, (least if section.name in _FIRST else level) - 1, meter.count) for section in kept
    )
    system = "\n\n".join(text for text in texts if text)
    sections = tuple((section.name, text) for section, text in zip(kept, texts, strict=True))
    return Prefix(system, told.listed, told.deferred, meter.prefix(system, told.listed), sections)


def _units(specs: Sequence[ToolSpec], meter: Meter) -> int:
    texts = (text for one in specs for text in (one.name, one.description, one.parameters))
    return CALL_UNITS * len(specs) + sum(map(meter.count, texts))
