"""Records of processes that agents start, and of the hooks that start turns."""

from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Author

ProcessState: TypeAlias = Literal["running", "exited", "killed", "failed", "lost"]
"""State of a process. `failed` means that it never started. `lost` means that it ended together with its Shoal process.
"""

PROCESS_KEY = "process:"
"""Prefix of the keys and message ids of prompts from processes: `process:ID:WHAT`."""


class Hook(msgspec.Struct, frozen=True, omit_defaults=True):
    """Condition under which a process starts a turn.

    `exit`: the process exits, with one of `codes` if any are given. `output`: it writes a line that matches `pattern`.
    `timeout`: it still runs after `after_seconds`. `note` reminds the agent what to do.
    """

    on: Literal["exit", "output", "timeout"]
    note: str = ""
    codes: tuple[int, ...] = ()
    pattern: str = ""
    after_seconds: float = 0.0
    fires_max: int = 1
    interval_seconds: float = 10.0


class ProcessSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process to start, and the person for whom it runs.

    `depth` counts the hooks that led to the turn that starts it. `author` asked for that turn. `tainted_by` names the
    untrusted content that influenced the command. Turns started by its hooks get no more trust than these allow.
    """

    agent: str
    thread: ThreadId
    command: str
    author: Author
    tainted_by: str
    name: str = ""
    hooks: tuple[Hook, ...] = ()
    depth: int = 0
    told_in: ThreadId = ThreadId("")

    @property
    def chat(self) -> ThreadId:
        return self.told_in or self.thread

    @property
    def title(self) -> str:
        """The process's name, or the beginning of its command."""
        return self.name or " ".join(self.command.split())[:60]


class Process(msgspec.Struct, frozen=True):
    """A stored process. `owner` is the Shoal process that runs it.

    `identity` is its pid and start time on that machine, or empty if unknown. `killed_by` identifies who requested the
    kill. `told` is true after its hooks have reported the end.
    """

    id: str
    spec: ProcessSpec
    state: ProcessState
    owner: str
    identity: str
    started_at: datetime
    seen_at: datetime
    ended_at: datetime | None = None
    exit_code: int | None = None
    reason: str = ""
    killed_by: str = ""
    told: bool = False

    @property
    def pid(self) -> int:
        """Process id, or 0 if unknown."""
        first = self.identity.partition(" ")[0]
        return int(first) if first.isdigit() else 0


class ProcessEnd(msgspec.Struct, frozen=True):
    """Outcome of a process. `told` is true if no hook should report it."""

    state: ProcessState
    exit_code: int | None = None
    reason: str = ""
    told: bool = False
