"""The cluster chaos test loses no message, and its checker detects each kind of loss."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.chaos.checker import Line, Seen, violations
from tests.postgres import server

ROOT = Path(__file__).resolve().parents[2]
RUN_SECONDS_MAX = 50
THREAD = "fake:harbour:person-0"
WANTED = ("0.0", "0.1")


@pytest.mark.slow
@pytest.mark.xdist_group("postgres")
def test_a_cluster_survives_a_kill_a_freeze_and_lost_connections(tmp_path: Path) -> None:
    with server() as address:
        acts = [part for act in ("kill worker", "freeze worker", "drop connections") for part in ("--first", act)]
        load = ["--threads", "20", "--turns", "3", "--latency-ms", "800", "--acts", "3", "--pause", "1", *acts]
        bounds = ["--seconds", str(RUN_SECONDS_MAX), "--server", address]
        command = [sys.executable, "-m", "tests.chaos", *load, *bounds]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}  # pytest removes the files of the run with `tmp_path`
        result = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 × drop connections, 1 × freeze worker, 1 × kill worker" in result.stdout
    assert "violations: 0" in result.stdout


def turn(number: int) -> list[Line]:
    name, first = f"T{number}", number * 5 + 1
    return [
        Line(THREAD, first, name, "user_message", 10.0 * number, {"message_id": f"0.{number}"}),
        Line(THREAD, first + 1, name, "assistant_message", 10.0 * number + 1, {}),
        Line(THREAD, first + 2, name, "tool_started", 10.0 * number + 1, {"call_id": "c"}),
        Line(THREAD, first + 3, name, "tool_finished", 10.0 * number + 2, {"call_id": "c"}),
        Line(THREAD, first + 4, name, "turn_finished", 10.0 * number + 3, {"outcome": "done"}),
    ]


def ack(number: int) -> dict[str, str]:
    return {"kind": "ack", "id": f"0.{number}", "at": "1"}


def post(number: int, key: str = "") -> dict[str, str]:
    text = f"DONE 1 0.{number} reef"
    return {"kind": "post", "key": key or f"T{number}:reply:0", "thread": "p", "to": f"0.{number}", "text": text}


def request(at: float, name: str = "0.0") -> dict[str, str]:
    return {"id": name, "round": "0", "at": str(at), "node": "w1", "how": "answered"}


def sound() -> Seen:
    chat = [ack(0), post(0), ack(1), post(1)]
    return Seen(chat, [request(0.5)], [{"call": "T0/c"}, {"call": "T1/c"}], [*turn(0), *turn(1)], {"jobs": []})


def test_a_correct_run_breaks_no_rule() -> None:
    assert violations(sound(), WANTED) == []


LOST: list[tuple[Seen, str]] = [
    (sound()._replace(chat=[ack(0), post(0)]), "message 0.1 was never accepted"),
    (sound()._replace(chat=[ack(0), post(0), ack(1)]), "message 0.1 was accepted and never answered"),
    (sound()._replace(chat=[*sound().chat, post(1, "other:0")]), "2 replies with to 0.1"),
    (sound()._replace(chat=[*sound().chat, post(1)]), "2 replies with key"),
    (sound()._replace(chat=[ack(1), post(1), ack(0), post(0)]), "out of order in the chat"),
    (sound()._replace(chat=[ack(0), post(0), ack(1), {**post(1), "text": "Sorry."}]), "is not its answer"),
    (sound()._replace(events=[*turn(0)[:1], *turn(0)[2:], *turn(1)]), "has gaps"),
    (sound()._replace(events=[*turn(0), *turn(1), *turn(1)]), "message 0.1 is in the journal 2 times"),
    (sound()._replace(events=[*turn(1), *turn(0)]), "out of order in the journal"),
    (sound()._replace(events=[*turn(0), *turn(1)[:-1]]), "turn T1 ended 0 times"),
    (sound()._replace(events=[*turn(0), *turn(1)[:3], *turn(1)[2:]]), "tool_started of c in turn T1"),
    (sound()._replace(model=[request(0.5), request(1.5)]), "model call 0.0 round 0 was finished"),
    (sound()._replace(tools=[{"call": "T0/c"}, {"call": "T0/c"}]), "tool call T0/c ran 2 times"),
    (sound()._replace(rows={"jobs": [("7", "doing")]}), "jobs: ('7', 'doing')"),
]


@pytest.mark.parametrize(("seen", "said"), LOST, ids=[said for _, said in LOST])
def test_each_loss_is_detected(seen: Seen, said: str) -> None:
    assert any(said in violation for violation in violations(seen, WANTED))
