"""Rules that must hold after a run. They read only the transcript, the logs of the model and the tools, and the tables.

The module uses none of the product's code, so a fault there cannot hide itself.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psycopg

MICROS = 1_000_000


class Line(NamedTuple):
    thread: str
    seq: int
    turn: str
    type: str
    at: float
    data: dict[str, str]


class Seen(NamedTuple):
    """All data that the rules read."""

    chat: list[dict[str, str]]
    model: list[dict[str, str]]
    tools: list[dict[str, str]]
    events: list[Line]
    rows: dict[str, list[tuple[object, ...]]]


LEFT_OVER = {
    "threads with an open turn": "select thread, open_turn from threads where open_turn <> ''",
    "messages no turn took": "select platform, key, state from inbox where state = 'pending'",
    "posts not sent": "select id, state, attempts, error from outbox where state <> 'sent'",
    "jobs": "select id, status, lock, worker_id from procrastinate_jobs",
    "threads whose last_seq is not that of their last event": """
        select thread, last_seq, (select coalesce(max(seq), 0) from events where events.thread = threads.thread)
        from threads
        where last_seq <> (select coalesce(max(seq), 0) from events where events.thread = threads.thread)""",
}


def read(database: str, chat: Path, model: Path, tools: Path) -> Seen:
    with psycopg.connect(database) as connection:
        connection.execute("set search_path to shoal")
        event_rows = connection.execute("select thread, seq, turn, type, at, data from events order by thread, seq")
        events = [
            Line(thread, seq, turn, kind, at / MICROS, json.loads(data))
            for thread, seq, turn, kind, at, data in event_rows.fetchall()
        ]
        rows = {what: connection.execute(query.encode()).fetchall() for what, query in LEFT_OVER.items()}
    return Seen(_lines(chat), _lines(model), _lines(tools), events, rows)


def _lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def violations(seen: Seen, wanted: Sequence[str]) -> list[str]:
    """Return one sentence per violation."""
    return [
        *_answers(seen, wanted),
        *_posts(seen),
        *_order(seen),
        *_journal(seen),
        *_models(seen),
        *_tools(seen),
        *(f"{what}: {row}" for what, rows in seen.rows.items() for row in rows),
    ]


def _answers(seen: Seen, wanted: Sequence[str]) -> Iterator[str]:
    accepted = {line["id"] for line in seen.chat if line["kind"] == "ack"}
    answered = {line["to"] for line in seen.chat if line["kind"] == "post"}
    asked = Counter(event.data["message_id"] for event in seen.events if event.type == "user_message")
    for name in sorted(set(wanted) - accepted):
        yield f"message {name} was never accepted"
    for name in sorted(accepted - answered):
        yield f"message {name} was accepted and never answered; in the journal {asked[name]} times"
    for name, count in asked.items():
        if count > 1:
            yield f"message {name} is in the journal {count} times"


def _posts(seen: Seen) -> Iterator[str]:
    posts = [line for line in seen.chat if line["kind"] == "post"]
    for field in ("key", "to"):
        for value, count in Counter(line[field] for line in posts).items():
            if count > 1:
                yield f"{count} replies with {field} {value}: {[line for line in posts if line[field] == value]}"
    for line in posts:
        words = line["text"].split()
        if words[:1] != ["DONE"] or words[2:3] != [line["to"]]:
            yield f"the reply to {line['to']} is not its answer: {line['text'][:300]!r} ({line['key']})"


def _order(seen: Seen) -> Iterator[str]:
    taken: dict[str, list[int]] = defaultdict(list)
    for event in seen.events:
        if event.type == "user_message":
            taken[event.thread].append(int(event.data["message_id"].partition(".")[2]))
    shown: dict[str, list[int]] = defaultdict(list)
    for line in seen.chat:
        if line["kind"] == "post":
            shown[line["thread"]].append(int(line["to"].partition(".")[2] or -1))
    for where, orders in (("journal", taken), ("chat", shown)):
        for thread, numbers in orders.items():
            if numbers != sorted(numbers):
                yield f"out of order in the {where}: {thread}: {numbers}"


def _journal(seen: Seen) -> Iterator[str]:
    seqs: dict[str, list[int]] = defaultdict(list)
    ends: Counter[str] = Counter()
    turns: set[str] = set()
    for event in seen.events:
        seqs[event.thread].append(event.seq)
        if event.type == "user_message":
            turns.add(event.turn)
        if event.type == "turn_finished":
            ends[event.turn] += 1
            if event.data["outcome"] != "done":
                yield f"turn {event.turn} of {event.thread} ended as {event.data['outcome']}"
    for thread, numbers in seqs.items():
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"the journal of {thread} has gaps: {numbers}"
    for turn in turns:
        if ends[turn] != 1:
            yield f"turn {turn} ended {ends[turn]} times"


def finished_models(events: Sequence[Line]) -> dict[tuple[str, int], float]:
    """Return the time at which each model call finished. The key is the answered message and the round."""
    finished: dict[tuple[str, int], float] = {}
    current: dict[str, str] = {}
    rounds: Counter[str] = Counter()
    for event in events:
        if event.type == "user_message":
            current[event.turn] = event.data["message_id"]
        elif event.type == "assistant_message":
            finished[current[event.turn], rounds[event.turn]] = event.at
            rounds[event.turn] += 1
    return finished


def _models(seen: Seen) -> Iterator[str]:
    """Yield model requests for steps that had already finished."""
    finished = finished_models(seen.events)
    for line in seen.model:
        at, node = float(line["at"]), line["node"]
        done_at = finished.get((line["id"], int(line["round"])))
        if done_at is not None and at > done_at:
            call = f"{line['id']} round {line['round']}"
            yield f"model call {call} was finished at {done_at:.3f} and asked again at {at:.3f} by {node}"


def _tools(seen: Seen) -> Iterator[str]:
    for call, count in Counter(line["call"] for line in seen.tools).items():
        if count > 1:
            yield f"tool call {call} ran {count} times"
    for kind in ("tool_started", "tool_finished"):
        calls = Counter((event.turn, event.data["call_id"]) for event in seen.events if event.type == kind)
        for (turn, call), count in calls.items():
            if count > 1:
                yield f"{kind} of {call} in turn {turn} is in the journal {count} times"


def delays(seen: Seen) -> list[float]:
    """Return the seconds from the acceptance of each message to its reply, sorted."""
    accepted = {line["id"]: float(line["at"]) for line in seen.chat if line["kind"] == "ack"}
    return sorted(
        float(line["at"]) - accepted[line["to"]]
        for line in seen.chat
        if line["kind"] == "post" and line["to"] in accepted
    )
