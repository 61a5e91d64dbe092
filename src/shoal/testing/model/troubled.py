"""A scripted model that logs every request and fails some of them, selected by a seed."""

import json
import random
import re
import time
from collections import Counter
from pathlib import Path

import msgspec

from shoal.testing.model.script import Refusal, Reply, Script, Seen, SeenMessage, Step, follow_directive
from shoal.testing.model.tokens import BYTES_PER_TOKEN

TROUBLES_MAX = 2
RESULT_CHARS = 80
_NAME = re.compile(r"(?<!\S)id=([\w.]*\w)")
_CHILD = re.compile(r"DONE \d+ (c[\d.]+\d)")
_CONTEXT = re.compile(r"<context>.*?</context>", re.DOTALL)
_NOTES = re.compile(r"<context>.*?</context>|\[message \S+ was edited; it now says:\]\n[^\n]*", re.DOTALL)
_STEER = re.compile(r"(?<!\S)steer=([\d.]+)")
_ATTACHED = re.compile(r"\[attachment '([\d.]+)'")
_FILE = re.compile(r"file=([\d.]+)")


def troubled(share: float, seed: int, log: Path | None) -> Script:
    """Return a script that follows directives and fails a `share` of the requests at first.

    A failure is a 429, a 500, or a broken connection. Only requests whose last user message has an id can fail. A
    request fails at most TROUBLES_MAX times.

    Each line of `log` describes one request as JSON. It contains the message's `id` and `round`, the time, the
    sender (header `x-node`), the outcome, the tokens, all ids that occur in the request, and the beginning of the
    last tool result.
    """
    attempts: Counter[tuple[str, int]] = Counter()

    def answer(whole: Seen) -> Step:
        seen = _directed(whole)
        match = _NAME.search(seen.user_text)
        name = match.group(1) if match else ""
        call = (name, seen.rounds)
        attempts[call] += 1
        drawn = random.Random(f"{seed}/{name}/{seen.rounds}/{attempts[call]}")
        fails = bool(name) and attempts[call] <= TROUBLES_MAX and drawn.random() < share
        step = _trouble(drawn, seen) if fails else follow_directive(seen)
        if log is not None:
            _write(log, whole, name, step)
        return step

    return answer


def _directed(seen: Seen) -> Seen:
    messages: list[SeenMessage] = []
    for message in seen.messages:
        text = _NOTES.sub("", message.text) if message.role == "user" else message.text
        if message.role != "user" or _NAME.search(text):
            messages.append(msgspec.structs.replace(message, text=text))
    seen_now = Seen(seen.wire, seen.model, tuple(messages), seen.tools)
    seen_now.headers = seen.headers
    return seen_now


def _trouble(drawn: random.Random, seen: Seen) -> Step:
    reply = follow_directive(seen)
    assert isinstance(reply, Reply)
    return drawn.choice(
        (
            Refusal(429, "Too many requests.", headers=(("retry-after", "0"),)),
            Refusal(500, "The server failed."),
            Reply(reply.text, reply.calls, drop_after=0),
            Reply(reply.text, reply.calls, drop_after=1),
        )
    )


def _write(log: Path, seen: Seen, name: str, step: Step) -> None:
    outcome = str(step.status) if isinstance(step, Refusal) else "answered"
    if isinstance(step, Reply) and step.drop_after is not None:
        outcome = "dropped"
    texts = [_CONTEXT.sub("", message.text) for message in seen.messages if message.role == "user"]
    steers = [match for text in texts for match in _STEER.findall(text)]
    ends = [match for text in texts for match in _CHILD.findall(text)]
    node = seen.headers.get("x-node", "")
    result = seen.results[-1][:RESULT_CHARS] if seen.results else ""
    line = {
        "at": time.time(),
        "id": name,
        "round": seen.rounds,
        "node": node,
        "how": outcome,
        "named": [match for text in texts for match in _NAME.findall(text)],
        "steers": steers,
        "ends": ends,
        "attached": [match for text in texts for match in _ATTACHED.findall(text)],
        "files": [match for text in texts for match in _FILE.findall(text)],
        "result": result,
        "tokens": len(seen.prompt) // BYTES_PER_TOKEN,
    }
    with log.open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")
