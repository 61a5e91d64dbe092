"""Keeps the secrets of a configuration out of texts: of whatever Shoal writes, and of its file in backups."""

import re
import tomllib
from collections.abc import Callable, Iterator
from typing import cast

import msgspec

from shoal.config.load import Table, as_list, as_table
from shoal.domain.errors import ConfigError
from shoal.domain.home import Home
from shoal.domain.regular_files import read_regular
from shoal.domain.schema import find
from shoal.domain.secret import SECRET_BYTES_MAX, Secret
from shoal.domain.settings import Config
from shoal.domain.untrusted import BAD_TOML

_SECRET_NAME = re.compile(r"key|token|secret|password|passwd|credential", re.IGNORECASE)
"""Names under which keys that are not ours (of extensions, or commented out) hold secrets."""


def watch_secrets(config: Config, learn: Callable[[str], None]) -> None:
    """Call `learn` with every secret that is at hand, the token file's too, and later with each one looked up anew.

    Commands are not run for this: what they print is learned when it is asked for.
    """
    for secret in _secrets_of(config):
        if isinstance(secret, str):
            learn(secret)
            continue
        secret.observe(learn)
        if secret.source != "command":
            try:
                secret.reveal()
            except ConfigError:  # told where it is needed
                continue
    try:
        learn(read_token(Home(config.home)))
    except (OSError, ConfigError):  # there is none yet, or whoever needs it says what is wrong with it
        return


def read_token(home: Home) -> str:
    """The HTTP token of the home. Raises ConfigError for a file without one; OSError."""
    try:
        token = read_regular(home.token_file, SECRET_BYTES_MAX).decode().strip()
    except UnicodeDecodeError:
        token = ""
    if not token:
        raise ConfigError([f"{home.token_file} holds no token. Delete it, and one is made at the next start."])
    return token


def _secrets_of(value: object, name: str = "") -> Iterator[Secret | str]:
    """Every secret below a part of the configuration; of an extension's settings the texts under such names."""
    if isinstance(value, Secret):
        yield value
    elif isinstance(value, msgspec.Raw):
        yield from _secrets_of(msgspec.json.decode(value), "")
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _secrets_of(getattr(value, field))
    elif isinstance(value, dict):
        for key, inner in cast("dict[str, object]", value).items():
            yield from _secrets_of(inner, str(key))
    elif isinstance(value, list | tuple):
        for inner in cast("list[object]", value):
            yield from _secrets_of(inner, name)
    elif isinstance(value, str) and _SECRET_NAME.search(name):
        yield value


_REMARK = re.compile(r"^[ \t]*+#.*", re.MULTILINE)
_ASSIGNED = re.compile(r"""(?<!\w)(\w++)\s*+=\s*+(["'])""")


def without_secrets(text: str) -> str | None:
    """The file with every secret that is written out made empty; the rest stays byte for byte.

    None when that cannot be done for sure: the file is not TOML, or a secret is written with escapes.
    """
    try:
        found = set(_secrets(tomllib.loads(text)))
        for secret in sorted(found, key=len, reverse=True):
            for quote in ('"""', "'''", '"', "'"):
                text = text.replace(f"{quote}{secret}{quote}", '""')
        text = _REMARK.sub(_without_value, text)
        left = any(_secrets(tomllib.loads(text)))
    except BAD_TOML:
        return None
    return None if left or any(secret in text for secret in found) else text


def _without_value(remark: re.Match[str]) -> str:
    """A comment without the value of a setting that is written in it, where the setting's name says it is a secret."""
    line = remark[0]
    for setting in _ASSIGNED.finditer(line):
        end = line.rfind(setting[2])
        if _SECRET_NAME.search(setting[1]) and end > setting.end():
            return f'{line[: setting.start(2)]}""{line[end + 1 :]}'
    return line


def _secrets(value: object, path: tuple[str, ...] = ()) -> Iterator[str]:
    table: Table | None = as_table(value)
    items = as_list(value)
    if table is not None:
        for name, inner in table.items():
            yield from _secrets(inner, (*path, name))
    elif items is not None:
        for number, inner in enumerate(items):
            yield from _secrets(inner, (*path, str(number)))
    elif isinstance(value, str) and value:
        hint = find(path)
        if hint is Secret or (hint is None and _SECRET_NAME.search(path[-1])):
            yield value
