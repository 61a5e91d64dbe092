"""The system under test: a database, a model, chat platforms, and Shoal's processes. Killed processes are replaced."""

import ctypes
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.chaos import rules
from tests.chaos.chat_server import People

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "postgres.sh"
HEARTBEAT_SECONDS = 0.5
STALLED_SECONDS = 2.0
STOP_SECONDS_MAX = 30.0
PR_SET_CHILD_SUBREAPER = 36
PLATFORMS = ("fake", "keyless")
LINES_AHEAD = 8
"""Maximum number of unanswered lines per person."""
LINE_SECONDS = 0.2
"""Average time to type a line."""
PEOPLE_AN_AGENT = 4
"""Average number of people who share an agent and its workspace."""
PAUSE_SECONDS = 0.3
"""Pause after which a person's lines count as finished."""


class Load(msgspec.Struct, frozen=True):
    """The load on Shoal and the amount of failures.

    - `threads`, `turns`: the number of people and of messages per person.
    - `alone`: run one process on SQLite with two platforms, instead of a cluster.
    - `mixed`: people do everything that a chat allows.
    - `lines`: people write quick lines, and pending lines are answered together. With `mixed`, people also edit and
      delete lines and send files.
    - `trouble`: the share of requests and posts that fail.
    - `acts_max`, `pause_seconds`: the number of harmful acts and the average pause between them.
    """

    threads: int = 300
    turns: int = 10
    seed: int = 1
    seconds_max: float = 900.0
    workers: int = 3
    serves: int = 2
    trouble: float = 0.1
    acts_max: int = 1_000_000
    pause_seconds: float = 2.5
    latency_ms: float = 300.0
    alone: bool = False
    mixed: bool = False
    lines: bool = False
    people_pause_seconds: float = 0.0
    context_tokens: int = 0

    def people(self) -> list[People]:
        """Return the people of each platform. Each person is on only one platform."""
        halves = 2 if self.alone or self.mixed or self.lines else 1
        threads, ahead = self.threads // halves, LINES_AHEAD if self.lines else 2
        pause = LINE_SECONDS if self.lines else self.people_pause_seconds
        return [
            People(threads, self.turns, ahead, self.seed, number * threads, self.mixed, pause, self.lines, self.agents)
            for number in range(halves)
        ]

    @property
    def agents(self) -> int:
        """The number of agents in addition to the default agent, or 0 if nobody has files."""
        return max(1, self.threads // PEOPLE_AN_AGENT) if self.mixed and not self.lines else 0


class State(msgspec.Struct, frozen=True):
    answered: int
    wanted: int
    connections: int


class Node:
    """A node of the cluster. Its process may die and be replaced."""

    def __init__(self, name: str, role: str, command: list[str], log: Path) -> None:
        self.name = name
        self.role = role
        self.frozen_until = 0.0
        self.full_until = 0.0
        self.down_until = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self._command = command
        self._log = log
        self._log_bytes = 0

    @property
    def is_up(self) -> bool:
        """Whether the process exists and is not frozen."""
        return self.process is not None and not self.frozen_until

    @property
    def is_ready(self) -> bool:
        """Whether the process has printed `ready`."""
        return self.process is not None and b"ready\n" in self.said

    @property
    def said(self) -> bytes:
        """Output of the current process."""
        return self._log.read_bytes()[self._log_bytes :]

    def start(self) -> None:
        """Start a process. It prints `ready` when it serves."""
        self._log_bytes = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:  # `cat` writes the log, so the simulated full disk does not affect it
            writer = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=log)
        assert writer.stdin is not None
        with writer.stdin as pipe:
            self.process = subprocess.Popen(self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)

    def ended(self) -> int | None:
        """Return the exit code, or None if the process has not ended."""
        return None if self.process is None else self.process.poll()

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def fill_disk(self, *, full: bool) -> None:
        """Limit the files that the process writes to their current size, as on a full disk, or remove the limit."""
        assert self.process is not None
        with suppress(psutil.NoSuchProcess):
            bounds = (0 if full else psutil.RLIM_INFINITY, psutil.RLIM_INFINITY)
            psutil.Process(self.process.pid).rlimit(psutil.RLIMIT_FSIZE, bounds)

    def stop(self) -> int:
        """Send SIGTERM and return the exit code. Raises TimeoutExpired."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(STOP_SECONDS_MAX)

    def destroy(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Stand:
    """All running parts of the system under test."""

    def __init__(self, load: Load, folder: Path, database: str) -> None:
        self.load = load
        self.clock = folder / "clock"
        self.folder = folder
        self.database = database
        self.problems: list[str] = []
        self.refused_starts = 0
        self.chat_logs = [folder / f"{name}.jsonl" for name, _ in zip(PLATFORMS, load.people(), strict=False)]
        self.model_log = folder / "model.jsonl"
        self.tool_log = folder / "tools.jsonl"
        self._peers: list[subprocess.Popen[str]] = []
        seed, trouble = str(load.seed), str(load.trouble)
        model = ["shoal.testing.model", "--log", str(self.model_log), "--latency-ms", str(load.latency_ms)]
        self.model = self._peer([*model, "--seed", seed, "--trouble", trouble])
        self.chats: list[str] = []
        for platform, log, people in zip(PLATFORMS, self.chat_logs, load.people(), strict=False):
            who = ["--threads", str(people.threads), "--turns", str(people.turns), "--first", str(people.first)]
            chat = ["tests.chaos.chat_server", "--transcript", str(log), *who, "--seed", seed, "--trouble", trouble]
            chat += ["--pause-seconds", str(people.pause_seconds), "--ahead", str(people.ahead)]
            chat += ["--mixed"] * people.mixed + ["--lines"] * people.lines + ["--keyless"] * (platform == "keyless")
            chat += ["--agents", str(people.agents), "--folder", str(folder / "home" / "agents")]
            self.chats.append(self._peer(chat))
        roles = [("all", "a1")] if load.alone else [*(("worker", f"w{n + 1}") for n in range(load.workers))]
        roles += [] if load.alone else [("serve", f"s{n + 1}") for n in range(load.serves)]
        self.nodes = [self._node(role, name) for role, name in roles]

    def _peer(self, module: list[str]) -> str:
        process = subprocess.Popen([sys.executable, "-m", *module], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._peers.append(process)
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def _node(self, role: str, name: str) -> Node:
        node_options = {
            "name": name, "home": str(self.folder / "home"), "world": str(self.folder), "database": self.database,
            "chat": self.chats[0], "keyless": "".join(self.chats[1:]), "model": self.model,
            "heartbeat-seconds": str(HEARTBEAT_SECONDS), "stalled-seconds": str(STALLED_SECONDS),
            "context-tokens": str(self.load.context_tokens), "agents": str(self.load.agents),
            "pause-seconds": str(PAUSE_SECONDS if self.load.lines else 0),
        }  # fmt: skip
        options = [part for key, value in node_options.items() for part in (f"--{key}", value)]
        command = [sys.executable, "-m", "tests.chaos.node", role, *options]
        return Node(name, role, command, self.folder / f"{name}.log")

    def state(self) -> State:
        states: list[State] = []
        for chat in self.chats:
            with urllib.request.urlopen(f"{chat}/state", timeout=10) as answer:
                states.append(msgspec.json.decode(answer.read(), type=State))
        return State(
            sum(state.answered for state in states),
            sum(state.wanted for state in states),
            sum(state.connections for state in states),
        )

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def wait_ready(self) -> None:
        """Wait until all nodes serve. Raises TimeoutError."""
        pause, end = threading.Event(), time.time() + STOP_SECONDS_MAX
        while not all(node.is_ready for node in self.nodes):
            if time.time() > end:
                raise TimeoutError("The nodes did not start.")
            pause.wait(0.1)

    def record(self) -> rules.Record:
        """Return the record so far, without harms and turns."""
        platforms = [
            rules.Platform(name, rules.facts(log), people)
            for name, log, people in zip(PLATFORMS, self.chat_logs, self.load.people(), strict=False)
        ]
        memories = [path.read_text() for path in (self.folder / "home").rglob("MEMORY.md")]
        return rules.Record(platforms, rules.facts(self.model_log), rules.facts(self.tool_log), memories=memories)

    def replace(self) -> None:
        """Restart killed processes after their pause. A process that ended without a kill counts as a problem."""
        now = time.time()
        for node in self.nodes:
            status = node.ended()
            if status is not None:
                if status != -signal.SIGKILL:
                    self._note_end(node, status)
                    node.down_until = now + 1.0
                node.process = None
            if node.process is None and now >= node.down_until:
                node.start()

    def _note_end(self, node: Node, status: int) -> None:
        """Record the end of a process as a problem, unless it could not start without the database or disk space."""
        refused = (b"StoreUnavailable", b"StoreFull", b"File too large")
        if not node.is_ready and any(word in node.said for word in refused):
            self.refused_starts += 1
        else:
            self.problems.append(f"{node.name} ended by itself with {status}; see {node.name}.log")

    def thaw(self, *, everyone: bool = False) -> None:
        """Resume processes whose freeze is over, and let full disks accept writes again."""
        now = time.time()
        for node in self.nodes:
            if node.full_until and (everyone or now >= node.full_until):
                node.full_until = 0.0
                if node.process is not None:
                    node.fill_disk(full=False)
            if node.frozen_until and (everyone or now >= node.frozen_until):
                node.frozen_until = 0.0
                node.send(signal.SIGCONT)

    @property
    def tables(self) -> str | Path:
        """Location of the tables: the URL of a server or an SQLite file."""
        return self.database or self.folder / "home" / "shoal.db"

    def set_clock(self, seconds: float) -> None:
        """Set the offset of the wall clocks of all nodes, in seconds."""
        draft = self.clock.with_suffix(".draft")
        draft.write_text(str(seconds))
        draft.replace(self.clock)

    def close(self) -> None:
        for node in self.nodes:
            node.destroy()
        for peer in self._peers:
            peer.terminate()
            peer.communicate()

    def orphans(self) -> list[str]:
        """Return the processes that outlived their node. Call `adopt` first."""
        known = {peer.pid for peer in self._peers}
        lines: list[str] = []
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if child.pid not in known and child.status() != psutil.STATUS_ZOMBIE and child.name() != "postgres":
                    lines.append(f"{child.pid} {child.name()}")
        return lines

    def connections(self) -> int:
        if not self.database:
            return 0
        query = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        with psycopg.connect(self.database) as connection:
            row = connection.execute(query).fetchone()
        return int(row[0]) if row else 0


def adopt() -> None:
    """Make this process the parent of orphaned descendants. `orphans` needs this to find them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Server:
    """A database server. A run can restart only a server that it started."""

    def __init__(self, address: str, folder: Path | None) -> None:
        self.address = address
        self._folder = folder

    @property
    def can_restart(self) -> bool:
        return self._folder is not None

    def restart(self) -> None:
        """Stop the server as a crash would, and start it again."""
        for verb in ("stop", "start"):
            subprocess.run([SCRIPT, verb, str(self._folder)], check=True, capture_output=True)

    @contextmanager
    def database(self, name: str) -> Generator[str]:
        """Yield the URL of a new database, which is dropped afterwards."""
        with psycopg.connect(self.address, autocommit=True) as connection:
            connection.execute(f"create database {name}".encode())
        try:
            yield urlsplit(self.address)._replace(path=f"/{name}").geturl()
        finally:
            with psycopg.connect(self.address, autocommit=True) as connection:
                connection.execute(f"drop database {name} with (force)".encode())


def server_of(address: str) -> Server:
    """Return the server at an address. A server that listens only on a socket in a folder belongs to this run."""
    host = str(conninfo_to_dict(address).get("host", ""))
    is_own = host.startswith("/") and (Path(host) / "data" / "PG_VERSION").exists()
    return Server(address, Path(host) if is_own else None)
