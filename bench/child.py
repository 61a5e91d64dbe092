"""Runs the processes that are measured, each in a home of its own, and reads what they used from the kernel."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.peer.shoal.driver import write_config

ROOT = Path(__file__).parents[1]
SHOAL = str(Path(sys.executable).with_name("shoal"))


class Ended(NamedTuple):
    """A process that ran to its end: what it printed, seconds to its first output and in all, CPU with its children."""

    output: str
    first_seconds: float
    wall_seconds: float
    cpu_seconds: float


@contextmanager
def new_home(llm: str, more: str = "") -> Generator[Path]:
    """A fresh home directory with a configured provider."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        home = Path(folder) / "home"
        write_config(home, llm, more)
        yield home


def environment(home: Path) -> Mapping[str, str]:
    """Nothing of this user's settings but what finds programs."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL", "TMPDIR")}
    return {**kept, "HOME": str(home.parent), "SHOAL_HOME": str(home), "NO_COLOR": "1"}


def run(argv: list[str], home: Path) -> Ended:
    """Run a program to its end. Raises RuntimeError when it fails."""
    began = time.perf_counter()
    with subprocess.Popen(
        argv, env=environment(home), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        first_seconds = time.perf_counter() - began
        rest = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - began
    if process.returncode:
        raise RuntimeError(f"{' '.join(argv[:4])} ended with {process.returncode}")
    return Ended((first + rest).decode(), first_seconds, wall, used.ru_utime + used.ru_stime)


def inside(module: str, task: Mapping[str, object], home: Path) -> object:
    """Have `python -m MODULE` do a task in a process of its own; returns what it measured."""
    ended = run([sys.executable, "-m", module, json.dumps(task)], home)
    return json.loads(ended.output)


@contextmanager
def fake_model(latency_ms: int = 0) -> Generator[str]:
    """The scripted model as a process of its own; gives its address."""
    argv = [sys.executable, "-m", "shoal.testing.model", "--latency-ms", str(latency_ms)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def resident_kib(pid: int) -> int:
    """Resident memory of a process, in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError(f"process {pid} has no memory")
