"""Shorten instructions and tools to fit a small window.

The least important tools are left out first. The model can still find them with `more_tools`. Then the middles of
the longest sections are cut. The same input gives the same result, so requests keep the same beginning.
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
"""Minimum share of the token budget that tools receive if they need it."""
_FIRST = frozenset({"identity", "rules"})


class Prefix(NamedTuple):
    """Instructions and tools, which precede the conversation.

    `further` contains tools that the model can find. If the text was shortened, `sections` contains the request part
    and the remaining text of each section.
    """

    system: str
    tools: tuple[ToolSpec, ...]
    further: tuple[ToolSpec, ...]
    units: int
    sections: tuple[tuple[str, str], ...] = ()


def fit_prefix(meter: Meter, prompt: SystemPrompt, tools: Offer, units_max: int, traits: TraitsByName) -> Prefix:
    tools_max = max(int(units_max * TOOLS_SHARE), units_max - MESSAGE_UNITS - meter.count(prompt.text))
    offered, names = tools, set[str]()
    if _units(tools.listed, meter) > tools_max:  # List as many tools as fit, by rank.
        offered = offer((), tools.all, may_find=tools.may_find)
        listed = [tool.name for tool in tools.all if tool not in tools.deferred]
        for name in sorted(listed, key=lambda name: (traits.of(name).rank, name)):
            filled = [tool for tool in tools.all if tool.name in names or tool.name == name]
            tried = offer(filled, [tool for tool in tools.all if tool not in filled], may_find=tools.may_find)
            if _units(tried.listed, meter) <= tools_max:
                offered, names = tried, names | {name}
    room = units_max - MESSAGE_UNITS - _units(offered.listed, meter)
    filled = [section for section in prompt.sections if section.text]
    first = [meter.count(section.text) + 1 for section in filled if section.name in _FIRST]
    others = [meter.count(section.text) + 1 for section in filled if section.name not in _FIRST]
    least = level_of(first, max(room, 0))
    level = level_of(others, max(0, room - sum(min(section, least) for section in first)))
    texts = tuple(
        cut_to(section.text, (least if section.name in _FIRST else level) - 1, meter.count) for section in filled
    )
    system = "\n\n".join(text for text in texts if text)
    sections = tuple((section.part, text) for section, text in zip(filled, texts, strict=True))
    return Prefix(system, offered.listed, offered.deferred, meter.prefix(system, offered.listed), sections)


def _units(specs: Sequence[ToolSpec], meter: Meter) -> int:
    texts = (text for spec in specs for text in (spec.name, spec.description, spec.parameters))
    return CALL_UNITS * len(specs) + sum(map(meter.count, texts))
