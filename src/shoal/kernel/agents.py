"""Agents, channel bindings and subagents."""

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
    """Budget limits of one agent. They apply in addition to [budget].

    Amounts are in US dollars, and tokens include input and output. 0 means no limit.
    """

    usd_per_turn: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    usd_per_day: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    tokens_per_turn: Annotated[int, msgspec.Meta(ge=0)] = 0
    tokens_per_day: Annotated[int, msgspec.Meta(ge=0)] = 0


class AgentSpec(msgspec.Struct, frozen=True):
    """Configuration of an agent. A turn reads it once, when the turn starts."""

    name: str
    home: Path
    """Directory that contains AGENTS.md, the agent's other files and `docs/`."""
    workspace: Path
    """Working directory of the tools."""
    model: str
    """Name of the model. Empty means the default model."""
    profile: str
    system_prompt: str = ""
    tools: tuple[str, ...] = ()
    """Names of the agent's tools. Empty means all registered tools."""
    fallback: tuple[str, ...] = ()
    max_output_tokens: int = 4096
    temperature: float | None = None
    restrict_to_workspace: bool = True
    taint: bool = True
    idle_minutes: float = 0.0
    """Minutes of inactivity after which the conversation is saved and a new one starts. 0 means never."""
    budget: AgentBudget = AgentBudget()
    timezone: str = "UTC"


GUESTS = "guests"
"""Directory in an agent's home that contains the separate workspaces of channels that untrusted people can read."""
NO_TOOLS = ("-",)
"""Value of `AgentSpec.tools` for an agent without tools, because an empty tuple means all tools."""


def within(agent: AgentSpec, caller: Caller) -> AgentSpec:
    """Limit an agent to the tools of its caller. Taint checks stay on if the caller has them on."""
    tools = agent.tools
    if caller.tools is not None:
        tools = tuple(name for name in tools or caller.tools if name in caller.tools) or NO_TOOLS
    taint = agent.taint or caller.gates
    if tools == agent.tools and taint == agent.taint:
        return agent
    return msgspec.structs.replace(agent, tools=tools, taint=taint)


def as_guest(agent: AgentSpec, thread: ThreadId) -> AgentSpec:
    """Return the agent with a separate workspace for the channel. Used if untrusted people can read the
    conversation.
    """
    platform, channel, _ = thread.split(":")
    return msgspec.structs.replace(agent, workspace=agent.home / GUESTS / platform / channel)


OUTPUT_BYTES_PER_SECOND = 1_048_576
"""Maximum rate at which the output of a watched command is read. Commands that write faster are slowed down."""


class Watch(Protocol):
    """Observer of a running sandbox command. Its methods must neither block nor raise.

    The output of an observed command goes to the observer instead of the result. The command has no CPU time limit.
    """

    def started(self, pid: int) -> None:
        """Called when the command has started. `pid` is 0 if the process id is unknown."""
        ...

    def output(self, data: bytes) -> None:
        """Called with each chunk of standard output or standard error."""
        ...


class AgentRow(msgspec.Struct, frozen=True):
    """An agent's row in the database. `digest` is the digest of agent.toml when it was last read."""

    name: str
    state: Literal["active", "destroyed"]
    digest: str
    created_at: datetime
    changed_at: datetime


Listen: TypeAlias = Literal["all", "named", "threads"]
"""Which messages an agent answers in a channel. In direct conversations, the agent answers every message.

`all`: every message.
`named`: messages that mention the agent or reply to it.
`threads`: the same as `named`, and later messages in threads where the agent was mentioned.
"""
LISTENS: tuple[Listen, ...] = get_args(Listen)
HEARD: Mapping[str, str] = {
    "all": "every message",
    "named": "mentions",
    "threads": "mentions, replies and follow-ups in threads that mention it",
}
UNBOUND: Listen = "threads"
"""Value for a channel without a binding."""


class Binding(msgspec.Struct, frozen=True):
    """The agent that answers in a channel."""

    platform: str
    channel: str
    agent: str
    bound_by: str
    """PLATFORM:USER of the person who bound the channel."""
    created_at: datetime
    made: bool = False
    """Whether the channel was created for the agent."""
    listen: Listen = "all"

    @property
    def place(self) -> str:
        return f"{self.platform}:{self.channel}"


