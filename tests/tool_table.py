"""Writes the tables of docs/tools.md and docs/permissions.md from the tools.

    python -m tests.tool_table     write both pages

`tests/tidy/test_tools.py` compares the pages with the code.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import get_args

from shoal.features.mcp import kinds
from shoal.kernel.traits import ANYTHING, Effect, Traits, Treatment
from shoal.permissions.effects import ANSWERS, WORDS, EffectCase
from shoal.testing.contracts.tool import example_arguments
from tests.known_tools import TRAITS, all_tools, example_context

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "permissions.md"
TOOLS_PAGE = DOCS / "tools.md"
BEGIN, END = "<!-- from the tools' traits: python -m tests.tool_table -->\n", "<!-- end -->\n"
EFFECTS_BEGIN = "<!-- from permissions/effects.py: python -m tests.tool_table -->\n"
EFFECTS_END = "<!-- end of effects -->\n"
KINDS_BEGIN = "<!-- from the kinds of MCP tools: python -m tests.tool_table -->\n"
KINDS_END = "<!-- end of kinds -->\n"
KIND_COLUMNS = ("kind", "proposed for", "effect", "standard and guarded", "locked", "in a tainted turn")
EFFECT_COLUMNS = {
    "owner and trusted people": (True, False),
    "owner and trusted people, in a tainted turn": (True, True),
    "other people": (False, False),
    "other people, in a tainted turn": (False, True),
}
ANSWER_WORDS = {"allow": "runs", "guard": "runs unless the guard finds harm", "ask": "asks"}
PLACES = {
    "listed": "allow in its own folders; otherwise ask",
    "shown": "allow in its own folders; otherwise ask",
    "edited": "allow in /workspace and /scratch, except inside .git; otherwise ask",
    "replaced": "allow in /workspace and /scratch, except inside .git; otherwise ask",
    "sent": "allow for files in its own folders; otherwise ask",
}
TOOLS_BEGIN, TOOLS_END = "<!-- from the tools: python -m tests.tool_table -->\n", "<!-- end of tools -->\n"
TOOLS_COLUMNS = ("tool", "purpose", "action, for example", "results taint the turn", "after a crash during the call")
ORIGINS = {"own": "never", "mixed": "if their source is untrusted", "foreign": "always"}
COLUMNS = ("tool", "effect", "standard", "guarded", "locked", "in a tainted turn", "undo")
HARM = {
    "none": "unchanged",
    "file": "asks outside the workspace, and for files that other programs execute",
    "command": "asks, unless the command is known to be harmless, or is *contained* and no untrusted person takes part",
}
NAMES = {"query": "unchanged", "address": "asks unless the URL is known"}
ADDRESS_ALONE = "runs if a known URL is its only argument; otherwise asks"
COMMANDS = "allow; deny changes elsewhere; ask for opaque commands"
UNDO = {"files": "`/undo`", "agent": "`/agent undo`", "": ""}


def said(answer: Treatment) -> str:
    other = "ask" if answer.otherwise == "ask" else "deny"
    if answer.allow in (ANYTHING, ".*"):
        return "allow"
    return f"allow: {answer.allows}; otherwise {other}" if answer.allow else other


def by_effect(tool: Traits) -> str:
    if tool.treatments.standard != Treatment():
        return said(tool.treatments.standard)
    if tool.takes_commands and tool.effect == "unknown":
        return "by what it does"
    if tool.harmless:
        return f"allow for {', '.join(f'`{detail}`' for detail in tool.harmless)}; otherwise ask"
    return PLACES.get(tool.names) or ANSWERS[EffectCase(tool.effect, True, False, True)]


def effects() -> str:
    lines = [f"| effect | {' | '.join(EFFECT_COLUMNS)} |", f"{'|---' * (len(EFFECT_COLUMNS) + 1)}|"]
    for effect in get_args(Effect):
        cells = [f"*{effect}*: {WORDS[effect]}"]
        for trusted, tainted in EFFECT_COLUMNS.values():
            held, loose = (ANSWERS[EffectCase(effect, trusted, tainted, isolated)] for isolated in (True, False))
            more = f"; a command without a sealed sandbox {ANSWER_WORDS[loose]}" if loose != held else ""
            cells.append(ANSWER_WORDS[held] + more)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def effect(tool: Traits) -> str:
    more = [*(["queries another system"] if tool.open_world else []), *(["can be staged"] if tool.can_stage else [])]
    return f"{tool.effect} ({', '.join(more)})" if more else tool.effect


def table() -> str:
    rows: dict[str, list[str]] = {}
    for name, tool in TRAITS.items():
        treatments = tool.treatments
        guarded = COMMANDS if tool.takes_commands else said(treatments.guarded)
        answers = (by_effect(tool), guarded, said(treatments.locked))
        steered = NAMES.get(tool.names) or HARM.get(tool.harm, "asks")
        if tool.harmless:
            steered += f", except for {', '.join(f'`{detail}`' for detail in tool.harmless)}"
        cells = (effect(tool), *answers, steered, UNDO[tool.undo])
        rows.setdefault(" | ".join(cells), []).append(f"`{name}`")
    head = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"
    return head + "".join(f"| {', '.join(names)} | {cells} |\n" for cells, names in rows.items())


def kinds_of_mcp_tools() -> str:
    rows = [f"| {' | '.join(KIND_COLUMNS)} |", f"{'|---' * len(KIND_COLUMNS)}|"]
    shown = {"none": "runs", "outside": "asks"}
    for kind, tool in (*kinds.TRAITS.items(), (None, kinds.UNCONFIRMED)):
        answer = ANSWERS[EffectCase(tool.effect, True, False, True)]
        steered = ADDRESS_ALONE if tool.open_world else shown.get(tool.harm, "asks")
        name, proposed = (kind, kinds.PROPOSED_FOR[kind]) if kind else ("not confirmed", "every tool of a new server")
        cells = (f"*{name}*", proposed, effect(tool), ANSWER_WORDS[answer], said(tool.treatments.locked), steered)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def every_tool() -> str:
    rows = [f"| {' | '.join(TOOLS_COLUMNS)} |", f"{'|---' * len(TOOLS_COLUMNS)}|"]
    with tempfile.TemporaryDirectory() as folder:
        registry = asyncio.run(all_tools(Path(folder, "shoal")))
        context = example_context(Path(folder, "example"))
        for name in registry.names():
            tool = registry.get(name)
            assert tool is not None
            action = tool.prepare(example_arguments(tool), context).actions[0].text
            purpose = tool.spec.description.partition(". ")[0].rstrip(".").replace("|", "\\|")
            again = "runs again" if tool.traits.idempotent else "outcome unknown"
            rows.append(f"| `{name}` | {purpose} | `{action}` | {ORIGINS[tool.traits.origin]} | {again} |")
    return "\n".join(rows) + "\n"


def filled(text: str, *tables: tuple[str, str, str]) -> str:
    for begin, rows, end in tables:
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{rows}{end}{rest.partition(end)[2]}"
    return text


def pages() -> dict[Path, str]:
    of_tools = (TOOLS_BEGIN, every_tool(), TOOLS_END)
    of_permissions = (
        (EFFECTS_BEGIN, effects(), EFFECTS_END),
        (KINDS_BEGIN, kinds_of_mcp_tools(), KINDS_END),
        (BEGIN, table(), END),
    )
    return {
        TOOLS_PAGE: filled(TOOLS_PAGE.read_text(encoding="utf-8"), of_tools),
        PAGE: filled(PAGE.read_text(encoding="utf-8"), *of_permissions),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
