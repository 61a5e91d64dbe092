"""Schemas from MCP servers are converted to schemas that every provider accepts. Arguments map back to the
server's names.
"""

import json
import re
from typing import Any, cast  # noqa: TID251 - schemas as servers write them

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.features.mcp.schemas import KEYWORDS, NODES_MAX, SCHEMA_BYTES_MAX, Json, own_names, portable
from shoal.kernel.errors import InvalidInput
from shoal.models.schema_dialects import narrowed

Node = dict[str, Any]
COMMON = KEYWORDS - frozenset(
    """
    additionalProperties default format pattern exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength
    uniqueItems
    """.split()  # noqa: SIM905
)
TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})


def nodes(schema: Node) -> list[Node]:
    below = [*schema.get("properties", {}).values(), *schema.get("anyOf", [])]
    below += [one for key in ("items", "additionalProperties") if isinstance(one := schema.get(key), dict)]
    return [schema, *(node for one in below for node in nodes(one))]


def check_full(schema: Node) -> None:
    """Assert that Anthropic and OpenAI accept the schema.

    According to their documentation and error messages, they reject dialects other than draft 2020-12, names outside
    the pattern, choices at the top level, arrays without items, and objects without properties.
    """
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert isinstance(schema["properties"], dict)
    assert not {"anyOf", "oneOf", "allOf", "enum", "not", "$ref"} & schema.keys()
    for node in nodes(schema):
        assert node.keys() <= KEYWORDS
        assert isinstance(node.get("type", "string"), str)
        assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", name) for name in node.get("properties", {}))
        assert set(node.get("required", [])) <= node.get("properties", {}).keys()
        assert "items" in node or node.get("type") != "array"


def check_narrow(schema: Node) -> None:
    """Assert that Gemini's Schema type and the grammars of llama.cpp and Fireworks support the schema."""
    check_full(schema)
    for number, node in enumerate(nodes(schema)):
        assert node.keys() <= COMMON
        if "anyOf" in node:
            assert node.keys() <= {"anyOf", "description"}
        else:
            assert node["type"] in TYPES
        if "enum" in node:
            assert node["type"] == "string"
            assert all(isinstance(one, str) and one for one in node["enum"])
        assert number == 0 or node.get("properties") != {}
        assert node.get("maxItems", 0) <= 64


def check_bare(schema: Node) -> None:
    """Assert that each value has exactly one type, because every service supports such schemas."""
    check_full(schema)
    for node in nodes(schema):
        assert node.keys() <= {"type", "description", "properties", "required", "items"}
        assert node["type"] in TYPES


def read(schema: object) -> tuple[Node, Node, dict[str, str]]:
    text, names = portable(schema)
    full, common = json.loads(narrowed(text, "full")), json.loads(narrowed(text, "common"))
    check_full(full)
    check_narrow(common)
    check_bare(json.loads(narrowed(text, "bare")))
    assert len(text.encode()) <= SCHEMA_BYTES_MAX
    return full, common, names


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
WORDS = st.sampled_from(
    """
    type properties items anyOf oneOf allOf $ref $defs required description enum const default format pattern minimum
    maximum exclusiveMinimum minLength maxLength minItems additionalProperties patternProperties prefixItems nullable
    not if then title name
    """.split()  # noqa: SIM905
)
VALUES = st.sampled_from(
    ["object", "array", "string", "int", "STRING", ["string", "null"], "#", "#/$defs/a", "$filter"]
)
JSON = st.recursive(
    SCALARS | VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=5), inner, max_size=4),
    max_leaves=30,
)


@given(st.dictionaries(WORDS, JSON, max_size=6) | JSON)
def test_any_schema_becomes_one_that_every_provider_accepts(schema: object) -> None:
    try:
        read(schema)
    except InvalidInput:
        assert isinstance(schema, dict)


NAMES = st.sampled_from(["path", "$filter", "filter[id]", "foo.bar", "x" * 80, "имя", "", "@odata.type", "1st", "a b"])


