"""What a model is told of a server's tool: a name every provider takes, a bounded description, a bounded schema.

All of it comes from outside. Names are made unique, texts lose control and invisible characters, and schemas keep only
what describes arguments, to a depth and a size; the server checks what it is sent by its own schema anyway.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TypeAlias, cast

from shoal.tools.output import visible

NAME_CHARS_MAX = 64
DESCRIPTION_CHARS_MAX = 1024
WORD_CHARS_MAX = 300
"""Longest description or title within a schema, in characters."""
SCHEMA_BYTES_MAX = 16_384
SCHEMA_DEPTH_MAX = 12
ENTRIES_MAX = 100
"""Most properties of one object, or choices of one list, that are described."""

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_WORDS = frozenset({"description", "title"})
_SCHEMAS = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedItems"}
)
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_TABLES = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
_PLAIN = frozenset(
    """
    type enum const default required format pattern minimum maximum exclusiveMinimum exclusiveMaximum multipleOf
    minLength maxLength minItems maxItems uniqueItems minProperties maxProperties
    """.split()  # noqa: SIM905
)


def tool_name(server: str, tool: str) -> str:
    """`mcp_SERVER_TOOL`, at most 64 letters, digits, `_` and `-`; one that had to be changed ends in a digest."""
    wanted = f"mcp_{server}_{tool}"
    clean = re.sub(r"[^A-Za-z0-9_-]", "_", wanted)
    if clean == wanted and len(clean) <= NAME_CHARS_MAX:
        return clean
    digest = hashlib.sha256(wanted.encode("utf-8", errors="replace")).hexdigest()[:8]
    return f"{clean[: NAME_CHARS_MAX - 9]}_{digest}"


def any_tool_of(server: str) -> str:
    """A pattern for the names of a server's tools, whichever they are."""
    return f"mcp_{server}_*"


def described(server: str, description: str) -> str:
    """The description as the model gets it: whose it is, and then its own words."""
    text = visible(description).strip()
    words = text if len(text) <= DESCRIPTION_CHARS_MAX else f"{text[:DESCRIPTION_CHARS_MAX]}…"
    return f"[Tool of the MCP server {server}, described by it] {words}".strip()


def fitted_schema(schema: Mapping[str, object]) -> str:
    """A JSON Schema of an object as compact JSON text, within the bounds: first texts go, then all but the names."""
    full = _object(_cleaned(cast("Json", dict(schema)), 0, keep_words=True))
    for candidate in (full, _object(_cleaned(full, 0, keep_words=False)), _names_only(full)):
        text = _encoded(candidate)
        if len(text.encode()) <= SCHEMA_BYTES_MAX:
            return text
    return _encoded({"type": "object", "properties": {}})


def _encoded(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _object(schema: Json) -> dict[str, Json]:
    """A schema whose root is an object with properties, as providers want it."""
    found = schema if isinstance(schema, dict) else {}
    properties = found.get("properties")
    required = found.get("required")
    names: dict[str, Json] = properties if isinstance(properties, dict) else {}
    kept: list[Json] = [name for name in required if name in names] if isinstance(required, list) else []
    rest: dict[str, Json] = {key: value for key, value in found.items() if key != "required"}
    return {**rest, "type": "object", "properties": names, **({"required": kept} if kept else {})}


def _names_only(schema: dict[str, Json]) -> dict[str, Json]:
    properties = schema["properties"]
    names = list(properties)[:ENTRIES_MAX] if isinstance(properties, dict) else []
    return {"type": "object", "properties": {name[:WORD_CHARS_MAX]: {} for name in names}}


def _cleaned(schema: Json, depth: int, *, keep_words: bool) -> Json:
    """A schema with only the keywords that are known, no deeper than SCHEMA_DEPTH_MAX; below that anything goes."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict) or depth >= SCHEMA_DEPTH_MAX:
        return {}
    kept: dict[str, Json] = {}
    for key, value in schema.items():
        cleaned = _keyword(key, value, depth, keep_words=keep_words)
        if cleaned is not None:
            kept[key] = cleaned
    return kept


def _keyword(key: str, value: Json, depth: int, *, keep_words: bool) -> Json:
    """What remains of one keyword; None when it goes."""
    match value:
        case str() if key in _WORDS and keep_words:
            return visible(value)[:WORD_CHARS_MAX]
        case str() if key == "$ref" and re.fullmatch(r"#/(\$defs|definitions)/[^/]{1,200}", value):
            return value
        case dict() if key in _TABLES:
            some = list(value.items())[:ENTRIES_MAX]
            return {visible(name): _cleaned(one, depth + 1, keep_words=keep_words) for name, one in some}
        case list() if key in _LISTS:
            return [_cleaned(one, depth + 1, keep_words=keep_words) for one in value[:ENTRIES_MAX]]
        case dict() | bool() if key in _SCHEMAS:
            return _cleaned(value, depth + 1, keep_words=keep_words)
        case _ if key in _PLAIN:
            return _plain(value)
        case _:
            return None


def _plain(value: Json) -> Json:
    """A value without structure of its own, or a list of such; None for what is not."""
    match value:
        case str():
            return visible(value)[:WORD_CHARS_MAX]
        case list():
            return [_plain(one) for one in value[:ENTRIES_MAX] if not isinstance(one, dict | list)]
        case dict():
            return None
        case float() if value != value or value in (float("inf"), float("-inf")):
            return None
        case _:
            return value
