"""Writes docs/configuration.md from the records: `python -m tests.tidy.configuration_page > docs/configuration.md`."""

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import msgspec

from shoal.config.defaults import USUAL_VARIABLES
from shoal.config.load import is_live
from shoal.config.whole import whole_config
from shoal.kernel.schema import Key, allowed, bare, is_section, keys, list_of, table_of
from shoal.kernel.secret import Secret
from shoal.kernel.section import Section
from shoal.kernel.settings_platforms import PlatformsSettings
from shoal.platforms.record import BUILT_IN, built_in

HEAD = """\
# Configuration

This page is made from the code by `python -m tests.tidy.configuration_page`; change it there.

Shoal reads `shoal.toml` in its home directory (`--home DIR`, else `SHOAL_HOME`, else `~/.shoal`). Every key has a
default, so that an empty file, or none, works. What counts, strongest first:

1. options of the command, such as `--port`;
2. variables `SHOAL_SECTION__KEY`, deeper keys by further `__`: `SHOAL_TURNS__STEPS_MAX=40`,
   `SHOAL_PLATFORMS__TELEGRAM__TOKEN=…`; and `SHOAL_TIMEZONE`. A value is read as TOML where the key can hold it
   (`true`, `3`, `["a", "b"]`), else as text; a list of text may be written with commas;
3. the file;
4. the variables that other tools use too, listed at the end.

The file is read at the start, and a change in it takes effect at the next one. Keys and tables marked **live** take
effect at once when you change them on the page or with the API, which write them into the file. A ceiling in `[budget]`
needs a restart: `shoal usage lift` helps for a day, and `budget` in an agent's own file counts from its next turn.

All mistakes are reported at once, each with where it stands, the key, what was found and what is allowed.

A **secret** is text, or a table that says where to ask: `{ env = "NAME" }`, `{ file = "PATH" }` (from the home
directory) or `{ command = ["pass", "show", "x"] }`. It is asked for when it is needed, again when
it was refused, and never shown.

```toml
[model]
name = "openai/gpt-5"

[providers.openai]
api_key = { env = "OPENAI_API_KEY" }

[platforms.telegram]
token = { file = "telegram.token" }
allow = ["4711"]
```
"""


LIVE = " **Live.**"


@cache
def descriptions(section: type[msgspec.Struct]) -> dict[str, str]:
    """What each key of a section is for: the text below the field in the source, inherited fields included."""
    found: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if not is_section(kind) or kind in (msgspec.Struct, whole_config()):
            continue
        parsed = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        body = parsed.body if isinstance(parsed, ast.ClassDef) else []
        for field, text in pairwise(body):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str() as said)),
                ):
                    found[name] = " ".join(said.split())
                case _:
                    pass
    return found


def sections() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Every table of the file with its record, in the file's order: `turns`, `providers.NAME`, `platforms.telegram`…"""
    for key in keys(whole_config()).values():
        yield from _tables(key.name, key.hint)


def _tables(path: str, hint: object) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    plain = bare(hint)
    inner = table_of(plain) or list_of(plain)
    if is_section(inner):
        yield f"{path}.NAME" if table_of(plain) else path, inner
    elif is_section(plain):
        yield path, plain
        if plain is PlatformsSettings:
            for platform in BUILT_IN:
                yield f"{path}.{platform}", built_in(platform).settings
        for key in keys(plain).values():
            yield from _tables(f"{path}.{key.name}", key.hint)


def is_table(key: Key) -> bool:
    """Whether a key is described as a table of its own."""
    return any(True for _ in _tables(key.name, key.hint))


def undocumented() -> list[str]:
    """Keys without a description; the tests see to it that there are none."""
    return [
        f"{path}.{key.name}"
        for path, kind in sections()
        for key in keys(kind).values()
        if not is_table(key) and not descriptions(kind).get(key.name)
    ]


def mark(kind: type[msgspec.Struct], key: Key) -> str:
    return LIVE if issubclass(kind, Section) and key.name in kind.live else ""


def default_text(kind: type[msgspec.Struct], key: Key) -> str:
    """A key's default as TOML writes it."""
    if key.required:
        return "none; it must be given"
    field = next(field for field in msgspec.structs.fields(kind) if field.name == key.name)
    value: object = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    match value:
        case bool():
            return "`true`" if value else "`false`"
        case str():
            return f'`"{value}"`'
        case int() | float():
            return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
        case Secret():
            return "none"
        case dict():
            return "`{}`"
        case None:
            return "none"
        case tuple():
            return f"`{json.dumps(value)}`"
        case _:
            raise TypeError(f"{key.name} has a default of a kind that this page cannot write")


def reference() -> str:
    """The whole page."""
    parts = [HEAD]
    for path, kind in [("", whole_config()), *sections()]:
        about = " ".join((inspect.getdoc(kind) or "").split()) if path else "They stand before the first table."
        if is_live(tuple(path.removesuffix(".NAME").split("."))):
            about += LIVE
        rows = [
            f"| `{key.name}` | {'a secret' if bare(key.hint) is Secret else _cell(allowed(key.hint))} "
            f"| {_cell(default_text(kind, key))} | {_cell(descriptions(kind).get(key.name, ''))}{mark(kind, key)} |"
            for key in keys(kind).values()
            if not is_table(key)
        ]
        head = ["| key | allowed | default | |", "|---|---|---|---|"] if rows else []
        title = f"## `[{path}]`" if path else "## Keys without a table"
        parts.append("\n".join([f"{title}\n", f"{about}\n", *head, *rows]) + "\n")
    rows = [f"| `{variable}` | `{'.'.join(path)}` |" for variable, path in USUAL_VARIABLES.items()]
    rows += [
        f"| `{variable}` | `platforms.{platform}.{key}` |"
        for platform in BUILT_IN
        for key, variable in built_in(platform).variables.items()
    ]
    title = "## Variables of other tools\n\nEach counts where the file does not set the key.\n"
    return "\n".join([*parts, title, "| variable | key |", "|---|---|", *rows]) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
