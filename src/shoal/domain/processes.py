"""Processes that agents start and that outlive the turn: what they are, when they start a turn, and their rows."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Protocol, TypeAlias

import msgspec

from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.messages import Author

ProcessState: TypeAlias = Literal["running", "exited", "killed", "failed", "lost"]
"""`failed` never started; `lost` ended with the Shoal that ran it."""

ORIGIN = "process:"
"""How the keys and message ids of prompts begin that a process sends: `process:ID:WHAT`."""


OUTPUT_BYTES_PER_SECOND = 1_048_576
"""A watched command that writes faster has to wait."""


class Watch(Protocol):
    """Who looks on while a command of a sandbox runs; neither call may wait or fail.

    The output of a watched command comes here and not into the result, and the time that its processes may compute is
    not bounded.
    """

    def started(self, pid: int) -> None:
        """It runs, under this number on this machine; 0 where that is not known."""
        ...

    def output(self, data: bytes) -> None:
        """The next piece of its output, of both streams as they come."""
        ...


class Hook(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a process starts a turn: at its end (with one of `codes`, empty: any), at a line that matches `pattern`, or
    when it still runs after `after_seconds`. `note` tells the agent what to do then."""

    on: Literal["exit", "output", "timeout"]
    note: str = ""
    codes: tuple[int, ...] = ()
    pattern: str = ""
    after_seconds: float = 0.0
    fires_max: int = 1
    interval_seconds: float = 10.0


class ProcessSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is to run, for whom, and what it starts. `depth` counts the hooks whose turns led to it.

    `author` asked the turn that started it, and `tainted_by` names the untrusted content behind its command: the turns
    of its hooks are trusted no more than that.
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
        """The conversation that it runs for."""
        return self.told_in or self.thread

    @property
    def title(self) -> str:
        """Its name, or the beginning of its command."""
        return self.name or " ".join(self.command.split())[:60]


class Process(msgspec.Struct, frozen=True):
    """A stored process. `owner` is the Shoal process that runs it; `identity` is its number and start on that machine,
    empty where that is not known. `killed_by` asked for its end; `told`: its hooks know of that end."""

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
        """Its number on its machine; 0 where that is not known."""
        first = self.identity.partition(" ")[0]
        return int(first) if first.isdigit() else 0


class Ending(msgspec.Struct, frozen=True):
    """How a process ended; `told` when nobody waits to hear of it, so that no hook ever does."""

    state: ProcessState
    exit_code: int | None = None
    reason: str = ""
    told: bool = False


class Processes(Protocol):
    """The rows of processes."""

    async def add(self, process: Process, running_max: int) -> bool:
        """Store one that is about to start; False when its agent has `running_max` running for its channel."""
        ...

    async def identify(self, process: str, identity: str) -> None:
        """Note which process of its machine it is."""
        ...

    async def taint(self, process: Process) -> None:
        """Note what taints it, as its spec says."""
        ...

    async def end(self, process: str, ending: Ending) -> Process | None:
        """Note how it ended, once; None when it was not running any more."""
        ...

    async def kill(self, process: str, by: str) -> bool:
        """Ask whoever runs it to end it; False when it does not run."""
        ...

    async def beat(self, owner: str) -> list[Process]:
        """Note that `owner` lives, and return what it is taken to run."""
        ...

    async def tell(self, process: str) -> None:
        """Note that its hooks know of its end."""
        ...

    async def untold(self, limit: int = 100) -> list[Process]:
        """Those that ended and whose hooks do not know it yet, oldest first."""
        ...

    async def get(self, process: str) -> Process | None:
        """One, or None."""
        ...

    async def search(
        self, *, agent: str = "", running: bool = False, limit: int = 100, within: str = ""
    ) -> list[Process]:
        """Those of an agent (empty: all) for conversations whose ids begin with `within`, newest first."""
        ...

    async def depth(self, thread: ThreadId, turn: TurnId) -> int:
        """How many hooks led to a turn: 0 unless a process started it."""
        ...

    async def forget(self, before: datetime) -> Sequence[Process]:
        """Drop the rows of those that ended before, and return them."""
        ...
