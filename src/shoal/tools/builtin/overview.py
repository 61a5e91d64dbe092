"""The tool `overview`: recent requests and results, costs, failures, pending approvals, and scheduled work.

If only the owner reads the reply, the overview covers all conversations. Otherwise it covers only the current channel.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias, get_args

import msgspec
from msgspec import Meta

from shoal.kernel.errors import InvalidInput
from shoal.kernel.events import Event, Outcome, Steered, TurnFinished, TurnStarted, UserSaid
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.ports import Invocation, ToolContext, ToolOutput
from shoal.kernel.records import Approval
from shoal.kernel.traits import LOOKUP
from shoal.kernel.untrusted import untrusted_block
from shoal.kernel.zones import zone_named
from shoal.store.journal import EndedTurns
from shoal.store.store import Store
from shoal.tools.functions import FunctionTool, as_tool_error, planned, tool

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

TURNS_MAX, FAULTS_MAX = 60, 20
"""Maximum number of turns, and of failed turns, in the lists. The counts include every turn."""
TOLD_TURNS_MAX, LINES_MAX = 40, 20
"""Maximum number of turns in the tool's result, and of lines in each of its other lists."""
TEXT_CHARS_MAX = 240
READ_MAX = 10_000
"""Maximum number of events in a conversation that are read to find the cause of an approval request."""
AHEAD = timedelta(days=1)
COMING_MAX = 100
NOTHING = "Nothing was asked or done, nothing is waiting, and nothing is scheduled for the next day."
FAULTS: tuple[Outcome, ...] = ("failed", "limit")
NOBODY = TurnId("")
BRIEF = "daily-brief"
"""Name of the skill and the trigger that send a daily brief."""
TaintOf: TypeAlias = Callable[[Sequence[Event]], str]
"""Function that returns the untrusted source that influenced these events, or an empty string."""


class DoneTurn(msgspec.Struct, frozen=True):
    """A finished turn.

    seq: number of its last event.
    asked, reply: the request and the reply, shortened.
    tainted_by: the untrusted content that influenced the turn, or an empty string.
    """

    thread: ThreadId
    title: str
    agent: str
    seq: int
    at: datetime
    seconds: float
    outcome: Outcome
    asked: str
    reply: str
    tainted_by: str
    is_brief: bool


class OpenQuestion(msgspec.Struct, frozen=True):
    """A pending approval.

    asked_in: the thread that shows the approval. `title` and `agent` are those of this thread.
    reason: why Shoal asks.
    shown: the action as people see it.
    tainted_by: the untrusted content that may have caused the call, or an empty string.
    """

    id: str
    thread: ThreadId
    asked_in: ThreadId
    title: str
    agent: str
    asked_by: str
    reason: str
    tool: str
    action: str
    shown: str
    expires_at: datetime
    tainted_by: str


class Coming(msgspec.Struct, frozen=True):
    """The next run of a schedule.

    at: null if the schedule will not run again.
    error: why the schedule is failing, or an empty string.
    tainted_by: the untrusted content that influenced the schedule's text, or an empty string.
    """

    id: str
    text: str
    where: str
    at: datetime | None
    error: str
    tainted_by: str
    is_brief: bool = False


class Plans(NamedTuple):
    """Upcoming runs in chronological order, and failing schedules."""

    coming: Sequence[Coming]
    failing: Sequence[Coming]


class Agenda(list[Callable[[str], Awaitable[Plans]]]):
    """Functions, added by features, that return the schedules of threads whose ids begin with the given prefix."""


class Overview(msgspec.Struct, frozen=True):
    """Activity from `since` to `until`, pending approvals, and scheduled work.

    hours: counts of all finished turns, by hour.
    turns, faults: the newest turns and the newest failed turns, newest first.
    calls, usd: number and cost of model calls in all conversations. `usd` is null if no call has a price.
    waiting: pending approvals.
    coming: upcoming runs in chronological order.
    coming_soon: number of runs that are due within a day.
    coming_total: number of all upcoming runs.
    """

    since: datetime
    until: datetime
    hours: tuple[EndedTurns, ...]
    turns: tuple[DoneTurn, ...]
    faults: tuple[DoneTurn, ...]
    tokens: int
    calls: int
    usd: float | None
    waiting: tuple[OpenQuestion, ...]
    coming: tuple[Coming, ...]
    coming_soon: int
    coming_total: int
    failing: tuple[Coming, ...]


