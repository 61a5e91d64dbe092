"""Processes that fork a child for each order and may kill it: `shoal.testing.crash.serve_forked`."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from shoal.testing.crash import Outcome

T = TypeVar("T")


class ForkServer(Generic[T]):
    """A process that executes orders of one type, each in a forked child."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, order: T) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(order).decode() + "\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline(), type=Outcome)


@contextmanager
def fork_server(module: str, kind: type[T]) -> Generator[ForkServer[T]]:
    command = [sys.executable, "-m", module]
    root = Path(__file__).resolve().parents[1]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        yield ForkServer(process)
        process.communicate()
