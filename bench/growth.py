"""The cost of a long history: a home with a million events compared with an empty one, at start, during turns, and in
queries.
"""

import asyncio
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import httpx2
import msgspec

from bench.child import SHOAL, fake_model, inside, new_home, resident_kib, run
from bench.memory import server
from bench.plan import PLAIN, Block, Measured
from bench.rows import Row, middle
from shoal.kernel.clock import SystemClock
from shoal.kernel.events import AssistantSaid, TurnFinished, TurnStarted, UserSaid, encode_data
from shoal.kernel.home import Home
from shoal.kernel.messages import Author
from shoal.kernel.records import GENESIS, AuditEntry, canonical_entry, entry_hash
from shoal.store.search import places
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store

THREADS = 10_000
TURNS = 25
"""Turns per thread, with four events each."""
CHANNELS = 100
ROUNDS = 3
"""Starts per home. The median is reported."""
READS = 5
FIRST_TURN_MAX = 1.2
PAGE = (
    *("/api/threads", "/api/usage", "/api/audit", "/api/approvals", "/api/triggers", "/api/processes", "/api/agents"),
    *("/api/bindings", "/api/access", "/api/info", "/api/threads/web:channel5:thread5/events"),
)
"""Paths that the page requests."""
READ_MS_MAX = 20
RESIDENT_MIB_MAX = 60
VOCABULARY = tuple(f"word{rank}" for rank in range(5000))
RARE_EVERY = 20_000
"""One in this many replies contains the rare word."""
BEGAN = 1_767_225_600_000_000
SECOND = 1_000_000
ADA = Author("ada", "Ada", trusted=True)


def fill(home: Path) -> int:
    """Fill a home with history and return the number of events. Word frequencies follow Zipf's law."""
    file = Home(home).database_file
    asyncio.run(SqliteDriver(file).close())
    draw = random.Random(1)
    words = draw.choices(VOCABULARY, [1 / rank for rank in range(1, len(VOCABULARY) + 1)], k=400_000)
    entry = AuditEntry("action", "tool:bash:true", "allow")
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = off")
        connection.execute("pragma synchronous = off")
        connection.execute("pragma cache_size = -200000")
        connection.execute("begin")
        for number in range(THREADS):
            thread = f"web:channel{number % CHANNELS}:thread{number}"
            _fill_thread(connection, thread, number, words, draw, entry)
        connection.execute("commit")
    return THREADS * TURNS * 4