class Work(msgspec.Struct, frozen=True):
    """A thread with an open turn or waiting prompts. It may run on any machine."""

    thread: ThreadId
    agent: str
    turn: TurnId
    """Id of the open turn. Empty if no turn is open."""
    parent: str
    asked: str
    """Beginning of the message that the open turn answers."""
    since: datetime | None
    """Start time of the open turn. None if no turn is open."""
    steps: int
    questions: int
    """Number of pending approvals."""
    queued: int
    trusted: bool
    """True if a trusted author wrote `asked` and the message is not tainted."""


def describe_work(work: Work, now: datetime) -> str:
    state = describe_state(work, now)
    return f"{short_line(work.asked)} ({state})" if work.turn else state


def describe_state(work: Work, now: datetime) -> str:
    """Describe a thread's progress without quoting its messages."""
    if not work.turn:
        return f"{work.queued} waiting"
    since = "now"
    if work.since is not None:
        since = f"for {duration_text(int((now - work.since).total_seconds() * 1000))}"
    state = "waiting for approval" if work.questions else f"at step {work.steps + 1}"
    queued = f", {work.queued} more waiting" if work.queued else ""
    return f"{since}, {state}{queued}"


def servers_scope(platform: str) -> str:
    """Return the settings scope that maps the channels of an account to their servers, such as Discord guilds."""
    return f"server:{platform}"


ENDED: dict[Outcome, str] = {
    "done": "has finished",
    "limit": "reached a limit",
    "failed": "failed",
    "aborted": "was stopped",
}


class Child(msgspec.Struct, frozen=True):
    """A subagent's thread, as its parent sees it.

    `finished` is the event that ended the first turn, or None until then.
    """

    thread: ThreadId
    works: bool
    finished: TurnFinished | None = None


class Purpose(msgspec.Struct, frozen=True):
    """Origin and limits of a turn.

    `author`: author of the message.
    `tainted_by`: untrusted content that the turn has read.
    `caller`: tool call that started the turn, if the turn belongs to a subagent.
    `speaks_in`: thread to post to if nobody reads the answer. Empty means the turn's own thread.
    `audience`: limits on what the turn may see.
    `as_shown`: converts the model's text for display.
    """

    author: Author
    tainted_by: str
    caller: Caller | None = None
    speaks_in: ThreadId = ThreadId("")
    audience: Audience = Audience()
    as_shown: Callable[[str], str] = str

    @property
    def person(self) -> Author:
        """The person who asked. In a subagent's turn, this is the person who started the root turn."""
        return self.author if self.caller is None else self.caller.author


def child_thread(parent: ThreadId, turn: TurnId, call: CallId) -> ThreadId:
    """Return the id of the thread that a tool call starts. The same call always gets the same id."""
    beginning = hashlib.sha256(parent.encode()).hexdigest()[:16]
    name = hashlib.sha256(f"{turn}\0{call}".encode()).hexdigest()[:26]
    return make_thread_id(SUBAGENTS, beginning, name)


def report_of(thread: ThreadId, agent: str, caller: Caller, finished: TurnFinished) -> Report:
    """Build the report to a subagent's parent. Depending on the caller's mode, the report wakes the waiting parent,
    adds a note or starts a turn.
    """
    if caller.mode == "wait":
        return Report(caller.thread)
    report = f"{finished.reply}\n" if finished.reply else ""
    text = f"[The subagent {thread} {ENDED[finished.outcome]}.]\n{report}".rstrip()
    trusted = caller.author.trusted and not finished.tainted_by
    if caller.mode == "tell":
        author = Author(f"{SUBAGENTS}:{agent}", agent, is_bot=True, trusted=trusted)
        note = UserSaid(text, author, message_id=thread, origin="system", tainted_by=finished.tainted_by)
        return Report(caller.thread, note)
    author = msgspec.structs.replace(caller.author, name=agent, trusted=trusted)
    note = UserSaid(text, author, message_id=thread, origin="agent", tainted_by=finished.tainted_by)
    return Report(caller.thread, note, starts_turn=True)
