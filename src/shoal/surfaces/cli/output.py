"""Formats the output of commands: tables for people, JSON for programs, readable times and durations, and events
as lines.
"""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TextIO, TypeAlias

import click
import msgspec

from shoal.installation import as_typed
from shoal.kernel import lazy_re
from shoal.kernel.events import (
    ApprovalRequested,
    ApprovalSettled,
    AssistantSaid,
    Branched,
    Cleared,
    Compacted,
    Event,
    Failed,
    FilesChanged,
    FilesRestored,
    Forked,
    LimitReached,
    RetryRequested,
    RetryScheduled,
    StatusChanged,
    Steered,
    ToolFinished,
    TurnFinished,
    UserSaid,
)
from shoal.kernel.messages import Author, ToolCall
from shoal.kernel.phrases import counted
from shoal.kernel.untrusted import UNREADABLE
from shoal.store.cards import coverage_text, offer_text, origins_text

CELL_CHARS_MAX = 60
RESULT_LINES_MAX = 12
CALL_CHARS_MAX = 200
VERBATIM = "    │ "
"""Prefix of lines that are shown verbatim."""

VERDICTS = {
    "pending": "waiting", "allow": "allowed", "deny": "denied", "expired": "expired", "cancelled": "cancelled",
}  # fmt: skip
_OUTCOMES = {"aborted": "Stopped.", "failed": "Failed.", "limit": "Limit reached."}


_CODE = lazy_re.compile(r"`([^`\n]+)`")
_LABEL = lazy_re.compile(r" *(?:\S+ {2,})?")
"""Matches the indentation of a line, and a label before its text."""


def is_dumb() -> bool:
    """Return True if the terminal can only append text, or if its type is unknown."""
    return os.environ.get("TERM", "dumb") == "dumb"


def echo(text: str, to: TextIO | None = None) -> None:
    stream = to if to is not None else sys.stdout
    colour = stream.isatty() and not os.environ.get("NO_COLOR") and not is_dumb()
    shown = as_typed(printable(text))
    if stream.isatty():
        shown = wrapped(shown, shutil.get_terminal_size().columns)
    print(worded(shown, colour=colour), file=stream, flush=True)


def wrapped(text: str, columns: int) -> str:
    """Wrap long lines between words. Continuation lines align with the text of the first line. Commands in
    backticks are not broken.
    """
    return "\n".join(_wrapped_line(line, columns) for line in text.split("\n"))


def _wrapped_line(line: str, columns: int) -> str:
    label = _LABEL.match(line)
    indent = label.end() if label else 0
    whole = _CODE.sub(lambda code: code[0].replace(" ", "\0"), line)
    lines = textwrap.wrap(
        whole, max(columns, 1), subsequent_indent=" " * (indent if indent * 2 < columns else 0),
        break_long_words=False, break_on_hyphens=False,
    ) if len(line) > columns else [whole]  # fmt: skip
    return "\n".join(lines).replace("\0", " ")


def worded(text: str, *, colour: bool = False) -> str:
    """Render code in backticks as cyan text if `colour` is True, and in quotation marks otherwise. Shoal's
    commands appear as a person must type them on this system.
    """
    shown = _CODE.sub(lambda match: f"\x1b[36m{match[1]}\x1b[39m" if colour else f"'{match[1]}'", as_typed(text))
    return shown.replace("`", "'")  # an unpaired backtick comes from the content


