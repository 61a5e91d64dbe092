"""Decode JSON field by field, so one malformed field does not invalidate the rest.

The fast path is msgspec with the exact types. This module decodes the events that msgspec rejects. A value of
another type is converted if only one interpretation makes sense: `"0"` for an index, 7 for an id, one object for a
list of objects, or an object for the text that it contains. Other values are dropped.
"""

import json
import types
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints  # noqa: TID251 - foreign JSON

import msgspec

from shoal.kernel import lazy_re

T = TypeVar("T")

REPAIRED_CHARS_MAX = 4_096
NUMBER_CHARS_MAX = 18
_STRUCTURE = lazy_re.compile(rb'["{}\[\]]')
_STRING = lazy_re.compile(rb'["\\]')
_WHOLE_NUMBER = lazy_re.compile(r"-?[0-9]{1,18}")
_LONE = lazy_re.compile("[\ud800-\udbff\udc00-\udc7f\udd00-\udfff]")
_TEXT_KEYS = ("text", "content", "value")
_BOOLS = {"true": True, "1": True, "false": False, "0": False}
_NOTHING: tuple[object, ...] = (None, False, "", [], {}, 0)
_ODD: Any = object()


class JsonScan:
    """Finds the end of an object or list in bytes that arrive in pieces. Each byte is scanned only once."""

    __slots__ = ("_escaped", "_in_string", "depth")

    def __init__(self) -> None:
        self.depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, data: bytes, at: int = 0) -> int:
        """Scan `data` from `at`. Returns the index after the object or list, or -1 if it is incomplete."""
        if self._escaped and at < len(data):
            at, self._escaped = at + 1, False
        while True:
            if self._in_string:
                match = _STRING.search(data, at)
                if match is None:
                    return -1
                at = match.end()
                if match[0] == b'"':
                    self._in_string = False
                elif at < len(data):
                    at += 1
                else:
                    self._escaped = True
                    return -1
                continue
            match = _STRUCTURE.search(data, at)
            if match is None:
                return -1
            at = match.end()
            mark = match[0]
            if mark == b'"':
                self._in_string = True
            elif mark in (b"{", b"["):
                self.depth += 1
            else:
                self.depth -= 1
                if self.depth <= 0:
                    self.depth = 0
                    return at


def _bounded_int(digits: str) -> int | float | None:
    return int(digits) if len(digits) <= NUMBER_CHARS_MAX else None


_decoder = json.JSONDecoder(strict=False, parse_constant=lambda _: None, parse_int=_bounded_int)


def documents(data: bytes) -> tuple[list[dict[str, Any]], bool]:
    """Decode an event that is not exactly one JSON object. Returns its objects, and whether all of them were complete.

    Accepts several objects in a row, lists, JSON inside text, a byte order mark, NaN, raw line endings and lone
    surrogates. Repairs broken objects as far as possible.
    """
    text = data.decode("utf-8", "surrogateescape").strip("\ufeff \t\r\n\x00")
    while text.startswith("data:"):
        text = text[5:].lstrip()
    objects: list[dict[str, Any]] = []
    at = 0 if text[:1] in ("{", "[", '"') else text.find("{")
    while 0 <= at < len(text):
        try:
            value, at = _decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            objects += _repaired(text[at:])
            return objects, False
        objects += _objects(value)
        at = text.find("{", at)
    return objects, True


