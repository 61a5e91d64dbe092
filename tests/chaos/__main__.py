"""Bounded chaos runs with a seed: `python -m tests.chaos`. The exit code is 1 if Shoal broke a rule."""

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from tests.chaos import checker, rules
from tests.chaos.killer import CLOCK_SECONDS, Killer
from tests.chaos.stand import Load, Server, Stand, adopt, server_of
from tests.postgres import private_server

TICK_SECONDS = 0.1
SETTLE_SECONDS_MAX = 90.0
"""Timeout for the end of a run. Longer than a reminder may be late after a clock change (triggers/service.py)."""
CONNECTIONS_A_NODE_MAX = 14
SHOWN_MAX = 40
PROBLEMS_MAX = 50
"""Number of problems after which a run stops."""
_BUSY = (
    "select count(*) from outbox where state <> 'sent'",
    "select count(*) from inbox where state = 'pending'",
    "select count(*) from threads where open_turn <> ''",
    "select count(*) from triggers where state = 'active'",
)
_JOBS = "select count(*) from procrastinate_jobs"


class Outcome(NamedTuple):
    seconds: float
    problems: list[str]
    killer: Killer
    record: rules.Record


def run(load: Load, server: Server | None, folder: Path, first: tuple[str, ...]) -> Outcome:
    """Run until all messages are answered or time is up, then check the rules. Without a server, one process uses
    SQLite.
    """
    if server is None:
        return _run(load, None, folder, "", first)
    with server.database(f"shoal_chaos_{load.seed}_{folder.name[-6:].lower()}") as database:
        return _run(load, server, folder, database, first)


def _run(load: Load, server: Server | None, folder: Path, database: str, first: tuple[str, ...]) -> Outcome:
    stand = Stand(load, folder, database)
    try:
        stand.start()
        killer = Killer(stand, server, first)
        began = time.time()
        _survive(stand, killer)
        seconds = time.time() - began
        _settle(stand)
        _stop(stand)
        kills = sum(count for act, count in killer.done.items() if act != "set clock")
        turns = rules.turns(stand.tables)
        record = stand.record()._replace(harms=killer.harms, kills=kills, turns=turns)
        problems = rules.broken(record) + rules.left_over(stand.tables)
        if not load.mixed and not load.alone and not load.lines:
            seen = checker.read(database, stand.chat_logs[0], stand.model_log, stand.tool_log)
            problems += checker.violations(seen, record.platforms[0].names())
        return Outcome(seconds, [*stand.problems, *problems], killer, record)
    finally:
        stand.close()


def _survive(stand: Stand, killer: Killer) -> None:
    pause = threading.Event()
    end = time.time() + stand.load.seconds_max
    while (state := stand.state()).answered < state.wanted:
        if time.time() > end or len(stand.problems) > PROBLEMS_MAX:
            stand.problems.append(f"given up: {state.answered} of {state.wanted} messages are answered")
            break
        stand.thaw()
        stand.replace()
        killer.step()
        pause.wait(TICK_SECONDS)
    stand.thaw(everyone=True)


def _settle(stand: Stand) -> None:
    """Wait until all pending rows are processed, then check the number of database connections.

    In a run on SQLite, the clock is first set to a time at which all reminders are due.
    """
    if stand.load.alone:
        stand.set_clock(2 * max(CLOCK_SECONDS))
    pause = threading.Event()
    end = time.time() + SETTLE_SECONDS_MAX
    while time.time() < end:
        stand.replace()
        busy = [*_BUSY, _JOBS] if stand.database else _BUSY
        if not any(rules.select(stand.tables, query)[0][0] for query in busy) and all(
            node.is_ready for node in stand.nodes
        ):
            break
        pause.wait(TICK_SECONDS)
    open_now, most = stand.connections(), CONNECTIONS_A_NODE_MAX * len(stand.nodes)
    if open_now > most:
        stand.problems.append(f"{open_now} connections are open to the database, more than {most}")


