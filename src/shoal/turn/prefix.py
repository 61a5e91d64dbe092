"""Fit instructions and tools, which precede the conversation, into a small window.

Tools that do not fit are found with `more_tools`; the least needed are left out first. The longest sections of the text
lose their middles. The same instructions, tools and room give the same result, so requests still begin with the same
bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from shoal.kernel.messages import ToolSpec
from shoal.kernel.traits import TraitsByName
from shoal.tools.offer import Offer, offer
from shoal.turn.fitting import cut_to, level_of
from shoal.turn.prompt import SystemPrompt
from shoal.turn.tokens import CALL_UNITS, MESSAGE_UNITS, Meter

TOOLS_SHARE = 0.4
"""Least share of the room for tools, if they need it."""
_FIRST = frozenset({"identity", "rules"})


class Prefix(NamedTuple):
    """The text before the conversation, and the tools that can be found. `sections`: the text sent of each section,
    after the part that it belongs to, if not all of it."""

    system: str
    tools: tuple[ToolSpec, ...]
    further: tuple[ToolSpec, ...]
    units: int
    sections: tuple[tuple[str, str], ...] = ()


def fit_prefix(meter: Meter, prompt: SystemPrompt, tools: Offer, units_max: int, traits: TraitsByName) -> Prefix:
    """Reduce instructions and tools to `units_max`."""
    tools_max = max(int(units_max * TOOLS_SHARE), units_max - MESSAGE_UNITS - meter.count(prompt.text))
    told, names = tools, set[str]()
    if _units(tools.listed, meter) > tools_max:  # as many as fit, by their rank
        told = offer((), tools.all, may_find=tools.may_find)
        listed = [one.name for one in tools.all if one not in tools.deferred]
        for name in sorted(listed, key=lambda name: (traits.of(name).rank, name)):
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
    sections = tuple((section.part, text) for section, text in zip(kept, texts, strict=True))
    return Prefix(system, told.listed, told.deferred, meter.prefix(system, told.listed), sections)


def _units(specs: Sequence[ToolSpec], meter: Meter) -> int:
    texts = (text for one in specs for text in (one.name, one.description, one.parameters))
    return CALL_UNITS * len(specs) + sum(map(meter.count, texts))