def print_json(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


Cell: TypeAlias = str | int | datetime | None


def print_table(head: Sequence[str], rows: Iterable[Sequence[Cell]], empty: str) -> None:
    """Print rows in columns under a header, or print `empty` if there are no rows.

    On a terminal, the last column is cut to fit. Times are formatted with `when`, and control characters are replaced.
    """

    def shown(cell: Cell, *, last: bool) -> str:
        text = printable(str(cell)) if isinstance(cell, str | int) else when(cell)
        flat = " ".join(text.split())
        return flat if last or len(flat) <= CELL_CHARS_MAX else flat[: CELL_CHARS_MAX - 1] + "…"

    cells = [[shown(cell, last=number == len(row) - 1) for number, cell in enumerate(row)] for row in rows]
    if not cells:
        echo(empty)
        return
    lines = [[name.upper() for name in head], *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in lines:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        print(text[: room - 1] + "…" if room and len(text) > room else text)


def print_records(
    records: object, as_json: bool, head: Sequence[str], rows: Iterable[Sequence[Cell]], empty: str
) -> None:
    if as_json:
        print_json(records)
    else:
        print_table(head, rows, empty)


def printable(text: str) -> str:
    """Replace characters that could move a terminal's cursor, change its colors or reverse text."""
    return "".join(char if char in "\n\t" or (char.isprintable() and char not in _TURNING) else "�" for char in text)


_TURNING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c")


def when(at: datetime | None) -> str:
    """Format a time in UTC, to the second. None becomes an empty string."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if at is not None else ""


def usd(amount: float | None) -> str:
    return "–" if amount is None else f"{amount:.4f}"


def event_lines(event: Event) -> Iterator[str]:
    match event.data:
        case UserSaid(text=text, author=author):
            yield f"\n{when(event.at)}  {_name(author)}:"
            yield from _indented(text)
        case Steered(text=text, author=author):
            yield f"  {_name(author)}, sent during the turn:"
            yield from _indented(text)
        case AssistantSaid(text=text, tool_calls=calls):
            if text.strip():
                yield "  agent:"
                yield from _indented(text)
            yield from (f"  → {call_line(call)}" for call in calls)
        case ToolFinished() as result:
            yield from result_lines(result)
        case ApprovalRequested() as request:
            yield from request_lines(request)
        case ApprovalSettled(decision=decision, by=by):
            yield f"  {VERDICTS[decision]}{f' by {printable(by)}' if by else ''}"
        case Compacted(summary=summary):
            yield "  [older messages were summarized]" if summary else "  [older messages were omitted]"
        case Cleared():
            yield "  [the conversation was cleared here]"
        case Branched(after=after):
            yield f"\n  [a new branch: the conversation continues after event {after}]"
        case Forked(thread=source, seq=seq):
            yield f"\n  [everything above is a copy of {source} up to event {seq}]"
        case FilesChanged(changed=changed) if changed:
            undo = f"shoal threads undo {event.thread} {event.turn}"
            yield f"  [{counted(changed, 'file')} changed. Run `{undo}` to revert the changes.]"
        case FilesRestored(id=undo, restored=restored, by=by):
            yield f"\n  [{printable(by)} undid a turn: {counted(restored, 'file')} restored."
            yield f"  Run `shoal threads undo {event.thread} {undo}` to revert this undo.]"
        case LimitReached(limit=limit, detail=detail):
            yield f"  ! {limit_words(limit, detail)}"
        case Failed(message=message, detail=detail):
            yield from (f"  {line}" for line in failure_lines(message, detail))
        case RetryScheduled(message=message, detail=detail, attempt=1):
            advice = "I will retry automatically. /retry retries now, /stop gives up."
            yield from (f"  {line}" for line in failure_lines(f"{message} {advice}", detail))
        case RetryRequested(model=model):
            yield f"  [asking {printable(model) or 'the model'} again]"
        case TurnFinished(outcome=outcome) if outcome != "done":
            yield f"  {_OUTCOMES[outcome]}"
        case _:
            pass


def request_lines(request: ApprovalRequested) -> Iterator[str]:
    item = request.item
    if item.number == 1 and item.why:
        yield f"  The model says: “{printable(item.why)}”"
    if item.files:
        yield "  This turn changed files. The changes stay unless you undo them:"
        yield from _indented(item.files)
    which = f"call {item.number} of {item.total}, " if item.card else ""
    if item.staged:
        yield f"  ? Not done yet, {item.number} of {item.total}: {printable(request.tool)}"
    else:
        yield f"  ? The agent asks to run {which}{printable(request.tool)}:"
    yield from (f"{VERBATIM}{line}" for line in printable(request.shown).expandtabs(8).split("\n"))
    offer = offer_text(item.always)
    besides = (coverage_text(request.covers), origins_text(item.origins), why(request), offer)
    yield from _indented("\n".join(filter(None, besides)))
    if item.staged and item.number == item.total:
        some = f", `do 1 {item.total}` to run only those" if item.total > 1 else ""
        yield f"  Write `do all` to run {'it' if item.total == 1 else 'all calls'}{some}, or `discard`."
    elif item.card and item.number == item.total:
        yield f"  Answer y for all {item.total}, n for none, or choose: allow 1 {item.total}"
    elif offer:
        yield "  Answer y for once, t for this thread, a for always, n for no"


def why(request: ApprovalRequested) -> str:
    return f"Why it asks: {request.reason or 'your permission rules say to ask before this.'}"


def failure_lines(message: str, detail: str) -> Iterator[str]:
    yield f"! {printable(message)}"
    if adds_detail(message, detail):
        yield f"  {' '.join(printable(detail).split())}"


def adds_detail(message: str, detail: str) -> bool:
    return detail not in message and message not in detail


def limit_words(limit: str, detail: str) -> str:
    return printable(sentence(f"A limit was reached: {detail or limit.replace('_', ' ')}"))


def sentence(text: str) -> str:
    """End a text with exactly one period, unless it ends with another punctuation mark."""
    text = text.rstrip().rstrip(".")
    return text if text.endswith(("!", "?", "…", ":")) else f"{text}."


def timed(words: str, seconds: float) -> str:
    """Append the duration to an activity: `thinking, 12 s`. Durations under a second are omitted."""
    return f"{words}, {span(int(seconds))}" if seconds >= 1 else words


def status_words(status: StatusChanged, seconds: float) -> str:
    match status.state:
        case "thinking":
            return timed("waiting for the model", seconds)
        case "tool":
            return timed(f"running {printable(status.text)}", seconds)
        case "waiting":
            return "waiting for your decision"
        case "retrying":
            left = round(max(0.0, status.seconds - seconds))
            return f"{printable(status.text)}, trying again {f'in {span(left)}' if left else 'now'}"
        case "queued":
            return timed("queued", seconds)
        case _:
            return ""


def span(seconds: float) -> str:
    """Format a duration: `42 ms`, `1.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`."""
    whole = round(seconds)
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if whole < 60:
        return f"{seconds:.1f} s".replace(".0 ", " ") if seconds < 10 else f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


_MAIN_ARGUMENTS = ("command", "path", "file_path", "query", "url", "text", "name")


def call_line(call: ToolCall) -> str:
    argument = call.arguments
    try:
        given = msgspec.json.decode(call.arguments or "{}", type=dict[str, object])
        argument = next((text for name in _MAIN_ARGUMENTS if isinstance(text := given.get(name), str)), argument)
    except UNREADABLE:  # the model may send invalid JSON
        pass
    about = " ".join(printable(argument if argument != "{}" else "").split())
    if len(about) > CALL_CHARS_MAX:
        about = about[: CALL_CHARS_MAX - 1] + "…"
    return f"{printable(call.name)} {about}".rstrip()


def result_lines(result: ToolFinished) -> Iterator[str]:
    lines = printable(result.for_people).rstrip().splitlines()
    took = f", {span(result.duration_ms / 1000)}" if result.duration_ms else ""
    ending = ", interrupted, outcome unknown" if result.is_interrupted else ", stopped" if result.stopped else ""
    if result.staged:
        ending = ", staged, not done"
    if result.exit_code and not ending:
        ending = f", exit code {result.exit_code}"
    yield f"  {ending_mark(result)} {printable(result.name)}{took}{ending}"
    yield from (f"      {line}" for line in lines[:RESULT_LINES_MAX])
    if len(lines) > RESULT_LINES_MAX:
        yield f"      … lines not shown: {len(lines) - RESULT_LINES_MAX}"


def ending_mark(result: ToolFinished) -> str:
    if result.stopped or result.is_interrupted:
        return "■" if result.stopped else "?"
    if result.staged:
        return "○"
    return "✗" if result.is_error or result.exit_code else "✓"


def _indented(text: str) -> Iterator[str]:
    for line in printable(text).splitlines():
        yield f"    {line}"


def _name(author: Author) -> str:
    return printable(author.name or author.id)


def hours_of(text: str) -> int:
    """Parse a duration such as 12h, 30d or 2w into hours. Raises click.UsageError."""
    match = re.fullmatch(r"(\d{1,4})([hdw])", text.strip())
    if match is None or not int(match[1]):
        raise click.UsageError(f"--since {text!r} is not a time span. Examples: 12h, 30d, 2w.")
    return int(match[1]) * {"h": 1, "d": 24, "w": 168}[match[2]]