def _fill_thread(
    connection: sqlite3.Connection, thread: str, number: int, words: list[str], draw: random.Random, entry: AuditEntry
) -> None:
    events: list[tuple[object, ...]] = []
    said: list[tuple[str, str, int]] = []
    audit: list[tuple[object, ...]] = []
    turns: list[tuple[str, str, str, str, int, str]] = []
    head = GENESIS
    for turn in range(TURNS):
        at = BEGAN + (number * TURNS + turn) * 10 * SECOND
        place = draw.randrange(len(words) - 60)
        asked, replied = " ".join(words[place : place + 12]), " ".join(words[place + 12 : place + 60])
        if (number * TURNS + turn) % RARE_EVERY == 0:
            replied += " needle"
        name, first = f"T{number}.{turn}", turn * 4 + 1
        said += [(asked, thread, first), (replied, thread, first + 2)]
        steps = (
            UserSaid(asked, ADA),
            TurnStarted("main", "fake"),
            AssistantSaid(replied),
            TurnFinished("done", replied),
        )
        events += [
            (thread, seq, name, data.type, at, encode_data(data).decode()) for seq, data in enumerate(steps, first)
        ]
        digest = entry_hash(head, thread, turn + 1, at, canonical_entry(entry))
        audit.append((thread, turn + 1, at, canonical_entry(entry), head, digest))
        head = digest
        turns.append(
            (name, thread, time.strftime("%Y-%m-%d", time.gmtime(at // SECOND)), f"model{turn % 3}", at, asked)
        )
    connection.executemany("insert into events values (?, ?, ?, ?, ?, ?)", events)
    for text, of, seq in said:
        row = connection.execute("insert into search_events (thread, seq) values (?, ?)", (of, seq)).lastrowid
        connection.execute("insert into search_words (rowid, words, places) values (?, ?, ?)", (row, text, places(of)))
    connection.executemany("insert into audit values (?, ?, ?, ?, ?, ?)", audit)
    connection.execute("insert into chains values (?, ?, ?)", (thread, TURNS, head))
    connection.execute(
        "insert into threads (thread, agent, title, last_seq, created_at, updated_at) values (?, 'main', ?, ?, ?, ?)",
        (thread, thread, TURNS * 4, BEGAN, turns[-1][4]),
    )
    connection.executemany(
        "insert into spend values (?1, ?2, ?1, ?3, 'main', 'ada', ?4, 100, 20, 0, 0, 0, 0, 0.001, ?5)",
        [turn[:5] for turn in turns],
    )
    connection.executemany(
        "insert into spend_days values (?, 'main', ?, 1, 100, 20, 0, 0, 0, 0, 0.001, 1) on conflict do update"
        " set calls = calls + 1, input_tokens = input_tokens + 100, output_tokens = output_tokens + 20",
        [turn[2:4] for turn in turns],
    )
    connection.executemany(
        "insert into inbox (platform, key, thread, lane, state, payload, at)"
        " values ('web', ?, ?, 'prompt', 'taken', ?, ?)",
        [(name, of, asked, at) for name, of, _, _, at, asked in turns],
    )
    connection.executemany(
        "insert into outbox (id, platform, thread, payload, state, due_at, created_at)"
        " values (?, 'web', ?, '', 'sent', ?, ?)",
        [(name, of, at, at) for name, of, _, _, at, _ in turns],
    )


async def read(home: Path) -> dict[str, float]:
    """Return the median milliseconds of each query."""
    store = Store(SqliteDriver(Home(home).database_file), SystemClock())
    said = store.search.messages
    thread = "web:channel5:thread5"
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "thread list": store.journal.threads,
        "thread list of a channel": lambda: store.journal.threads(channels=["web:channel5:"]),
        "search, a rare word": lambda: said("needle"),
        "search, a common word": lambda: said("word0"),
        "search, two words": lambda: said("word30 word50"),
        "search, a common and a rare word": lambda: said("word0 needle"),
        "search, in a thread": lambda: said("word0", within=thread),
        "search, in a channel": lambda: said("word3000", within="web:channel5:"),
        "usage of all days": lambda: store.ledger.usage(10_000),
        "newest audit entries": store.audit.tail,
        "newest audit entries of a thread": lambda: store.audit.tail(chain_name=thread),
    }
    found: dict[str, float] = {}
    for name, call in calls.items():
        took: list[float] = []
        for _ in range(READS):
            began = time.perf_counter()
            await call()
            took.append((time.perf_counter() - began) * 1000)
        found[name] = middle(took)
    await store.close()
    return found


def resident_mib(home: Path) -> tuple[float, float]:
    """Return the memory of `shoal run` in MiB when it is ready, and after all requests of the page."""
    with server(home) as found:
        idle = resident_kib(found.pid)
        headers = {"authorization": f"Bearer {found.token}"}
        with httpx2.Client(base_url=found.address, headers=headers, timeout=60) as client:
            for _ in range(READS):
                for path in PAGE:
                    client.get(path).raise_for_status()
        return idle / 1024, resident_kib(found.pid) / 1024


def turns(home: Path) -> tuple[float, float]:
    """Return the wall milliseconds of the first turn after a start, and of a later turn."""
    plan = (Block("first", PLAIN, 1), Block("plain", PLAIN, 20))
    found = [msgspec.convert(inside("bench.turns", {"plan": plan}, home), list[Measured]) for _ in range(ROUNDS)]
    return middle(one[0].wall_ms for one in found), middle(one[1].wall_ms for one in found)


def starts(home: Path) -> float:
    """Return the milliseconds until `shoal run` is ready."""
    took: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with server(home):
            took.append((time.perf_counter() - began) * 1000)
    return middle(took)


def measure() -> list[Row]:
    """Measure a home with a long history and an empty one, in turn."""
    with fake_model() as url, new_home(url) as empty, new_home(url) as old:
        began = time.perf_counter()
        events = fill(old)
        built = time.perf_counter() - began
        size = Home(old).database_file.stat().st_size
        found = asyncio.run(read(old))
        (idle, memory), (_, memory_floor) = resident_mib(old), resident_mib(empty)
        verified = run([SHOAL, "audit", "verify"], old)
        (start, first, plain), (start_floor, first_floor, plain_floor) = (
            (starts(home), *turns(home)) for home in (old, empty)
        )
    beside = f"{memory_floor:.1f} in an empty home"
    note = f"{events:,} events in {THREADS:,} threads, created in {built:.0f} s"
    return [
        Row("long history: start", "ms", start, start_floor, note=note),
        Row("long history: first turn after start, wall", "ms", first, first_floor, bound=FIRST_TURN_MAX),
        Row("long history: plain turn, wall", "ms", plain, plain_floor),
        *[Row(f"long history: {name}", "ms", value, bound=READ_MS_MAX) for name, value in found.items()],
        Row("long history: resident, idle", "MiB", idle),
        Row("long history: resident after the page's calls", "MiB", memory, bound=RESIDENT_MIB_MAX, note=beside),
        Row("long history: `audit verify`", "s", verified.wall_seconds, note=f"{THREADS * TURNS:,} entries"),
        Row("long history: database", "B/event", size / events),
    ]
