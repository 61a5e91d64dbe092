"""The texts of approval cards: what would run, and the outcome."""

import re
from typing import Literal, TypeAlias

from shoal.kernel.ids import ApprovalId, ThreadId
from shoal.kernel.markup import fenced
from shoal.kernel.permissions import Coverage
from shoal.kernel.phrases import counted
from shoal.kernel.records import NewApproval, NewPost
from shoal.markdown.dialects import escaped_markdown
from shoal.text.shown import shown_name, strip_controls

CardState: TypeAlias = Literal[
    "allow", "thread", "deny", "expired", "cancelled",
    "ran", "failed", "changed", "asked_anew", "stopped", "interrupted",
]  # fmt: skip

TRUTHS: dict[CardState, str] = {
    "allow": "✅ Allowed{by}.",
    "thread": "✅ Allowed{by}, also when it comes again in this thread.",
    "deny": "⛔ Denied{by}. It did not run.",
    "expired": "⌛ Expired: nobody answered in time. It did not run.",
    "cancelled": "⏹ Cancelled: the turn went on or ended without it. It did not run.",
    "ran": "✅ Allowed; it ran.",
    "failed": "⚠️ Allowed; it failed.",
    "changed": "⚠️ Allowed, but it did not run, because what it depends on has changed.",
    "asked_anew": "⚠️ Allowed, but it did not run: what it runs has changed, so it is asked for anew.",
    "stopped": "⏹ Allowed; it was stopped while it ran.",
    "interrupted": "⚠️ Allowed; it was interrupted while it ran, and what it did is unknown.",
}

CARD_CHARS_MAX = 1500
"""How much of what would run a card shows."""
_SPACES = re.compile(r" {40,}+")
_BLANKS = re.compile(r"\n(?:[ \t]*+\n){5,}+")
"""What would move the rest of a command out of view."""
WHOLE = (
    "Part of it is not shown. Read all of it before you allow it: `shoal approvals show {id}`, or on the page{place}."
)


def card_text(approval: str, shown: str, chars_max: int = CARD_CHARS_MAX, page: str = "") -> str:
    """What a card says of what would run: all of it, or beginning and end, what is left out and where to read it.

    As code, so that no platform takes a character of it for markup. `page` is the address of the page, without a slash
    at its end; empty where nobody said it.
    """
    shown = _BLANKS.sub(_empty_lines, shown)
    shown = _SPACES.sub(lambda found: f"⟨{len(found[0])} spaces⟩", shown)
    if len(shown) <= chars_max:
        return fenced(shown, "") if shown else ""
    end = chars_max // 3
    begin = chars_max - end
    left_out = len(shown) - begin - end
    cut = f"{shown[:begin]}\n… {left_out} characters are not shown here …\n{shown[-end:]}"
    place = f": {page}/#/approvals" if page else ""
    return f"{fenced(cut, '')}\n\n{WHOLE.format(id=approval, place=place)}"


def _empty_lines(found: re.Match[str]) -> str:
    lines = found[0].count("\n") - 1
    return f"\n⟨{lines} empty lines⟩\n"


FILES_SHOWN_MAX = 10
"""How many of the files that a call runs a card names."""


def coverage_text(covers: Coverage) -> str:
    """What a call runs or sends that its own text does not show, for people: files with their sizes, and what is not
    covered."""
    there = [file for file in covers.files if file.size_bytes >= 0] or covers.files
    files: list[str] = []
    for file in there[:FILES_SHOWN_MAX]:
        what = counted(file.size_bytes, "byte") if file.size_bytes >= 0 else file.digest or "does not exist yet"
        name = file.path.removeprefix("/workspace/") or file.path
        files.append(f"{shown_name(name)} ({strip_controls(what)})")
    if len(there) > FILES_SHOWN_MAX:
        files.append(f"{len(there) - FILES_SHOWN_MAX} more")
    said = [f"{'sends' if covers.sends else 'runs'} {', '.join(files)}"] if files else []
    if covers.others:
        said.append(f"may run other files of the workspace ({counted(covers.others, 'code file')})")
    text = " and ".join(said)
    lines = [f"{text[0].upper()}{text[1:]}."] if text else []
    if covers.uncovered:
        lines.append(f"It can only be allowed once, because {covers.uncovered}.")
    return "\n".join(lines)


SHORT_ID_CHARS = 8
"""How much of the end of an approval's id people write."""


def card_id(approval: str) -> str:
    return f"approval:{approval}"


def approval_of(post_id: str) -> ApprovalId:
    """What the post of this id asks; empty when it is no card."""
    kind, _, approval = post_id.partition(":")
    return ApprovalId(approval if kind == "approval" else "")


def card_post(thread: ThreadId, approval: NewApproval, page: str = "") -> NewPost:
    """The post that asks: what would run, the files that it runs, and why a person is asked where that is not plain
    from the rules alone."""
    shown = approval.shown if approval.shown.strip() else strip_controls("\n".join(approval.actions))
    text = card_text(approval.id, shown, page=page)
    besides = (coverage_text(approval.covers), approval.reason)
    said = "\n\n".join(part for part in (text, *map(escaped_markdown, besides)) if part)
    only_once = bool(approval.covers.uncovered)
    return NewPost(card_id(approval.id), thread, said, "card", approval=approval.id, only_once=only_once)


def card_edit(thread: ThreadId, approval: ApprovalId, shown: str, state: CardState, by: str = "") -> NewPost:
    """The post that changes a card to what became of it; its buttons go. Platforms that cannot edit skip it."""
    text = TRUTHS[state].format(by=f" by {escaped_markdown(by)}" if by else "")
    return NewPost(
        f"{card_id(approval)}:{state}", thread, f"{text}\n\n{card_text(approval, shown)}", "edit", approval=approval
    )
