"""Rewrite a tool's JSON Schema for all model providers, and map the arguments back.

    schema from the server                             result
    ------------------------------------------------   -----------------------------------------------------------
    `$ref`, `$defs`, including recursive ones          The schema, inlined to a limited depth.
    `allOf`, `anyOf` with a single alternative         One merged schema.
    `oneOf`                                            `anyOf`
    `const`                                            `enum`
    `anyOf` next to properties or at the top level     The properties of all alternatives, and a sentence that
                                                       names the valid combinations.
    `type` lists, `nullable`                           `anyOf` with one type each.
    tuples, arrays without `items`                     `items`
    `$filter`, `filter[id]`, names that are too long   Names of letters, digits, `_` and `-`. `own_names` restores
                                                       the originals.
    drafts 3 and 4, OpenAPI, unknown or invalid types  Converted to draft 2020-12, or removed.
    `if`, `not`, `patternProperties`, remote `$ref`    Removed, because the server validates its arguments itself.

The result uses only KEYWORDS, has one `type` or an `anyOf` wherever a type is known, and is bounded in nodes, depth and
bytes. Anthropic validates against draft 2020-12 and requires property names of `[A-Za-z0-9_.-]{1,64}`. Anthropic and
OpenAI reject `anyOf`, `oneOf` and `allOf` at the top level. OpenAI also rejects arrays without `items` and objects
without `properties`. `models/schema_dialects.py` applies the limits of other services.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

from shoal.kernel import lazy_re
from shoal.kernel.errors import InvalidInput
from shoal.tools.output import visible

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Schema: TypeAlias = "dict[str, Json]"

WORD_CHARS_MAX = 300
"""Maximum length of a description within a schema, in characters."""
SCHEMA_BYTES_MAX = 16_384
SCHEMA_DEPTH_MAX = 12
NODES_MAX = 2_000
"""Maximum number of nodes in a schema, including inlined references."""
ENTRIES_MAX = 100
"""Maximum number of properties in an object, or of choices in a list."""
REFERENCES_MAX = 20
REPEATS_MAX = 2
"""Maximum number of times that a recursive reference is inlined."""
_INTEGER_MAX = 2**53

KEYWORDS = frozenset(
    """
    type description properties required additionalProperties items anyOf enum default format pattern minimum maximum
    exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength minItems maxItems uniqueItems
    """.split()  # noqa: SIM905
)
_TYPES = {
    "string": "string", "str": "string", "text": "string", "char": "string", "date": "string", "datetime": "string",
    "date-time": "string", "file": "string", "binary": "string", "uuid": "string", "email": "string", "uri": "string",
    "url": "string", "bytes": "string", "enum": "string", "password": "string",
    "number": "number", "float": "number", "double": "number", "decimal": "number", "numeric": "number",
    "integer": "integer", "int": "integer", "int32": "integer", "int64": "integer", "long": "integer",
    "boolean": "boolean", "bool": "boolean",
    "array": "array", "list": "array", "tuple": "array", "set": "array",
    "object": "object", "dict": "object", "map": "object", "record": "object", "struct": "object", "hash": "object",
    "null": "null", "none": "null", "nil": "null", "undefined": "null",
}  # fmt: skip
_HINTS = (
    ("object", ("properties", "additionalProperties", "patternProperties", "required", "propertyNames")),
    ("array", ("items", "prefixItems", "minItems", "maxItems", "uniqueItems")),
    ("string", ("pattern", "minLength", "maxLength", "format")),
    ("number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
)
_SIZES = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_NAME = lazy_re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_FORMAT = lazy_re.compile(r"[a-z][a-z0-9-]{1,30}")


class Portable(NamedTuple):
    """Schema that all providers accept, as compact JSON. `names` maps renamed properties to their original names."""

    text: str
    names: dict[str, str]


def portable(schema: object) -> Portable:
    """Convert a tool's argument schema to one that all providers accept.

    If the schema exceeds SCHEMA_BYTES_MAX, descriptions and defaults are removed first, then everything except property
    names, and finally the property names. Raises InvalidInput if the arguments are not an object.
    """
    root = cast("Schema", schema) if isinstance(schema, dict) else {}
    reader = _SchemaRewriter(root)
    whole = reader.read_root()
    bare = _without_words(whole)
    properties = cast("Schema", whole["properties"])
    names: Schema = {"type": "object", "properties": {name: {} for name in properties}}
    nothing: Schema = {"type": "object", "properties": {}}
    for part in (whole, bare, names, nothing):
        text = json.dumps(part, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        if len(text.encode()) <= SCHEMA_BYTES_MAX:
            break
    return Portable(text, {new: own for own, new in reader.names.items() if new != own})


def own_names(value: Json, names: Mapping[str, str]) -> Json:
    """Restore the server's original property names in a tool call's arguments."""
    match value:
        case dict():
            return {names.get(name, name): own_names(item, names) for name, item in value.items()}
        case list():
            return [own_names(item, names) for item in value]
        case _:
            return value


class _SchemaRewriter:
    """Rewrites one schema. `names` maps original property names to new names."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._nodes = 0
        self.names: dict[str, str] = {}

    def read_root(self) -> Schema:
        flat, followed = self._flat(self._root, ())
        types = _types_of(flat)
        if types and "object" not in types:
            raise InvalidInput(f"its arguments are of type {' or '.join(types)} instead of object")
        read = self._object(flat, followed, 0)
        if words := _description(flat):
            read["description"] = words
        read.setdefault("properties", {})
        return read

    def read(self, schema: Json, followed: tuple[str, ...], depth: int) -> Schema:
        """Rewrite a subschema. Return an empty schema if it is unsupported or exceeds a limit."""
        self._nodes += 1
        if isinstance(schema, str) and schema.lower() in _TYPES:
            schema = {"type": schema}
        if not isinstance(schema, dict) or depth >= SCHEMA_DEPTH_MAX or self._nodes > NODES_MAX:
            return {}
        flat, followed = self._flat(schema, followed)
        types = _types_of(flat)
        arms = _arms_of(flat)
        read: Schema
        if arms and not (types == ["object"] and _properties(flat)):
            read = self._any_of(flat, arms, types, followed, depth)
        elif len(types) > 1:
            shared = {
                key: value for key, value in flat.items() if key not in ("type", "nullable", "description", "title")
            }
            read = _any([self.read({**shared, "type": kind_}, followed, depth + 1) for kind_ in types])
        else:
            read = self._typed(flat, types[0] if types else "", followed, depth)
        if words := _description(flat):
            read["description"] = words
        if "default" in flat and _is_small(flat["default"]):
            read["default"] = flat["default"]
        return read

    def _typed(self, flat: Schema, kind: str, followed: tuple[str, ...], depth: int) -> Schema:
        read: Schema = {"type": kind} if kind else {}
        match kind:
            case "object":
                read = self._object(flat, followed, depth)
            case "array":
                read["items"] = self._items(flat, followed, depth)
                if flat.get("uniqueItems") is True:
                    read["uniqueItems"] = True
            case "string":
                read |= _text_rules(flat)
            case "number" | "integer":
                read |= _number_rules(flat)
            case _:
                pass
        if kind in _SIZES:
            least, most = (_size(flat.get(key)) for key in _SIZES[kind])
            if least is not None and (most is None or least <= most):
                read[_SIZES[kind][0]] = least
            if most is not None and (least is None or least <= most):
                read[_SIZES[kind][1]] = most
        if kind not in ("object", "array", "null") and (choices := _choices(flat, kind)):
            read["enum"] = choices
        return read

    def _object(self, flat: Schema, followed: tuple[str, ...], depth: int) -> Schema:
        """Rewrite an object. Merges the properties of all alternatives, because providers reject `anyOf` at the top
        level.
        """
        arms = [self._flat(arm, followed) for arm in _arms_of(flat) if isinstance(arm, dict)]
        properties = dict(_properties(flat))
        for arm, _ in arms:
            for name, schema in _properties(arm).items():
                before = properties.get(name)
                properties[name] = schema if before is None or before == schema else {"anyOf": [before, schema]}
        within = followed if not arms else tuple(dict.fromkeys((*followed, *(ref for _, refs in arms for ref in refs))))
        required = _required(flat, properties)
        sets = [_required(arm, properties) for arm, _ in arms]
        required += [name for name in (sets[0] if sets else []) if all(name in names for names in sets)]
        required = [name for name in dict.fromkeys(required) if name in properties and properties[name] is not False]
        first = [*required, *(name for name in properties if name not in required)][:ENTRIES_MAX]
        in_all = [name for name in properties if name in first and properties[name] is not False]
        described: Schema = {}
        for name in in_all:
            new = self._name(name)
            described[new] = self.read(properties[name], within, depth + 1)
            if new != name:
                note = f"Sent as {json.dumps(visible(name)[:100], ensure_ascii=False)}."
                words = cast("dict[str, str]", described[new]).get("description", "")
                cast("Schema", described[new])["description"] = f"{words} {note}".strip()
        read: Schema = {"type": "object", "properties": described}
        if required:
            read["required"] = [self._name(name) for name in required if name in in_all]
        more = flat.get("additionalProperties")
        if more is False and not arms:
            read["additionalProperties"] = False
        elif isinstance(more, dict) and (shape := self.read(more, followed, depth + 1)):
            read["additionalProperties"] = shape
        choices = [", ".join(self._name(name) for name in names if name in in_all) for names in sets]
        if len(set(choices)) > 1 and all(choices):
            flat["description"] = f"{_description(flat)} Pass one of these: {' | '.join(choices)}.".strip()
        return read

    def _items(self, flat: Schema, followed: tuple[str, ...], depth: int) -> Schema:
        items, places = flat.get("items"), flat.get("prefixItems")
        if isinstance(items, list):
            places, items = items, None
        read = [self.read(place, followed, depth + 1) for place in _list(places)[:ENTRIES_MAX]]
        if isinstance(items, dict):
            read.append(self.read(items, followed, depth + 1))
        return _any(read) if read and all(read) else {}

    def _any_of(
        self, flat: Schema, arms: list[Json], types: list[str], followed: tuple[str, ...], depth: int
    ) -> Schema:
        """Rewrite `anyOf` or `oneOf`. Sibling keywords apply to each alternative."""
        beside = {
            key: value
            for key, value in flat.items()
            if key not in ("anyOf", "oneOf", "description", "title", "default", "nullable", "examples")
        }
        read: list[Schema] = []
        for arm in arms[:ENTRIES_MAX]:
            if arm is True or arm == {}:
                return self._typed(beside, types[0] if len(types) == 1 else "", followed, depth)
            whole = {**beside, **arm} if isinstance(arm, dict) else arm
            schema = self.read(whole, followed, depth + 1)
            read += cast("list[Schema]", schema["anyOf"]) if set(schema) == {"anyOf"} else [schema] if schema else []
        if flat.get("nullable") is True:
            read.append({"type": "null"})
        return _any(read)

    def _name(self, own: str) -> str:
        """Return a unique property name for models. Within a schema, the same original name always maps to the same new
        name.
        """
        if own not in self.names:
            new = own
            if not _NAME.fullmatch(own):
                digest = hashlib.sha256(own.encode("utf-8", errors="replace")).hexdigest()
                clean = re.sub(r"[^A-Za-z0-9_-]+", "_", own).strip("_-")[:48]
                stem = clean if clean[:1].isalpha() else f"p_{clean}".rstrip("_")
                taken = {*self.names, *self.names.values()}
                lengths = (length for length in range(4, 13) if f"{stem}_{digest[:length]}" not in taken)
                new = f"{stem}_{digest[: next(lengths, 13)]}"
            self.names[own] = new
        return self.names[own]

    def _flat(self, schema: Schema, followed: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
        """Resolve references and merge `allOf`. The schema's own keywords take precedence."""
        flat = dict(schema)
        for _ in range(REFERENCES_MAX):
            reference = next((flat.pop(key) for key in ("$ref", "$dynamicRef", "$recursiveRef") if key in flat), None)
            parts = flat.pop("allOf", None)
            parts_left: list[Json] = list(parts[:ENTRIES_MAX]) if isinstance(parts, list) else []
            if isinstance(reference, str) and followed.count(reference) < REPEATS_MAX:
                followed = (*followed, reference)
                parts_left.append(self._target(reference))
            if not parts_left:
                break
            for part in parts_left:
                if isinstance(part, dict):
                    flat = _merged(flat, part)
        for key in ("$ref", "$dynamicRef", "$recursiveRef", "allOf"):
            flat.pop(key, None)
        return flat, followed

    def _target(self, reference: str) -> Json:
        target: Json = self._root
        if not reference.startswith("#"):
            return None
        for step in reference[1:].split("/")[1:30]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict):
                target = target.get(key)
            elif isinstance(target, list) and key.isdecimal() and len(key) < 6 and int(key) < len(target):
                target = target[int(key)]
            else:
                return None
        return target


