"""Tools for processes that outlive a turn: `process_start`, `process_list`, `process_logs`, `process_kill`."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from shoal.features.processes.records import Hook, Process, ProcessSpec
from shoal.features.processes.service import ProcessService
from shoal.features.processes.status import line_of
from shoal.kernel.errors import InvalidInput, NotFound, ToolError
from shoal.kernel.ids import ThreadId
from shoal.kernel.permissions import Action
from shoal.kernel.phrases import counted
from shoal.kernel.ports import Command, Invocation, Mount, Tool, ToolContext, ToolOutput
from shoal.kernel.traits import LOOKUP, Traits
from shoal.tools.builtin.shell import ShellActions, checked_command, command_environment
from shoal.tools.executor import Executor
from shoal.tools.functions import PreparedCommand, as_tool_error, canonical, planned, tool
from shoal.tools.registry import command_actions

if TYPE_CHECKING:
    from shoal.services import Services

HOOKS_MAX = 8
LINE_CHARS_MAX = 2000

TaintSources: TypeAlias = Callable[[Sequence[Action], Sequence[Mount]], Awaitable[str]]
"""Returns the untrusted source that taints the output of a command with these actions and mounts, or an empty
string.
"""
ProcessId = Annotated[str, Meta(description="The process's id.", max_length=64)]


class HookArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A hook, as the model writes it."""

    on: Annotated[
        Literal["exit", "output", "timeout"],
        Meta(
            description="exit: the process ended. output: a line matches. timeout: it is still running after some time."
        ),
    ]
    note: Annotated[str, Meta(description="What to do then. You see this note in the new turn.", max_length=2000)] = ""
    codes: Annotated[tuple[int, ...], Meta(description="exit: only with one of these exit codes.", max_length=32)] = ()
    pattern: Annotated[
        str, Meta(description="output: a regular expression, searched for in each line.", max_length=500)
    ] = ""
    after_seconds: Annotated[float, Meta(description="timeout: after this many seconds.", ge=0, le=604_800)] = 0.0
    fires_max: Annotated[int, Meta(description="output: fire at most this many times.", ge=1, le=20)] = 1
    interval_seconds: Annotated[
        float, Meta(description="output: minimum number of seconds between firings.", ge=1, le=86_400)
    ] = 10.0


_LOOK = replace(
    LOOKUP,
    group="processes",
    shows_output=True,
)
PROCESS_LIST = tool(_LOOK, name="process_list", example={"running": True})
PROCESS_LOGS = tool(_LOOK, name="process_logs", example={"process": "01ABC", "tail": 20})
PROCESS_START = tool(
    Traits(
        group="processes",
        offered="deferred",
        effect="lasting",
        runs_commands=True,
        origin="mixed",
        names="command",
        harm="outside",
        undo="files",
        shows_output=True,
    ),
    name="process_start",
    example={"command": "make all", "name": "build", "hooks": [{"on": "output", "pattern": "error: .*"}]},
)
PROCESS_KILL = tool(
    Traits(
        group="processes",
        offered="deferred",
        effect="lasting",
        idempotent=True,
        origin="mixed",
        harm="outside",
        changes="nothing",
    ),
    name="process_kill",
    example={"process": "01ABC"},
)


def tools(services: "Services") -> tuple[Tool, Tool, Tool, Tool]:
    return process_tools(services[ProcessService], command_actions, services[Executor].source_of)


