"""Reads the configuration: the file, then SHOAL_* variables, then what the caller overrides, then the usual variables.

Good settings are converted in one go; only when that fails is the whole walked, key by key, to report every problem.
"""

import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

import msgspec

from shoal.config.check import check
from shoal.config.defaults import KNOWN_PROVIDERS, PLATFORM_VARIABLES
from shoal.config.schema import Hint, allowed, bare, find, is_section, keys, list_of, table_of, takes_text
from shoal.domain.errors import ConfigError
from shoal.domain.secret import Secret
from shoal.domain.settings import Config

Table: TypeAlias = dict[str, object]
NO_OVERRIDES: Mapping[str, object] = {}
PREFIX = "SHOAL_"
SEPARATOR = "__"
ID_LISTS = ("allow", "channels", "approvers")
"""Keys that hold ids, which people like to write as numbers."""


def load_config(home: Path, environ: Mapping[str, str], overrides: Mapping[str, object] = NO_OVERRIDES) -> Config:
    """Read `home/shoal.toml` (if there is one) and the environment into a checked configuration.

    `overrides` maps dotted keys such as `web.port` to values and beats all else. Raises ConfigError with one sentence
    for every problem: where it stands, the key, what was found, what is allowed.
    """
    draft = read_draft(home, environ, overrides)
    decode = partial(_decode, environ, home)
    content: Table = {**draft.content, "home": home}
    try:
        config = msgspec.convert(content, Config, dec_hook=decode)
    except msgspec.ValidationError:
        sound = _Walk(draft, decode).section(draft.content, Config, ()) or {}
        # What is sound is still checked as a whole, so that nothing is left for the second try.
        config = msgspec.convert({**sound, "home": home}, Config, dec_hook=decode)
    for path, text in check(config):
        draft.complain(path, text)
    if draft.problems:
        raise ConfigError(draft.problems)
    return config


def _decode(environ: Mapping[str, str], home: Path, kind: type, found: object) -> object:
    if kind is Secret:
        return found if isinstance(found, Secret) else parse_secret(found, environ, home)
    if isinstance(found, kind):
        return found
    raise NotImplementedError(f"no way to read a {kind}")


class Draft:
    """Settings on their way to a Config. `origins` tells which came from elsewhere than the file."""

    def __init__(self, file: Path, content: Table) -> None:
        self.file = file
        self.content = content
        self.origins: dict[tuple[str, ...], str] = {}
        self.problems: list[str] = []
        self._seen: set[tuple[str, ...]] = set()

    def complain(self, path: tuple[str, ...], text: str) -> None:
        """Note a problem with a key, the first only; `text` goes on after the key's name."""
        if path in self._seen:
            return
        self._seen.add(path)
        origin = str(self.file)
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                origin = self.origins[path[:end]]
                break
        self.problems.append(f"{origin}: {'.'.join(path)} {text}{'' if text.endswith('?') else '.'}")

    def put(self, path: tuple[str, ...], value: object, origin: str) -> None:
        """Set a key, whatever it was, and remember where from."""
        self.origins[path] = origin
        table: Table | None = self.content
        for depth, name in enumerate(path[:-1], 1):
            if name not in table:
                self.origins[path[:depth]] = origin
            table = _child(table, name, path[depth])
            if table is None:
                self.complain(path, f"cannot be set, since {'.'.join(path[:depth])} is not one table")
                return
        table[path[-1]] = value

    def add(self, path: tuple[str, ...], value: object, origin: str) -> None:
        """Set a key unless it is set."""
        found: object = self.content
        for name in path:
            table = as_table(found)
            if table is None:
                return
            found = table.get(name)
            if found is None:
                self.put(path, value, origin)
                return

    def inner(self, *path: str) -> Table:
        """The table at a path; empty when there is none."""
        table: Table | None = self.content
        for name in path:
            table = as_table(table.get(name)) if table is not None else None
        return table or {}


def _child(table: Table, name: str, following: str) -> Table | None:
    """The table below a name, made when missing; None when something else stands there.

    A platform's only account is reached without its number; of several, the one whose number follows.
    """
    found = table.setdefault(name, {})
    items = as_list(found)
    if items is None:
        return as_table(found)
    if following.isdigit():
        return {str(number): item for number, item in enumerate(items)} if int(following) < len(items) else None
    return as_table(items[0]) if len(items) == 1 else None


def read_draft(home: Path, environ: Mapping[str, str], overrides: Mapping[str, object]) -> Draft:
    """Put together what the file, the environment and the caller say. Raises ConfigError when the file is not TOML."""
    draft = Draft(home / "shoal.toml", _read_file(home / "shoal.toml"))
    if "home" in draft.content:
        del draft.content["home"]
        draft.complain(("home",), "is not a key of the file; pass --home DIR or set SHOAL_HOME")
    for name in sorted(environ):
        if name.startswith(PREFIX) and SEPARATOR in name:
            _apply_variable(draft, name, environ[name])
    for dotted, value in overrides.items():
        draft.put(tuple(dotted.split(".")), value, "given on start")
    _apply_usual_variables(draft, environ)
    _settle_providers(draft)
    _settle_platforms(draft)
    return draft


