"""A scripted model that fails now and then, chosen by a seed, and writes down every request."""

import json
import random
import time
from collections import Counter
from pathlib import Path

from shoal.testing.model.script import Refusal, Reply, Script, Seen, Step, follow_directive

TROUBLES_MAX = 2
"""How often one request may fail."""


def troubled(share: float, seed: int, log: Path | None) -> Script:
    """Follows the directives; of the first requests for an answer `share` fail: 429, 500, or a broken connection.

    Each request is a line in `log`: the message's `id` and its `round`, when, from whom (header `x-node`), and how it
    went. A message without an id is never failed.
    """
    attempts: Counter[tuple[str, int]] = Counter()

    def answer(seen: Seen) -> Step:
        name = seen.user_text.partition(" id=")[2].split()[0] if " id=" in seen.user_text else ""
        call = (name, seen.rounds)
        attempts[call] += 1
        drawn = random.Random(f"{seed}/{name}/{seen.rounds}/{attempts[call]}")
        fails = bool(name) and attempts[call] <= TROUBLES_MAX and drawn.random() < share
        step = _trouble(drawn, seen) if fails else follow_directive(seen)
        if log is not None:
            _write(log, seen, name, step)
        return step

    return answer


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
    line = {"at": time.time(), "id": name, "round": seen.rounds, "node": seen.headers.get("x-node", ""), "how": outcome}
    with log.open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")