async def look(
    store: Store,
    agenda: Agenda,
    taint_of: TaintOf,
    now: datetime,
    hours: float,
    within: str = "",
    present: TurnId = NOBODY,
) -> Overview:
    """Summarize the activity and the scheduled work of the threads whose ids begin with `within`.

    The turn `present`, which asks for the overview, is omitted.
    """
    since = now - timedelta(hours=hours)
    journal = store.journal
    by_hour = tuple(await journal.turns_ended_by_hour(since, within=within))
    turns = await _done(store, taint_of, since, within, present, TURNS_MAX)
    faults = await _done(store, taint_of, since, within, present, FAULTS_MAX, faults=True)
    days = await store.ledger.usage(max(1, round(hours / 24)))
    priced = [row.usd for row in days if row.usd is not None]
    plans = [await plans_within(within) for plans_within in agenda]
    coming = [item for some in plans for item in some.coming]
    return Overview(
        since=since,
        until=now,
        hours=by_hour,
        turns=turns,
        faults=faults,
        tokens=sum(hour.tokens for hour in by_hour),
        calls=sum(row.calls for row in days),
        usd=sum(priced) if priced else None,
        waiting=tuple(
            [
                await _question(store, taint_of, approval)
                for approval in await store.approvals.search()
                if approval.asked_in.startswith(within)
            ]
        ),
        coming=tuple(coming[:COMING_MAX]),
        coming_soon=sum(item.at is not None and item.at <= now + AHEAD for item in coming),
        coming_total=len(coming),
        failing=tuple(failure for some in plans for failure in some.failing),
    )


async def _question(store: Store, taint_of: TaintOf, approval: Approval) -> OpenQuestion:
    """Convert a pending approval. At most READ_MAX events of the thread are read. If the thread may have more, the
    cause of the call counts as untrusted.
    """
    events = await store.journal.events(approval.thread, limit=READ_MAX)
    is_known = len(events) < READ_MAX and not approval.needs_trust
    info = await store.journal.thread(approval.asked_in)
    title, agent = (info.title, info.agent) if info else ("", "")
    return OpenQuestion(
        id=approval.id,
        thread=approval.thread,
        asked_in=approval.asked_in,
        title=title,
        agent=agent,
        asked_by=approval.asked_by,
        reason=approval.reason,
        tool=approval.tool,
        action=short("; ".join(approval.actions)),
        shown=short(approval.shown),
        expires_at=approval.expires_at,
        tainted_by=taint_of(events) or ("" if is_known else "untrusted content read earlier"),
    )


async def _done(
    store: Store,
    taint_of: TaintOf,
    since: datetime,
    within: str,
    present: TurnId,
    limit: int,
    *,
    faults: bool = False,
) -> tuple[DoneTurn, ...]:
    turns: list[DoneTurn] = []
    for info, events in await store.journal.turns_ended(since, limit, within=within, faults=faults):
        if events[-1].turn == present:
            continue
        finished = events[-1].data
        assert isinstance(finished, TurnFinished)
        agent = next((event.data.agent for event in events if isinstance(event.data, TurnStarted)), info.agent)
        seconds = (events[-1].at - events[0].at).total_seconds()
        shown = info.thread, info.title, agent, events[-1].seq, events[-1].at, seconds, finished.outcome
        turns.append(DoneTurn(*shown, *_exchange(events, taint_of)))
    return tuple(turns)


def _exchange(turn: Sequence[Event], taint_of: TaintOf) -> tuple[str, str, str, bool]:
    """Return the turn's request, its reply, the taint of both, and whether the turn was a daily brief."""
    ended = next(event.data for event in turn if isinstance(event.data, TurnFinished))
    messages = [event.data for event in turn if isinstance(event.data, UserSaid | Steered)]
    by_people = any(isinstance(message, Steered) or message.origin in ("person", "api") for message in messages)
    is_brief = not by_people and any(BRIEF in message.text for message in messages)
    answers = (str(getattr(event.data, "tainted_by", "")) for event in turn)
    source = taint_of(turn) or next((answer for answer in answers if answer), "")
    return short(messages[0].text) if messages else "", short(ended.reply), source, is_brief