def _merged(first: Schema, two: Schema) -> Schema:
    """Merge two schemas that both apply. Where they conflict, the first takes precedence."""
    merged = {**two, **first}
    properties = {**_properties(two)}
    for name, value in _properties(first).items():
        before = properties.get(name)
        properties[name] = value
        if isinstance(before, dict) and isinstance(value, dict) and before != value and "allOf" not in value:
            properties[name] = {**value, "allOf": [before]}
    if properties:
        merged["properties"] = properties
    required = [*_listed(first.get("required")), *_listed(two.get("required"))]
    if required:
        merged["required"] = list(dict.fromkeys(required))
    is_closed = first.get("additionalProperties") is False or two.get("additionalProperties") is False
    if is_closed and _properties(first) and _properties(two):
        merged.pop("additionalProperties", None)  # it would reject the properties of the other schema
    parts = [part for each in (first, two) for part in _list(each.get("allOf"))]
    if parts:
        merged["allOf"] = parts
    if "$ref" in two and "$ref" not in first:
        merged["$ref"] = two["$ref"]
    return merged


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _listed(value: Json) -> list[Json]:
    return [name for name in _list(value) if isinstance(name, str)]


def _properties(schema: Schema) -> Schema:
    given = schema.get("properties")
    if isinstance(given, dict):
        return given
    named = [item for item in _list(given) if isinstance(item, dict) and isinstance(item.get("name"), str)]
    return {str(item["name"]): {key: value for key, value in item.items() if key != "name"} for item in named}


