"""`shoal permissions check`: what a profile decides, without running anything."""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from shoal.domain.errors import ConfigError
from shoal.domain.permissions import Action, Decision, Ruling
from shoal.surfaces.cli.output import json_option, print_json, print_table, printable
from shoal.surfaces.cli.place import Place

if TYPE_CHECKING:
    from shoal.permissions.rules import Profile, ProfileSource

SHELL_TOOL = "bash"


class Whole(msgspec.Struct, frozen=True):
    """The answer to a whole shell command."""

    decision: Decision
    parts: tuple[Ruling, ...]


@click.group()
def permissions() -> None:
    """What agents may do."""


@permissions.command()
@click.option("--profile", metavar="NAME|FILE", help="A profile, or a TOML file with deny, allow and ask lists.")
@click.option("--shell", "command", metavar="COMMAND", help="Decide on a whole shell command and list its parts.")
@click.option("--tool", default=SHELL_TOOL, show_default=True, help="The tool that would run the shell command.")
@click.argument("actions", nargs=-1, metavar="[ACTION…|-]")
@json_option
@click.pass_obj
def check(
    place: Place, profile: str | None, command: str | None, tool: str, actions: tuple[str, ...], as_json: bool
) -> None:
    """Say what a profile decides on each ACTION: allow, ask or deny, and by which rule.

    An action is tool:NAME:DETAIL, e.g. "tool:bash:git status" or "tool:write:/workspace/notes.md". With - one action a
    line is read from standard input.
    """
    if (command is None) == (not actions):
        raise click.UsageError("Give actions, or --shell with one command.")
    rules = load_profile(place, profile)
    if command is not None:
        _check_shell(rules, tool, command, as_json=as_json)
        return
    from shoal.permissions.engine import decide

    texts = [line.rstrip("\r\n") for line in sys.stdin] if actions == ("-",) else list(actions)
    rulings = [decide(rules, _action(text)) for text in texts if text]
    if as_json:
        print_json(rulings)
    else:
        _print_rulings(rulings)


def load_profile(place: Place, name: str | None) -> "Profile":
    """The profile of this name, built in or of the configuration, or that of a file; without a name the default one.

    Raises ConfigError when there is none, or with every pattern that is refused.
    """
    from shoal.permissions.rules import BUILTIN_PROFILES, Profiles, ProfileSource, compile_profile

    if name is not None and name in BUILTIN_PROFILES:
        return Profiles().get(name)
    if name is not None and (Path(name).is_file() or "/" in name or name.endswith(".toml")):
        return compile_profile(Path(name).name, _read_file(Path(name)))
    config = place.config().permissions
    sources = {
        key: msgspec.convert(msgspec.structs.asdict(profile), ProfileSource) for key, profile in config.profiles.items()
    }
    return Profiles(sources).get(config.default_profile if name is None else name)


def _read_file(path: Path) -> "ProfileSource":
    from shoal.permissions.rules import ProfileSource

    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), ProfileSource)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError([f"{path}: {error}; allowed: deny, allow, ask and trusted_allow lists, extends."]) from error


def _action(text: str) -> Action:
    """The action as an agent's call would have it: a command that hides what it runs has to be named by a rule."""
    from shoal.permissions.actions import shell_actions

    if text.startswith(f"tool:{SHELL_TOOL}:"):
        command = text.removeprefix(f"tool:{SHELL_TOOL}:")
        parts = [part for part in shell_actions(SHELL_TOOL, command, cwd=Path("/workspace")) if not part.whole]
        if len(parts) == 1 and parts[0].text == text:
            return parts[0]
    return Action(text)


def _check_shell(profile: "Profile", tool: str, command: str, *, as_json: bool) -> None:
    from shoal.permissions.actions import shell_actions
    from shoal.permissions.engine import decide_all

    decision, rulings = decide_all(profile, shell_actions(tool, command, cwd=Path("/workspace")))
    if as_json:
        print_json(Whole(decision, rulings))
        return
    print(decision)
    _print_rulings(rulings)


def _print_rulings(rulings: Sequence[Ruling]) -> None:
    rows = [
        (ruling.decision, printable(ruling.action), printable(ruling.rule) or "no rule matches") for ruling in rulings
    ]
    print_table(("decision", "action", "rule"), rows, "There was no action to decide on.")
