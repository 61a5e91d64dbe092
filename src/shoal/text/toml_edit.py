"""Sets and removes keys in the text of a TOML file. Comments and all other text are unchanged.

Each result is parsed and must have exactly the requested content. If it does not, CannotEdit is raised.
docs/decisions/001 explains why `tomlkit` alone is not enough.
"""

import json
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TypeAlias, cast

from shoal.kernel import lazy_re
from shoal.kernel.untrusted import BAD_TOML, decode_toml

Value: TypeAlias = "str | int | float | bool | Sequence[Value] | Mapping[str, Value]"

Table: TypeAlias = "MutableMapping[str, object]"
New: TypeAlias = "Callable[[Value], object]"
"""Function that converts a value to the form that a decoder returns, or to an item of a syntax tree."""

_HEADER = lazy_re.compile(r"\s*(\[{1,2}[^\[\]]+\]{1,2})\s*(?:#.*)?")


class CannotEdit(Exception):
    """Raised if a key cannot be set safely in the file's current form. The text is unchanged."""


def with_value(text: str, path: tuple[str, ...], value: Value) -> str:
    """Set a key. The last part of `path` is the key. The parts before it name its table.

    A missing table is added at the end. Raises CannotEdit.
    """

    def change(content: Table, new: New) -> None:
        _table_at(content, path[:-1])[path[-1]] = new(value)

    return _changed(text, path, change, _with_line(text, path, value))


def with_element(text: str, path: tuple[str, ...], at: int, value: Mapping[str, Value] | None) -> str:
    """Replace element `at` of the array of tables at `path`, or remove it if `value` is None.

    If `at` is the number of elements, an element is added at the end. Raises CannotEdit.
    """

    def change(content: Table, new: New) -> None:
        elements = cast("list[object]", _table_at(content, path[:-1]).setdefault(path[-1], []))
        if value is None:
            del elements[at]
        elif at < len(elements):
            element = cast("Table", elements[at])
            for key in list(element):
                del element[key]
            element.update({key: new(item) for key, item in value.items()})
        else:
            elements.append(new(value))

    return _changed(text, path, change, _with_block(text, path, at, value))


def without_key(text: str, path: tuple[str, ...]) -> str:
    """Remove a key, or a table and its subtables.

    Raises CannotEdit, including if the key does not exist.
    """

    def change(content: Table, new: New) -> None:
        table = content
        for name in path[:-1]:
            table = cast("Table", table[name])
        del table[path[-1]]

    return _changed(text, path, change, _without_block(text, path))


