"""A secret setting: a literal value, or a reference to an environment variable, a file or a command."""

import os
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from shoal.kernel.errors import ConfigError
from shoal.kernel.regular_files import read_regular

Source: TypeAlias = Literal["value", "env", "file", "command"]

SECRET_BYTES_MAX = 65_536
COMMAND_SECONDS_MAX = 10.0


class Secret:
    """The source of a secret. `repr` and `str` show the source, never the value. Equality compares only sources.

    A secret that is not set is falsy. `reveal` reads the source on each call, so it picks up a replaced token. Frequent
    callers cache the value until it is rejected. Observers receive each value before the caller does.
    """

    __slots__ = ("_announced", "_detail", "_environ", "_observers", "source")

    def __init__(
        self, source: Source = "value", detail: str | tuple[str, ...] = "", *, environ: Mapping[str, str] | None = None
    ) -> None:
        self.source: Source = source
        self._detail = detail
        self._environ = os.environ if environ is None else environ
        self._observers: tuple[Callable[[str], None], ...] = ()
        self._announced = ""

    @property
    def name(self) -> str:
        """Name of the variable, the file or the command, for messages. Empty for a literal secret."""
        if self.source == "value":
            return ""
        return self._detail if isinstance(self._detail, str) else " ".join(self._detail)

    def parts(self) -> tuple[Source, str | tuple[str, ...]]:
        """Return the kind of source and its details. Never display the details: for a literal secret, they are the
        value.
        """
        return self.source, self._detail

    def reveal(self) -> str:
        """Return the secret, or an empty string if it is not set.

        A command may take up to COMMAND_SECONDS_MAX, so call this in a thread. Raises ConfigError if the variable is
        not set, the file is unreadable, the command fails, or the value contains a character that keys cannot contain.
        """
        match self.source:
            case "value":
                value = str(self._detail)
            case "env":
                value = self._environ.get(self.name, "")
                if not value:
                    raise ConfigError(
                        [f"The environment variable {self.name} is not set. Set it, or use another source."]
                    )
            case "file":
                value = _from_file(Path(self.name))
            case "command":
                value = _from_command(self.name, [self._detail] if isinstance(self._detail, str) else self._detail)
        value = trimmed_secret(value)
        if odd := odd_character(value):
            what = f"The secret from {self.source} {self.name}" if self.name else "A secret in shoal.toml"
            raise ConfigError([f"{what} contains {odd}, which no key can contain. Copy the secret again."])
        self.announce(value)
        return value

    def observe(self, learn: Callable[[str], None]) -> None:
        """Call `learn` with every value that `reveal` returns from now on, so it can be redacted."""
        if self:
            self._observers, self._announced = (*self._observers, learn), ""

    def announce(self, value: str) -> None:
        """Pass a value that was not read with `reveal` to the observers."""
        if value and value != self._announced:
            self._announced = value
            for learn in self._observers:
                learn(value)

    def __bool__(self) -> bool:
        return self.source != "value" or bool(self._detail)

    def __repr__(self) -> str:
        if self.source == "value":
            return "Secret(set)" if self._detail else "Secret(not set)"
        return f"Secret({self.source}: {self.name})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and (self.source, self._detail) == (other.source, other._detail)

    def __hash__(self) -> int:
        return hash((self.source, self._detail))


NO_SECRET = Secret()

_EDGES = "\ufeff\u200b\u200c\u200d\u2060"


def trimmed_secret(value: str) -> str:
    """Strip white space and invisible characters, which are often copied along with a secret."""
    return value.strip().strip(_EDGES).strip()


def odd_character(value: str) -> str:
    """Describe the first character that keys, tokens and headers cannot contain. Return an empty string if all are
    valid.

    A credential that is a complete document (JSON, PEM) may contain any character.
    """
    if value.startswith(("{", "-----BEGIN")):
        return ""
    odd = next((char for char in value if not char.isascii() or not char.isprintable()), "")
    if odd in ("\n", "\r"):
        return "a line break"
    if odd and unicodedata.category(odd) in ("Cc", "Cf", "Zs", "Zl", "Zp"):
        name = unicodedata.name(odd, "control character").lower()
        return f"an invisible character ({name}, U+{ord(odd):04X})"
    return ""


def _from_file(path: Path) -> str:
    try:
        value = read_regular(path, SECRET_BYTES_MAX).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        todo = "Put the secret in that file, or correct `file`."
        raise ConfigError([f"Shoal cannot read the secret file {path}: {reason}. {todo}"]) from error
    if not value:
        raise ConfigError([f"The secret file {path} is empty. Add the secret to the file."])
    return value


def _from_command(name: str, command: Sequence[str]) -> str:
    import subprocess

    try:
        done = subprocess.run(command, capture_output=True, timeout=COMMAND_SECONDS_MAX, check=True, text=True)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            [f"`{name}` printed no secret within {COMMAND_SECONDS_MAX:g} seconds. Run the command to see why."]
        ) from error
    except subprocess.CalledProcessError as error:
        raise ConfigError(
            [f"`{name}` failed with exit status {error.returncode}. Run the command to see why."]
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"`{name}` cannot be run or its output is not text. Run the command to see why."]) from error
    value = done.stdout.strip()
    if not value:
        raise ConfigError([f"`{name}` printed no secret. Correct the command, or add the secret to its source."])
    return value
