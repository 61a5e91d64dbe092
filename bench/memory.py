"""Resident memory of `shoal run`: idle, and after its HTTP API has received messages for a thousand threads."""

import asyncio
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx2

from bench.child import ROOT, SHOAL, environment, fake_model, new_home, resident_kib
from bench.plan import PLAIN
from bench.rows import Row

THREADS = 1000
AT_ONCE = 8
SETTLE_SECONDS = 5.0
IDLE_MIB_MAX = 70
THREAD_KIB_MAX = 3


class Server(NamedTuple):
    """A running `shoal run`: its process, URL and token."""

    pid: int
    address: str
    token: str


@contextmanager
def server(home: Path) -> Generator[Server]:
    """Run `shoal run` on a free port inside the block."""
    argv = [SHOAL, "run", "--port", "0"]
    with (
        (home.parent / "run.log").open("wb") as log,
        subprocess.Popen(
            argv, env=environment(home), cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            ready = process.stdout.readline()
            if not ready.startswith("ready "):
                raise RuntimeError(f"shoal run did not start: {(home.parent / 'run.log').read_text()[-500:]}")
            token = Path(process.stdout.readline().removeprefix("token ").rstrip("\n")).read_text().strip()
            yield Server(process.pid, ready.split()[1].rstrip("/"), token)
        finally:
            process.terminate()


async def talk(found: Server, names: list[str]) -> None:
    """Send a message to each thread, `AT_ONCE` at a time, and wait for each turn to finish."""
    headers = {"authorization": f"Bearer {found.token}"}
    async with httpx2.AsyncClient(base_url=found.address, headers=headers, timeout=60) as client:
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(name: str) -> None:
            path = f"/api/threads/web:lobby:{name}"
            async with slots:
                sent = await client.post(f"{path}/messages", json={"text": f"{PLAIN} id={name}"})
                sent.raise_for_status()
                while True:
                    events = (await client.get(f"{path}/events")).json()
                    if events and events[-1]["type"] == "turn_finished":
                        return
                    await asyncio.sleep(0.02)

        await asyncio.gather(*map(one, names))


def measure() -> list[Row]:
    """Measure memory when idle, when warm, and after messages to all threads, with a pause before each measurement."""
    with fake_model() as url, new_home(url) as home, server(home) as found:
        time.sleep(1)
        idle = resident_kib(found.pid)
        asyncio.run(talk(found, [f"warm{number}" for number in range(20)]))
        time.sleep(1)
        warm = resident_kib(found.pid)
        asyncio.run(talk(found, [f"thread{number}" for number in range(THREADS)]))
        time.sleep(SETTLE_SECONDS)
        after = resident_kib(found.pid)
    note = f"{idle / 1024:.1f} idle, {warm / 1024:.1f} warm, {after / 1024:.1f} MiB after"
    return [
        Row("shoal run, idle, resident", "MiB", idle / 1024, bound=IDLE_MIB_MAX),
        Row(f"idle thread, average of {THREADS:,}", "KiB", (after - warm) / THREADS, bound=THREAD_KIB_MAX, note=note),
    ]
