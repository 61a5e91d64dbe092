"""Events as lines for a person to read, in `threads show` and `chat`."""

from collections.abc import Iterator

from shoal.domain.cards import coverage_text
from shoal.domain.events import (
    ApprovalRequested,
    ApprovalSettled,
    AssistantSaid,
    Cleared,
    Compacted,
    Event,
    Failed,
    LimitReached,
    RetryRequested,
    RetryScheduled,
    Steered,
    ToolFinished,
    TurnFinished,
    UserSaid,
)
from shoal.domain.messages import Author, ToolCall
from shoal.surfaces.cli.output import printable, when

RESULT_LINES_MAX = 12
CALL_CHARS_MAX = 200

_VERDICTS = {"allow": "allowed", "deny": "denied", "expired": "expired", "cancelled": "cancelled"}
_OUTCOMES = {"aborted": "Stopped.", "failed": "Failed.", "limit": "Ended at a limit."}


def event_lines(event: Event) -> Iterator[str]:
    """An event as lines; nothing for those that only concern the machinery."""
    match event.data:
        case UserSaid(text=text, author=author):
            yield f"\n{when(event.at)}  {_name(author)}:"
            yield from _indented(text)
        case Steered(text=text, author=author):
            yield f"  {_name(author)}, into the turn:"
            yield from _indented(text)
        case AssistantSaid(text=text, tool_calls=calls):
            if text.strip():
                yield "  agent:"
                yield from _indented(text)
            yield from (f"  → {call_line(call)}" for call in calls)
        case ToolFinished() as result:
            yield from result_lines(result)
        case _:
            yield from _notes(event)


def _notes(event: Event) -> Iterator[str]:
    match event.data:
        case ApprovalRequested(approval_id=approval, shown=shown, reason=reason, covers=covers):
            yield f"  ? asks to run (approval {approval}):"
            yield from _indented("\n".join(part for part in (shown, coverage_text(covers), reason) if part))
        case ApprovalSettled(decision=decision, by=by):
            yield f"  {_VERDICTS[decision]}{f' by {printable(by)}' if by else ''}"
        case Compacted(summary=summary):
            yield "  [older messages were summarised]" if summary else "  [older messages left the window]"
        case Cleared():
            yield "  [the model's window starts anew here]"
        case LimitReached(limit=limit, detail=detail):
            yield f"  ! limit reached: {limit}{f' ({detail})' if detail else ''}"
        case Failed(message=message):
            yield f"  ! {printable(message)}"
        case RetryScheduled(message=message, attempt=1):
            yield f"  ! {printable(message)} I try again by myself; /retry tries now, /stop gives up."
        case RetryRequested(model=model):
            yield f"  [asks {printable(model) or 'the model'} again]"
        case TurnFinished(outcome=outcome) if outcome != "done":
            yield f"  {_OUTCOMES[outcome]}"
        case _:
            pass


def call_line(call: ToolCall) -> str:
    """A tool call on one line: its name and the start of its arguments."""
    arguments = " ".join(printable(call.arguments).split())
    if len(arguments) > CALL_CHARS_MAX:
        arguments = arguments[: CALL_CHARS_MAX - 1] + "…"
    return f"{printable(call.name)} {arguments}".rstrip()


def result_lines(result: ToolFinished) -> Iterator[str]:
    """The start of a tool's result."""
    lines = printable(result.text).rstrip().splitlines()
    took = f", {result.duration_ms} ms" if result.duration_ms else ""
    yield f"  {'✗' if result.is_error else '✓'} {printable(result.name)}{took}"
    yield from (f"      {line}" for line in lines[:RESULT_LINES_MAX])
    if len(lines) > RESULT_LINES_MAX:
        yield f"      … {len(lines) - RESULT_LINES_MAX} more lines"


def _indented(text: str) -> Iterator[str]:
    for line in printable(text).splitlines():
        yield f"    {line}"


def _name(author: Author) -> str:
    return printable(author.name or author.id)
