"""The `shoal` command. It finds the subcommand, and turns each failure into a one-line error and an exit code.

The module of a subcommand is imported when the subcommand is used. `shoal --help` imports none of these modules.
"""

import atexit
import errno
import gc
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, cast

import click

from shoal.feature import Feature, features
from shoal.kernel.errors import ConfigError, NotFound, ShoalError, StoreNewer, StoreUnreleased
from shoal.surfaces.cli.context import CommandContext

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

REMEDIES = {
    errno.ENOSPC: "Free some space, then try again.",
    errno.EDQUOT: "Free some space, then try again.",
    errno.EROFS: "Choose another location, or make this one writable.",
    errno.EEXIST: "Move the existing file or folder away.",
    errno.ENOTDIR: "Part of this path is a file, not a folder. Rename that file.",
    errno.EISDIR: "Shoal needs a file there. Move the folder away.",
    errno.EINVAL: "Move the existing file or folder somewhere else, then try again.",
    errno.ELOOP: "Remove the link that points to itself.",
}
"""Remedies for operating system errors other than missing permissions, by error number."""
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class CommandEntry(NamedTuple):
    """A subcommand in the table of `shoal --help`.

    module: the module in shoal.surfaces.cli that defines the command.
    help: the description in the table.
    name: the name that the module uses for the command, if it differs.
    feature: the feature that provides the command.
    package: the separate package that provides the command.
    """

    module: str
    help: str
    name: str = ""
    feature: Feature | None = None
    package: str = ""


EXAMPLE = 'Example: shoal ask "What can you do?"'
_CORE = {
    "Start and use Shoal": {
        "setup": CommandEntry("setup", "Set up a model, a chat, the sandbox and automatic start."),
        "run": CommandEntry("run", "Run Shoal: agents, chats, schedules, the page and the API."),
        "ask": CommandEntry("ask", "Send one message and print the reply."),
        "chat": CommandEntry("chat", "Chat in the terminal."),
        "doctor": CommandEntry("doctor", "Find problems, and show what to do next."),
        "docs": CommandEntry("docs", "Print the documentation on a topic, such as ollama."),
        "completion": CommandEntry("completion", "Set up Tab completion for bash, zsh or fish."),
    },
    "Decide who may do what": {
        "pair": CommandEntry("access", "Give people access with a pairing code: CODE, list, remove."),
        "approvals": CommandEntry("approvals", "Review approval requests: list, show, allow, deny."),
        "permissions": CommandEntry("access", "Permission rules: check, suggest, add, remove."),
        "token": CommandEntry("access", "Tokens with limited scopes: create, list, revoke."),
        "audit": CommandEntry("reports", "Read and verify the audit log."),
    },
    "Set up agents": {
        "agents": CommandEntry("agents", "Agents: list, create, config, bind, destroy."),
        "models": CommandEntry("reports", "Models: list, refresh, quirks, forget."),
        "skills": CommandEntry("reports", "Skills: list, install, remove, check."),
    },
    "Schedule": {},
    "Inspect": {
        "threads": CommandEntry("threads", "Conversation threads: list, show, export, fork, undo, delete."),
        "context": CommandEntry("threads", "Show the size of each part of a model request."),
        "usage": CommandEntry("reports", "Tokens and cost by day, agent and model."),
    },
    "Back up and move": {
        "init": CommandEntry("init", "Create the home directory."),
        "import": CommandEntry("", "Import from OpenClaw, Hermes, nanobot or Open WebUI.", package="shoal-import"),
    },
    "Run Shoal on many machines": {
        "serve": CommandEntry("run", "Run platforms, page, API and triggers."),
        "worker": CommandEntry("run", "Run turns."),
        "migrate": CommandEntry("migrate", "Update the database, or move it to PostgreSQL."),
    },
}


def _of_features(job: str) -> dict[str, CommandEntry]:
    return {
        command.name: CommandEntry("", command.help, command.entry, feature)
        for feature in features()
        for command in feature.cli
        if command.job == job and not command.group
    }


JOBS = {job: of_job for job, commands in _CORE.items() if (of_job := {**commands, **_of_features(job)})}
COMMANDS = {name: entry for commands in JOBS.values() for name, entry in commands.items()}


def _whole_first(args: list[str]) -> list[str]:
    """Move `--home` and `--debug` to the front, because click accepts them only before the subcommand."""
    end = args.index("--") if "--" in args else len(args)
    first: list[str] = []
    rest: list[str] = []
    at = 0
    while at < end:
        width = 2 if args[at] == "--home" else 1
        if at + width > end:
            raise click.UsageError("--home needs the path of a directory.")
        whole = args[at] in ("--home", "--debug") or args[at].startswith("--home=")
        (first if whole else rest).extend(args[at : min(at + width, end)])
        at += width
    return [*first, *rest, *args[end:]]


def _is_added(name: str) -> bool:
    from shoal.extensions import extensions

    return name in extensions("shoal.cli")


def _of_package(name: str, package: str) -> click.Command | None:
    from shoal.extensions import load_extension
    from shoal.installation import how_to_add_package

    if _is_added(name):
        command = load_extension("shoal.cli", name)
        if not isinstance(command, click.Command):
            raise ConfigError([f"{name!r} in shoal.cli is not a click command."])
        return command
    if package:
        raise NotFound(f"`shoal {name}` is in the package {package}. {how_to_add_package(package)}")
    return None