def _stop(stand: Stand) -> None:
    """Stop the nodes and check that no process or connection remains."""
    for node in stand.nodes:
        try:
            status = node.stop()
        except subprocess.TimeoutExpired:
            stand.problems.append(f"{node.name} did not end when asked to")
            node.destroy()
            continue
        if status != 0:
            stand.problems.append(f"{node.name} ended with {status} when asked to; see {node.name}.log")
    pause = threading.Event()
    end = time.time() + SETTLE_SECONDS_MAX / 3
    while time.time() < end and (stand.connections() or stand.orphans() or stand.state().connections):
        pause.wait(TICK_SECONDS)
    if left := stand.connections():
        stand.problems.append(f"{left} connections to the database are left")
    if left := stand.state().connections:
        stand.problems.append(f"{left} connections to the platform are left")
    stand.problems.extend(f"process {process} is left" for process in stand.orphans())


def report(load: Load, outcome: Outcome, folder: Path) -> None:
    record = outcome.record
    facts = [fact for platform in record.platforms for fact in platform.facts]
    posts = sum(fact["kind"] == "post" for fact in facts)
    troubles = sum(fact["kind"] in ("refused", "lost") for fact in facts)
    failed = sum(line["how"] != "answered" for line in record.model)
    where = "one process on SQLite" if load.alone else f"{load.workers} workers, {load.serves} serves"
    print(f"seed {load.seed}: {load.threads} threads × {load.turns} turns on {where}")
    print(f"  {posts} posts in {outcome.seconds:.1f} s, {troubles} troubles with them")
    print(f"  model {len(record.model)} requests, {failed} failed; tools {len(record.tools)}")
    causes: dict[str, list[float]] = {}
    for seconds, cause, _ in rules.waits(record):
        causes.setdefault(cause, []).append(seconds)
    for cause, waits in sorted(causes.items()):
        p99 = waits[int(len(waits) * 0.99)]
        middle = statistics.median(waits)
        print(f"  waited ({cause}): {len(waits)}, p50 {middle:.2f} s, p99 {p99:.2f} s, longest {waits[-1]:.2f} s")
    print(f"  done: {', '.join(f'{count} × {act}' for act, count in sorted(outcome.killer.done.items())) or 'nothing'}")
    print(f"  violations: {len(outcome.problems)}")
    for problem in outcome.problems[:SHOWN_MAX]:
        print(f"    {problem}")
    if outcome.problems:
        (folder / "killer.log").write_text("\n".join(outcome.killer.log) + "\n")
        print(f"  logs: {folder}")
        print(f"  again: python -m tests.chaos {' '.join(sys.argv[1:])} --seed {load.seed} --runs 1")
    sys.stdout.flush()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--threads", type=int, default=300)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=900.0, help="give up after this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1, help="so many seeds, from --seed on")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--serves", type=int, default=2)
    parser.add_argument("--acts", type=int, default=1_000_000, help="so many acts of harm at most")
    parser.add_argument("--first", action="append", default=[], help="an act to begin with; may be repeated")
    parser.add_argument("--trouble", type=float, default=0.1, help="share of requests and posts that fail")
    parser.add_argument("--pause", type=float, default=2.5, help="seconds between two acts, on average")
    parser.add_argument("--latency-ms", type=float, default=300.0, help="how long the model takes")
    parser.add_argument("--alone", action="store_true", help="one process on SQLite and two platforms")
    parser.add_argument("--mixed", action="store_true", help="people do all that a chat allows")
    parser.add_argument("--lines", action="store_true", help="people write in quick lines, which are answered together")
    parser.add_argument("--server", default="", help="address of a server to use; without it a private one is started")
    return parser.parse_args()


def main() -> int:
    options = parse()
    adopt()
    if options.alone:
        return _run_all(options, None)
    if options.server:
        return _run_all(options, server_of(options.server))
    with private_server() as address:
        return _run_all(options, server_of(address))


def _run_all(options: argparse.Namespace, server: Server | None) -> int:
    broken = 0
    for seed in range(options.seed, options.seed + options.runs):
        load = Load(
            options.threads,
            options.turns,
            seed,
            options.seconds,
            workers=options.workers,
            serves=options.serves,
            trouble=options.trouble,
            acts_max=options.acts,
            pause_seconds=options.pause,
            latency_ms=options.latency_ms,
            alone=options.alone,
            mixed=options.mixed,
            lines=options.lines,
        )
        folder = Path(tempfile.mkdtemp(prefix="shoal-chaos-"))
        outcome = run(load, server, folder, tuple(options.first))
        report(load, outcome, folder)
        broken += bool(outcome.problems)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
