r"""Reduce a tool's JSON Schema to the keywords that a service supports, and describe the rest in text.

dialect   for                            keywords
-------   ----------------------------   ------------------------------------------------------------------------
full      Anthropic, OpenAI              all
common    Gemini, and servers that speak one `type` or an `anyOf` alone, `description`, `properties`, `required`,
          OpenAI's protocol              `items`, `enum` of non-empty strings, `minimum`, `maximum`, and `minItems`
                                         and `maxItems` up to REPEATS_MAX
bare      services that rejected the     one `type`, `description`, `properties`, `required`, `items`
          other dialects

The protocol determines the default. `Quirks.schema_dialect` overrides it, from the table of services or after a
refusal.

The common dialect is small because services reject the complete request if they do not support a keyword:

- Gemini's Schema has no field for `additionalProperties`, `const`, `exclusiveMinimum`, `propertyNames`,
  `uniqueItems`, `$ref` and `type` lists. It requires strings in `enum`, `items` for arrays, and `anyOf` without
  other keywords (ai.google.dev/api/caching#Schema).
- llama.cpp's grammars, which Ollama and LM Studio use too, fail on long repetitions and on patterns with `\d`, with
  look-aheads or without anchors (ggml-org/llama.cpp issues 22314, 25746, 26930, 27580).
- Fireworks requires a type for every value.

A server that speaks OpenAI's protocol may be any of these.
"""

import json
from collections.abc import Mapping
from typing import Literal, TypeAlias, cast

import msgspec

from shoal.kernel.untrusted import UNREADABLE

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
SchemaDialect: TypeAlias = Literal["full", "common", "bare"]
NARROWER: "dict[SchemaDialect, SchemaDialect]" = {"full": "common", "common": "bare"}
"""The next dialect to try after a service rejects a schema."""

REPEATS_MAX = 64
"""Maximum value of `minItems` and `maxItems` in a schema, because llama.cpp's grammars expand each repetition."""
WORDS_CHARS_MAX = 400
DEPTH_MAX = 40