class Subcommands(click.Group):
    """A group that imports a subcommand when it is used. Listing the built-in subcommands imports none of them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _whole_first(args))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from importlib import import_module

        entry, found = COMMANDS.get(cmd_name), object()
        if entry is None or entry.package:
            return _of_package(cmd_name, entry.package if entry is not None else "")
        if entry.feature is not None:
            found = entry.feature.load(entry.name)
        else:
            found = getattr(import_module(f"shoal.surfaces.cli.{entry.module}"), entry.name or cmd_name)
        if isinstance(found, click.Group):
            for feature in features():
                for command in feature.cli:
                    if command.group == cmd_name:
                        found.add_command(cast(click.Command, feature.load(command.entry)), command.name)
        assert isinstance(found, click.Command)
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        items = [
            CompletionItem(name, help=command.help) for name, command in COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for job, commands in JOBS.items():
            with formatter.section(job):
                formatter.write_dl([(f"{name:<{width}}", entry.help) for name, entry in commands.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS and not _is_added(args[0]):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]}?" if near else " Run `shoal --help` to list all commands."
            raise click.UsageError(f"No command named {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.command(cls=Subcommands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXAMPLE)
@click.option(
    "--home",
    type=click.Path(path_type=Path, readable=False),
    help="Home directory. [default: $SHOAL_HOME or ~/.shoal]",
)
@click.option("--debug", is_flag=True, help="Show the full traceback of errors.")
@click.version_option(package_name="shoal", message="shoal %(version)s", help="Show the version.")
@click.pass_context
def shoal(click_context: click.Context, home: Path | None, debug: bool) -> None:
    """A self-hosted runtime for AI agents that live in chats."""
    chosen = home or Path(os.environ.get("SHOAL_HOME") or "~/.shoal")
    context = click_context.ensure_object(CommandContext)
    context.root, context.debug = Path(os.path.abspath(chosen.expanduser())), debug


def run(arguments: list[str], context: CommandContext | None = None) -> int:
    """Run the command line and return the exit code: 0 done, 1 failed, 2 usage error, 130 interrupted."""
    context = context or CommandContext(Path())
    debug = "--debug" in arguments
    try:
        code: object = shoal.main(arguments, prog_name="shoal", standalone_mode=False, obj=context)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_USAGE
    except click.ClickException as error:
        _complain(context, error)
        return EXIT_USAGE
    except click.Abort as error:
        # A confirmation was declined, or standard input ended.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            print(file=sys.stderr)
            _complain(context, ShoalError("Nothing was changed. Use `--yes` to skip the question."))
        return EXIT_INTERRUPTED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except (ShoalError, OSError) as error:
        if debug:
            raise
        _complain(context, error)
        return EXIT_USAGE if isinstance(error, StoreNewer | StoreUnreleased) else EXIT_FAILED
    except ExceptionGroup as group:  # a service failed and ended the others
        errors = _leaves(group)
        if debug or not all(isinstance(error, (ShoalError, OSError)) for error in errors):
            raise
        for error in errors:
            _complain(context, error)
        return EXIT_FAILED
    return code if isinstance(code, int) else 0


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    inner = cast("tuple[BaseException, ...]", error.exceptions)
    return [leaf for command in inner for leaf in _leaves(command)]


def _other_schema(context: CommandContext) -> list[str]:
    """Explain unknown keys of `shoal.toml`, if a Shoal version with another schema has used the home directory."""
    from shoal.store.driver import migrations
    from shoal.store.sqlite import refuse_schema, schema_version

    database = context.home.database_file
    try:
        if database.is_file():
            refuse_schema(schema_version(database), migrations("sqlite")[-1][0], database)
    except (StoreNewer, StoreUnreleased) as error:
        return [str(error)]
    except (ShoalError, OSError):
        pass
    return []


def _complain(context: CommandContext, error: BaseException) -> None:
    match error:
        case ConfigError():
            lines = [*error.problems, *_other_schema(context)]
        case click.ClickException():
            is_argument = isinstance(error, click.BadParameter) and isinstance(error.param, click.Argument)
            message = " ".join((error.message if is_argument and error.message else error.format_message()).split())
            message = message.replace("a valid integer range", "a whole number").replace(
                "a valid integer", "a whole number"
            )
            if not message.endswith("?") and not (
                type(error) is click.UsageError and message.endswith(".")
            ):  # click wrote this message
                path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "shoal"
                message = f"{message.rstrip('.')}. See `{path} --help`."
            lines = [message]
        case PermissionError() if context.root.is_dir() and not os.access(context.root, os.R_OK | os.X_OK):
            todo = "Run Shoal as its owner, or choose another directory with --home DIR."
            lines = [f"You do not have permission to read {context.root}. {todo}"]
        case OSError():
            # write errors contain no file name
            path = error.filename or (context.root if error.errno in _OF_DISKS else "")
            where = f"{path}: " if path else ""
            todo = REMEDIES.get(error.errno or 0, "Check that the path exists and that you own it.")
            lines = [f"{where}{error.strerror or error}. {todo}"]
        case _:
            lines = [" ".join(str(error).split())]
    from shoal.surfaces.cli.output import echo

    redactor = context.redactor()
    for line in lines:
        echo(f"shoal: {redactor.redact(line)}", sys.stderr)


def main() -> None:
    """Run the `shoal` command as a process. Startup runs without garbage collection, and long-running commands
    enable it with `collect_seldom`.
    """
    gc.disable()
    ended: list[int] = []

    def leave() -> None:
        """End the process without freeing objects one by one."""
        if ended:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ended[0])

    def crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        from shoal.permissions.redact import print_crash

        print_crash(context.redactor(), kind, error, trace)

    atexit.register(leave)  # runs after the handlers that commands register
    context = CommandContext(Path())
    sys.excepthook = crash
    ended.append(run(sys.argv[1:], context))
    sys.exit(ended[0])
