"""Repair the names and arguments of a model's tool calls if only one reading makes sense.

Calls are repaired once, when the model's response arrives, so the journal, the rules, approvals and the tool see the
same call. Ambiguous calls (two similar names, wrong types, a key that may change the meaning) and truncated calls stay
unchanged. They are later rejected with a message that helps the model correct them.

    name         `functions.bash`, `Bash`, `bash<|channel|>commentary` and `mcp__x__y` become the only tool that matches
    text         text/loose_json.py repairs invalid JSON; an object in a string or in `{"arguments": …}` is unwrapped
    null         removed if the argument is optional
    wrong type   converted if a number or boolean is in a string, a list has one bare item, or JSON is in a string
    extra key    renamed if it is another spelling of a known key; removed if it is empty or a remark (`explanation`,
                 `reason`); always removed for tools that only read
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol, cast

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.messages import MORE_TOOLS, ToolCall
from shoal.kernel.ports import Tool
from shoal.kernel.untrusted import UNREADABLE
from shoal.text.loose_json import loose_value
from shoal.tools.offer import unwrapped

CHARS_MAX = 1_000_000
"""Maximum length of arguments that are repaired."""
NAME_CHARS_MAX = 200
TEXTS_MAX = 3
"""Maximum number of times that a string in the arguments is decoded as JSON. Models sometimes encode JSON repeatedly.
"""
DEPTH_MAX = 8
SCHEMAS_MAX = 512
_PREFIX = lazy_re.compile(
    r"(?:functions?|tools?|default_api|namespace|multi_tool_use|assistant|builtin)[.:/]", re.IGNORECASE
)
_SUFFIX = lazy_re.compile(r"(?::\d{1,4}|\(\s*\))\Z")
_SEPARATORS = lazy_re.compile(r"[^a-z0-9]+")
_WHOLE = lazy_re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_DECIMAL = lazy_re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,3})?")
_REMARKS = frozenset(
    {
        "callid", "comment", "comments", "description", "dummy", "explain", "explanation", "extra", "foo", "goal",
        "intent", "justification", "note", "notes", "objective", "placeholder", "purpose", "randomstring", "rationale",
        "reason", "reasoning", "remark", "summary", "thinking", "thought", "thoughts", "title", "toolname", "tooluseid",
        "unused", "why",
    }
)  # fmt: skip
"""Names of arguments that models add to explain a call, in lower case and without separators. They do not change the
effect of the call.
"""
_WRAPPERS = frozenset({"arguments", "parameters", "args", "input", "params", "tool_input", "kwargs", "properties"})
_ABOUT = frozenset({"name", "tool", "tool_name", "function", "type", "id", "recipient_name"})

Schema = Mapping[str, object]


class Tools(Protocol):
    """The tools of an agent by name."""

    def get(self, name: str) -> Tool | None: ...

    def names(self) -> Sequence[str]: ...


def mended(call: ToolCall, tools: Tools, wanted: Sequence[str]) -> ToolCall:
    """Repair a call. An unknown name can become one of the `wanted` tools, or any tool if `wanted` is empty."""
    name = call.name
    if (tool := tools.get(name)) is None:
        names = tools.names()
        name = closest_name(name, [name for name in names if not wanted or name in wanted or name == MORE_TOOLS])
        if (tool := tools.get(name)) is None:
            return call
    renamed = ToolCall(call.id, name, mended_arguments(call.arguments, tool))
    if name != MORE_TOOLS:
        return renamed
    inner = unwrapped(renamed)
    if inner.name == MORE_TOOLS:
        return inner
    repaired = mended(ToolCall(inner.id, inner.name, inner.arguments), tools, wanted)
    return inner if repaired.name == MORE_TOOLS else ToolCall(inner.id, repaired.name, repaired.arguments, wrapped=True)


def closest_name(name: str, names: Sequence[str]) -> str:
    if name in names or len(name) > NAME_CHARS_MAX:
        return name
    bare = name.partition("<|")[0].partition("<｜")[0].strip().strip("\"'`")
    bare = _SUFFIX.sub("", bare)
    while (prefix := _PREFIX.match(bare)) is not None:
        bare = bare[prefix.end() :]
    if bare in names:
        return bare
    key = _key(bare)
    if not key:
        return name
    for keys in ({key}, {f"mcp{key}"}):
        near = [name for name in names if _key(name) in keys]
        if near:
            return near[0] if len(near) == 1 else name
    parts = _SEPARATORS.split(bare.lower())
    ends = [
        name for name in names if name.startswith("mcp_") and _SEPARATORS.split(name.lower())[-len(parts) :] == parts
    ]
    return ends[0] if len(ends) == 1 else name


def _key(name: str) -> str:
    return _SEPARATORS.sub("", name.lower())


def mended_arguments(written: str, tool: Tool) -> str:
    if len(written) > CHARS_MAX:
        return written
    schema = _schema_of(tool.spec.parameters)
    value = _read(written)
    if not isinstance(value, dict):
        return written
    given = cast("dict[str, object]", value)
    properties = _properties(schema)
    if len(wrapped := [key for key in given if key in _WRAPPERS and key not in properties]) == 1 and all(
        key == wrapped[0] or (key in _ABOUT and key not in properties) for key in given
    ):
        inner = given[wrapped[0]]
        inner = _read(inner) if isinstance(inner, str) else inner
        given = cast("dict[str, object]", inner) if isinstance(inner, dict) else given
    fixed = _object(given, schema, schema, 0, reads=tool.traits.read_only)
    if fixed is given and written.lstrip()[:1] == "{" and _strict(written) == fixed:
        return written
    return msgspec.json.encode(fixed).decode()


def _strict(text: str) -> object:
    try:
        return cast("object", msgspec.json.decode(text))
    except UNREADABLE:
        return None


def _read(text: str) -> object:
    value: object = text
    for _ in range(TEXTS_MAX):
        if isinstance(value, list) and len(cast("list[object]", value)) == 1:
            (value,) = cast("list[object]", value)
        if not isinstance(value, str):
            break
        bare = value.strip()
        if bare in ("", "null", "None", "undefined"):
            return {}
        strict = _strict(bare)
        if strict is None:
            try:
                strict = loose_value(bare)
                msgspec.json.encode(strict)
            except (ValueError, TypeError):
                return None
        value = strict
    return cast("object", value)


@lru_cache(SCHEMAS_MAX)
def _schema_of(parameters: str) -> Schema:
    schema = _strict(parameters)
    return cast("Schema", schema) if isinstance(schema, dict) else {}


def _properties(schema: Schema) -> Schema:
    properties = schema.get("properties")
    return cast("Schema", properties) if isinstance(properties, dict) else {}


def _resolve(schema: object, root: Schema) -> Schema:
    for _ in range(DEPTH_MAX):
        if not isinstance(schema, dict):
            return {}
        resolved = cast("Schema", schema)
        reference = resolved.get("$ref")
        if not isinstance(reference, str):
            return resolved
        schema = root
        for step in reference.removeprefix("#").strip("/").split("/"):
            schema = cast("Schema", schema).get(step) if isinstance(schema, dict) else None
    return {}


def _object(given: dict[str, object], schema: Schema, root: Schema, depth: int, *, reads: bool) -> dict[str, object]:
    properties = _properties(schema)
    if depth > DEPTH_MAX or not (properties or schema.get("additionalProperties") is False):
        return given
    required = schema.get("required")
    needed = set(cast("list[object]", required)) if isinstance(required, list) else set[object]()
    is_closed = schema.get("additionalProperties") is False
    fixed: dict[str, object] = {}
    for key, value in given.items():
        name = key
        if key not in properties:
            near = [property for property in properties if _key(property) == _key(key) and property not in given]
            others = [name for name in given if name != key and name not in properties and _key(name) == _key(key)]
            if len(near) == 1 and not others:
                name = near[0]
            elif is_closed and _is_left_out(key, value, properties, reads=reads):
                continue
        part = _resolve(properties.get(name), root)
        if value is None and name in properties and name not in needed and not _takes(None, part, root):
            continue
        fixed[name] = _value(value, part, root, depth + 1, reads=reads) if part else value
    same = fixed.keys() == given.keys() and all(fixed[key] is given[key] for key in given)
    return given if same else fixed


def _is_left_out(key: str, value: object, properties: Schema, *, reads: bool) -> bool:
    return reads or not properties or value in (None, "", [], {}) or _key(key) in _REMARKS


def _kinds(schema: Schema, root: Schema) -> list[Schema]:
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return [kind for option in cast("list[object]", options) for kind in _kinds(_resolve(option, root), root)]
    types = schema.get("type")
    if isinstance(types, list):
        return [{**schema, "type": type_name} for type_name in cast("list[object]", types)]
    return [schema]


_CLASSES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
    "object": (dict,), "null": (type(None),),
}  # fmt: skip


def _takes(value: object, schema: Schema, root: Schema) -> bool:
    for kind in _kinds(schema, root):
        name = kind.get("type")
        if "const" in kind and kind["const"] == value:
            return True
        classes = _CLASSES.get(name, ()) if isinstance(name, str) else ()
        if not classes and "enum" not in kind and "const" not in kind:
            return True
        if isinstance(value, classes) and (isinstance(value, bool) == (name == "boolean")):
            return True
    return False


def _value(value: object, schema: Schema, root: Schema, depth: int, *, reads: bool) -> object:
    kinds = [kind for kind in _kinds(schema, root) if kind.get("type") != "null"]
    if len(kinds) != 1 or depth > DEPTH_MAX:
        return value
    kind = kinds[0]
    choices = kind.get("enum")
    if isinstance(choices, list) and isinstance(value, str):
        allowed = cast("list[object]", choices)
        near = [choice for choice in allowed if isinstance(choice, str) and choice.lower() == value.strip().lower()]
        return near[0] if value not in allowed and len(near) == 1 else value
    match kind.get("type"):
        case "integer" | "number" | "boolean" | "string":
            return _scalar(value, str(kind["type"]))
        case "array":
            item = _resolve(kind.get("items"), root)
            many = _many(value, item, root)
            if many is None:
                return value
            fixed = [
                _value(item_value, item, root, depth + 1, reads=reads) if item else item_value for item_value in many
            ]
            same = many is value and all(item_value is other for item_value, other in zip(fixed, many, strict=True))
            return value if same else fixed
        case "object":
            read = _read(value) if isinstance(value, str) and value.strip()[:1] in ("{", '"') else value
            if not isinstance(read, dict):
                return value
            return _object(cast("dict[str, object]", read), kind, root, depth + 1, reads=reads)
        case _:
            return value


def _many(value: object, item: Schema, root: Schema) -> Sequence[object] | None:
    if isinstance(value, list):
        return cast("list[object]", value)
    if value is None:
        return None
    if isinstance(value, str):
        bare = value.strip()
        if bare.startswith("["):
            strict = _strict(bare)
            try:
                read = strict if strict is not None else loose_value(bare)
            except ValueError:
                return None
            return cast("list[object]", read) if isinstance(read, list) else None
        if not bare or "," in bare or "\n" in bare:
            return None
    return [value] if item and _takes(value, item, root) else None


def _scalar(value: object, name: str) -> object:
    if name == "string":
        if isinstance(value, bool):
            return str(value).lower()
        return str(value) if isinstance(value, int | float) else value
    if isinstance(value, float) and name == "integer" and value.is_integer() and abs(value) < 1e15:
        return int(value)
    if not isinstance(value, str):
        return value
    bare = value.strip()
    if name == "boolean":
        return {"true": True, "false": False}.get(bare.lower(), value)
    if name == "integer":
        return int(bare) if _WHOLE.fullmatch(bare) is not None else value
    if _DECIMAL.fullmatch(bare) is None:
        return value
    return int(bare) if _WHOLE.fullmatch(bare) is not None else float(bare)