def process_tools(
    processes: ProcessService, shell_actions: ShellActions, sources: TaintSources
) -> tuple[Tool, Tool, Tool, Tool]:
    """Build the process tools. `sources` returns the taint of content that a process reads while it runs."""

    @PROCESS_START
    def process_start(
        context: ToolContext,
        command: Annotated[str, "Shell command to run with bash in the workspace."],
        name: Annotated[str, Meta(description="Short name to show in lists.", max_length=60)] = "",
        hooks: Annotated[
            tuple[HookArguments, ...],
            Meta(description="Conditions that start a turn in this conversation.", max_length=HOOKS_MAX),
        ] = (),
    ) -> Invocation:
        """Start a long-running command (a build, a server, a watcher) in the sandbox. It continues after your turn and
        ends when Shoal stops. Read its output with process_logs. Hooks start a turn in this conversation when the
        command ends, prints a matching line or takes too long, so do not wait for it.
        """
        text, checked = checked_command(command), _checked(hooks, processes)
        env = command_environment(context.agent.name)
        run = Command(text=text, cwd=context.agent.workspace, mounts=context.mounts, env=env)

        def reads() -> tuple[Action, ...]:
            """Return the command's actions, including those of the same command in `bash`. A rule that denies a command
            in `bash` therefore also denies it here.
            """
            as_bash = shell_actions("bash", text, context)
            views = (
                Action(f"tool:process_start:{text}", whole=True, also=(action.text, *action.also)) for action in as_bash
            )
            return (*shell_actions("process_start", text, context), *views)

        cwd = context.sandbox.inside(run.cwd, context.mounts)
        effect = canonical("process_start", command=text, cwd=cwd, sandbox=context.sandbox.name, hooks=checked)
        plain_name = " ".join("".join(char if char.isprintable() else " " for char in name).split())

        async def work(command: Command, tainted_by: str) -> ToolOutput:
            spec = ProcessSpec(
                agent=context.agent.name,
                thread=context.thread,
                command=text,
                author=context.purpose.person,
                tainted_by=context.purpose.tainted_by or tainted_by,
                name=plain_name,
                hooks=checked,
                depth=await processes.rows.depth(context.thread, context.turn),
                told_in=context.chat if context.chat != context.thread else ThreadId(""),
            )
            with as_tool_error(InvalidInput):
                process = await processes.start(
                    spec, command, context.sandbox, lambda: sources(reads(), context.mounts)
                )
            then = "A turn starts when a hook fires." if checked else "It has no hooks, so check on it yourself."
            return ToolOutput(f"Started process {line_of(process, context.clock.now())}. {then}")

        shown = "\n".join([text, *(f"then starts a turn on {_shown_hook(hook)}" for hook in checked)])
        return PreparedCommand(reads(), shown, effect, run, work)

    @PROCESS_LIST
    def process_list(context: ToolContext, running: Annotated[bool, "Only running processes."] = False) -> Invocation:
        """List the processes you have started, with their ids, names and states."""
        which = "running" if running else "all"

        async def work() -> ToolOutput:
            rows = await processes.of_agent(context.agent.name, context.within, running=running)
            lines = [line_of(row, context.clock.now()) for row in rows]
            tainted_by = next((row.spec.tainted_by for row in rows if row.spec.tainted_by), "")
            return ToolOutput("\n".join(lines) or "No processes.", tainted_by=tainted_by)

        effect = {"agent": context.agent.name, "which": which, "within": context.within}
        return planned("process_list", which, work, f"list {which} processes", **effect)

    @PROCESS_LOGS
    def process_logs(
        context: ToolContext,
        process: ProcessId,
        tail: Annotated[int, Meta(description="Number of lines from the end.", ge=1, le=1000)] = 100,
        offset: Annotated[
            int, Meta(description="Start at this byte instead. The result contains the next offset.", ge=-1)
        ] = -1,
        grep: Annotated[str, Meta(description="Only lines that contain this text.", max_length=200)] = "",
    ) -> Invocation:
        """Read the output of a process you have started, either its end or the part after an offset."""

        async def work() -> ToolOutput:
            row = await _own_process(processes, process, context)
            try:
                piece = await processes.read(row, offset=offset, lines_max=tail, contains=grep)
            except OSError as error:
                raise ToolError(f"Shoal could not read the log: {error.strerror or error}.") from error
            reads = shell_actions("process_start", row.spec.command, context)
            source = row.spec.tainted_by or await sources(reads, context.mounts)
            lines = [line if len(line) <= LINE_CHARS_MAX else f"{line[:LINE_CHARS_MAX]}…" for line in piece.lines]
            if piece.lost_bytes:
                lines.insert(0, f"[{piece.lost_bytes:,} earlier bytes were deleted]")
            head, end = line_of(row, context.clock.now()), f"{piece.next_offset} of {piece.total_bytes}"
            text = "\n".join([f"[{head}]", *lines, *([] if piece.lines else ["[no lines]"]), f"[next offset {end}]"])
            return ToolOutput(text, is_piece=True, tainted_by=source)

        effect = {"process": process, "tail": tail, "offset": offset, "grep": grep}
        return planned("process_logs", " ".join(process.split()), work, f"read the log of process {process}", **effect)

    @PROCESS_KILL
    def process_kill(context: ToolContext, process: ProcessId) -> Invocation:
        """Kill a process that you started and all its children. Its hooks do not fire."""

        async def work() -> ToolOutput:
            row = await _own_process(processes, process, context)
            if row.state != "running":
                text = f"The process is no longer running: {line_of(row, context.clock.now())}."
                return ToolOutput(text, tainted_by=row.spec.tainted_by)
            try:
                await processes.kill(row.id, f"the agent {context.agent.name}")
            except NotFound:
                return ToolOutput("The process has just ended.")
            return ToolOutput(f"Killing process {row.id}.")

        return planned("process_kill", " ".join(process.split()), work, f"kill process {process}", process=process)

    return process_start, process_list, process_logs, process_kill


def _checked(given: tuple[HookArguments, ...], processes: ProcessService) -> tuple[Hook, ...]:
    hooks = msgspec.convert(msgspec.to_builtins(given), tuple[Hook, ...])
    for hook in hooks:
        if hook.on == "output" and not hook.pattern:
            raise ToolError("A hook on output needs a `pattern`.")
        if hook.on == "timeout" and hook.after_seconds <= 0:
            raise ToolError("A hook on timeout needs `after_seconds`.")
    with as_tool_error(InvalidInput):
        processes.check(hooks)
    return hooks


def _shown_hook(hook: Hook) -> str:
    match hook.on:
        case "exit":
            what = f"exit with code {', '.join(map(str, hook.codes))}" if hook.codes else "exit"
        case "output":
            what = f"output that matches {hook.pattern!r}, at most {counted(hook.fires_max, 'time')}"
        case "timeout":
            what = f"timeout after {counted(hook.after_seconds, 'second')}"
    return f"{what}: {hook.note}" if hook.note else what


async def _own_process(processes: ProcessService, id: str, context: ToolContext) -> Process:
    """Return the agent's process with this id. The error for another agent's process is the same as for an unknown
    process.
    """
    with suppress(NotFound):
        process = await processes.get(id.strip())
        if process.spec.agent == context.agent.name and process.spec.chat.startswith(context.within):
            return process
    raise ToolError(f"You have no process {id.strip()[:80]}. process_list shows your processes.")
