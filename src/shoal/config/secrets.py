"""Keeps the secrets of a configuration out of backups and everything else that Shoal writes."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import msgspec

from shoal.config.load import Table, as_list, as_table, hint_at
from shoal.kernel import lazy_re
from shoal.kernel.errors import ConfigError
from shoal.kernel.home import Home
from shoal.kernel.regular_files import read_regular
from shoal.kernel.secret import SECRET_BYTES_MAX, Secret
from shoal.kernel.settings import Config
from shoal.kernel.untrusted import BAD_TOML, decode_toml
from shoal.text.secret_forms import is_plain, looks_like_key

_SECRET_NAME = lazy_re.compile(r"key|token|secret|password|passwd|credential", re.IGNORECASE)
"""Matches names of keys that probably contain a secret. Used for keys that Shoal does not define, such as those of
extensions, and for keys in comments.
"""
_NAME_WORDS = lazy_re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_PREFIXES = (
    "", "api", "access", "private", "secret", "master", "signing", "auth", "encryption", "app", "client", "account",
    "license", "service", "bot", "user", "db",
)  # fmt: skip
_SECRET_NOUNS = (
    "key", "keys", "token", "tokens", "secret", "secrets", "passwd", "passwds", "password", "passwords", "pass",
    "passphrase", "pwd", "credential", "credentials", "auth", "authorization", "bearer", "cookie", "cookies", "pat",
    "private", "signature", "dsn", "jwt", "salt", "mnemonic",
)  # fmt: skip
_SECRET_WORDS = frozenset(prefix + noun for prefix in _SECRET_PREFIXES for noun in _SECRET_NOUNS)


def names_secret(name: str) -> bool:
    """Return True if a key's name implies a secret value, such as `GITHUB_TOKEN`, `apiKey` or `X-Auth`."""
    return any(word.lower() in _SECRET_WORDS for word in _NAME_WORDS.findall(name))


def learned_from(name: str, secret: Secret, learn: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that calls `learn` with each value of a setting that may be a secret.

    If the name implies a secret, every value is passed to `learn`, because the redactor itself skips ordinary words.
    Otherwise, a literal value is passed if it looks like a key. A value from a variable, file or command is passed
    unless it consists only of words and numbers. URLs and multi-line values are always passed.
    """
    if names_secret(name):
        return learn

    def learn_some(value: str) -> None:
        is_secret = looks_like_key(value) if secret.source == "value" else not is_plain(value)
        if is_secret or "://" in value or "\n" in value:
            learn(value)

    return learn_some


def watch_secrets(config: Config, learn: Callable[[str], None]) -> None:
    """Call `learn` with every available secret, including the HTTP token, and with every secret that is read later.

    Commands are not run for this. Their output is passed to `learn` when it is first needed.
    """
    for name, secret in _secrets_of(config):
        if isinstance(secret, str):
            learn(secret)
            continue
        secret.observe(learned_from(name, secret, learn))
        if secret.source != "command":
            try:
                secret.reveal()
            except ConfigError:  # reported where the secret is used
                continue
    try:
        learn(read_token(Home(config.home)))
    except (OSError, ConfigError):  # reported where the token is used
        return


def missing_secrets(text: str, folder: Path) -> list[str]:
    """Return the configuration keys whose secret is an empty literal or a file that does not exist. Paths are relative
    to `folder`.
    """

    def look(value: object, path: tuple[str, ...]) -> Iterator[str]:
        if isinstance(value, dict):
            table = cast("dict[str, object]", value)
            file = table.get("file")
            if set(table) == {"file"} and isinstance(file, str):
                if not (folder / Path(file).expanduser()).exists():
                    yield ".".join(path)
                return
            for key, inner in table.items():
                yield from look(inner, (*path, str(key)))
        elif isinstance(value, list):
            for inner in cast("list[object]", value):
                yield from look(inner, path)
        elif value == "" and path and names_secret(path[-1]):
            yield ".".join(path)

    try:
        return list(look(decode_toml(text), ()))
    except BAD_TOML:
        return []


def read_token(home: Home) -> str:
    """Return the HTTP token of a home directory. Raises ConfigError if the file contains no token, and OSError if
    it is unreadable.
    """
    try:
        token = read_regular(home.token_file, SECRET_BYTES_MAX).decode().strip()
    except UnicodeDecodeError:
        token = ""
    if not token:
        raise ConfigError(
            [f"{home.token_file} contains no token. Delete the file, and Shoal creates a new token at the next start."]
        )
    return token


def _secrets_of(value: object, name: str = "") -> Iterator[tuple[str, Secret | str]]:
    """Yield every secret in a part of the configuration, together with its key.

    In the settings of extensions, a string counts as a secret if the name of its key implies one.
    """
    if isinstance(value, Secret):
        yield name, value
    elif isinstance(value, msgspec.Raw):
        yield from _secrets_of(msgspec.json.decode(value), "")
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _secrets_of(getattr(value, field), field)
    elif isinstance(value, dict):
        for key, inner in cast("dict[str, object]", value).items():
            yield from _secrets_of(inner, str(key))
    elif isinstance(value, list | tuple):
        for inner in cast("list[object]", value):
            yield from _secrets_of(inner, name)
    elif value and isinstance(value, str) and names_secret(name):
        yield name, value


_REMARK = lazy_re.compile(r"^[ \t]*+#.*", re.MULTILINE)
_ASSIGNED = lazy_re.compile(r"""(?<!\w)(\w++)\s*+=\s*+(["'])""")


def without_secrets(text: str) -> str | None:
    """Return a configuration file's text with every literal secret emptied. All other bytes are unchanged.

    Returns None if this cannot be done reliably, because the file is not TOML or a secret contains escapes.
    """
    try:
        secrets = set(_secrets(decode_toml(text)))
        for secret in sorted(secrets, key=len, reverse=True):
            for quote in ('"""', "'''", '"', "'"):
                text = text.replace(f"{quote}{secret}{quote}", '""')
        text = _REMARK.sub(_without_value, text)
        left = any(_secrets(decode_toml(text)))
    except BAD_TOML:
        return None
    return None if left or any(secret in text for secret in secrets) else text


def _without_value(remark: re.Match[str]) -> str:
    """Empty the value of a commented-out setting whose name implies a secret."""
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
        hint = hint_at(path)
        if hint is Secret or (hint is None and _SECRET_NAME.search(path[-1])):
            yield value
