"""How things stand: what was asked and done lately, what it cost, what went wrong, what waits, and what comes."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from shoal.domain.events import Event, Outcome, Steered, TurnFinished, TurnStarted, UserSaid
from shoal.domain.ids import ThreadId, TurnId, is_child
from shoal.domain.messages import SILENT
from shoal.domain.triggers import BRIEF
from shoal.store.store import Store

THREADS_MAX = 40
"""Threads that are looked at of those in use, and of those put away; the last active first."""
EVENTS_MAX = 400
"""Of each, so many of the newest events."""
TURNS_MAX = 200
TEXT_CHARS_MAX = 240
AHEAD = timedelta(days=1)
NOBODY = TurnId("")


class DoneTurn(msgspec.Struct, frozen=True):
    """A turn that ended: what was asked and answered in short, `seq` its last event, and `tainted_by` the untrusted
    content behind it."""

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
    """A question to a person; `asked_in` is where it was put, `shown` what would run as people are shown it."""

    id: str
    thread: ThreadId
    asked_in: ThreadId
    tool: str
    action: str
    shown: str
    expires_at: datetime


class Coming(msgspec.Struct, frozen=True):
    """What a schedule starts within a day; of one that fails, `error` says why, and `at` is null where it comes no
    more."""

    id: str
    text: str
    where: str
    at: datetime | None
    error: str


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


async def look(store: Store, now: datetime, hours: float, within: str = "", present: TurnId = NOBODY) -> Overview:
    """Look up the last hours and the next day, of the threads whose ids begin with `within`; the turn `present`, which
    asks, is left out. Only reads."""
    since = now - timedelta(hours=hours)
    turns, tokens = await _done(store, since, within, present)
    days = await store.ledger.usage(max(1, round(hours / 24)))
    priced = [row.usd for row in days if row.usd is not None]
    triggers = [
        (one, Coming(one.id, short(one.spec.name or one.spec.text), where, one.next_at, short(one.error)))
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
            OpenQuestion(
                one.id,
                one.thread,
                one.asked_in,
                one.tool,
                short("; ".join(one.actions)),
                short(one.shown),
                one.expires_at,
            )
            for one in await store.approvals.search()
            if one.asked_in.startswith(within)
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


async def _done(store: Store, since: datetime, within: str, present: TurnId) -> tuple[tuple[DoneTurn, ...], int]:
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
            if told := _told(turn):
                agent = next((event.data.agent for event in turn if isinstance(event.data, TurnStarted)), info.agent)
                seconds, outcome = (ended.at - turn[0].at).total_seconds(), ended.data.outcome
                shown = info.thread, info.title, agent, ended.seq, ended.at, seconds, outcome
                found.append(DoneTurn(*shown, *told, used))
    found.sort(key=lambda turn: turn.at, reverse=True)
    return tuple(found[:TURNS_MAX]), tokens


def _told(turn: Sequence[Event]) -> tuple[str, str, str] | None:
    """What was asked and answered, and what of it is untrusted; nothing for a turn that nobody asked and that told
    nobody anything."""
    ended = next(event.data for event in turn if isinstance(event.data, TurnFinished))
    said = [event.data for event in turn if isinstance(event.data, UserSaid | Steered)]
    by_people = any(isinstance(one, Steered) or one.origin in ("person", "api") for one in said)
    reply = "" if ended.reply.strip() == SILENT else ended.reply
    is_brief = not by_people and any(BRIEF in one.text for one in said)
    if is_brief or (not by_people and not reply and ended.outcome == "done"):
        return None
    tainted = (
        (one.tainted_by if isinstance(one, UserSaid) else "") or ("" if one.author.trusted else one.author.id)
        for one in said
    )
    answers = (str(getattr(event.data, "tainted_by", "")) for event in turn)
    return short(said[0].text) if said else "", short(reply), next((one for one in (*tainted, *answers) if one), "")


def short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= TEXT_CHARS_MAX else f"{words[: TEXT_CHARS_MAX - 1]}…"
