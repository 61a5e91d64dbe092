"""Writes docs/configuration.md from the settings classes: `python -m tests.tidy.configuration_page`."""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import msgspec

from shoal.config.defaults import USUAL_VARIABLES
from shoal.config.load import is_live
from shoal.config.whole import whole_config
from shoal.kernel.schema import Key, allowed, bare, is_section, keys, list_of, table_of
from shoal.kernel.secret import Secret
from shoal.kernel.section import Section
from shoal.kernel.settings_platforms import AccountSettings, PlatformsSettings
from shoal.platforms.record import BUILT_IN, built_in

HEAD = """\
# Configuration

`python -m tests.tidy.configuration_page` generates this page. To change a description, edit it in the code.

Shoal reads `shoal.toml` in its home directory: `--home DIR`, or `SHOAL_HOME`, or `~/.shoal`. Every key has a default,
so the file may be empty or missing. If several sources set a key, the first one in this list applies:

1. options of the command, such as `--port`
2. variables `SHOAL_SECTION__KEY`, with `__` between levels, such as `SHOAL_TURNS__STEPS_MAX=40` and
   `SHOAL_PLATFORMS__TELEGRAM__TOKEN=…`. `SHOAL_TIMEZONE` sets the time zone. Values are TOML (`true`, `3`,
   `["a", "b"]`) or text. You can also write a list of text as items separated by commas
3. `shoal.toml`
4. [variables of other tools](#variables-of-other-tools)

Changes to the file take effect at the next start. Keys and tables marked **Live** take effect immediately if you
change them on the page or with the API.

When it starts, Shoal reports all mistakes at once, with the position, the key, the value and the allowed values.

A **secret** is text, or a table that names its source: `{ env = "NAME" }`, `{ file = "PATH" }` (relative to the home
directory) or `{ command = ["pass", "show", "x"] }`. Shoal reads a secret when it needs the value. If a service rejects
the value, Shoal reads the secret again.

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

PAGE = Path(__file__).parents[2] / "docs/configuration.md"


LIVE = " **Live.**"


@cache
def descriptions(section: type[msgspec.Struct]) -> dict[str, str]:
    """Return the description of each key in a section, including inherited keys. A description is the string below
    a field in the source.
    """
    texts: dict[str, str] = {}
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
                    texts[name] = " ".join(said.split())
                case _:
                    pass
    return texts


def sections() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Yield each table and its settings class, in the order of the file: `turns`, `providers.NAME`,
    `platforms.telegram`…
    """
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
    return any(True for _ in _tables(key.name, key.hint))


def undocumented() -> list[str]:
    return [
        f"{path}.{key.name}"
        for path, kind in sections()
        for key in keys(kind).values()
        if not is_table(key) and not descriptions(kind).get(key.name)
    ]


def mark(kind: type[msgspec.Struct], key: Key) -> str:
    return LIVE if issubclass(kind, Section) and key.name in kind.live else ""


def default_text(kind: type[msgspec.Struct], key: Key) -> str:
    if key.required:
        return "required"
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


def documented_sections() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Yield each table, and one additional table for the keys that all chat accounts share."""
    for path, kind in sections():
        yield path, kind
        if kind is PlatformsSettings:
            yield "platforms.PLATFORM", AccountSettings


def is_shared(kind: type[msgspec.Struct], key: Key) -> bool:
    return issubclass(kind, AccountSettings) and kind is not AccountSettings and key.name in keys(AccountSettings)


def reference() -> str:
    parts = [HEAD]
    for path, kind in [("", whole_config()), *documented_sections()]:
        about = " ".join((inspect.getdoc(kind) or "").split()) if path else "Write these keys before the first table."
        if is_live(tuple(path.removesuffix(".NAME").split("."))):
            about += LIVE
        rows = [
            f"| `{key.name}` | {'a secret' if bare(key.hint) is Secret else _cell(allowed(key.hint))} "
            f"| {_cell(default_text(kind, key))} | {_cell(descriptions(kind).get(key.name, ''))}{mark(kind, key)} |"
            for key in keys(kind).values()
            if not is_table(key) and not is_shared(kind, key)
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
    title = "## Variables of other tools\n\nThese variables apply if the file does not set the key.\n"
    return "\n".join([*parts, title, "| variable | key |", "|---|---|", *rows]) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
