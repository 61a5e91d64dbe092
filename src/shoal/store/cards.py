"""Text and buttons of approval cards, before and after the decision."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, TypeAlias

from shoal.kernel import lazy_re
from shoal.kernel.ids import ApprovalId, ThreadId
from shoal.kernel.markup import fenced
from shoal.kernel.permissions import CardItem, Coverage, StandingRule, ValueOrigin
from shoal.kernel.phrases import counted, listed, short_line
from shoal.kernel.posts import Button, ticks
from shoal.kernel.records import Approval, CallOutcome, NewApproval, NewPost
from shoal.kernel.untrusted import short_source
from shoal.markdown.dialects import escaped_markdown
from shoal.text.shown import shown_name, strip_controls

CardState: TypeAlias = CallOutcome | Literal["pending", "allow", "thread", "deny", "expired", "cancelled"]

TRUTHS: dict[CardState, str] = {
    "pending": "⏳ Waiting for an answer.",
    "allow": "✅ Allowed{by}.",
    "thread": "✅ Allowed{by}, also for later calls in this conversation.",
    "deny": "⛔ Denied{by}. It did not run.",
    "expired": "⌛ Expired: nobody answered in time. It did not run.",
    "cancelled": "⏹ Cancelled: the turn continued or ended without an answer. It did not run.",
    "ran": "✅ Allowed, and it ran.",
    "failed": "⚠️ Allowed, but it failed.",
    "changed": "⚠️ Allowed, but it did not run, because something it depends on has changed. Ask the agent again.",
    "asked_anew": "⚠️ Allowed, but it did not run: it needs a new approval, and the newer card explains why.",
    "stopped": "⏹ Allowed, but it was stopped while it ran.",
    "interrupted": "⚠️ Allowed, but it was interrupted while it ran, so the result is unknown.",
    "not_run": "⏹ Allowed, but stopped before it ran.",
    "no_access": "⚠️ Allowed, but it did not run: the person who asked for it no longer has access.",
}
STAGED_TRUTHS: dict[CardState, str] = {
    **{state: text.replace("Allowed", "Accepted") for state, text in TRUTHS.items()},
    "pending": "⏳ Not done yet. Waiting for an answer.",
    "allow": "✅ Accepted{by}.",
    "thread": "✅ Accepted{by}, also for later calls in this conversation.",
    "deny": "⛔ Discarded{by}. It did not run.",
    "expired": "⌛ Expired: nobody answered in time. It did not run.",
    "ran": "✅ Done.",
    "failed": "⚠️ Accepted, but it failed.",
    "not_run": "⏹ Accepted, but stopped before it ran.",
    "no_access": "⚠️ Accepted, but it did not run: the person who asked for it no longer has access.",
}

CARD_CHARS_MAX = 1500
CALL_CHARS_MIN = 200
"""Minimum number of characters shown of each call on a card with several calls."""
CARD_CALLS_MAX = 16
"""Maximum number of calls on one card. Further calls get a new card after the decision.

A card of staged calls may have more. It then shows the number of calls per tool and EXAMPLES_MAX examples.
"""
EXAMPLES_MAX = 4
VALUE_CHARS_MAX = 60
LABEL_CHARS_MAX = 70
"""Maximum length of a button label that every platform accepts."""
_SPACES = lazy_re.compile(r" {40,}+")
_BLANKS = lazy_re.compile(r"\n(?:[ \t]*+\n){5,}+")
"""Matches blank lines that would push the rest of a command out of view."""
WHOLE = (
    "Part of this call is hidden. Before you allow it, read the full text with `shoal approvals show {id}` or on "
    "the page{place}."
)


def card_text(approval: str, shown: str, chars_max: int = CARD_CHARS_MAX, page: str = "") -> str:
    """Render a call's content as a code block, in which no platform interprets markup.

    Long content is cut to its start and end, with a note that says where to read it in full. `page` is the address
    of Shoal's page without a trailing slash, or empty if unknown.
    """
    shown = _BLANKS.sub(_empty_lines, shown)
    shown = _SPACES.sub(lambda match: f"⟨{len(match[0])} spaces⟩", shown)
    if len(shown) <= chars_max:
        return fenced(shown, "") if shown else ""
    end = chars_max // 3
    begin = chars_max - end
    left_out = len(shown) - begin - end
    cut = f"{shown[:begin]}\n… {left_out} characters are not shown here …\n{shown[-end:]}"
    place = f": {page}/#/approvals" if page else ""
    return f"{fenced(cut, '')}\n\n{WHOLE.format(id=approval, place=place)}"


def _empty_lines(match: re.Match[str]) -> str:
    lines = match[0].count("\n") - 1
    return f"\n⟨{lines} empty lines⟩\n"


REPOSITORY = "this repository's hooks and the programs named in its settings"
FILES_SHOWN_MAX = 10


def coverage_text(covers: Coverage) -> str:
    there = [file for file in covers.files if file.size_bytes >= 0] or covers.files
    is_repository = any("/.git/" in file.path for file in there)
    there = [file for file in there if "/.git/" not in file.path]
    files: list[str] = []
    for file in there[:FILES_SHOWN_MAX]:
        what = counted(file.size_bytes, "byte") if file.size_bytes >= 0 else file.digest or "does not exist yet"
        name = file.path.removeprefix("/workspace/") or file.path
        files.append(f"{shown_name(name)} ({strip_controls(what)})")
    if len(there) > FILES_SHOWN_MAX:
        files.append(f"{len(there) - FILES_SHOWN_MAX} more")
    sentences = [f"{'sends' if covers.sends else 'runs'} {', '.join(files)}"] if files else []
    if is_repository:
        sentences.append(f"{'sends' if covers.sends else 'also runs'} {REPOSITORY}")
    if covers.others:
        sentences.append(f"may run other files in the workspace ({counted(covers.others, 'code file')})")
    text = " and ".join(sentences)
    lines = [f"{text[0].upper()}{text[1:]}."] if text else []
    if covers.uncovered:
        lines.append(f"It can only be allowed once, because {covers.uncovered}.")
    return "\n".join(lines)


SHORT_ID_CHARS = 8
"""Number of characters, from the end of an approval's id, that people type."""


