"""Harms a running Shoal with one act after another. A seed chooses the acts."""

import random
import signal
import time
from collections import Counter

import psycopg

from tests.chaos.stand import STALLED_SECONDS, Server, Stand

FREEZE_SECONDS = (STALLED_SECONDS + 1.0, STALLED_SECONDS + 3.0)
DOWN_SECONDS = (0.0, 2.0)
ACTS = ("kill worker", "kill serve", "freeze worker", "freeze serve", "drop connections", "restart PostgreSQL")
WEIGHTS = (4, 2, 3, 1, 2, 1)
ACTS_ALONE = ("kill all", "freeze all", "fill disk", "set clock")
WEIGHTS_ALONE = (4, 2, 2, 2)
FULL_SECONDS = (0.5, 2.0)
CLOCK_SECONDS = (-86_400.0, -3600.0, -30.0, 0.0, 30.0, 3600.0, 86_400.0)
RECOVERED_SECONDS = 15.0
"""Time for which a harm may have effects after it is over, in seconds."""
_DROP = """
select count(pg_terminate_backend(pid)) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid()
"""


class Killer:
    """Harms only the run's own database and the processes that the stand started."""

    def __init__(self, stand: Stand, server: Server | None, first: tuple[str, ...] = ()) -> None:
        self.done: Counter[str] = Counter()
        self.log: list[str] = []
        self.harms: list[tuple[float, float, str]] = []
        self._stand = stand
        self._server = server
        self._drawn = random.Random(f"killer/{stand.load.seed}")
        self._first = list(first)
        self._began = time.time()
        self._next = self._began + self._pause()

    def step(self) -> None:
        now = time.time()
        if now < self._next or self.done.total() >= self._stand.load.acts_max:
            return
        alone = self._stand.load.alone
        acts, weights = (ACTS_ALONE, WEIGHTS_ALONE) if alone else (ACTS, WEIGHTS)
        act = self._first[0] if self._first else self._drawn.choices(acts, weights)[0]
        if self._do(act):
            self._first = self._first[1:]
            self.done[act] += 1
            ends = [now, *(max(node.frozen_until, node.full_until, node.down_until) for node in self._stand.nodes)]
            self.harms.append((now, max(ends) + RECOVERED_SECONDS, act))
        self._next = time.time() + self._pause()

    def _pause(self) -> float:
        return self._stand.load.pause_seconds * self._drawn.uniform(0.5, 1.5)

    def _do(self, act: str) -> bool:
        match act.split():
            case ["kill", role]:
                return self._kill(role)
            case ["freeze", role]:
                return self._freeze(role)
            case ["fill", _]:
                return self._fill()
            case ["set", _]:
                seconds = self._drawn.choice(CLOCK_SECONDS)
                self._stand.set_clock(seconds)
                self._tell(act, f"{seconds:+.0f} s")
                return True
            case ["drop", _]:
                with psycopg.connect(self._stand.database) as connection:
                    connection.execute(_DROP.encode())
                self._tell(act, "")
                return True
            case _:
                if self._server is None or not self._server.can_restart:
                    return False
                self._tell(act, "")
                self._server.restart()
                return True

    def _kill(self, role: str) -> bool:
        up = [node for node in self._stand.nodes if node.role == role and node.is_up]
        if not up:
            return False
        node = self._drawn.choice(up)
        node.down_until = time.time() + self._drawn.uniform(*DOWN_SECONDS)
        node.send(signal.SIGKILL)
        self._tell("kill", node.name)
        return True

    def _freeze(self, role: str) -> bool:
        up = [node for node in self._stand.nodes if node.role == role and node.is_up]
        if not up:
            return False
        node = self._drawn.choice(up)
        node.frozen_until = time.time() + self._drawn.uniform(*FREEZE_SECONDS)
        node.send(signal.SIGSTOP)
        self._tell("freeze", node.name)
        return True

    def _fill(self) -> bool:
        up = [node for node in self._stand.nodes if node.is_up]
        for node in up:
            node.full_until = time.time() + self._drawn.uniform(*FULL_SECONDS)
            node.fill_disk(full=True)
        self._tell("fill", "the disk")
        return bool(up)

    def _tell(self, act: str, node: str) -> None:
        self.log.append(f"{time.time():.3f} +{time.time() - self._began:.1f}s {act} {node}".rstrip())