def _required(schema: Schema, properties: Schema) -> list[str]:
    names = [str(name) for name in _listed(schema.get("required"))]
    own = [name for name, schema in properties.items() if isinstance(schema, dict) and schema.get("required") is True]
    return [name for name in (*names, *own) if name in properties]


def _arms_of(schema: Schema) -> list[Json]:
    return _list(schema.get("anyOf")) or _list(schema.get("oneOf"))


def _types_of(schema: Schema) -> list[str]:
    """Return the allowed types in order, inferred from the keywords if `type` is missing. Empty means any type."""
    named = schema.get("type")
    given = named if isinstance(named, list) else [named]
    types = [
        _TYPES[type_name.lower()] for type_name in given if isinstance(type_name, str) and type_name.lower() in _TYPES
    ]
    if "number" in types and "integer" in types:
        types.remove("integer")
    if not types and "properties" not in schema and ("enum" in schema or "const" in schema):
        types = [
            _type_of(value) for value in (*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else []))
        ]
        types = [kind_ for kind_ in types if kind_]
    if not types and not _arms_of(schema):
        types = [kind for kind, keys in _HINTS if any(key in schema for key in keys)][:1]
    if types and schema.get("nullable") is True:
        types.append("null")
    return list(dict.fromkeys(types))


def _type_of(value: Json) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case None:
            return "null"
        case _:
            return ""


