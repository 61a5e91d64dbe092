"""What each built-in tool is: the table of docs/permissions.md, from the tools' own traits.

    python -m tests.tool_table     write the page anew

`tests/tidy/test_tools.py` holds the page against the code.
"""

from pathlib import Path

from shoal.kernel.traits import ANYTHING, Traits, Treatment
from tests.known_tools import TRAITS

PAGE = Path(__file__).parents[1] / "docs/permissions.md"
BEGIN, END = "<!-- from the tools' traits: python -m tests.tool_table -->\n", "<!-- end -->\n"
COLUMNS = ("tool", "effect", "standard", "guarded", "locked", "after untrusted content", "undo")
HARM = {
    "none": "as before",
    "file": "asks outside the workspace, and for what others execute",
    "command": "asks unless it is known to be harmless",
}
COMMANDS = "allow; deny what changes something elsewhere; ask for opaque ones"
UNDO = {"files": "`/undo`", "agent": "`/agent undo`", "": ""}


def said(answer: Treatment) -> str:
    other = answer.otherwise or "deny"
    if answer.allow in (ANYTHING, ".*"):
        return "allow"
    return f"allow: {answer.allows}; else {other}" if answer.allow else other


def effect(tool: Traits) -> str:
    more = [*(["asks another system"] if tool.open_world else []), *(["can be staged"] if tool.can_stage else [])]
    return f"{tool.effect} ({', '.join(more)})" if more else tool.effect


def table() -> str:
    """One row for all tools that are the same."""
    rows: dict[str, list[str]] = {}
    for name, tool in TRAITS.items():
        treatments = tool.treatments
        guarded = COMMANDS if tool.takes_commands else said(treatments.guarded)
        answers = (said(treatments.standard), guarded, said(treatments.locked))
        steered = HARM.get(tool.harm, "asks")
        if tool.harmless:
            steered += f", but for {', '.join(f'`{detail}`' for detail in tool.harmless)}"
        cells = (effect(tool), *answers, steered, UNDO[tool.undo])
        rows.setdefault(" | ".join(cells), []).append(f"`{name}`")
    head = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"
    return head + "".join(f"| {', '.join(names)} | {cells} |\n" for cells, names in rows.items())


def page(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
