"""Reads the configuration: the file, then SHOAL_* variables, then what the caller overrides, then the usual variables.

Good settings are converted in one go; only when that fails is the whole walked, key by key, to report every problem.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from shoal.config.check import check
from shoal.config.draft import Draft, read_draft
from shoal.config.records import Config
from shoal.config.schema import Hint, allowed, bare, is_section, keys, list_of, table_of
from shoal.config.secret import Secret, parse_secret
from shoal.config.toml import Table, as_list, as_table
from shoal.domain.errors import ConfigError

NO_OVERRIDES: Mapping[str, object] = {}


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