def _read_file(file: Path) -> Table:
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        return {}
    except NotADirectoryError as error:
        raise ConfigError(
            [f"{file.parent} is not a directory. Choose another with --home DIR or SHOAL_HOME."]
        ) from error
    except OSError as error:
        raise ConfigError([f"{file} cannot be read: {error.strerror}. Make it readable for this user."]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{file} is not UTF-8 text (byte {error.start}). Save it as UTF-8."]) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{file} is not valid TOML: {error}."]) from error


def _apply_variable(draft: Draft, name: str, text: str) -> None:
    """`SHOAL_SECTION__KEY`, deeper keys by further `__`."""
    path = tuple(part.lower() for part in name.removeprefix(PREFIX).split(SEPARATOR))
    draft.put(path, parse_variable(path, text), f"environment variable {name}")


def parse_variable(path: tuple[str, ...], text: str) -> object:
    """The value a variable gives a key: a TOML value where the key can hold it, else the text as it stands.

    A list of text may be written with commas alone.
    """
    hint = find(path)
    value: object = text
    try:
        parsed = tomllib.loads(f"value = {text}")
        if set(parsed) == {"value"}:
            value = parsed["value"]
    except tomllib.TOMLDecodeError:
        pass
    entry = list_of(hint)
    if entry is not None and takes_text(entry) and as_list(value) is None:
        return [part.strip() for part in text.split(",") if part.strip()]
    is_scalar = as_table(value) is None and as_list(value) is None
    return text if hint is not None and takes_text(hint) and is_scalar and not isinstance(value, str) else value


def _apply_usual_variables(draft: Draft, environ: Mapping[str, str]) -> None:
    for name, known in KNOWN_PROVIDERS.items():
        if known.key and environ.get(known.key):
            draft.add(("providers", name, "api_key"), {"env": known.key}, f"environment variable {known.key}")
        if known.address and environ.get(known.address):
            address = environ[known.address]
            draft.add(("providers", name, "base_url"), address, f"environment variable {known.address}")
    if environ.get("BRAVE_API_KEY"):
        draft.add(("tools", "brave_api_key"), {"env": "BRAVE_API_KEY"}, "environment variable BRAVE_API_KEY")
    if environ.get("DATABASE_URL"):
        draft.add(("database", "url"), {"env": "DATABASE_URL"}, "environment variable DATABASE_URL")
    for platform, variables in PLATFORM_VARIABLES.items():
        given = {key: name for key, name in variables.items() if environ.get(name)}
        _complete_platform(draft, platform, given)


def _complete_platform(draft: Draft, platform: str, given: Mapping[str, str]) -> None:
    """Add the tokens found in the environment to a platform's only account; without one, make it if they suffice."""
    platforms = draft.inner("platforms")
    configured = platforms.get(platform)
    accounts = as_list(configured)
    if accounts is not None and len(accounts) != 1:
        return
    if configured is None and not _suffices(platform, given):
        return
    if configured is None and platform == "slack" and "app_token" not in given:
        draft.put(("platforms", "slack", "mode"), "http", "environment variable SLACK_SIGNING_SECRET")
    table = as_table(accounts[0]) if accounts else None
    for key, name in given.items():
        if table is not None:
            table.setdefault(key, {"env": name})
        else:
            draft.add(("platforms", platform, key), {"env": name}, f"environment variable {name}")


def _suffices(platform: str, given: Mapping[str, str]) -> bool:
    match platform:
        case "telegram" | "discord":
            return "token" in given
        case "slack":
            return "bot_token" in given and len(given) > 1
        case _:
            return False


def _settle_providers(draft: Draft) -> None:
    """A well-known provider's name says its kind and address."""
    for name, table in draft.inner("providers").items():
        known = KNOWN_PROVIDERS.get(name)
        inner = as_table(table)
        if inner is not None and known is not None:
            inner.setdefault("kind", known.kind)
            inner.setdefault("base_url", known.base_url)


def _settle_platforms(draft: Draft) -> None:
    """One account becomes a list of one; ids written as numbers become text; extensions' tables are set aside."""
    platforms = draft.inner("platforms")
    extra: list[object] = []
    if "plugins" in platforms:
        draft.complain(("platforms", "plugins"), "is not a known key")
        del platforms["plugins"]
    for name in list(platforms):
        table = as_table(platforms[name])
        hint = find(("platforms", name))
        if hint is None and _is_extension("shoal.platforms", name):
            extra.append({"name": name, "settings": msgspec.Raw(msgspec.json.encode(platforms.pop(name)))})
        elif table is not None and is_section(list_of(hint)):
            platforms[name] = [table]
        for account in _accounts(platforms.get(name), free_names=table_of(hint) is not None):
            _write_ids(account)
    permissions = draft.inner("permissions")
    _write_ids(permissions)
    override = as_table(permissions.get("overrides"))
    if override is not None:
        permissions["overrides"] = [override]
    if extra:
        platforms["plugins"] = extra


