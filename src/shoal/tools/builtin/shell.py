"""The tool `bash`, which runs a shell command in the sandbox, in the agent's workspace."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeAlias

from msgspec import Meta

from shoal.kernel.errors import ToolError
from shoal.kernel.files import in_thread
from shoal.kernel.permissions import Action
from shoal.kernel.phrases import counted
from shoal.kernel.ports import Command, Invocation, ToolContext, ToolOutput
from shoal.kernel.settings import SandboxSettings
from shoal.kernel.traits import Traits
from shoal.tools.functions import FunctionTool, PreparedCommand, canonical, tool
from shoal.tools.output import text_of
from shoal.tools.terminal import last_state

ShellActions: TypeAlias = Callable[[str, str, ToolContext], tuple[Action, ...]]
"""`(tool, command, context)` returns the actions of a command. See shoal.permissions.actions."""

COMMAND_BYTES_MAX = 100_000
"""Maximum size of a command. The kernel rejects arguments longer than 128 KiB."""

_GIT_SETTINGS = (("safe.bareRepository", "explicit"), ("core.fsmonitor", "false"))
_ENVIRONMENT = (
    ("PYTHONDONTWRITEBYTECODE", "1"),  # bytecode files would count as changed code and invalidate approvals
    ("GIT_CONFIG_COUNT", str(len(_GIT_SETTINGS))),
    *((f"GIT_CONFIG_KEY_{number}", key) for number, (key, _) in enumerate(_GIT_SETTINGS)),
    *((f"GIT_CONFIG_VALUE_{number}", value) for number, (_, value) in enumerate(_GIT_SETTINGS)),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_ASKPASS", "false"),
    ("GIT_PAGER", "cat"),
    ("GIT_EDITOR", "true"),
    ("GIT_SEQUENCE_EDITOR", "true"),
    ("PAGER", "cat"),
)


def command_environment(agent: str) -> tuple[tuple[str, str], ...]:
    """Return the environment variables of every command.

    They keep git from starting a monitor, pager, editor or prompt, from fetching automatically, and from using a
    bare repository that it finds in a folder. Commits carry the agent's name.

    A command can change its environment, so `shoal.permissions.git` does not rely on these variables.
    """
    identity = (("NAME", agent), ("EMAIL", f"{agent}@shoal.invalid"))
    return (*_ENVIRONMENT, *((f"GIT_{who}_{key}", value) for who in ("AUTHOR", "COMMITTER") for key, value in identity))


SECONDS_MAX = 600.0


READ_HERE_BYTES_MAX = 2048
"""Size above which output is decoded in a thread, so that other turns do not wait."""


BASH = tool(
    Traits(
        group="commands",
        offered="always",
        rank=1,
        runs_commands=True,
        origin="mixed",
        names="command",
        harm="command",
        undo="files",
        shows_output=True,
        in_cases=True,
    ),
    name="bash",
    example={"command": "make test"},
)


def bash_tool(shell_actions: ShellActions, bounds: SandboxSettings) -> FunctionTool[Invocation]:
    @BASH
    def bash(
        context: ToolContext,
        command: Annotated[str, "Shell command to run with bash."],
        timeout_seconds: Annotated[float, Meta(ge=0, description="Time limit in seconds; 0 for the default.")] = 0.0,
    ) -> Invocation:
        """Run a shell command with bash in the workspace and get its standard output, standard error and exit code.
        Each command starts fresh: the directory, variables and background processes do not carry over. There is no
        terminal and no standard input. Keep large results in /scratch."""
        text = checked_command(command)
        seconds = timeout_seconds or bounds.timeout_seconds
        if timeout_seconds > SECONDS_MAX:
            raise ToolError(f"timeout_seconds can be at most {SECONDS_MAX:g}.")
        run = Command(
            text=text,
            cwd=context.agent.workspace,
            mounts=context.mounts,
            timeout_seconds=seconds,
            output_bytes_max=bounds.output_bytes_max,
            env=command_environment(context.agent.name),
        )
        cwd = context.sandbox.inside(run.cwd, context.mounts)
        effect = canonical("bash", command=text, cwd=cwd, sandbox=context.sandbox.name, timeout=seconds)

        async def work(command: Command, tainted_by: str) -> ToolOutput:
            result = await context.sandbox.run(command)
            parts: list[str] = []
            raw: list[str] = []
            for heading, name, data, is_cut in (
                ("", "standard output", result.stdout, result.stdout_cut),
                ("[standard error]\n", "standard error", result.stderr, result.stderr_cut),
            ):
                if data:
                    cut = f"\n[{name} was truncated to its first {counted(len(data), 'byte')}]" if is_cut else ""
                    read = partial(_read, data)
                    text, last = read() if len(data) < READ_HERE_BYTES_MAX else await in_thread(read)
                    parts.append(heading + last + cut)
                    raw.append(heading + text + cut)
            if not parts:
                parts.append("[no output]")
            if result.timed_out:
                parts.append(f"[killed with all its processes after the time limit of {counted(seconds, 'second')}]")
            else:
                parts.append(f"[exit code {result.exit_code}]")
            whole = "\n".join(raw) if raw != parts[: len(raw)] else ""
            return ToolOutput("\n".join(parts), is_error=result.timed_out, raw=whole, exit_code=result.exit_code or 0)

        return PreparedCommand(shell_actions("bash", text, context), text, effect, run, work)

    return bash


def _read(data: bytes) -> tuple[str, str]:
    text = text_of(data).removesuffix("\n")
    return text, last_state(text)


def checked_command(text: str) -> str:
    """Return `text` unchanged. Raises ToolError if it is empty, too long, or contains a NUL character."""
    if not text.strip() or "\0" in text:
        raise ToolError("The command is empty." if not text.strip() else "A command cannot contain a NUL character.")
    if len(text.encode("utf-8", errors="replace")) > COMMAND_BYTES_MAX:
        raise ToolError(f"The command is longer than {COMMAND_BYTES_MAX:,} bytes. Write a script file and run that.")
    return text