def _objects(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield cast("dict[str, Any]", value)
    elif isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            yield from _objects(_decoder.decode(value))
        except (ValueError, RecursionError):
            return
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _objects(item)


def _repaired(text: str) -> Iterator[dict[str, Any]]:
    if len(text) > REPAIRED_CHARS_MAX:
        return
    import json_repair  # Rarely needed.

    try:
        yield from _objects(json_repair.loads(text, skip_json_loads=True))
    except (ValueError, RecursionError):
        return


def raw_json(value: object) -> bytes:
    """Encode a value as JSON. Lone surrogates are replaced."""
    return whole_text(json.dumps(value, ensure_ascii=False)).encode()


def whole_text(text: str) -> str:
    """Join surrogate pairs and replace lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        paired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return _LONE.sub("\ufffd", paired).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return text


def ends_in_half(text: str) -> bool:
    return "\ud800" <= text[-1:] <= "\udfff"


def read_fields(value: object, kind: type[T], odd: list[str]) -> T:
    """Convert an object to a record field by field. The names of dropped fields are added to `odd`."""
    result = _read(value, kind, odd, "")
    return kind() if result is _ODD else result


@cache
def _fields_of(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, field.encode_name, hints[field.name]) for field in msgspec.structs.fields(kind))


def _names_of(kind: Any) -> frozenset[str]:
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return frozenset()
    return frozenset(name for _, name, _ in _fields_of(kind))


def _read(value: Any, hint: Any, odd: list[str], path: str) -> Any:
    origin = get_origin(hint)
    if hint is msgspec.Raw:
        return msgspec.Raw(raw_json(value))
    if origin in (Union, types.UnionType):
        return _read_choice(value, get_args(hint), odd, path)
    if origin is list:
        (item,) = get_args(hint)
        names = _names_of(item)
        if names and isinstance(value, str) and value.lstrip()[:1] == "[":
            value = _parsed(value)
        if names and isinstance(value, dict) and names.isdisjoint(cast("dict[str, object]", value)):
            return _ODD
        many = cast("list[object]", value if isinstance(value, list) else [value])
        read = (_field(element, item, odd, path) for element in many)
        return [item for item in read if item is not _ODD]
    if origin is dict:
        if not isinstance(value, dict):
            return _ODD
        item = get_args(hint)[1]
        return {
            str(key): _read(element, item, odd, path) for key, element in cast("dict[object, object]", value).items()
        }
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _read_struct(value, hint, odd, path)
    return _read_scalar(value, hint)


def _read_choice(value: Any, choices: tuple[Any, ...], odd: list[str], path: str) -> Any:
    if value is None:
        return None if types.NoneType in choices else _ODD
    wanted = (get_origin(choice) or choice for choice in choices)
    exact = [choice for choice, kind in zip(choices, wanted, strict=True) if kind is type(value)]
    for choice in (*exact, *(choice for choice in reversed(choices) if choice is not types.NoneType)):
        result = _read(value, choice, odd, path)
        if result is not _ODD and result != []:
            return result
    return _ODD


def _read_struct(value: Any, kind: type[msgspec.Struct], odd: list[str], path: str) -> Any:
    fields = _fields_of(kind)
    if isinstance(value, str):  # Text in place of an object.
        named = {name for _, name, _ in fields}
        key = next((key for key in _TEXT_KEYS if key in named), "")
        value = {key: value} if key and value else _parsed(value)
    elif isinstance(value, list) and len(cast("list[object]", value)) == 1:
        (value,) = cast("list[object]", value)
    if not isinstance(value, dict):
        return _ODD
    given = cast("dict[str, object]", value)
    read: dict[str, object] = {}
    for name, encoded, hint in fields:
        if encoded in given:
            result = _field(given[encoded], hint, odd, f"{path}.{encoded}" if path else encoded)
            if result is not _ODD:
                read[name] = result
    return kind(**read)


def _parsed(text: str) -> Any:
    try:
        return _decoder.decode(text)
    except (ValueError, RecursionError):
        return _ODD


def _field(value: Any, hint: Any, odd: list[str], path: str) -> Any:
    result = _read(value, hint, odd, path)
    if result is _ODD and value not in _NOTHING:
        odd.append(path)
    return result


def _read_scalar(value: Any, hint: Any) -> Any:
    if hint is str:
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, dict):
            texts = (cast("dict[str, object]", value).get(key) for key in _TEXT_KEYS)
            return next((text for text in texts if isinstance(text, str)), _ODD)
        if isinstance(value, list):
            parts = [_read_scalar(part, str) for part in cast("list[object]", value)]
            return "".join(part for part in parts if part is not _ODD) or _ODD
        return _ODD
    if hint is bool:
        return _BOOLS.get(str(value).lower(), _ODD)
    if hint is int:
        if isinstance(value, bool):
            return _ODD
        if isinstance(value, float) and value.is_integer() and abs(value) < 10**NUMBER_CHARS_MAX:
            return int(value)
        if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value.strip()):
            return int(value)
        return value if isinstance(value, int) else _ODD
    return _ODD