def _accounts(value: object, *, free_names: bool) -> list[Table]:
    table = as_table(value)
    items = list(table.values()) if table is not None and free_names else as_list(value) or []
    return [inner for inner in map(as_table, items) if inner is not None]


def _write_ids(table: Table) -> None:
    for key in ID_LISTS:
        ids = as_list(table.get(key))
        if ids is not None:
            table[key] = [str(item) if type(item) is int else item for item in ids]


def _is_extension(group: str, name: str) -> bool:
    """Whether an installed package offers this name; looked for only when nothing of ours has it."""
    from importlib.metadata import entry_points

    return bool(entry_points(group=group, name=name))


class _Walk:
    """Goes through a draft key by key, notes every problem in it, and keeps what is sound."""

    def __init__(self, draft: Draft, decode: "partial[object]") -> None:
        self.draft = draft
        self.decode = decode

    def section(self, table: Table, kind: type[msgspec.Struct], path: tuple[str, ...]) -> Table | None:
        """A table with fixed keys; None when it lacks one it needs."""
        known = keys(kind)
        sound: Table = {}
        for name, value in table.items():
            here = (*path, name)
            if name not in known:
                self.draft.complain(here, _unknown(name, list(known)))
            elif (kept := self.value(value, known[name].hint, here)) is not None:
                sound[name] = kept
        for key in known.values():
            if key.required and key.name not in table:
                self.draft.complain((*path, key.name), f"is missing; allowed: {allowed(key.hint)}")
        return sound if all(key.name in sound for key in known.values() if key.required) else None

    def value(self, value: object, hint: Hint, path: tuple[str, ...]) -> object | None:
        """What stands at a key; None when it is wrong."""
        plain = bare(hint)
        if is_section(plain):
            table = as_table(value)
            return self.wrong(value, hint, path) if table is None else self.section(table, plain, path)
        entry = table_of(plain)
        if entry is not None:
            return self.entries(value, hint, entry, path)
        account = list_of(plain)
        if is_section(account):
            return self.accounts(value, hint, account, path)
        try:
            msgspec.convert(value, hint, dec_hook=self.decode)
        except msgspec.ValidationError:
            return self.wrong(value, hint, path)
        return value

    def entries(self, value: object, hint: Hint, entry: Hint, path: tuple[str, ...]) -> object | None:
        """A table with free names."""
        table = as_table(value)
        if table is None:
            return self.wrong(value, hint, path)
        kept = {name: self.value(item, entry, (*path, name)) for name, item in table.items()}
        return {name: item for name, item in kept.items() if item is not None}

    def accounts(self, value: object, hint: Hint, kind: type[msgspec.Struct], path: tuple[str, ...]) -> object | None:
        """The accounts of a platform."""
        items = as_list(value)
        tables = [as_table(item) for item in items or []]
        if items is None or None in tables:
            return self.wrong(value, hint, path)
        several = len(tables) > 1
        kept = [
            self.section(table, kind, (*path, str(number)) if several else path)
            for number, table in enumerate(tables)
            if table is not None
        ]
        return [table for table in kept if table is not None]

    def wrong(self, value: object, hint: Hint, path: tuple[str, ...]) -> None:
        """Note a value that is not allowed. A secret's value is never shown."""
        found = "is not a secret as it should be" if bare(hint) is Secret else f"is {_shown(value)}"
        self.draft.complain(path, f"{found}; allowed: {allowed(hint)}")


def _unknown(name: str, known: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(known) or 'no key'}"
    return f"is not a known key; {hint}"


def _shown(value: object) -> str:
    """A value as TOML would have it, short."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{value[:60]}…"' if len(value) > 60 else f'"{value}"'
        case int() | float():
            return str(value)
        case list() | tuple():
            return "a list" if value else "an empty list"
        case dict():
            return "a table"
        case _:
            return f"a {type(value).__name__}"


def parse_secret(found: object, environ: Mapping[str, str], folder: Path) -> Secret:
    """Read a secret as TOML gives it: text, or a table with one of env, file, command.

    Paths are taken from `folder`. Raises ValueError when it is none of these; the message never holds the value.
    """
    if isinstance(found, str):
        return Secret("value", found.strip())
    table = as_table(found)
    if table is not None and len(table) == 1:
        name = table.get("env") or table.get("file")
        if isinstance(name, str):
            if "env" in table:
                return Secret("env", name, environ=environ)
            return Secret("file", str(folder / Path(name).expanduser()))
        words = as_list(table.get("command")) or []
        command = tuple(word for word in words if isinstance(word, str))
        if command and len(command) == len(words):
            return Secret("command", command)
    raise ValueError('a secret is text, or { env = "NAME" }, { file = "PATH" } or { command = ["program", …] }')


def as_table(value: object) -> Table | None:
    """The value if it is a table."""
    return cast(Table, value) if isinstance(value, dict) else None


def as_list(value: object) -> list[object] | None:
    """The value if it is a list."""
    return cast("list[object]", value) if isinstance(value, list) else None
