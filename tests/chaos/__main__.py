"""`python -m tests.chaos`: a cluster under fire, bounded and seeded; exits with 1 when a rule was broken."""

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import psycopg

from tests.chaos import checker
from tests.chaos.killer import Killer
from tests.chaos.stand import Load, Server, Stand, adopt, server_of
from tests.postgres import private_server

TICK_SECONDS = 0.1
SETTLE_SECONDS_MAX = 30.0
CONNECTIONS_A_NODE_MAX = 14
SHOWN_MAX = 40
PROBLEMS_MAX = 50
"""From here on it is not worth going on."""
_BUSY = """
select (select count(*) from shoal.outbox where state <> 'sent') + (select count(*) from shoal.procrastinate_jobs)
"""


class Outcome(NamedTuple):
    """What came of a run."""

    seconds: float
    problems: list[str]
    killer: Killer
    seen: checker.Seen


def run(load: Load, server: Server, folder: Path, first: tuple[str, ...]) -> Outcome:
    """Run a cluster until everybody is answered or the time is over, and check."""
    with server.database(f"shoal_chaos_{load.seed}_{folder.name[-6:].lower()}") as database:
        stand = Stand(load, folder, database)
        try:
            stand.start()
            killer = Killer(stand, server, first)
            began = time.time()
            _survive(stand, killer)
            seconds = time.time() - began
            _settle(stand, database)
            _stop(stand)
            seen = checker.read(database, stand.chat_log, stand.model_log, stand.tool_log)
            wanted = [f"{person}.{number}" for person in range(load.threads) for number in range(load.turns)]
            found = checker.violations(seen, wanted)
            return Outcome(seconds, [*stand.problems, *found], killer, seen)
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


def _settle(stand: Stand, database: str) -> None:
    """Give the cluster time to put the last rows away; then its connections must be few."""
    pause = threading.Event()
    end = time.time() + SETTLE_SECONDS_MAX
    while time.time() < end:
        stand.replace()
        with psycopg.connect(database) as connection:
            row = connection.execute(_BUSY).fetchone()
        if row is not None and row[0] == 0 and all(node.is_ready for node in stand.nodes):
            break
        pause.wait(TICK_SECONDS)
    open_now, most = stand.connections(), CONNECTIONS_A_NODE_MAX * len(stand.nodes)
    if open_now > most:
        stand.problems.append(f"{open_now} connections are open to the database, more than {most}")


def _stop(stand: Stand) -> None:
    """End the nodes as an operator would; nothing may be left of them."""
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
    """Print what happened."""
    seen = outcome.seen
    delays = checker.delays(seen) or [0.0]
    posts = sum(line["kind"] == "post" for line in seen.chat)
    troubles = sum(line["kind"] in ("refused", "repeat") for line in seen.chat)
    failed = sum(line["how"] != "answered" for line in seen.model)
    print(
        f"seed {load.seed}: {load.threads} threads × {load.turns} turns on {load.workers} workers, {load.serves} serves"
    )
    print(f"  answered {posts} in {outcome.seconds:.1f} s ({posts / max(outcome.seconds, 0.1):.1f} a second)")
    print(f"  waited p50 {statistics.median(delays):.2f} s, max {delays[-1]:.2f} s")
    print(
        f"  model {len(seen.model)} requests, {failed} failed; tools {len(seen.tools)}; posts met {troubles} troubles"
    )
    print(f"  done: {', '.join(f'{count} × {act}' for act, count in sorted(outcome.killer.done.items())) or 'nothing'}")
    print(f"  violations: {len(outcome.problems)}")
    for problem in outcome.problems[:SHOWN_MAX]:
        print(f"    {problem}")
    if outcome.problems:
        (folder / "killer.log").write_text("\n".join(outcome.killer.log) + "\n")
        print(f"  logs: {folder}")
    sys.stdout.flush()


def parse() -> argparse.Namespace:
    """The command line."""
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
    parser.add_argument("--server", default="", help="address of a server to use; without it a private one is started")
    return parser.parse_args()


def main() -> int:
    """Run each seed; 1 when a rule was broken."""
    options = parse()
    adopt()
    if options.server:
        return _run_all(options, server_of(options.server))
    with private_server() as address:
        return _run_all(options, server_of(address))


def _run_all(options: argparse.Namespace, server: Server) -> int:
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
        )
        folder = Path(tempfile.mkdtemp(prefix="shoal-chaos-"))
        outcome = run(load, server, folder, tuple(options.first))
        report(load, outcome, folder)
        broken += bool(outcome.problems)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
