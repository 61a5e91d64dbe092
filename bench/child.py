"""Run the measured processes, each in its own home directory, and read their resource use from the kernel."""

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
    """The result of a finished process: its output, the seconds until its first output and until its end, and its CPU
    seconds including children.
    """

    output: str
    first_seconds: float
    wall_seconds: float
    cpu_seconds: float


@contextmanager
def new_home(llm: str, more: str = "") -> Generator[Path]:
    """Create a home directory with a configured provider."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        home = Path(folder) / "home"
        write_config(home, llm, more)
        yield home


def environment(home: Path) -> Mapping[str, str]:
    """Return an environment without this user's settings. Keeps only PATH, the locale and TMPDIR."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL", "TMPDIR")}
    return {**kept, "HOME": str(home.parent), "SHOAL_HOME": str(home), "NO_COLOR": "1"}


def run(argv: list[str], home: Path) -> Ended:
    """Run a program until it ends. Raises RuntimeError if it fails."""
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
    """Run a task with `python -m MODULE` in its own process, and return the result."""
    ended = run([sys.executable, "-m", module, json.dumps(task)], home)
    return json.loads(ended.output)


@contextmanager
def fake_model(latency_ms: int = 0) -> Generator[str]:
    """Run the scripted model in its own process, and yield its URL."""
    argv = [sys.executable, "-m", "shoal.testing.model", "--latency-ms", str(latency_ms)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError(f"process {pid} reports no resident memory")