def card_id(approval: str) -> str:
    return f"approval:{approval}"


def approval_of(post_id: str) -> ApprovalId:
    kind, _, approval = post_id.partition(":")
    return ApprovalId(approval if kind == "approval" else "")


def card_post(thread: ThreadId, calls: Sequence[NewApproval], page: str = "") -> NewPost:
    first, offers = calls[0], _offers(calls)
    if not first.item.card:
        text = _joined(_call_text(first, page, CARD_CHARS_MAX), escaped_markdown(_asks(first.item)), offers)
        buttons = single_buttons(first.id, only_once=bool(first.covers.uncovered), always=bool(offers))
        return NewPost(card_id(first.id), thread, text, "card", approval=first.id, buttons=buttons)
    card, short = first.item.card, first.item.card[-SHORT_ID_CHARS:]
    do, refuse = ("do", "discard") if first.item.staged else ("allow", "deny")
    some = (
        f" To decide only some calls, add their numbers: `{do} {short} 1 {len(calls)}`."
        if 1 < len(calls) <= CARD_CALLS_MAX
        else ""
    )
    for_all = f" for all{_including(calls)}" if len(calls) > 1 else ""
    ways = f"To decide, write `{do} {short}`{for_all}, or `{refuse} {short}`.{some}"
    return NewPost(
        card_id(card), thread, _whole_text(calls, page), "card",
        approval=card, buttons=card_buttons(calls), ways=ways,
    )  # fmt: skip


def card_choice(thread: ThreadId, calls: Sequence[Approval], ticked: Sequence[int], post: str, page: str) -> NewPost:
    """Render an edit of a card that shows a check box for each pending call. `post` is the id of the edit.

    The buttons' values contain the checked calls, so pressing a button decides exactly what its label says.
    """
    card, waiting = calls[0].item.card, [call for call in calls if call.state == "pending"]
    numbers = [call.item.number for call in waiting if call.item.number in ticked]
    mask = ticks(numbers)
    buttons = [
        Button(
            f"{'☑' if call.item.number in numbers else '☐'} {call.item.number}: {short_line(call.shown, 40)}",
            f"pick:{card}:{mask ^ ticks([call.item.number]):x}",
        )
        for call in waiting
    ]
    staged = calls[0].item.staged
    if numbers:
        rest = f", {'discard' if staged else 'deny'} the rest" if len(numbers) < len(waiting) else ""
        label = short_line(f"{'Do' if staged else 'Allow'} {listed(numbers)}{rest}", LABEL_CHARS_MAX)
        buttons.append(Button(label, f"take:{card}:{mask:x}"))
    buttons.append(Button("Discard" if staged else "Deny all", f"none:{card}"))
    text = _whole_text(calls, page)
    return NewPost(post, thread, text, "edit", edits=card_id(card), approval=card, buttons=tuple(buttons))