def _choices(flat: Schema, kind: str) -> list[Json]:
    given = [flat["const"]] if "const" in flat else _list(flat.get("enum"))
    fits = {"": ("string", "integer", "number", "boolean"), "number": ("integer", "number")}.get(kind, (kind,))
    fitting = [value for value in given if _type_of(value) in fits and _is_small(value)]
    values: list[Json] = []
    for value in fitting:
        if not any(value == other and type(value) is type(other) for other in values):
            values.append(value)
    return values[:ENTRIES_MAX]


def _text_rules(flat: Schema) -> Schema:
    rules: Schema = {}
    pattern, shape = flat.get("pattern"), flat.get("format")
    if isinstance(pattern, str) and 0 < len(pattern) <= WORD_CHARS_MAX and visible(pattern) == pattern:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError):
            pass
        else:
            rules["pattern"] = pattern
    if isinstance(shape, str) and _FORMAT.fullmatch(shape):
        rules["format"] = shape
    return rules


def _number_rules(flat: Schema) -> Schema:
    rules = {key: value for key in _BOUNDS if _is_number(value := flat.get(key))}
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if flat.get(exclusive) is True and bound in rules:  # draft 4 syntax
            rules[exclusive] = rules.pop(bound)
    low, high = rules.get("minimum"), rules.get("maximum")
    if low is not None and high is not None and cast("float", low) > cast("float", high):
        return {}
    step = flat.get("multipleOf")
    if _is_number(step) and cast("float", step) > 0:
        rules["multipleOf"] = step
    return rules


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _INTEGER_MAX


