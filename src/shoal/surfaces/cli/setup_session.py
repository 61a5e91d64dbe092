"""One run of `shoal setup`: the answers, the questions, and the settings to write."""

import importlib
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from shoal.config import Config, load_config
from shoal.installation import install_command
from shoal.kernel.errors import InvalidInput
from shoal.kernel.secret import Secret
from shoal.setup import choices
from shoal.setup.writing import value_of, write_settings
from shoal.surfaces.cli.context import CommandContext
from shoal.surfaces.cli.output import echo
from shoal.surfaces.cli.prompts import ask_line, ask_yes
from shoal.text.toml_edit import Value

NOTHING: Mapping[str, Value] = {}


class LeftOut(Exception):
    """Raised when a step ends without a change. The message gives the reason."""


class SetupSession:
    """Reads answers from command-line options first, and then from the terminal.

    asks: True if setup may ask questions.
    runs: True if a running server applies the settings.
    """

    def __init__(
        self,
        context: CommandContext,
        given: dict[str, str],
        settings: tuple[str, ...],
        again: tuple[str, ...],
        *,
        asks: bool,
    ) -> None:
        self.context = context
        self.given = given
        self.again = again
        self.asks = asks
        self.runs = False
        self.extra: dict[str, str] = {}
        for setting in settings:
            name, equals, text = setting.partition("=")
            if not equals:
                raise InvalidInput(f"--set {setting} has no value. Use --set KEY=VALUE.")
            self.extra[name.strip()] = text

    def choose(self, name: str, question: str, choices: Mapping[str, str], default: str) -> str:
        if name in self.given:
            return self.given.pop(name)
        if not self.asks:
            return default
        names = list(choices)
        echo(f"\n{question}")
        for number, text in enumerate(choices.values(), 1):
            echo(f"  {number}  {text}")
        while True:
            answer = ask_line("Number", "1").lower()
            if answer.isdecimal() and 1 <= int(answer) <= len(names):
                return names[int(answer) - 1]
            if answer in names:
                return answer
            matches = [name for name, text in choices.items() if answer in f"{name} {text}".lower()]
            if len(matches) == 1 and not answer.isdecimal():
                return matches[0]
            echo(f"Choose a number from 1 to {len(names)}, or type part of a name.")

    def ask(self, name: str, question: str, default: str = "") -> str:
        """Return the value of the option `name`, or prompt for it. Each option is used only once.

        If setup may not ask, returns the default. Raises LeftOut if there is no default.
        """
        if name in self.given:
            return self.given.pop(name)
        if not self.asks:
            if default:
                return default
            raise LeftOut(f"--{name.replace('_', '-')} is missing.")
        return ask_line(question, default)

    def secret(self, name: str, question: str, kind: str) -> str:
        """Read a secret without echo. Rejects a secret that is obviously of a different kind.

        Raises LeftOut if setup may not ask and the secret is required.
        """
        while True:
            if name in self.given:
                value = read_source(self.given.pop(name))
                if not value:
                    raise LeftOut(f"The value of --{name.replace('_', '-')} is empty.")
            elif self.asks:
                back = "not shown; Enter goes back" if kind else "not shown; Enter for none, - goes back"
                value = ask_line(f"{question} ({back})", is_secret=True, may_be_empty=True)
            else:
                value = ""
                if kind:
                    raise LeftOut(f"--{name.replace('_', '-')} is missing.")
            problem = choices.mistaken(value, kind) if value and kind else ""
            if not problem:
                return value
            if not self.asks:
                raise LeftOut(problem)
            self.say("model" if name == "key" else "chat", f"{problem} Try again.")

    def has_extra(self, extra: str) -> bool:
        """Return True if the packages that a choice needs are installed. Offers to install missing packages."""
        if not choices.lacking_package(extra):
            return True
        command = install_command(extra)
        self.say("extra", f"This choice needs the `{extra}` extra.")
        if not self.asks or not ask_yes(f"Install it now ({shlex.join(command)})?", default=True):
            self.say("extra", f"Run {shlex.join(command)}, then `shoal setup` again.")
            return False
        done = subprocess.run(command, check=False)
        importlib.invalidate_caches()
        if done.returncode or choices.lacking_package(extra):
            self.say("extra", "The installation failed. See the output above.")
            return False
        return True

    def say(self, topic: str, text: str) -> None:
        """Print a line with secrets redacted."""
        echo(self.context.redactor().redact(f"{topic:<8} {text}"))

    def config(self, values: Mapping[str, Value] = NOTHING) -> Config:
        """Return the configuration with `values` applied. Raises a ConfigError that lists every problem."""
        return load_config(self.context.root, os.environ, values) if values else self.context.config()

    def more(self, table: str) -> list[str]:
        """Return the keys of a table that were passed with --set and are not stored yet."""
        return [key for key in self.extra if key.startswith(f"{table}.")]

    def forget(self, table: str) -> None:
        for key in self.more(table):
            del self.extra[key]

    def write(self, values: Mapping[str, Value]) -> None:
        """Store settings in shoal.toml, together with the --set values for the same tables. Raises ConfigError."""
        tables = {key.rpartition(".")[0] for key in values}
        more = {key: value_of(key, text) for key, text in self.extra.items() if key.rpartition(".")[0] in tables}
        write_settings(self.context.home, {**more, **values})
        self.extra = {key: text for key, text in self.extra.items() if key not in {**more, **values}}
        self.context.config()


def read_source(source: str) -> str:
    """Read a secret from env:NAME, from file:PATH or, for -, from a line of standard input. Raises ConfigError and
    InvalidInput.
    """
    kind, _, name = source.partition(":")
    if source == "-":
        return sys.stdin.readline().strip()
    if kind == "env" and name:
        return Secret("env", name).reveal()
    if kind == "file" and name:
        return Secret("file", str(Path(name).expanduser())).reveal()
    raise InvalidInput("Specify a secret as env:NAME, file:PATH, or - to read one line from standard input.")
