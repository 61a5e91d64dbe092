"""The tools for processes that outlive a turn: `process_start`, `process_list`, `process_logs`, `process_kill`."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Annotated, ClassVar, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Meta

from shoal.domain.errors import InvalidInput, NotFound, ToolError
from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.permissions import Action
from shoal.domain.ports import Command, Invocation, Mount, Sandbox, Tool, ToolContext, ToolOutput
from shoal.domain.processes import Hook, Process, ProcessSpec
from shoal.tools.builtin.shell import ShellActions, checked_command, command_environment
from shoal.tools.typed import Prepared, PreparedCommand, TypedTool, canonical

LIST_MAX = 20
HOOKS_MAX = 8
LINE_CHARS_MAX = 2000


class LogPiece(Protocol):
    """Lines of a log and where the next ones begin."""

    @property
    def lines(self) -> tuple[str, ...]: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def total_bytes(self) -> int: ...

    @property
    def lost_bytes(self) -> int: ...


class Runner(Protocol):
    """Whoever runs processes; see shoal.tools.processes.service."""

    async def start(
        self, spec: ProcessSpec, command: Command, sandbox: Sandbox, sources: Callable[[], Awaitable[str]]
    ) -> Process:
        """Start one and return once it runs; `sources` tells what taints what it may read by then. Raises
        InvalidInput, SandboxError."""
        ...

    async def kill(self, process: str, by: str) -> Process:
        """Have it ended. Raises NotFound when there is none that runs."""
        ...

    async def get(self, process: str) -> Process:
        """One. Raises NotFound."""
        ...

    async def read(self, process: Process, *, offset: int = -1, lines_max: int = 100, contains: str = "") -> LogPiece:
        """A piece of its log. Raises OSError."""
        ...

    async def depth(self, thread: ThreadId, turn: TurnId) -> int:
        """How many hooks led to a turn."""
        ...

    async def of_agent(self, agent: str, within: str, *, running: bool = False, limit: int = LIST_MAX) -> list[Process]:
        """Those of an agent for the conversations whose ids begin with `within`, newest first."""
        ...

    def check(self, hooks: tuple[Hook, ...]) -> None:
        """Raises InvalidInput for a pattern that cannot be used."""
        ...

    def describe(self, process: Process, now: datetime) -> str:
        """It in a line."""
        ...


Sources: TypeAlias = Callable[[Sequence[Action], Sequence[Mount]], Awaitable[str]]
"""What of a command with these actions others had a hand in; empty when nothing."""


class HookArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A hook as the model writes it."""

    on: Annotated[
        Literal["exit", "output", "timeout"],
        Meta(description="exit: it ended. output: a line matches. timeout: it still runs after some time."),
    ]
    note: Annotated[str, Meta(description="What you should do then; you get it back.", max_length=2000)] = ""
    codes: Annotated[tuple[int, ...], Meta(description="exit: only with one of these exit codes.", max_length=32)] = ()
    pattern: Annotated[
        str, Meta(description="output: a regular expression, looked for in each line.", max_length=500)
    ] = ""
    after_seconds: Annotated[float, Meta(description="timeout: after this many seconds.", ge=0, le=604_800)] = 0.0
    fires_max: Annotated[int, Meta(description="output: fire at most this often.", ge=1, le=20)] = 1
    interval_seconds: Annotated[
        float, Meta(description="output: fire again no sooner than after this many seconds.", ge=1, le=86_400)
    ] = 10.0


class StartArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `process_start` takes."""

    command: Annotated[str, Meta(description="The command, run by bash in the workspace.")]
    name: Annotated[str, Meta(description="A short name for lists.", max_length=60)] = ""
    hooks: Annotated[
        tuple[HookArguments, ...],
        Meta(description="When the process starts a turn of yours in this conversation.", max_length=HOOKS_MAX),
    ] = ()


class StartTool(TypedTool[StartArguments]):
    """Starts a command that runs on after the turn."""

    name: ClassVar[str] = "process_start"
    description: ClassVar[str] = (
        "Start a long-running command (a build, a server, a watcher) in the sandbox. It runs on when your turn is "
        "over, and ends when Shoal stops. Its output goes to a log that process_logs reads. With hooks you are told, "
        "by a turn in this conversation, when it ends, writes something or takes too long; so do not wait for it."
    )
    runs_commands: ClassVar[bool] = True

    def __init__(self, runner: Runner, shell_actions: ShellActions, sources: Sources) -> None:
        super().__init__(StartArguments)
        self._runner = runner
        self._shell_actions = shell_actions
        self._sources = sources

    def plan(self, arguments: StartArguments, context: ToolContext) -> Invocation:
        """Take the command apart and check the hooks. Raises ToolError saying what is wrong."""
        text, hooks = checked_command(arguments.command), tuple(_hook(hook) for hook in arguments.hooks)
        try:
            self._runner.check(hooks)
        except InvalidInput as error:
            raise ToolError(str(error)) from error
        env = command_environment(context.agent.name)
        command = Command(text=text, cwd=context.agent.workspace, mounts=context.mounts, env=env)
        actions = self._actions(text, context)
        cwd = context.sandbox.inside(command.cwd, context.mounts)
        effect = canonical(self.name, command=text, cwd=cwd, sandbox=context.sandbox.name, hooks=hooks)
        name = " ".join("".join(char if char.isprintable() else " " for char in arguments.name).split())

        async def work(command: Command, tainted_by: str) -> ToolOutput:
            spec = ProcessSpec(
                agent=context.agent.name,
                thread=context.thread,
                command=text,
                author=context.purpose.person,
                tainted_by=context.purpose.tainted_by or tainted_by,
                name=name,
                hooks=hooks,
                depth=await self._runner.depth(context.thread, context.turn),
                told_in=context.chat if context.chat != context.thread else ThreadId(""),
            )
            try:
                found = await self._runner.start(
                    spec, command, context.sandbox, lambda: self._sources(self._actions(text, context), context.mounts)
                )
            except InvalidInput as error:
                raise ToolError(str(error)) from error
            told = "You are told by a turn when a hook fires." if hooks else "It has no hooks: look at it yourself."
            return ToolOutput(f"Started process {self._runner.describe(found, context.clock.now())}. {told}")

        shown = "\n".join([text, *(f"then a turn on {_shown(hook)}" for hook in hooks)])
        return PreparedCommand(actions, shown, effect, command, work)

    def _actions(self, text: str, context: ToolContext) -> tuple[Action, ...]:
        """Those of the command, and views of it by which rules that deny it to `bash` deny it here too."""
        own = self._shell_actions(self.name, text, context)
        as_bash = self._shell_actions("bash", text, context)
        begin = f"tool:{self.name}:"
        return (*own, *(Action(begin + text, whole=True, also=(action.text, *action.also)) for action in as_bash))


def _hook(given: HookArguments) -> Hook:
    """Raises ToolError for one that says too little."""
    if given.on == "output" and not given.pattern:
        raise ToolError("A hook on output needs a `pattern`.")
    if given.on == "timeout" and given.after_seconds <= 0:
        raise ToolError("A hook on timeout needs `after_seconds`.")
    return msgspec.convert(msgspec.to_builtins(given), Hook)


def _shown(hook: Hook) -> str:
    match hook.on:
        case "exit":
            what = f"exit with {', '.join(map(str, hook.codes))}" if hook.codes else "exit"
        case "output":
            what = f"output that matches {hook.pattern!r}, at most {hook.fires_max} times"
        case "timeout":
            what = f"timeout after {hook.after_seconds:g} seconds"
    return f"{what}: {hook.note}" if hook.note else what


class ListArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `process_list` takes."""

    running: Annotated[bool, Meta(description="Only those that run.")] = False


class ProcessListTool(TypedTool[ListArguments]):
    """Lists the agent's processes, as far as whoever asks may see them."""

    name: ClassVar[str] = "process_list"
    description: ClassVar[str] = "List the processes you have started: id, name, state."
    read_only: ClassVar[bool] = True
    idempotent: ClassVar[bool] = True

    def __init__(self, runner: Runner) -> None:
        super().__init__(ListArguments)
        self._runner = runner

    def plan(self, arguments: ListArguments, context: ToolContext) -> Invocation:
        """Nothing can be wrong."""
        detail = "running" if arguments.running else "all"

        async def work() -> ToolOutput:
            found = await self._runner.of_agent(context.agent.name, context.within, running=arguments.running)
            lines = [self._runner.describe(one, context.clock.now()) for one in found]
            tainted_by = next((one.spec.tainted_by for one in found if one.spec.tainted_by), "")
            return ToolOutput("\n".join(lines) or "There are no processes.", tainted_by=tainted_by)

        effect = canonical(self.name, agent=context.agent.name, which=detail, within=context.within)
        return Prepared((Action(f"tool:{self.name}:{detail}"),), f"list {detail} processes", effect, work)


class LogsArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `process_logs` takes."""

    process: Annotated[str, Meta(description="The process's id.", max_length=64)]
    tail: Annotated[int, Meta(description="How many of the last lines.", ge=1, le=1000)] = 100
    offset: Annotated[
        int, Meta(description="Read on from this byte instead; the answer tells where the next begins.", ge=-1)
    ] = -1
    grep: Annotated[str, Meta(description="Only lines that contain this text.", max_length=200)] = ""


class LogsTool(TypedTool[LogsArguments]):
    """Reads a process's log."""

    name: ClassVar[str] = "process_logs"
    description: ClassVar[str] = "Read the output of a process you have started: its end, or on from an offset."
    read_only: ClassVar[bool] = True
    idempotent: ClassVar[bool] = True

    def __init__(self, runner: Runner, shell_actions: ShellActions, sources: Sources) -> None:
        super().__init__(LogsArguments)
        self._runner = runner
        self._shell_actions = shell_actions
        self._sources = sources

    def plan(self, arguments: LogsArguments, context: ToolContext) -> Invocation:
        """Nothing can be wrong before the process is looked for."""
        wanted = arguments

        async def work() -> ToolOutput:
            process = await _own(self._runner, wanted.process, context)
            try:
                piece = await self._runner.read(
                    process, offset=wanted.offset, lines_max=wanted.tail, contains=wanted.grep
                )
            except OSError as error:
                raise ToolError(f"The log cannot be read: {error.strerror or error}.") from error
            head = self._runner.describe(process, context.clock.now())
            reads = self._shell_actions("process_start", process.spec.command, context)
            source = process.spec.tainted_by or await self._sources(reads, context.mounts)
            return ToolOutput(told_piece(piece, head), is_piece=True, tainted_by=source)

        effect = canonical(self.name, **msgspec.structs.asdict(wanted))
        return Prepared(
            (_action(self.name, wanted.process),), f"read the log of process {wanted.process}", effect, work
        )


def told_piece(piece: LogPiece, head: str) -> str:
    """A piece of a log under a line that says what it is of."""
    lines = [line if len(line) <= LINE_CHARS_MAX else f"{line[:LINE_CHARS_MAX]}…" for line in piece.lines]
    notes = [f"[{piece.lost_bytes:,} bytes before this are gone]"] if piece.lost_bytes else []
    end = f"[next offset {piece.next_offset} of {piece.total_bytes}]"
    return "\n".join([f"[{head}]", *notes, *(lines or ["[no lines]"]), end])


class KillArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `process_kill` takes."""

    process: Annotated[str, Meta(description="The process's id.", max_length=64)]


class KillTool(TypedTool[KillArguments]):
    """Ends a process with all that it started."""

    name: ClassVar[str] = "process_kill"
    description: ClassVar[str] = "End a process you have started, with all its children. Its hooks do not fire then."
    idempotent: ClassVar[bool] = True

    def __init__(self, runner: Runner) -> None:
        super().__init__(KillArguments)
        self._runner = runner

    def plan(self, arguments: KillArguments, context: ToolContext) -> Invocation:
        """Nothing can be wrong before the process is looked for."""

        async def work() -> ToolOutput:
            process = await _own(self._runner, arguments.process, context)
            if process.state != "running":
                told = f"It does not run any more: {self._runner.describe(process, context.clock.now())}."
                return ToolOutput(told, tainted_by=process.spec.tainted_by)
            try:
                await self._runner.kill(process.id, f"the agent {context.agent.name}")
            except NotFound:
                return ToolOutput("It ended just now.")
            return ToolOutput(f"Process {process.id} is being killed.")

        effect = canonical(self.name, process=arguments.process)
        return Prepared((_action(self.name, arguments.process),), f"kill process {arguments.process}", effect, work)


def _action(tool: str, process: str) -> Action:
    return Action(f"tool:{tool}:{' '.join(process.split())}")


async def _own(runner: Runner, id: str, context: ToolContext) -> Process:
    """The agent's process of that id. Raises ToolError, the same for another's or one elsewhere as for none."""
    try:
        process = await runner.get(id.strip())
    except NotFound:
        process = None
    if process is None or process.spec.agent != context.agent.name or not process.spec.chat.startswith(context.within):
        raise ToolError(f"There is no process {id.strip()[:80]} of yours. process_list shows them.")
    return process


def process_tools(runner: Runner, shell_actions: ShellActions, sources: Sources) -> tuple[Tool, ...]:
    """The four tools. `sources`: a process that reads what was marked while it runs is tainted by it too."""
    logs = LogsTool(runner, shell_actions, sources)
    return (StartTool(runner, shell_actions, sources), ProcessListTool(runner), logs, KillTool(runner))
