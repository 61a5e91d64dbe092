"""Sets keys in the text of a TOML file and leaves everything else of it as it was written, comments included."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

from shoal.domain import lazy_re
from shoal.domain.untrusted import BAD_TOML, decode_toml

Value: TypeAlias = "str | int | float | bool | Sequence[Value] | Mapping[str, Value]"

_HEADER = lazy_re.compile(r"\s*(\[{1,2}[^\[\]]+\]{1,2})\s*(?:#.*)?")


class CannotPlace(Exception):
    """The file is written in a form in which the key cannot be set for sure; nothing of it was changed."""


def with_value(text: str, path: tuple[str, ...], value: Value) -> str:
    """The text with this key set, whose last part is the key and whose others are its table.

    A table that is missing is added at the end. Raises CannotPlace where the result would not say exactly that.
    """
    *table, key = path
    lines = text.splitlines()
    statement = f"{_name(key)} = {literal(value)}"
    begins = next((n + 1 for n, line in enumerate(lines) if _table_of(line) == table), None) if table else 0
    if begins is None:
        lines += [*([""] if lines and lines[-1].strip() else []), f"[{'.'.join(map(_name, table))}]", statement]
    else:
        ends = next((n for n in range(begins, len(lines)) if _table_of(lines[n]) is not None), len(lines))
        inner = lines[begins:ends]
        found = find_statement(inner, _name(key))
        if found is not None:
            inner[found[0] : found[1]] = [statement]
        else:  # below what is set there already, or below the comment that shows the key
            last = [n for n, line in enumerate(inner) if line.strip() and not line.lstrip().startswith("#")]
            shown = [n for n, line in enumerate(inner) if re.match(rf"\s*#\s*{re.escape(_name(key))}\s*=", line)]
            inner.insert(max([*last, *shown], default=-1) + 1, statement)
        lines[begins:ends] = inner
    result = "\n".join(lines) + "\n"
    try:
        wanted = _with(decode_toml(text), path, value)
        is_right = decode_toml(result) == wanted
    except (*BAD_TOML, LookupError):
        is_right = False
    if not is_right:
        raise CannotPlace(f"{'.'.join(path)} cannot be set in the file as it is written.")
    return result


def with_element(text: str, path: tuple[str, ...], at: int, value: Mapping[str, Value] | None) -> str:
    """The text with element `at` of an array of tables, `[[a.b]]`, put in the place of the one there, added at the end
    (`at` is their number) or, with None, taken out. Raises CannotPlace where the result would not say exactly that."""
    lines = text.splitlines()
    heads = [n for n, line in enumerate(lines) if line.lstrip().startswith("[[") and _table_of(line) == [*path]]
    keys = [f"{_name(key)} = {literal(one)}" for key, one in (value or {}).items()]
    block = [f"[[{'.'.join(map(_name, path))}]]", *keys]
    if at < len(heads):
        ends = next((n for n in range(heads[at] + 1, len(lines)) if _table_of(lines[n]) is not None), len(lines))
        while lines[ends - 1].lstrip().startswith("#") or not lines[ends - 1].strip():
            ends -= 1  # what stands before the next table belongs to that
        lines[heads[at] : ends] = block if value is not None else []
    else:
        lines += [*([""] if lines and lines[-1].strip() else []), *block]
    result = "\n".join(lines).rstrip() + "\n"
    wanted = decode_toml(text)
    try:
        table: dict[str, object] = wanted
        for name in path[:-1]:
            table = cast("dict[str, object]", table.setdefault(name, {}))
        listed = cast("list[object]", table.setdefault(path[-1], []))
        listed[at : at + 1] = [] if value is None else [{key: _plain(one) for key, one in value.items()}]
        is_right = _without_empty(decode_toml(result)) == _without_empty(wanted) and at <= len(heads)
    except (AttributeError, TypeError, *BAD_TOML):
        is_right = False
    if not is_right:
        raise CannotPlace(f"[[{'.'.join(path)}]] cannot be changed in the file as it is written.")
    return result


def cut_table(text: str, path: tuple[str, ...]) -> str:
    """The text without this table and those below it. Raises CannotPlace where it does not stand there as one."""
    kept, is_within = list[str](), False
    for line in text.splitlines():
        table = _table_of(line)
        is_within = is_within if table is None else tuple(table[: len(path)]) == path
        if not is_within:
            kept.append(line)
    result = "\n".join(kept) + "\n"
    wanted = table = decode_toml(text)
    try:
        for name in path[:-1]:
            table = table[name]
        del table[path[-1]]
        is_right = _without_empty(decode_toml(result)) == _without_empty(wanted)
    except (LookupError, TypeError, *BAD_TOML):
        is_right = False
    if not is_right:
        raise CannotPlace(f"[{'.'.join(path)}] does not stand in the file as a table of its own.")
    return result


def _without_empty(content: Mapping[str, object]) -> dict[str, object]:
    """The content without tables and arrays of tables that hold nothing."""
    inner = {
        name: _without_empty(cast("Mapping[str, object]", value)) if isinstance(value, dict) else value
        for name, value in content.items()
    }
    return {name: value for name, value in inner.items() if value not in ({}, [])}


def _plain(value: Value) -> object:
    return list(value) if isinstance(value, tuple) else value


def find_statement(lines: list[str], key: str) -> tuple[int, int] | None:
    """From which line to which the key's statement goes; it may span several."""
    start = next((n for n, line in enumerate(lines) if re.match(rf"\s*{re.escape(key)}\s*=", line)), None)
    if start is None:
        return None
    for end in range(start + 1, len(lines) + 1):
        try:
            decode_toml("\n".join(lines[start:end]))
        except BAD_TOML:
            continue
        return start, end
    return None


def literal(value: Value) -> str:
    """The value as TOML writes it; a mapping as an inline table."""
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
    """The path of the table that this line begins; None for any other line."""
    header = _HEADER.fullmatch(line)
    try:
        found: object = decode_toml(header[1]) if header else None
    except BAD_TOML:
        return None
    path = list[str]()
    while found:
        table = cast("dict[str, object]", cast("list[object]", found)[0] if isinstance(found, list) else found)
        path += table
        found = next(iter(table.values()), None)
    return path or None


def _with(content: dict[str, object], path: tuple[str, ...], value: Value) -> dict[str, object]:
    """What the file should say then. Raises LookupError where the path leads through several tables, or none."""
    table = content
    for name in path[:-1]:
        inner: object = table.setdefault(name, {})
        if isinstance(inner, list):
            (inner,) = cast("list[object]", inner) if len(cast("list[object]", inner)) == 1 else (None,)
        if not isinstance(inner, dict):
            raise LookupError(name)
        table = cast("dict[str, object]", inner)
    table[path[-1]] = _plain(value)
    return content
