"""Records of processes and their hooks."""

from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Author

ProcessState: TypeAlias = Literal["running", "exited", "killed", "failed", "lost"]
"""State of a process.

`failed`: it never started.
`lost`: it ended together with the Shoal process that ran it.
"""

PROCESS_KEY = "process:"
"""Prefix of the keys and message ids of prompts from processes: `process:ID:WHAT`."""


class Hook(msgspec.Struct, frozen=True, omit_defaults=True):
    """Condition under which a process starts a turn.

    `on`: `exit` if the process exits, `output` if it writes a matching line, `timeout` if it runs too long.
    `note`: reminder for the agent.
    `codes`: exit codes to which `exit` applies. Empty means all.
    `pattern`: regular expression that `output` matches against each line.
    `after_seconds`: running time for `timeout`.
    `fires_max`: maximum number of times that `output` fires.
    `interval_seconds`: minimum time between two firings of `output`.
    """

    on: Literal["exit", "output", "timeout"]
    note: str = ""
    codes: tuple[int, ...] = ()
    pattern: str = ""
    after_seconds: float = 0.0
    fires_max: int = 1
    interval_seconds: float = 10.0


class ProcessSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process to start. Turns that its hooks start never have more trust than `author` and `tainted_by` allow.

    `author`: person who asked for the turn that starts the process.
    `tainted_by`: untrusted content that influenced the command, or empty.
    `depth`: number of hooks that led to the turn that starts the process.
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
        return self.name or " ".join(self.command.split())[:60]


class Process(msgspec.Struct, frozen=True):
    """A stored process.

    `owner`: host and identity of the Shoal process that runs it.
    `identity`: process id and start time on that host, or empty if unknown.
    `killed_by`: person or component that requested the kill, or empty.
    `told`: whether the hooks have reported the end.
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
    """Outcome of a process. If `told` is true, hooks do not report it."""

    state: ProcessState
    exit_code: int | None = None
    reason: str = ""
    told: bool = False