def card_edit(thread: ThreadId, calls: Sequence[Approval]) -> NewPost:
    """Render an edit of a card that shows the outcomes of its calls.

    The decision buttons are removed unless a call is still pending. Platforms that cannot edit messages skip the edit.
    """
    first = calls[0]
    states: list[CardState] = [_state_of(call) for call in calls]
    version = ",".join(states) + (":withdrawn" if any(call.scope == "withdrawn" for call in calls) else "")
    back = (Button("Remove the rule", f"back:{first.item.card or first.id}"),)
    back = back if any(call.scope == "always" for call in calls) else ()
    if not first.item.card:
        text = _joined(_truth(first), _made(first), card_text(first.id, first.shown))
        post = f"{card_id(first.id)}:{version}"
        return NewPost(post, thread, text, "edit", approval=first.id, buttons=back)
    card, chars_max = first.item.card, _share(len(calls))
    if len(calls) > CARD_CALLS_MAX:
        counts = Counter(states)
        lines = [f"- {counted(count, 'call')}: {STAGED_TRUTHS[state].format(by='')}" for state, count in counts.items()]
        if undo := undo_text(calls):
            lines += ["", undo]
        key = ",".join(f"{state} {count}" for state, count in counts.items())
        buttons = card_buttons(calls) if "pending" in counts else _undo_button(calls)
        return NewPost(
            f"{card_id(card)}:{key}",
            thread,
            "\n".join(lines),
            "edit",
            edits=card_id(card),
            approval=card,
            buttons=buttons,
        )
    parts = [
        _joined(f"**{call.item.number}.** {_truth(call)}", _made(call), card_text(call.id, call.shown, chars_max))
        for call in calls
    ]
    if undo := undo_text(calls):
        parts.append(undo)
    waiting = [call for call in calls if call.state == "pending"]
    return NewPost(
        f"{card_id(card)}:{version}", thread, "\n\n".join(parts), "edit",
        edits=card_id(card), approval=card, buttons=card_buttons(waiting) if waiting else back or _undo_button(calls),
    )  # fmt: skip


def undoable_turn(calls: Sequence[Approval]) -> str:
    """Return the turn if it changed files and all its staged calls were denied or expired.

    Return an empty string in all other cases.
    """
    if not calls[0].item.files or any(call.state not in ("deny", "expired") for call in calls):
        return ""
    return calls[0].turn


def undo_text(calls: Sequence[Approval]) -> str:
    turn = undoable_turn(calls)
    return f"The turn's file changes stay. Use `/undo {turn}` to revert them." if turn else ""


def _undo_button(calls: Sequence[Approval]) -> tuple[Button, ...]:
    return (Button("Undo the files", f"undo:{calls[0].item.card}"),) if undoable_turn(calls) else ()


def card_buttons(calls: Sequence[NewApproval]) -> tuple[Button, ...]:
    """Return the buttons that decide these calls. Calls requested by untrusted content start unchecked."""
    card = calls[0].item.card
    ticked = [call.item.number for call in calls if not call.item.foreign]
    always = (Button("Always allow all", f"always:{card}"),) if all(call.item.always.allow for call in calls) else ()
    if calls[0].item.staged:
        all_label = f"Do all {len(calls)}" if len(calls) > CARD_CALLS_MAX else "Do all" if len(calls) > 1 else "Do it"
        choose = Button("Choose", f"pick:{card}:{ticks(ticked):x}")
        return (
            Button(short_line(f"{all_label}{_including(calls)}", LABEL_CHARS_MAX), f"all:{card}"),
            *([choose] if 1 < len(calls) <= CARD_CALLS_MAX else []),
            *always,
            Button("Discard", f"none:{card}"),
        )
    return (
        Button(short_line(f"Allow all{_including(calls)}", LABEL_CHARS_MAX), f"all:{card}"),
        Button("Choose", f"pick:{card}:{ticks(ticked):x}"),
        *always,
        Button("Deny", f"none:{card}"),
    )


def single_buttons(approval: str, *, only_once: bool, always: bool) -> tuple[Button, ...]:
    return (
        Button("Allow once", f"allow:{approval}"),
        *(() if only_once else (Button("Allow for this conversation", f"thread:{approval}"),)),
        *((Button("Always allow", f"always:{approval}"),) if always else ()),
        Button("Deny", f"deny:{approval}"),
    )


def rule_text(rule: StandingRule) -> str:
    where = "in this channel" if rule.channel else "in direct messages"
    return f"{rule.words}, in {rule.agent}'s workspace, when you ask {where}"


def offer_text(rule: StandingRule) -> str:
    if not rule.allow:
        return ""
    times = (
        f"You recently answered this request {counted(rule.answered, 'time')} and allowed it "
        f"{counted(rule.allowed, 'time')}."
    )
    return f"Always allow: {rule_text(rule)}. {times if rule.answered else 'You have not been asked this before.'}"


def _offers(calls: Sequence[NewApproval]) -> str:
    if not all(call.item.always.allow for call in calls):
        return ""
    named = (calls[0].item.card or calls[0].id)[-SHORT_ID_CHARS:]
    offers = [escaped_markdown(offer_text(call.item.always)) for call in calls]
    return "\n".join([*offers, f"Or write `always {named}`."])


