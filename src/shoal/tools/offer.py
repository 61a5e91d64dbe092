"""Select the tools that a request defines, and provide `more_tools`, which lets a model find and call the others.

Each definition costs tokens in every request. Requests therefore define only the core tools, and just name the others.
When a model looks up a tool, the definition becomes a result in the conversation, after the part that providers have
cached.

    what the model does                          what happens
    -------------------------------------------  ------------------------------------------------------------------
    calls a defined tool                         the tool runs
    calls `more_tools` with `find`               the result contains the definitions of matching tools
    calls a tool that it found, by name          the tool runs, as with a provider's native tool search
    calls `more_tools` with `call` and           `unwrapped` replaces the call when the response arrives, so the
      `arguments`                                journal, rules, approvals, hooks and telemetry see the tool itself
    calls a tool that it never looked up         the tool runs, because a definition is not a permission
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any  # noqa: TID251

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from shoal.kernel import lazy_re
from shoal.kernel.errors import ToolError
from shoal.kernel.messages import MORE_TOOLS, ToolCall, ToolSpec
from shoal.kernel.ports import ToolContext, ToolOutput
from shoal.kernel.traits import LOOKUP, TraitsByName
from shoal.kernel.untrusted import UNREADABLE
from shoal.tools.functions import NAME, Prepared, planned, tool

ADDED_MAX = 10
"""Maximum size of a group of added tools that every request defines. Tools of larger groups must be found first.
Built-in tools do not count.
"""
FOUND_MAX = 6
FOUND_CHARS_MAX = 12_000
"""Maximum total length of the tool definitions in one result. A single definition may be longer."""
DEFERRED_CHARS_MIN = 2_000
"""Minimum total length of deferred tool definitions. If they are shorter, requests define all tools, because
`more_tools` would cost as much.
"""
NAMED_CHARS_MAX = 1_200
"""Maximum length of the list of names in the `more_tools` description. In a longer list, a count replaces the tools of
each MCP server.
"""
_WORD = lazy_re.compile(r"[^\W_]+")
_STEM_CHARS = 5
_SMALL_WORDS = set("and are for from have into that the this tool tools what with you".split())  # noqa: SIM905


class Offer(msgspec.Struct, frozen=True, eq=False):
    """The tools of an agent in a turn.

    listed: tools that requests define, including `more_tools` if the model can find deferred tools.
    deferred: tools that requests do not define.
    all: every tool except `more_tools`.
    """

    listed: tuple[ToolSpec, ...]
    deferred: tuple[ToolSpec, ...]
    all: tuple[ToolSpec, ...]
    may_find: bool = True


def offer(listed: Sequence[ToolSpec], deferred: Sequence[ToolSpec], *, may_find: bool = True) -> Offer:
    if not deferred or not may_find:
        return Offer(tuple(listed), tuple(deferred), (*listed, *deferred), may_find)
    spec = msgspec.structs.replace(more_tools.spec, description=f"{more_tools.spec.description} {_named(deferred)}")
    return Offer((*listed, spec), tuple(deferred), (*listed, *deferred))


def size_of(specs: Sequence[ToolSpec]) -> int:
    """Return the total length of the definitions, in characters."""
    return sum(len(spec.name) + len(spec.description) + len(spec.parameters) for spec in specs)


def _named(specs: Sequence[ToolSpec]) -> str:
    names = ", ".join(spec.name for spec in specs)
    if len(names) > NAMED_CHARS_MAX:
        groups = Counter(
            "_".join(spec.name.split("_")[:2]) if spec.name.startswith("mcp_") else spec.name for spec in specs
        )
        names = ", ".join(f"{name}_… ({count} tools)" if count > 1 else name for name, count in groups.items())
    return f"Tools: {names if len(names) <= NAMED_CHARS_MAX else names[:NAMED_CHARS_MAX].rpartition(',')[0] + ' …'}."


def fitting(query: str, specs: Sequence[ToolSpec]) -> list[ToolSpec]:
    """Return the tools that match a query, best first.

    Tools that the query names come first. Others match if their names, descriptions or parameters contain words of
    the query. Words that begin with the same letters match.
    """
    words = re.findall(r"[\w-]+", query)
    named = {word for word in words if "_" in word or len(words) == 1}
    asked = _stems(query)
    scored: list[tuple[int, str, ToolSpec]] = []
    for spec in specs:
        texts = ((8, spec.name), (2, spec.description), (1, spec.parameters))
        score = 1_000 if spec.name in named else sum(weight * len(asked & _stems(text)) for weight, text in texts)
        if score:
            scored.append((-score, spec.name, spec))
    best = sorted(scored)
    return [spec for score, _, spec in best if score * 3 <= best[0][0]]


def _stems(text: str) -> set[str]:
    return {word.lower()[:_STEM_CHARS] for word in _WORD.findall(text) if len(word) > 2} - _SMALL_WORDS


@tool(
    replace(LOOKUP, offered="always", origin="own", in_cases=True),
    example={"find": "run in the background"},
)
def more_tools(
    context: ToolContext,
    find: Annotated[
        str, Meta(description="A tool's name, or words that describe what you want to do.", max_length=300)
    ] = "",
    call: Annotated[str, "Name of a tool that you found."] = "",
    arguments: Annotated[dict[str, Any], "The arguments of that tool."] = {},  # noqa: B006
) -> Prepared:
    """Find and use tools that are not listed. First, pass `find` to get a tool's description and parameters. Then call
    the tool by its own name or, if you cannot, pass `call` and `arguments` here.
    """
    if call or arguments:
        raise ToolError(
            f"To call a tool, pass its name as `call` and an object as `arguments`. {call!r} was not called."
        )
    query = " ".join(find.split())
    specs = context.tools()

    async def work() -> ToolOutput:
        matching: list[ToolSpec] = []
        for spec in fitting(query, specs)[:FOUND_MAX]:
            if not matching or size_of([*matching, spec]) <= FOUND_CHARS_MAX:
                matching.append(spec)
        if matching:
            return ToolOutput(f"Found: {', '.join(spec.name for spec in matching)}.", found=tuple(matching))
        return ToolOutput(f"No tool matches. {_named(specs)}")

    return planned(MORE_TOOLS, query, work, f"look for tools: {query}", find=query)


class _Wrapped(msgspec.Struct):
    call: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


_wrapped_decoder = msgspec.json.Decoder(_Wrapped)


def unwrapped(call: ToolCall) -> ToolCall:
    """Return the tool call inside a call of `more_tools`. Any other call, and a call without a valid tool name, is
    returned unchanged.
    """
    if call.name != MORE_TOOLS:
        return call
    try:
        asked = _wrapped_decoder.decode(call.arguments)
        arguments = bytes(asked.arguments).decode()
        if arguments.startswith('"'):  # some models encode the object as a string
            arguments = msgspec.json.decode(arguments, type=str)
    except UNREADABLE:
        return call
    if asked.call == MORE_TOOLS or not NAME.fullmatch(asked.call):
        return call
    return ToolCall(call.id, asked.call, "{}" if arguments.strip() in ("", "null") else arguments, wrapped=True)


def split(specs: Sequence[ToolSpec], traits: TraitsByName) -> Offer:
    """Divide tools into those that requests define and those that a model must find. Core tools and small groups
    of added tools are defined.
    """
    by_group: dict[str, list[str]] = {}
    for spec in specs:
        if (tool := traits.of(spec.name)).offered in ("if_few", "by_name"):
            by_group.setdefault(tool.group, []).append(spec.name)
    few = set(chain.from_iterable(names for names in by_group.values() if len(names) <= ADDED_MAX))
    deferred = [spec for spec in specs if traits.of(spec.name).offered != "always" and spec.name not in few]
    if size_of(deferred) < DEFERRED_CHARS_MIN:
        deferred = []
    return offer([spec for spec in specs if spec not in deferred], deferred)