_SCALARS = ("string", "number", "integer", "boolean")
_ANYTHING: "list[Json]" = [
    {"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "object"},
    {"type": "array", "items": {"type": "string"}},
]  # fmt: skip
_DESCRIBED = {
    "default": "Default", "format": "Format", "pattern": "Pattern", "minLength": "Minimum length",
    "maxLength": "Maximum length", "exclusiveMinimum": "More than", "exclusiveMaximum": "Less than",
    "multipleOf": "Multiple of", "const": "Always",
}  # fmt: skip

_BOUNDS = {"enum": "One of", "minimum": "At least", "maximum": "At most", "minItems": "Minimum number of items",
           "maxItems": "Maximum number of items"}  # fmt: skip


def narrowed(parameters: str, dialect: SchemaDialect) -> str:
    """Convert a tool's JSON Schema to a dialect. Both are JSON text. A schema that is not an object is returned
    unchanged.
    """
    if dialect == "full":
        return parameters
    try:
        schema = cast("dict[str, Json]", msgspec.json.decode(parameters, type=dict[str, object]))
        narrowed = _narrow(schema, 0)
    except UNREADABLE:
        return parameters
    if dialect == "bare":
        narrowed = _bare(narrowed)
    narrowed.setdefault("properties", {})
    return json.dumps({**narrowed, "type": "object"}, ensure_ascii=False, separators=(",", ":"))


def _narrow(schema: "Json", depth: int) -> "dict[str, Json]":
    if not isinstance(schema, dict) or depth > DEPTH_MAX:
        return {"anyOf": _ANYTHING}
    words = [schema["description"]] if isinstance(schema.get("description"), str) else []
    kind, arms = schema.get("type"), schema.get("anyOf")
    result: dict[str, Json] = {}
    if isinstance(arms, list) and arms:
        result["anyOf"] = [_narrow(arm, depth + 1) for arm in arms]
    elif isinstance(kind, list):
        rest = {key: value for key, value in schema.items() if key not in ("type", "description", "default")}
        result["anyOf"] = [_narrow({**rest, "type": type_name}, depth + 1) for type_name in kind]
    elif isinstance(kind, str):
        result = {"type": kind, **_rules(schema, kind, depth)}
    elif depth:
        result["anyOf"] = _ANYTHING
    words += _descriptions(schema, result)
    if text := " ".join(cast("list[str]", words)):
        result["description"] = text
    return result


def _bare(schema: "dict[str, Json]") -> "dict[str, Json]":
    arms, kind = schema.get("anyOf"), schema.get("type")
    words = [cast("str", schema["description"])] if "description" in schema else []
    result: dict[str, Json] = {}
    if isinstance(arms, list):
        forms = [arm for arm in cast("list[dict[str, Json]]", arms) if arm.get("type") != "null"]
        result = _bare(forms[0]) if forms and arms != _ANYTHING else {"type": "string"}
        if len(forms) > 1:
            words.append(
                "Any JSON value." if arms == _ANYTHING else f"One of these forms: {_shown([*forms])}."[:WORDS_CHARS_MAX]
            )
        words = [*words, *([cast("str", result["description"])] if "description" in result else [])]
    else:
        if isinstance(kind, str):
            result["type"] = kind
        if isinstance(properties := schema.get("properties"), dict):
            result["properties"] = {
                name: _bare(cast("dict[str, Json]", schema_of_name)) for name, schema_of_name in properties.items()
            }
        if "required" in schema:
            result["required"] = schema["required"]
        if isinstance(items := schema.get("items"), dict):
            result["items"] = _bare(items)
        words += [f"{label}: {_shown(schema[key])}." for key, label in _BOUNDS.items() if key in schema]
    return {**result, **({"description": " ".join(words)} if words else {})}


def _rules(schema: "Mapping[str, Json]", kind: str, depth: int) -> "dict[str, Json]":
    result: dict[str, Json] = {}
    properties, required, choices = schema.get("properties"), schema.get("required"), schema.get("enum")
    if kind == "object" and isinstance(properties, dict) and properties:
        result["properties"] = {
            name: _narrow(property_schema, depth + 1) for name, property_schema in properties.items()
        }
        names: list[Json] = [name for name in required if name in properties] if isinstance(required, list) else []
        if names:
            result["required"] = names
    elif kind == "array":
        result["items"] = _narrow(schema.get("items"), depth + 1)
        for key in ("minItems", "maxItems"):
            if isinstance(size := schema.get(key), int) and size <= REPEATS_MAX:
                result[key] = size
    elif (
        kind == "string" and isinstance(choices, list) and all(isinstance(choice, str) and choice for choice in choices)
    ):
        result["enum"] = choices
    elif kind in ("number", "integer"):
        result |= {key: schema[key] for key in ("minimum", "maximum") if isinstance(schema.get(key), int | float)}
    return result


def _descriptions(schema: "Mapping[str, Json]", narrowed: "Mapping[str, Json]") -> list[str]:
    words = [f"{name}: {_shown(schema[key])}." for key, name in _DESCRIBED.items() if key in schema]
    choices, more = schema.get("enum"), schema.get("additionalProperties")
    if isinstance(choices, list) and "enum" not in narrowed and "anyOf" not in narrowed:
        words.append(f"One of: {', '.join(map(_shown, choices))}.")
    if isinstance(more, dict) and more:
        words.append(f"Additional properties with values such as {_shown(more)}.")
    words += ["Items must be unique."] if schema.get("uniqueItems") is True else []
    for key, label in (("minItems", "At least"), ("maxItems", "At most")):
        if key in schema and key not in narrowed and "anyOf" not in narrowed:
            words.append(f"{label} {_shown(schema[key])} items.")
    return [word if len(word) <= WORDS_CHARS_MAX else f"{word[:WORDS_CHARS_MAX]}…" for word in words]


def _shown(value: "Json") -> str:
    return json.dumps(value, ensure_ascii=False)