def _made(call: Approval) -> str:
    words = escaped_markdown(rule_text(call.item.always))
    if call.scope == "withdrawn":
        return f"Removed rule: {words}."
    if call.scope != "always":
        return ""
    named = (call.item.card or call.id)[-SHORT_ID_CHARS:]
    return f"Always allowed: {words}. To remove the rule, write `take back {named}`."


def origins_text(origins: Sequence[ValueOrigin]) -> str:
    by_person: dict[str, list[str]] = {}
    by_source: dict[str, list[str]] = {}
    for origin in origins:
        values = by_source.setdefault(origin.source, []) if origin.source else by_person.setdefault(origin.named_by, [])
        values.append(f"“{short_line(strip_controls(origin.value), VALUE_CHARS_MAX)}”")
    sentences = [f"{name[0].upper()}{name[1:]} named {', '.join(values)}." for name, values in by_person.items()]
    for source, values in by_source.items():
        verb = "comes" if len(values) == 1 else "come"
        sentences.append(f"{', '.join(values)} {verb} only from {shown_name(short_source(source))}.")
    return " ".join(sentences)


def _including(calls: Sequence[NewApproval]) -> str:
    foreign = [call for call in calls if call.item.foreign]
    if not foreign or len(calls) == 1:
        return ""
    sources = list(dict.fromkeys(source for call in foreign for source in call.item.foreign))
    source = short_line(shown_name(sources[0]), 30) if len(sources) == 1 else "untrusted text"
    return f", including {listed([call.item.number for call in foreign][:FILES_SHOWN_MAX])} from {source}"


def _asks(item: CardItem) -> str:
    if not item.agent:
        return ""
    asks = f"{item.agent} asks for {item.person}." if item.person else f"{item.agent} asks."
    return f"{asks} The model says: “{item.why}”" if item.why else asks


def _whole_text(calls: Sequence[NewApproval], page: str) -> str:
    item, chars_max = calls[0].item, _share(len(calls))
    if item.staged:
        return _staged_text(calls, page)
    head = f"**{counted(len(calls), 'call')} are waiting for your decision.** {escaped_markdown(_asks(item))}".rstrip()
    parts = [
        f"**{call.item.number}.** {escaped_markdown(strip_controls(call.tool))}\n{_call_text(call, page, chars_max)}"
        for call in calls
    ]
    return _joined(head, *parts, _offers(calls))


def _staged_text(calls: Sequence[NewApproval], page: str) -> str:
    item, shown = calls[0].item, calls
    question = "Run this action?" if len(calls) == 1 else f"Run these {len(calls):,} actions?"
    head = f"**{question}** Nothing has been done yet. {escaped_markdown(_asks(item))}".rstrip()
    parts = [f"This turn changed files. The changes stay unless you undo them:\n{item.files}"] if item.files else []
    if len(calls) > CARD_CALLS_MAX:
        tools = Counter(call.tool for call in calls).most_common()
        counts = "\n".join(f"- {count:,} × {escaped_markdown(strip_controls(tool))}" for tool, count in tools)
        where = f"{page}/#/approvals" if page else "`shoal approvals list`"
        parts += [counts, f"Examples ({where} shows all calls):"]
        shown = [*calls[: EXAMPLES_MAX - 1], calls[-1]]
    chars_max = _share(len(shown))
    parts += [
        f"**{call.item.number}.** {escaped_markdown(strip_controls(call.tool))}\n{_call_text(call, page, chars_max)}"
        for call in shown
    ]
    return "\n\n".join([head, *parts])


def _share(calls: int) -> int:
    return max(CALL_CHARS_MIN, 2 * CARD_CHARS_MAX // calls)


def _call_text(call: NewApproval, page: str, chars_max: int) -> str:
    shown = call.shown if call.shown.strip() else strip_controls("\n".join(call.actions))
    besides = (coverage_text(call.covers), call.reason, origins_text(call.item.origins))
    return _joined(card_text(call.id, shown, chars_max, page), *map(escaped_markdown, besides))


def _joined(*parts: str) -> str:
    return "\n\n".join(filter(None, parts))


def _state_of(call: Approval) -> CardState:
    if call.outcome:
        return call.outcome
    if call.state in ("allow", "used"):
        return "thread" if call.scope == "thread" else "allow"
    return call.state


def _truth(call: Approval) -> str:
    by = call.decided_by if call.state in ("allow", "used", "deny") else ""
    truths = STAGED_TRUTHS if call.item.staged else TRUTHS
    return truths[_state_of(call)].format(by=f" by {escaped_markdown(by)}" if by else "")