def _size(value: Json) -> int | None:
    if isinstance(value, float) and value.is_integer() and abs(value) < _INTEGER_MAX:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _is_small(value: Json) -> bool:
    if isinstance(value, dict | list):
        return value in ({}, [])
    if isinstance(value, str):
        return len(value) <= WORD_CHARS_MAX and visible(value) == value
    return value is None or isinstance(value, bool) or _is_number(value)


def _description(flat: Schema) -> str:
    for key in ("description", "title"):
        words = flat.get(key)
        if isinstance(words, str) and words.strip():
            return visible(words.strip())[:WORD_CHARS_MAX]
    return ""


def _any(choices: Sequence[Schema]) -> Schema:
    arms: list[Schema] = []
    for choice in choices:
        if choice not in arms:
            arms.append(choice)
    if not arms or not all(arms):
        return {}
    if len(arms) == 1:
        return dict(arms[0])
    if (
        all({*arm} - {"description"} == {"type", "enum"} for arm in arms)
        and len({str(arm["type"]) for arm in arms}) == 1
    ):
        values: Iterable[Json] = (value for arm in arms for value in _list(arm["enum"]))
        texts = [f"{_list(arm['enum'])[0]}: {arm['description']}" for arm in arms if "description" in arm]
        read: Schema = {"type": arms[0]["type"], "enum": list(dict.fromkeys(cast("Iterable[str]", values)))}
        return {**read, "description": "; ".join(texts)[:WORD_CHARS_MAX]} if texts else read
    return {"anyOf": list(arms)}


def _without_words(schema: Schema) -> Schema:
    bare: Schema = {}
    for key, value in schema.items():
        if key == "properties":
            bare[key] = {name: _without_words(cast("Schema", item)) for name, item in cast("Schema", value).items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            bare[key] = _without_words(value)
        elif key == "anyOf":
            bare[key] = [_without_words(cast("Schema", item)) for item in _list(value)]
        elif key not in ("description", "default"):
            bare[key] = value
    return bare
