"""How things stand: what was asked and done lately, what it cost, what went wrong, what waits, and what comes.

The tool `overview` tells of it what the turn's audience may see: where the owner alone reads along everything, else
only its own channel.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
from msgspec import Meta

from shoal.domain.errors import InvalidInput
from shoal.domain.events import Event, Outcome, Steered, TurnFinished, TurnStarted, UserSaid
from shoal.domain.ids import ThreadId, TurnId, is_child
from shoal.domain.messages import SILENT
from shoal.domain.ports import Invocation, ToolContext, ToolOutput
from shoal.domain.records import Approval
from shoal.domain.triggers import BRIEF, source_of
from shoal.domain.untrusted import untrusted_block
from shoal.domain.zones import zone_named
from shoal.store.store import Store
from shoal.tools.functions import FunctionTool, as_tool_error, planned, tool

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

THREADS_MAX = 40
"""Threads that are looked at of those in use, and of those put away; the last active first."""
EVENTS_MAX = 400
"""Of each, so many of the newest events."""
TURNS_MAX = 200
TOLD_TURNS_MAX, LINES_MAX = 40, 20
"""Of all turns, and of the lines of each list, so many are told by the tool."""
TEXT_CHARS_MAX = 240
READ_MAX = 10_000
"""Events of a conversation that are read to learn what led to a question."""
AHEAD = timedelta(days=1)
NOTHING = "Nothing was asked or done, nothing waits, and nothing is scheduled for the next day."
NOBODY = TurnId("")
TaintOf: TypeAlias = Callable[[Sequence[Event]], str]
"""Names the untrusted content in a conversation with these events; empty when there is none."""


class DoneTurn(msgspec.Struct, frozen=True):
    """A turn that ended: what was asked and answered in short, its last event, and the untrusted content behind it."""

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
    tokens: int


class OpenQuestion(msgspec.Struct, frozen=True):
    """A question to a person; `asked_in` is where it was put, `shown` what would run as people are shown it, and
    `tainted_by` what untrusted content may have led to it."""

    id: str
    thread: ThreadId
    asked_in: ThreadId
    tool: str
    action: str
    shown: str
    expires_at: datetime
    tainted_by: str


class Coming(msgspec.Struct, frozen=True):
    """What a schedule starts within a day; of one that fails, `error` says why, and `at` is null where it comes no
    more. `tainted_by` is the untrusted content behind its words."""

    id: str
    text: str
    where: str
    at: datetime | None
    error: str
    tainted_by: str


class Overview(msgspec.Struct, frozen=True):
    """How things stand at `until`, looking back to `since`. `calls` and `usd` are those of all models; `usd` is null
    where no call had a price. Lists are newest first, what comes next due first."""

    since: datetime
    until: datetime
    turns: tuple[DoneTurn, ...]
    tokens: int
    calls: int
    usd: float | None
    waiting: tuple[OpenQuestion, ...]
    coming: tuple[Coming, ...]
    failing: tuple[Coming, ...]


async def look(
    store: Store, taint_of: TaintOf, now: datetime, hours: float, within: str = "", present: TurnId = NOBODY
) -> Overview:
    """Look up the last hours and the next day, of the threads whose ids begin with `within`; the turn `present`, which
    asks, is left out. Only reads."""
    since = now - timedelta(hours=hours)
    turns, tokens = await _done(store, taint_of, since, within, present)
    days = await store.ledger.usage(max(1, round(hours / 24)))
    priced = [row.usd for row in days if row.usd is not None]
    triggers = [
        (
            one,
            Coming(
                one.id, short(one.spec.name or one.spec.text), where, one.next_at, short(one.error), source_of(one.spec)
            ),
        )
        for one in await store.triggers.all()
        if (where := one.spec.thread or f"{one.spec.platform}:{one.spec.channel}:").startswith(within)
    ]
    return Overview(
        since=since,
        until=now,
        turns=turns,
        tokens=tokens,
        calls=sum(row.calls for row in days),
        usd=sum(priced) if priced else None,
        waiting=tuple(
            [
                OpenQuestion(
                    one.id,
                    one.thread,
                    one.asked_in,
                    one.tool,
                    short("; ".join(one.actions)),
                    short(one.shown),
                    one.expires_at,
                    await _led_to(store, taint_of, one),
                )
                for one in await store.approvals.search()
                if one.asked_in.startswith(within)
            ]
        ),
        coming=tuple(
            shown
            for one, shown in triggers
            if one.state == "active" and one.next_at is not None and one.next_at <= now + AHEAD
            if BRIEF not in f"{one.spec.name} {one.spec.text}"
        ),
        failing=tuple(
            shown for one, shown in triggers if one.state in ("failed", "missed") or (one.error and one.failures)
        ),
    )


async def _led_to(store: Store, taint_of: TaintOf, approval: Approval) -> str:
    """Return what untrusted content was in the conversation whose call waits; empty when none was.

    What cannot be known, in a conversation with more than READ_MAX events, counts as untrusted.
    """
    events = await store.journal.events(approval.thread, limit=READ_MAX)
    is_known = len(events) < READ_MAX and not approval.needs_trust
    return taint_of(events) or ("" if is_known else "untrusted content read earlier")


async def _done(
    store: Store, taint_of: TaintOf, since: datetime, within: str, present: TurnId
) -> tuple[tuple[DoneTurn, ...], int]:
    """The turns that ended since then, the newest first, and the tokens of all of them."""
    found: list[DoneTurn] = []
    tokens = 0
    channels = (within,) if within else ()
    put_away = await store.journal.threads(THREADS_MAX, channels=channels, archived=True)
    for info in (*await store.journal.threads(THREADS_MAX, channels=channels), *put_away):
        if info.updated_at < since or is_child(info.thread):
            continue
        events = await store.journal.events(info.thread, max(0, info.last_seq - EVENTS_MAX), EVENTS_MAX)
        turns: dict[TurnId, list[Event]] = {}
        for event in events:
            if event.turn and event.turn != present:
                turns.setdefault(event.turn, []).append(event)
        for turn in turns.values():
            ended = next((event for event in turn if isinstance(event.data, TurnFinished)), None)
            if ended is None or not isinstance(ended.data, TurnFinished) or ended.at < since:
                continue
            used = ended.data.usage.input_tokens + ended.data.usage.output_tokens
            tokens += used
            if told := _told(turn, taint_of):
                agent = next((event.data.agent for event in turn if isinstance(event.data, TurnStarted)), info.agent)
                seconds, outcome = (ended.at - turn[0].at).total_seconds(), ended.data.outcome
                shown = info.thread, info.title, agent, ended.seq, ended.at, seconds, outcome
                found.append(DoneTurn(*shown, *told, used))
    found.sort(key=lambda turn: turn.at, reverse=True)
    return tuple(found[:TURNS_MAX]), tokens


def _told(turn: Sequence[Event], taint_of: TaintOf) -> tuple[str, str, str] | None:
    """What was asked and answered, and what of it is untrusted; None for a turn nobody asked that told nobody."""
    ended = next(event.data for event in turn if isinstance(event.data, TurnFinished))
    said = [event.data for event in turn if isinstance(event.data, UserSaid | Steered)]
    by_people = any(isinstance(one, Steered) or one.origin in ("person", "api") for one in said)
    reply = "" if ended.reply.strip() == SILENT else ended.reply
    is_brief = not by_people and any(BRIEF in one.text for one in said)
    if is_brief or (not by_people and not reply and ended.outcome == "done"):
        return None
    answers = (str(getattr(event.data, "tainted_by", "")) for event in turn)
    tainted_by = taint_of(turn) or next((one for one in answers if one), "")
    return short(said[0].text) if said else "", short(reply), tainted_by


def short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= TEXT_CHARS_MAX else f"{words[: TEXT_CHARS_MAX - 1]}…"


def overview_tool(store: Store, taint_of: TaintOf) -> FunctionTool[Invocation]:
    """`overview` over what is stored."""

    @tool(read_only=True, idempotent=True, origin="mixed")
    def overview(
        context: ToolContext,
        hours: Annotated[float, Meta(description="How far back to look.", ge=1, le=168)] = 24,
        timezone: Annotated[
            str, Meta(description="IANA name of the zone for times; without it that of whoever asks.", max_length=64)
        ] = "",
    ) -> Invocation:
        """Look up how things stand: what people asked and what was done in the last hours, what failed, what was spent,
        what waits for approval, and what is scheduled for the next day. For a daily brief, or "what did you do?"."""
        with as_tool_error(InvalidInput):
            zone = zone_named(timezone or context.timezone)
        timezone = zone.key
        within = context.within

        async def work() -> ToolOutput:
            found = await look(store, taint_of, context.clock.now(), hours, within, context.turn)
            turns = found.turns[:TOLD_TURNS_MAX]
            done = [
                f"- {_at(one.at, zone)} {one.thread}: {one.asked or '(no message)'} → {one.reply or '(no answer)'}"
                + ("" if one.outcome == "done" else f" [{one.outcome}]")
                for one in turns
            ]
            waiting = [
                f"- {one.tool}: {one.action} (in {one.asked_in}, until {_at(one.expires_at, zone)})"
                for one in found.waiting
            ]
            coming = [f"- {_at(one.at, zone)} {one.text}" for one in found.coming if one.at is not None]
            failing = [f"- {one.text}" for one in found.failing]  # why stands in their threads, with what tainted it
            if not (done or waiting or coming or failing):
                return ToolOutput(NOTHING)
            spent = [f"- {found.tokens:,} tokens in these conversations"] if done else []
            if not within and found.calls:
                spent = [f"- {found.calls} model calls" + (f", ${found.usd:.2f}" if found.usd else "")]
            parts = [f"From {_at(found.since, zone)} to {_at(found.until, zone)} ({timezone})."]
            titles = ("Done", "Schedules that fail", "Spent", "Waits for approval", "Scheduled for the next day")
            for title, lines in zip(titles, (done, failing, spent, waiting, coming), strict=True):
                more = [f"- and {len(lines) - LINES_MAX} more"] if len(lines) > LINES_MAX else []
                parts += [f"{title}:", *lines[:LINES_MAX], *more] if lines else []
            rows = (*turns, *found.waiting, *found.failing, *found.coming)
            text, source = "\n".join(parts), next((one.tainted_by for one in rows if one.tainted_by), "")
            return ToolOutput(untrusted_block(source, text) if source else text, tainted_by=source)

        return planned("overview", f"{hours:g} {timezone}", work, hours=hours, timezone=timezone, within=within)

    return overview


def _at(moment: datetime, zone: "ZoneInfo") -> str:
    return f"{moment.astimezone(zone):%a %d %b %H:%M}"