def _changed(text: str, path: tuple[str, ...], change: Callable[[Table, New], None], by_lines: str) -> str:
    """Return `by_lines` if it has the wanted content. Otherwise, apply `change` to the syntax tree and return the
    result.

    Raises CannotEdit.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        wanted = decode_toml(text)
        change(wanted, _plain)
        if _has_content(by_lines, wanted):
            return by_lines
        document = tomlkit.parse(text)
        change(document, _item)
        changed = tomlkit.dumps(document).rstrip("\n") + "\n"
        if _has_content(changed, wanted):
            return changed
    except (*BAD_TOML, TOMLKitError, LookupError, AttributeError, TypeError):
        pass
    raise CannotEdit(f"Shoal cannot change {'.'.join(path)} in the file's current form.")


# ---- editing lines, which keeps every comment in its position ----


def _with_line(text: str, path: tuple[str, ...], value: Value) -> str:
    """Add a key after the other keys of its table, or after a comment that contains the same key."""
    *table, key = path
    lines = text.splitlines()
    statement = f"{_name(key)} = {literal(value)}"
    begins = next((n + 1 for n, line in enumerate(lines) if _table_of(line) == table), None) if table else 0
    if begins is None:
        lines += [*([""] if lines and lines[-1].strip() else []), f"[{'.'.join(map(_name, table))}]", statement]
    else:
        ends = next((n for n in range(begins, len(lines)) if _table_of(lines[n]) is not None), len(lines))
        inner = lines[begins:ends]
        last = [n for n, line in enumerate(inner) if line.strip() and not line.lstrip().startswith("#")]
        shown = [n for n, line in enumerate(inner) if re.match(rf"\s*#\s*{re.escape(_name(key))}\s*=", line)]
        begin = -1 if table else max((n for n, line in enumerate(inner) if line.strip()), default=-1)
        inner.insert(max([*last, *shown], default=begin) + 1, statement)
        lines[begins:ends] = inner
    return "\n".join(lines) + "\n"


def _with_block(text: str, path: tuple[str, ...], at: int, value: Mapping[str, Value] | None) -> str:
    lines = text.splitlines()
    heads = [n for n, line in enumerate(lines) if line.lstrip().startswith("[[") and _table_of(line) == [*path]]
    keys = [f"{_name(key)} = {literal(item)}" for key, item in (value or {}).items()]
    block = [f"[[{'.'.join(map(_name, path))}]]", *keys]
    if at < len(heads):
        ends = next((n for n in range(heads[at] + 1, len(lines)) if _table_of(lines[n]) is not None), len(lines))
        while lines[ends - 1].lstrip().startswith("#") or not lines[ends - 1].strip():
            ends -= 1  # The comments before the next table belong to that table.
        lines[heads[at] : ends] = block if value is not None else []
    else:
        lines += [*([""] if lines and lines[-1].strip() else []), *block]
    return "\n".join(lines).rstrip() + "\n"


def _without_block(text: str, path: tuple[str, ...]) -> str:
    remaining, cut, is_within = list[str](), list[str](), False
    for line in text.splitlines():
        if (table := _table_of(line)) is not None:
            is_next, is_within = is_within, tuple(table[: len(path)]) == path
            remaining += _remarks(cut) if is_next and not is_within else []
            cut = []
        (cut if is_within else remaining).append(line)
    return "\n".join(remaining).rstrip() + "\n"


def _remarks(lines: list[str]) -> list[str]:
    """Return the comments at the end of a table, which belong to the next table."""
    begins = len(lines)
    while begins and lines[begins - 1].lstrip().startswith("#"):
        begins -= 1
    return lines[begins:]


# ---- shared ----


def _item(value: Value) -> object:
    import tomlkit

    return tomlkit.parse(f"x = {literal(value)}")["x"]


def _has_content(text: str, wanted: Table) -> bool:
    """Return True if the text is TOML with this content. Ignores empty tables and arrays."""
    try:
        return _without_empty(decode_toml(text)) == _without_empty(wanted)
    except BAD_TOML:
        return False


def _table_at(content: Table, path: tuple[str, ...]) -> Table:
    """Return the table at a path. Missing tables are created.

    Raises LookupError if the path leads to several tables or to another value.
    """
    table = content
    for name in path:
        inner: object = table.setdefault(name, {})
        if isinstance(inner, list):
            (inner,) = cast("list[object]", inner) if len(cast("list[object]", inner)) == 1 else (None,)
        if not isinstance(inner, MutableMapping):
            raise LookupError(name)
        table = cast("Table", inner)
    return table


def _without_empty(content: Mapping[str, object]) -> dict[str, object]:
    inner = {
        name: _without_empty(cast("Mapping[str, object]", value)) if isinstance(value, dict) else value
        for name, value in content.items()
    }
    return {name: value for name, value in inner.items() if value not in ({}, [])}


def _plain(value: Value) -> object:
    return decode_toml(f"x = {literal(value)}")["x"]


def literal(value: Value) -> str:
    """Format a value as TOML. A mapping becomes an inline table."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case int() | float():
            return str(value)
        case Mapping():
            return f"{{ {', '.join(f'{_name(name)} = {literal(inner)}' for name, inner in value.items())} }}"
        case _:
            return f"[{', '.join(map(literal, value))}]"


def _name(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else literal(key)


def _table_of(line: str) -> list[str] | None:
    header = _HEADER.fullmatch(line)
    try:
        nested: object = decode_toml(header[1]) if header else None
    except BAD_TOML:
        return None
    path = list[str]()
    while nested:
        table = cast("dict[str, object]", cast("list[object]", nested)[0] if isinstance(nested, list) else nested)
        path += table
        nested = next(iter(table.values()), None)
    return path or None
