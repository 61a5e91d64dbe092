"""Agents: who answers in a thread, with which model, permissions and limits; the channels they are bound to; and the
subagents that they start.
"""

import hashlib
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Protocol, TypeAlias, get_args

import msgspec

from shoal.kernel.events import Outcome, TurnFinished, UserSaid
from shoal.kernel.ids import SUBAGENTS, CallId, ThreadId, TurnId, make_thread_id
from shoal.kernel.messages import Author, Caller
from shoal.kernel.permissions import Audience
from shoal.kernel.phrases import duration_text, short_line
from shoal.kernel.records import Report


class AgentBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An agent's own ceilings, in US dollars and tokens (in and out), beside those of [budget]; 0 is none."""

    usd_per_turn: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    usd_per_day: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    tokens_per_turn: Annotated[int, msgspec.Meta(ge=0)] = 0
    tokens_per_day: Annotated[int, msgspec.Meta(ge=0)] = 0


class AgentSpec(msgspec.Struct, frozen=True):
    """A named configuration as one turn uses it; read fresh at a turn's start, so an edit counts from the next.

    `home` holds AGENTS.md and its like and `docs/`; `workspace` is where the tools work.
    An empty `model` means the default, an empty `tools` every registered one. After `idle_minutes` (0: never) without
    anything happening, its conversations are saved and begun anew.
    """

    name: str
    home: Path
    workspace: Path
    model: str
    profile: str
    system_prompt: str = ""
    tools: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()
    max_output_tokens: int = 4096
    temperature: float | None = None
    restrict_to_workspace: bool = True
    taint: bool = True
    idle_minutes: float = 0.0
    budget: AgentBudget = AgentBudget()
    timezone: str = "UTC"


GUESTS = "guests"
"""The folder of an agent that has the workspaces of channels which strangers may read."""
NO_TOOLS = ("-",)
"""A choice of tools that has none: an empty one is all."""


def within(agent: AgentSpec, caller: Caller) -> AgentSpec:
    """The agent for a turn that another one called: with no tool that one lacks, and held up as that one is."""
    tools = agent.tools
    if caller.tools is not None:
        tools = tuple(name for name in tools or caller.tools if name in caller.tools) or NO_TOOLS
    taint = agent.taint or caller.gates
    if tools == agent.tools and taint == agent.taint:
        return agent
    return msgspec.structs.replace(agent, tools=tools, taint=taint)


def as_guest(agent: AgentSpec, thread: ThreadId) -> AgentSpec:
    """The agent for a conversation that strangers may read: it works in a folder of that channel's own."""
    platform, channel, _ = thread.split(":")
    return msgspec.structs.replace(agent, workspace=agent.home / GUESTS / platform / channel)


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


class AgentRow(msgspec.Struct, frozen=True):
    """An agent as the database knows it. `digest` is that of its agent.toml when it was last looked at."""

    name: str
    state: Literal["active", "destroyed"]
    digest: str
    created_at: datetime
    changed_at: datetime


Listen: TypeAlias = Literal["all", "named", "threads"]
"""What an agent answers in a channel: every message; those that name it or answer one of its own; or these and all that
follows in the threads where it was named. In a direct conversation it answers everything."""
LISTENS: tuple[Listen, ...] = get_args(Listen)
HEARD: Mapping[str, str] = {
    "all": "every message",
    "named": "what names it",
    "threads": "what names or answers it, and what follows in its threads,",
}
"""What it answers then, for people."""
UNBOUND: Listen = "threads"
"""What an agent answers in a channel that is bound to none."""


class Binding(msgspec.Struct, frozen=True):
    """A channel and the agent that answers in it. `made`: the channel was made for the agent. `bound_by` is a person,
    PLATFORM:USER."""

    platform: str
    channel: str
    agent: str
    bound_by: str
    created_at: datetime
    made: bool = False
    listen: Listen = "all"

    @property
    def place(self) -> str:
        """PLATFORM:CHANNEL."""
        return f"{self.platform}:{self.channel}"


