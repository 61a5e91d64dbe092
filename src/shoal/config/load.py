"""Loads the configuration from the file, SHOAL_* variables, the caller's overrides and well-known variables.

Valid settings are converted in one step. If that fails, every key is checked separately to report all problems.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias, cast

import msgspec

from shoal.config.check import check
from shoal.config.defaults import KNOWN_PROVIDERS, USUAL_VARIABLES
from shoal.config.whole import whole_config
from shoal.extensions import has_platform, platform_named
from shoal.kernel.errors import ConfigError
from shoal.kernel.regular_files import decode_settings, read_regular
from shoal.kernel.schema import Hint, allowed, bare, find, is_section, keys, list_of, refusal, table_of, takes_text
from shoal.kernel.secret import Secret, odd_character, trimmed_secret
from shoal.kernel.section import Section
from shoal.kernel.settings import Config
from shoal.kernel.settings_platforms import AccountSettings
from shoal.kernel.untrusted import BAD_TOML, decode_toml
from shoal.platforms.record import BUILT_IN, built_in

Table: TypeAlias = dict[str, object]
NO_OVERRIDES: Mapping[str, object] = {}
PREFIX = "SHOAL_"
SEPARATOR = "__"
TIMEZONE = "SHOAL_TIMEZONE"
"""Environment variable that sets `timezone`, the only key outside any section."""
ID_LISTS = ("allow", "channels", "approvers")
"""Keys that contain lists of ids. The ids may be written as numbers."""


def load_config(home: Path, environ: Mapping[str, str], overrides: Mapping[str, object] = NO_OVERRIDES) -> Config:
    """Read `home/shoal.toml`, if it exists, and the environment. Return the checked configuration.

    `overrides` maps dotted keys such as `web.port` to values and has the highest priority. Raises ConfigError with one
    sentence for each problem. Each sentence names the source, the key, the value and the allowed values.
    """
    draft = read_draft(home, environ, overrides)

    def decode(kind: type, value: object) -> object:
        if kind is Secret:
            return value if isinstance(value, Secret) else parse_secret(value, environ, home)
        if isinstance(value, kind):
            return value
        raise NotImplementedError(f"cannot read a {kind}")

    content: Table = {**draft.content, "home": home}
    try:
        config = msgspec.convert(content, whole_config(), dec_hook=decode)
    except msgspec.ValidationError:
        sound = _Salvage(draft, decode).section(draft.content, whole_config(), ()) or {}
        # Check the valid parts too, so one error reports all problems.
        config = msgspec.convert({**sound, "home": home}, whole_config(), dec_hook=decode)
    accounts = {name: tuple(_Salvage(draft, decode).accounts(name)) for name in draft.accounts}
    config = msgspec.structs.replace(config, platforms=msgspec.structs.replace(config.platforms, accounts=accounts))
    for path, text in check(config):
        draft.complain(path, text)
    if draft.problems:
        raise ConfigError(draft.problems)
    return config


class Draft:
    """Settings before their conversion to a Config.

    `origins`: source of each setting that is not in the file.
    `accounts`: accounts by platform. They are separate because each platform defines its own keys.
    """

    def __init__(self, file: Path, content: Table) -> None:
        self.file = file
        self.content = content
        self.accounts: dict[str, list[object]] = {}
        self.origins: dict[tuple[str, ...], str] = {}
        self.problems: list[str] = []
        self._seen: set[tuple[str, ...]] = set()

    def complain(self, path: tuple[str, ...], text: str) -> None:
        """Record a problem with a key, unless the key already has one. `text` is a phrase that follows the name of the
        key.
        """
        if path in self._seen:
            return
        self._seen.add(path)
        around = (path[:end] for end in range(len(path), 0, -1))
        origin = next((self.origins[key] for key in around if key in self.origins), str(self.file))
        self.problems.append(f"{origin}: {'.'.join(path)} {text}{'' if text.endswith('?') else '.'}")

    def put(self, path: tuple[str, ...], value: object, origin: str) -> None:
        self.origins[path] = origin
        table: Table | None = self.content
        for depth, name in enumerate(path[:-1], 1):
            if name not in table:
                self.origins[path[:depth]] = origin
            existing, following = table.setdefault(name, {}), path[depth]
            items = as_list(existing)
            if items is None:
                table = as_table(existing)
            elif following.isdigit():  # the number selects one of several accounts
                table = {str(number): item for number, item in enumerate(items[: int(following) + 1])}
                table = table if following in table else None
            else:  # a platform's only account needs no number
                table = as_table(items[0]) if len(items) == 1 else None
            if table is None:
                self.complain(path, f"cannot be set, because {'.'.join(path[:depth])} is not a single table")
                return
        table[path[-1]] = value

    def add(self, path: tuple[str, ...], value: object, origin: str) -> None:
        """Set a key unless it is already set."""
        current: object = self.content
        for name in path:
            table = as_table(current)
            if table is None:
                return
            current = table.get(name)
            if current is None:
                self.put(path, value, origin)
                return

    def list_named_accounts(self) -> None:
        """Convert the tables [platforms.NAME.ACCOUNT], which contain one account each, to lists of accounts."""
        platforms = self.inner("platforms")
        for name, value in platforms.items():
            table, kind = as_table(value) or {}, list_of(hint_at(("platforms", name)))
            named = {
                account: account_table
                for account, value in table.items()
                if (account_table := as_table(value)) is not None
            }
            if named and is_section(kind) and named.keys() == table.keys() and not named.keys() & keys(kind).keys():
                platforms[name] = [{"account": account, **account_table} for account, account_table in named.items()]

    def inner(self, name: str) -> Table:
        return as_table(self.content.get(name)) or {}


def read_draft(home: Path, environ: Mapping[str, str], overrides: Mapping[str, object]) -> Draft:
    """Merge the file, the environment and the overrides. Raises ConfigError if the file is unreadable or not TOML."""
    file = home / "shoal.toml"
    try:
        content = decode_toml(decode_settings(read_regular(file)))
    except FileNotFoundError:
        content = Table()
    except NotADirectoryError as error:
        problem = f"{file.parent} is not a directory. Choose another with --home DIR or SHOAL_HOME."
        raise ConfigError([problem]) from error
    except OSError as error:
        problem = f"Shoal cannot read {file}: {error.strerror}. Give this user permission to read the file."
        raise ConfigError([problem]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{file} is not UTF-8 text (byte {error.start}). Save it as UTF-8."]) from error
    except BAD_TOML as error:
        raise ConfigError([f"Shoal cannot read {file}: {refusal(error)}."]) from error
    draft = Draft(file, content)
    draft.list_named_accounts()
    if "home" in draft.content:
        del draft.content["home"]
        draft.complain(("home",), "cannot be set in the file. Pass --home DIR or set SHOAL_HOME")
    for name in sorted(environ):
        if name.startswith(PREFIX) and (SEPARATOR in name or name == TIMEZONE):
            path = tuple(part.lower() for part in name.removeprefix(PREFIX).split(SEPARATOR))
            draft.put(path, parse_variable(path, environ[name]), f"environment variable {name}")
    for dotted, value in overrides.items():
        draft.put(tuple(dotted.split(".")), value, "startup option")
    for variable, path in USUAL_VARIABLES.items():
        if text := environ.get(variable):
            given = text if path[-1] == "base_url" else {"env": variable}
            draft.add(path, given, f"environment variable {variable}")
    for platform in BUILT_IN:
        if any(name.startswith(f"{platform.upper()}_") for name in environ):
            _take_tokens(draft, platform, environ)
    for name, table in draft.inner("providers").items():  # The name of a well-known provider implies its kind and URL.
        known, provider = KNOWN_PROVIDERS.get(name), as_table(table)
        if known is not None and provider is not None:
            provider.setdefault("kind", known.kind)
            provider.setdefault("base_url", known.base_url)
    _normalize_platforms(draft)
    return draft


def _take_tokens(draft: Draft, platform: str, environ: Mapping[str, str]) -> None:
    """Complete the only account of a platform from well-known variables, or create an account if the variables
    suffice.
    """
    record = built_in(platform)
    tokens = {key: name for key, name in record.variables.items() if environ.get(name)}
    configured = draft.inner("platforms").get(platform)
    accounts = as_list(configured)
    if accounts is not None and len(accounts) != 1:
        return
    if configured is None:
        further = record.from_variables(tokens) if record.from_variables is not None else None
        if further is None:
            return
        for key, value in further.items():
            draft.put(("platforms", platform, key), value, f"environment variable {next(iter(tokens.values()))}")
    account = as_table(accounts[0]) if accounts else None
    for key, variable in tokens.items():
        if account is not None:
            account.setdefault(key, {"env": variable})
        else:
            draft.add(("platforms", platform, key), {"env": variable}, f"environment variable {variable}")


def hint_at(path: tuple[str, ...]) -> Hint | None:
    """Return the type of the key at a path from the top of the file, or None for an unknown key.

    The keys below `platforms` depend on the platform.
    """
    if path[:1] == ("platforms",) and len(path) > 1 and has_platform(path[1]):
        with suppress(ConfigError):  # reported when the platform's accounts are read
            return find(tuple[platform_named(path[1]).settings, ...], path[2:])
        return None
    return find(whole_config(), path)


def is_live(path: tuple[str, ...]) -> bool:
    """Return True if a change to the key takes effect immediately when it is made on the page or with the API."""
    for end in range(len(path)):
        hint = bare(hint_at(path[:end]))
        entry = list_of(hint)
        section, names = (hint, path[end : end + 1]) if entry is None else (entry, path[end : end + 2])
        if is_section(section) and issubclass(section, Section) and not section.live.isdisjoint(names):
            return True
    return False


def parse_variable(path: tuple[str, ...], text: str) -> object:
    """Parse the value of an environment variable as TOML. If the result is not valid for the key, return the text.

    A list can also be given as comma-separated text.
    """
    hint = hint_at(path)
    value: object = text
    with suppress(*BAD_TOML):
        parsed = decode_toml(f"value = {text}")
        if set(parsed) == {"value"}:
            value = parsed["value"]
    entry = list_of(hint)
    if entry is not None and takes_text(entry) and as_list(value) is None:
        return [part.strip() for part in text.split(",") if part.strip()]
    is_scalar = as_table(value) is None and as_list(value) is None
    return text if hint is not None and takes_text(hint) and is_scalar and not isinstance(value, str) else value


def _normalize_platforms(draft: Draft) -> None:
    """Move the accounts of platforms to `draft.accounts`, always as lists. Ids written as numbers become text."""
    platforms = draft.inner("platforms")
    for name in list(platforms):
        accounts = as_list(platforms[name]) or []
        if name == "webhook":
            accounts = list((as_table(platforms[name]) or {}).values())
        elif has_platform(name):
            draft.accounts[name] = accounts = accounts or [platforms[name]]
            del platforms[name]
        else:
            draft.complain(("platforms", name), f"is not a known key. {_near(name, (*BUILT_IN, 'webhook'))}")
            del platforms[name]
        for account in accounts:
            _write_ids(as_table(account) or {})
    permissions = draft.inner("permissions")
    _write_ids(permissions)
    override = as_table(permissions.get("overrides"))
    if override is not None:
        permissions["overrides"] = [override]


def _near(name: str, known: Collection[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"Did you mean {near[0]}?" if near else f"Known keys: {', '.join(known) or 'none'}"


def _write_ids(table: Table) -> None:
    for key in ID_LISTS:
        ids = as_list(table.get(key))
        if ids is not None:
            table[key] = [str(item) if type(item) is int else item for item in ids]


class _Salvage:
    """Checks a draft key by key, records every problem, and returns the valid parts."""

    def __init__(self, draft: Draft, decode: Callable[[type, object], object]) -> None:
        self.draft = draft
        self.decode = decode

    def section(self, table: Table, kind: type[msgspec.Struct], path: tuple[str, ...]) -> Table | None:
        known, sound = keys(kind), Table()
        for name, value in table.items():
            here = (*path, name)
            if name in known:
                if (converted := self.value(value, known[name].hint, here)) is not None:
                    sound[name] = converted
                continue
            self.draft.complain(here, f"is not a known key. {_near(name, known)}")
        for key in known.values():
            if key.required and key.name not in table:
                self.draft.complain((*path, key.name), f"is missing. It must be {allowed(key.hint)}")
        return sound if all(key.name in sound for key in known.values() if key.required) else None

    def accounts(self, platform: str) -> Iterator[AccountSettings]:
        try:
            kind = platform_named(platform).settings
        except ConfigError as error:
            self.draft.complain(("platforms", platform), f"cannot be used: {error}".rstrip("."))
            return
        given = self.draft.accounts[platform]
        for number, account in enumerate(given):
            path = ("platforms", platform, str(number)) if len(given) > 1 else ("platforms", platform)
            table = as_table(account)
            if table is None:
                self.draft.complain(path, f"must be a table or an array of tables ([[…]]), not {_shown(account)}")
            elif (sound := self.section(table, kind, path)) is not None:
                yield msgspec.convert(sound, kind, dec_hook=self.decode)

    def value(self, found: object, hint: Hint, path: tuple[str, ...]) -> object | None:
        plain, table, items = bare(hint), as_table(found), as_list(found)
        entry, account = table_of(plain), list_of(plain)
        if is_section(plain) and table is not None:
            return self.section(table, plain, path)
        if entry is not None and table is not None:
            by_name = {name: self.value(item, entry, (*path, name)) for name, item in table.items()}
            return {name: item for name, item in by_name.items() if item is not None}
        if is_section(account) and items is not None and all(isinstance(item, dict) for item in items):
            here = [(*path, str(number)) for number in range(len(items))] if len(items) > 1 else [path]
            accounts = [self.value(item, account, where) for item, where in zip(items, here, strict=False)]
            return [item for item in accounts if item is not None]
        if plain is Secret and isinstance(found, str) and (odd := odd_character(trimmed_secret(found))):
            self.draft.complain(path, f"contains {odd}, which no key can contain. Copy the key again")
            return None
        try:
            msgspec.convert(found, hint, dec_hook=self.decode)
        except msgspec.ValidationError:
            value = "" if plain is Secret else f", not {_shown(found)}"  # a secret's value is never shown
            self.draft.complain(path, f"must be {allowed(hint)}{value}")
            return None
        return found


def _shown(value: object) -> str:
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
    """Parse a secret from TOML: a string, or a table with one of `env`, `file` and `command`.

    A file's path is relative to `folder`. Raises ValueError for anything else. The message never contains the value.
    """
    if isinstance(found, str):
        value = trimmed_secret(found)
        if odd := odd_character(value):
            raise ValueError(f"a secret contains {odd}")
        return Secret("value", value)
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
    return cast(Table, value) if isinstance(value, dict) else None


def as_list(value: object) -> list[object] | None:
    return cast("list[object]", value) if isinstance(value, list) else None
