"""`shoal completion`: Tab completion of commands, options, agents and files for bash, zsh and fish."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from shoal.kernel import lazy_re
from shoal.kernel.errors import InvalidInput
from shoal.text.order import natural

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.shell_completion import CompletionItem

F = TypeVar("F", bound="Callable[..., object]")
SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_SHOAL_COMPLETE"
"""Environment variable that a shell's completion script sets to request completions."""
_ZSH_BEGINS = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"
_WORD = lazy_re.compile(r"(?<![\w-])[a-z][a-z-]+(?![\w-])")


@click.command(epilog="Example: shoal completion bash")
@click.argument("shell", required=False, type=click.Choice(SHELLS))
@click.option("--print", "only_print", is_flag=True, help="Print the script and change nothing.")
@click.pass_context
def completion(click_context: click.Context, shell: str | None, only_print: bool) -> None:
    """Set up Tab completion for a shell, by default for the current one. It completes commands, options, agents and
    files.

    fish finds the script by itself. bash and zsh load it from a line that this command adds to ~/.bashrc or ~/.zshrc.
    """
    from click.shell_completion import get_completion_class

    shell = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(shell) if shell in SHELLS else None
    if kind is None:
        raise InvalidInput(f"Specify a shell ({', '.join(SHELLS)}), for example `shoal completion bash`.")
    script = kind(click_context.find_root().command, {}, "shoal", VARIABLE).source()
    script = _ZSH_BEGINS + script if shell == "zsh" else script
    if only_print:
        print(script)
        return
    if shell == "fish":
        file, settings = _folder("XDG_CONFIG_HOME", ".config") / "fish/completions/shoal.fish", None
    else:
        file = _folder("XDG_DATA_HOME", ".local/share") / f"shoal/completion.{shell}"
        where = Path(os.environ.get("ZDOTDIR") or Path.home()) if shell == "zsh" else Path.home()
        settings = where / f".{shell}rc"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script, "utf-8")
    print(f"Wrote {file}.")
    if settings is not None:
        line = f'[ -r "{file}" ] && . "{file}"  # completion of shoal'
        before = settings.read_text("utf-8", errors="surrogateescape") if settings.exists() else ""
        if line not in before.splitlines():
            with settings.open("a", encoding="utf-8") as end:
                end.write(f"{'' if before.endswith(chr(10)) or not before else chr(10)}{line}\n")
            print(f"{settings} now loads this script.")
    print("Completion works in every new shell.")


def _folder(variable: str, usual: str) -> Path:
    """Return one of the user's XDG base directories."""
    return Path(os.environ.get(variable) or Path.home() / usual)


def agent_names(home: Path) -> list[str]:
    folder = home / "agents"
    return sorted((entry.name for entry in folder.iterdir() if entry.is_dir()), key=natural) if folder.is_dir() else []


def complete_agents(click_context: click.Context, _: click.Parameter, begun: str) -> "list[CompletionItem]":
    """Complete agent names. Determines the home directory here, because click does not run the command during
    completion.
    """
    from click.shell_completion import CompletionItem

    home = click_context.find_root().params.get("home") or Path(os.environ.get("SHOAL_HOME") or "~/.shoal")
    return [CompletionItem(name) for name in agent_names(home.expanduser()) if name.startswith(begun)]


def agent_option(help: str, default: str = "") -> "Callable[[F], F]":
    return click.option(
        "--agent", default=default, show_default=bool(default), shell_complete=complete_agents, help=help
    )


def words_of(usage: str) -> list[str]:
    """Return the words that may follow a command according to its usage text: `list` and `kill` for `[list|kill
    ID]`.
    """
    return _WORD.findall(usage)