def closed(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    objects = st.builds(
        lambda properties, count: {
            "type": "object",
            "properties": properties,
            "required": list(properties)[:count],
            "additionalProperties": False,
        },
        st.dictionaries(NAMES, inner, max_size=3),
        st.integers(0, 3),
    )
    return st.one_of(
        objects,
        inner.map(lambda one: {"type": "array", "items": one, "maxItems": 3}),
        inner.map(lambda one: {"allOf": [one], "description": "words"}),
        inner.map(lambda one: {"anyOf": [one, {"type": "null"}]}),
        st.tuples(inner, objects).map(lambda two: {"anyOf": list(two)}),
    )


LEAVES = st.sampled_from(
    [
        {"type": "string", "minLength": 1},
        {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
        {"enum": ["a", "b"]},
        {"const": "only"},
        {"type": "integer", "enum": [1, 2]},
        {"$ref": "#/$defs/leaf"},
        {"type": "boolean"},
    ]
)
EXACT = st.recursive(LEAVES, closed, max_leaves=8).map(
    lambda one: {
        "type": "object",
        "properties": {"$top": one},
        "required": ["$top"],
        "$defs": {"leaf": {"type": "number"}},
    }
)


def arguments(schema: Node) -> st.SearchStrategy[object]:
    if "anyOf" in schema:
        return st.one_of([arguments(one) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "object":
            required = {
                name: arguments(one) for name, one in schema["properties"].items() if name in schema.get("required", [])
            }
            optional = {name: arguments(one) for name, one in schema["properties"].items() if name not in required}
            return st.fixed_dictionaries(required, optional=optional)
        case "array":
            return st.lists(arguments(schema["items"]), max_size=schema.get("maxItems", 2))
        case "string":
            return st.text(min_size=schema.get("minLength", 0), max_size=5)
        case "integer" | "number":
            return st.integers(int(schema.get("minimum", 0)), int(schema.get("maximum", 5)))
        case "boolean":
            return st.booleans()
        case _:
            return st.none()


@given(EXACT, st.data())
@settings(max_examples=150)
def test_arguments_valid_for_the_models_schema_are_valid_for_the_server(schema: Node, data: st.DataObject) -> None:
    full, _, names = read(schema)
    sent = own_names(cast(Any, data.draw(arguments(full))), names)
    jsonschema.Draft202012Validator(schema).validate(sent)


def test_odd_names_are_sent_back_in_their_original_form() -> None:
    long = "settings__approved__or__denied__countries__or__regions__approved__list"
    schema = {
        "type": "object",
        "properties": {
            "$filter": {"type": "string", "description": "OData."},
            "filter": {"type": "string"},
            "filter[id]": {
                "type": "array",
                "items": {"type": "object", "properties": {"foo.bar": {"type": "integer"}}},
            },
            long: {"type": "string"},
            "where": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["$filter", "missing"],
    }
    full, _, names = read(schema)
    told = {own: new for new, own in names.items()}
    assert full["required"] == [told["$filter"]]
    assert full["properties"][told["$filter"]]["description"] == 'OData. Sent as "$filter".'
    assert {"filter", "where"} <= full["properties"].keys()
    sent: dict[str, Json] = {
        told["$filter"]: "a", "filter": "b", told["filter[id]"]: [{told["foo.bar"]: 1}], told[long]: "c",
        "where": {"filter": "d"}, "$orderby": "e",
    }  # fmt: skip
    assert own_names(sent, names) == {
        "$filter": "a", "filter": "b", "filter[id]": [{"foo.bar": 1}], long: "c",
        "where": {"filter": "d"}, "$orderby": "e",
    }  # fmt: skip


def test_alternatives_at_the_top_level_become_properties_and_a_description() -> None:
    either = {"properties": {"id": {"type": "integer"}, "force": {"type": "boolean"}}, "required": ["id", "force"]}
    other = {"properties": {"name": {"type": "string"}, "force": {"type": "boolean"}}, "required": ["name", "force"]}
    full, common, _ = read({"type": "object", "oneOf": [either, other]})
    assert full["required"] == ["force"]
    assert full["properties"].keys() == {"id", "force", "name"}
    assert "Pass one of these: id, force | name, force." in common["description"]


def test_references_are_expanded_and_recursive_ones_to_a_bounded_depth() -> None:
    tree = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    }
    base = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
    more = {"properties": {"b": {"$ref": "#/definitions/b"}}, "required": ["b"]}
    full, _, _ = read({
        "allOf": [base, more], "properties": {"root": {"$ref": "#/$defs/tree"}},
        "$defs": {"tree": tree}, "definitions": {"b": {"type": "integer"}},
    })  # fmt: skip
    assert full["required"] == ["a", "b"]
    assert full["properties"]["b"] == {"type": "integer"}
    kids = full["properties"]["root"]["properties"]["kids"]["items"]
    assert kids["properties"]["name"] == {"type": "string"}
    assert "additionalProperties" not in full


ONE = {"type": "object", "properties": {"x": {"type": "string"}}}


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        ({"type": "number", "minimum": 1, "exclusiveMinimum": True}, {"type": "number", "exclusiveMinimum": 1}),
        ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"type": "string", "nullable": True}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (
            {"oneOf": [{"const": "a", "title": "A"}, {"const": "b"}]},
            {"type": "string", "enum": ["a", "b"], "description": "a: A"},
        ),
        ({"anyOf": [ONE]}, ONE),
        ({"anyOf": [ONE, {}]}, {}),
        ({"const": 7}, {"type": "integer", "enum": [7]}),
        ({"type": "string", "enum": ["", "a", 1, None]}, {"type": "string", "enum": ["", "a"]}),
        ({"enum": [1, "a"]}, {"anyOf": [{"type": "integer", "enum": [1]}, {"type": "string", "enum": ["a"]}]}),
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": "array", "items": []}, {"type": "array", "items": {}}),
        (
            {"type": "array", "items": [{"type": "string"}, {"type": "string"}]},
            {"type": "array", "items": {"type": "string"}},
        ),
        (
            {"type": "array", "prefixItems": [{"type": "number"}], "items": False},
            {"type": "array", "items": {"type": "number"}},
        ),
        ({"type": "object"}, {"type": "object", "properties": {}}),
        ({"type": "object", "properties": []}, {"type": "object", "properties": {}}),
        ({"properties": {"x": "string"}}, ONE),
        ({"type": "object", "properties": [{"name": "x", "type": "str"}]}, ONE),
        ({"type": "object", "properties": {"x": {"type": "string", "required": True}}}, {**ONE, "required": ["x"]}),
        ({"type": "STRING", "pattern": "(unclosed"}, {"type": "string"}),
        ({"type": "string", "minLength": 5, "maxLength": 2}, {"type": "string", "minLength": 5}),
        ({"type": "integer", "maximum": float("inf"), "minimum": 10**400}, {"type": "integer"}),
        ({"type": "int", "default": 3}, {"type": "integer", "default": 3}),
        ({"type": "whatever", "minLength": 2}, {"type": "string", "minLength": 2}),
        ({"$ref": "https://elsewhere.example/schema.json"}, {}),
        ({"$ref": "file:///etc/passwd", "type": "string"}, {"type": "string"}),
        ({"$ref": "#/nowhere"}, {}),
        (True, {}),
        (None, {}),
        ("junk", {}),
        (
            {"type": "string", "title": "Name", "examples": ["a"], "x-order": 1, "$comment": "c"},
            {"type": "string", "description": "Name"},
        ),
        (
            {"type": "object", "patternProperties": {"^x": {}}, "propertyNames": {}},
            {"type": "object", "properties": {}},
        ),
        ({"if": {}, "then": {}, "type": "boolean"}, {"type": "boolean"}),
    ],
)
def test_odd_schema_forms_are_normalized(odd: object, expected: Node) -> None:
    full, _, _ = read({"type": "object", "properties": {"value": odd}})
    if expected.get("maxLength") is None and isinstance(odd, dict) and odd.get("maxLength") == 2:
        assert full["properties"]["value"]["type"] == "string"
    else:
        assert full["properties"]["value"] == expected


def test_an_impossible_property_is_omitted() -> None:
    full, _, _ = read({"type": "object", "properties": {"a": False, "b": True}, "required": ["a", "b"]})
    assert full["properties"] == {"b": {}}
    assert full["required"] == ["b"]


@pytest.mark.parametrize(
    "schema", [None, True, [], "object", 7, {}, {"properties": None}, {"type": ["object", "null"]}]
)
def test_an_empty_schema_takes_no_arguments(schema: object) -> None:
    full, _, _ = read(schema)
    assert full == {"type": "object", "properties": {}}


@pytest.mark.parametrize("schema", [{"type": "array", "items": {}}, {"type": "string"}, {"enum": ["a"]}])
def test_non_object_arguments_are_refused(schema: object) -> None:
    with pytest.raises(InvalidInput, match="instead of object"):
        portable(schema)


def test_huge_and_deep_schemas_are_bounded() -> None:
    wide = {f"field{number}": {"type": "string", "description": "x" * 290} for number in range(80)}
    full, _, _ = read({"type": "object", "properties": wide})
    assert len(full["properties"]) == 80
    assert full["properties"]["field0"] == {"type": "string"}
    huge = {f"field{number}": {"enum": [f"{one}{'y' * 290}" for one in range(90)]} for number in range(90)}
    full, _, _ = read({"type": "object", "properties": huge})
    assert full["properties"]["field0"] == {}
    deep: Node = {"type": "string"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    read(deep)
    double = {"type": "object", "properties": {name: {"$ref": "#"} for name in "abcdefghij"}}
    full, _, _ = read(double)
    assert len(nodes(full)) <= NODES_MAX
    many = {"type": "object", "properties": {f"f{number}": {} for number in range(300)}, "required": ["f299"]}
    full, _, _ = read(many)
    assert "f299" in full["properties"]


def test_invisible_characters_in_schemas_become_visible() -> None:
    full, _, names = read({"type": "object", "properties": {"a\u202eb": {"description": "x\x1b[2J"}}})
    (name,) = full["properties"]
    assert names[name] == "a\u202eb"
    assert full["properties"][name]["description"] == 'x\\x1b[2J Sent as "a\\\\u202eb".'


def test_unsupported_keywords_become_words_in_the_description() -> None:
    when = {"type": "string", "format": "date-time", "pattern": "^\\d{4}", "description": "When.", "default": "now"}
    count = {"type": "integer", "exclusiveMinimum": 0, "enum": [1, 2]}
    tags = {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "maxItems": 5000}
    _, common, _ = read({"type": "object", "properties": {"when": when, "count": count, "tags": tags, "any": {}}})
    told = common["properties"]
    assert told["when"] == {
        "type": "string",
        "description": 'When. Default: "now". Format: "date-time". Pattern: "^\\\\d{4}".',
    }
    assert told["count"]["description"] == "More than: 0. One of: 1, 2."
    assert told["tags"]["description"] == "Items must be unique. At most 5000 items."
    assert len(told["any"]["anyOf"]) == 5