class Work(msgspec.Struct, frozen=True):
    """A thread with something to do, on whichever machine: its open turn and since when, or an empty one while its
    prompts wait. `asked` is what the turn answers, `trusted` where that has no words of anybody who is not trusted;
    `questions` to people are open; `queued` prompts wait behind."""

    thread: ThreadId
    agent: str
    turn: TurnId
    parent: str
    asked: str
    since: datetime | None
    steps: int
    questions: int
    queued: int
    trusted: bool


def describe_work(work: Work, now: datetime) -> str:
    """What a thread does, in a line, for people and for the agent's other threads."""
    state = describe_state(work, now)
    return f"{short_line(work.asked)} ({state})" if work.turn else state


def describe_state(work: Work, now: datetime) -> str:
    """How far a thread is, without a word of what it is about."""
    if not work.turn:
        return f"{work.queued} waiting"
    since = "now"
    if work.since is not None:
        since = f"for {duration_text(int((now - work.since).total_seconds() * 1000))}"
    state = "waits for a person's decision" if work.questions else f"at step {work.steps + 1}"
    queued = f", {work.queued} waiting behind" if work.queued else ""
    return f"{since}, {state}{queued}"


def servers_scope(platform: str) -> str:
    """The scope of the settings that hold the server of each channel of a platform's account."""
    return f"server:{platform}"


ENDED: dict[Outcome, str] = {
    "done": "has finished",
    "limit": "stopped at a limit",
    "failed": "failed",
    "aborted": "was stopped",
}


class Child(msgspec.Struct, frozen=True):
    """A child as its parent sees it. `finished` is the end of its first turn; None while it works, or never began."""

    thread: ThreadId
    works: bool
    finished: TurnFinished | None = None


class Purpose(msgspec.Struct, frozen=True):
    """The identity and limits of a turn.

    Contains the message's author, the untrusted content that the turn has seen, the calling turn, the thread to post to
    if nobody reads the answer (empty: its own), the audience, and the conversion of model text for display.
    """

    author: Author
    tainted_by: str
    caller: Caller | None = None
    speaks_in: ThreadId = ThreadId("")
    audience: Audience = Audience()
    as_shown: Callable[[str], str] = str

    @property
    def person(self) -> Author:
        """Who asked for all of it: the author here, or at the root of the calls that led here."""
        return self.author if self.caller is None else self.caller.author


class Task(msgspec.Struct, frozen=True):
    """What a call wants done, by which agent (empty: its own) with which model (empty: that agent's)."""

    text: str
    agent: str = ""
    model: str = ""
    mode: Literal["wait", "tell", "wake"] = "wait"


def child_thread(parent: ThreadId, turn: TurnId, call: CallId) -> ThreadId:
    """The id of the thread that a call begins; the same call always has the same one."""
    beginning = hashlib.sha256(parent.encode()).hexdigest()[:16]
    name = hashlib.sha256(f"{turn}\0{call}".encode()).hexdigest()[:26]
    return make_thread_id(SUBAGENTS, beginning, name)


def report_of(thread: ThreadId, agent: str, caller: Caller, finished: TurnFinished) -> Report:
    """What a child's end does to its parent: wake it where it waits, else leave a note or start a turn with it."""
    if caller.mode == "wait":
        return Report(caller.thread)
    said = f"{finished.reply}\n" if finished.reply else ""
    text = f"[The subagent {thread} {ENDED[finished.outcome]}.]\n{said}".rstrip()
    trusted = caller.author.trusted and not finished.tainted_by
    if caller.mode == "tell":
        author = Author(f"{SUBAGENTS}:{agent}", agent, is_bot=True, trusted=trusted)
        note = UserSaid(text, author, message_id=thread, origin="system", tainted_by=finished.tainted_by)
        return Report(caller.thread, note)
    author = msgspec.structs.replace(caller.author, name=agent, trusted=trusted)
    note = UserSaid(text, author, message_id=thread, origin="agent", tainted_by=finished.tainted_by)
    return Report(caller.thread, note, starts_turn=True)