def short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= TEXT_CHARS_MAX else f"{words[: TEXT_CHARS_MAX - 1]}…"


OVERVIEW = tool(LOOKUP, name="overview", example={"hours": 24, "timezone": "Europe/Berlin"})


def overview_tool(store: Store, agenda: Agenda, taint_of: TaintOf) -> FunctionTool[Invocation]:
    @OVERVIEW
    def overview(
        context: ToolContext,
        hours: Annotated[float, Meta(description="Number of hours to look back.", ge=1, le=168)] = 24,
        timezone: Annotated[
            str,
            Meta(description="IANA time zone of the times. Default: the zone of the person who asked.", max_length=64),
        ] = "",
    ) -> Invocation:
        """Summarize recent work and the current state: requests, results, failures and spending of the last hours,
        pending approvals, and the schedule for the next day. Use it for a daily brief or for "what did you do?"."""
        with as_tool_error(InvalidInput):
            zone = zone_named(timezone or context.timezone)
        timezone = zone.key
        within = context.within

        async def work() -> ToolOutput:
            now = context.clock.now()
            report = await look(store, agenda, taint_of, now, hours, within, context.turn)
            turns = [turn for turn in report.turns if turn.outcome not in FAULTS and not turn.is_brief][:TOLD_TURNS_MAX]
            briefs = sum(turn.is_brief for turn in report.turns)
            totals = {
                kind: sum(hour.turns for hour in report.hours if hour.outcome == kind) for kind in get_args(Outcome)
            }
            wrong_total = sum(totals.pop(kind) for kind in FAULTS)
            done, wrong = ([_line(item, zone) for item in some] for some in (turns, report.faults))
            waiting = [
                f"- {approval.tool}: {approval.action} (in {approval.asked_in}, until {_at(approval.expires_at, zone)})"
                for approval in report.waiting
            ]
            coming = [
                f"- {_at(item.at, zone)} {item.text}"
                for item in report.coming
                if item.at is not None and item.at <= now + AHEAD and not item.is_brief
            ]
            failing = [f"- {failure.text}" for failure in report.failing]  # omits the errors, which may be tainted
            if not (done or wrong or waiting or coming or failing):
                return ToolOutput(NOTHING)
            spent = [f"- {report.tokens:,} tokens in these conversations"] if done or wrong else []
            if not within and report.calls:
                spent = [f"- Model calls: {report.calls}" + (f", ${report.usd:.2f}" if report.usd else "")]
            parts = [f"From {_at(report.since, zone)} to {_at(report.until, zone)} ({timezone})."]
            lists = (
                ("Done", done, sum(totals.values()) - briefs),
                ("Failed", wrong, wrong_total),
                ("Failing schedules", failing, len(failing)),
                ("Spent", spent, len(spent)),
                ("Waiting for approval", waiting, len(waiting)),
                ("Scheduled for the next day", coming, len(coming)),
            )
            for title, lines, total in lists:
                shown = lines[:LINES_MAX]
                more = [f"- and {total - len(shown)} more"] if total > len(shown) else []
                parts += [f"{title}:", *shown, *more] if lines else []
            rows = (*turns, *report.faults, *report.waiting, *report.failing, *report.coming)
            text, source = "\n".join(parts), next((row.tainted_by for row in rows if row.tainted_by), "")
            return ToolOutput(untrusted_block(source, text) if source else text, tainted_by=source)

        return planned("overview", f"{hours:g} {timezone}", work, hours=hours, timezone=timezone, within=within)

    return overview


def _line(done: DoneTurn, zone: "ZoneInfo") -> str:
    ended = "" if done.outcome == "done" else f" [{done.outcome}]"
    return (
        f"- {_at(done.at, zone)} {done.thread}: {done.asked or '(no message)'} → {done.reply or '(no answer)'}{ended}"
    )


def _at(moment: datetime, zone: "ZoneInfo") -> str:
    return f"{moment.astimezone(zone):%a %d %b %H:%M}"
