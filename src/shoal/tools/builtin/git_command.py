"""Runs git for the git tools, so that nothing that stands in a repository's configuration can run a program.

Each call is one script for the sandbox: git with settings of its own before the step's words, and an environment in
which no configuration of the machine is read. No hook, pager, editor, filter, external diff, textconv, file system
monitor, signing program or credential helper is started.
"""

import re
import shlex
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

import msgspec

from shoal.domain.errors import ToolError
from shoal.domain.permissions import Action
from shoal.domain.ports import Command, CommandResult, Invocation, ToolContext, ToolOutput
from shoal.tools.jail import Jail, Place, jail_of
from shoal.tools.output import text_of
from shoal.tools.typed import Prepared, TypedTool, canonical

GIT_SECONDS_MAX = 60.0
GIT_BYTES_MAX = 1_048_576
"""Longest output kept of one stream, in bytes."""

_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.pager=cat",
    "core.editor=true",
    "core.sshCommand=ssh -oBatchMode=yes",
    "core.askPass=true",
    "core.attributesFile=/dev/null",
    "core.alternateRefsCommand=true",
    "protocol.ext.allow=never",
    "credential.helper=",
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "push.gpgSign=false",
    "gpg.program=false",
    "log.showSignature=false",
    "safe.bareRepository=explicit",
    "submodule.recurse=false",
    "diff.ignoreSubmodules=all",
    "status.submoduleSummary=false",
    "push.recurseSubmodules=no",
    "gc.auto=0",
    "maintenance.auto=false",
    "init.defaultBranch=main",
    "safe.directory=*",
    "color.ui=false",
    "core.quotePath=false",
    "advice.detachedHead=false",
)
_ENVIRONMENT = (
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_ALLOW_PROTOCOL", "file:git:http:https:ssh"),
    ("GIT_PAGER", "cat"),
    ("GIT_EDITOR", "true"),
    ("GIT_SEQUENCE_EDITOR", "true"),
    ("GIT_LITERAL_PATHSPECS", "1"),
    ("LC_ALL", "C.UTF-8"),
)
# Filters are programs that the repository's configuration names; each is emptied by its own name.
_PRELUDE = (
    'off=(); while IFS= read -r name; do off+=(-c "$name="); done < <(git config --name-only --get-regexp '
    "'^filter[.].*[.](clean|smudge|process|required)$' 2>/dev/null | sort -u); "
)
_NO_NETWORK = re.compile(
    r"could not resolve|unable to access|connection (refused|timed out)|network is unreachable|could not connect"
    r"|CONNECT tunnel failed|proxy|temporary failure in name resolution|connection closed|host key|cannot run ssh",
    re.IGNORECASE,
)

GitArguments = TypeVar("GitArguments", bound=msgspec.Struct)


class GitCall(msgspec.Struct, frozen=True):
    """One call of git: what the action says beside the tool's name, and the steps, each a list of words after `git`.

    `effect` is what else determines what happens; `names` are other texts for the same action.
    """

    detail: str
    steps: tuple[tuple[str, ...], ...]
    shown: str = ""
    effect: str = ""
    names: tuple[str, ...] = ()
    seconds_max: float = GIT_SECONDS_MAX
    uses_network: bool = False


class GitTool(TypedTool[GitArguments], Generic[GitArguments]):
    """What all of them do: resolve the repository's directory, run git there, and tell how it ended."""

    runs_commands: ClassVar[bool] = True

    def plan(self, arguments: GitArguments, context: ToolContext) -> Invocation:
        """Resolve the directory and say what will run. Raises ToolError."""
        jail = jail_of(context)
        place = jail.resolve(str(getattr(arguments, "path")))  # noqa: B009 (each kind of arguments has it)
        if not place.root.writable or place.root.shown == "/":
            raise ToolError(f"{place.shown} is not in the workspace, and the git tools work only there.")
        call = self.call(arguments, place, jail)
        command = Command(
            text=_script(call.steps),
            cwd=place.host,
            mounts=context.mounts,
            timeout_seconds=call.seconds_max,
            output_bytes_max=GIT_BYTES_MAX,
            env=(*_ENVIRONMENT, *_identity(context), ("GIT_CEILING_DIRECTORIES", _above(place, context))),
        )
        detail = f"{self.name}:{call.detail}"
        action = Action(f"tool:{detail}", also=tuple(f"tool:{self.name}:{name}" for name in call.names))
        effect = canonical(
            self.name,
            command=command.text,
            cwd=place.shown,
            author=context.agent.name,
            sandbox=context.sandbox.name,
            depends=call.effect,
        )

        async def work() -> ToolOutput:
            return told(await context.sandbox.run(command), call)

        shown = call.shown or f"{self.name} {call.detail}"
        return Prepared((action,), f"{shown}\n(in {place.shown})", effect, work)

    def call(self, arguments: GitArguments, place: Place, jail: Jail) -> GitCall:
        """What is asked of git. Raises ToolError when an argument is not what it should be."""
        raise NotImplementedError


def _script(steps: Sequence[Sequence[str]]) -> str:
    settings = shlex.join(word for setting in _SETTINGS for word in ("-c", setting))
    lines = (f'git {settings} "${{off[@]}}" {shlex.join(step)}' for step in steps)
    return _PRELUDE + " && ".join(lines)


def _identity(context: ToolContext) -> tuple[tuple[str, str], ...]:
    name = context.agent.name
    return tuple(
        (f"GIT_{who}_{what}", value)
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", name), ("EMAIL", f"{name}@shoal.invalid"))
    )


def _above(place: Place, context: ToolContext) -> str:
    """Where git stops to look for a repository: above the mount that holds the place."""
    return context.sandbox.inside(place.root.host, context.mounts).rsplit("/", 1)[0] or "/"


def told(result: CommandResult, call: GitCall) -> ToolOutput:
    """How git ended, as the model reads it."""
    parts = [text_of(stream).rstrip("\n") for stream in (result.stdout, result.stderr) if stream.strip()]
    if result.stdout_cut or result.stderr_cut:
        parts.append(f"[the output went on; only its first {GIT_BYTES_MAX:,} bytes were kept]")
    if result.timed_out:
        parts.append(f"[ended after {call.seconds_max:g} seconds]")
        return ToolOutput("\n".join(parts), is_error=True)
    if result.exit_code == 0:
        return ToolOutput("\n".join(parts) or "[done; git said nothing]")
    if result.exit_code == 127:
        parts.append("[git is not installed where commands run]")
    if call.uses_network and _NO_NETWORK.search("\n".join(parts)):
        parts.append(
            "[Commands have no way to that host: the owner opens it with `network` in the section [sandbox] of "
            "shoal.toml. Stored credentials are not used; a push that needs some has to be made by a person.]"
        )
    parts.append(f"[git failed with exit code {result.exit_code}]")
    return ToolOutput("\n".join(parts), is_error=True)
