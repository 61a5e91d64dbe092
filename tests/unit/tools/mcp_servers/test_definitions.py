"""What a server says of its tools is bounded and cleaned before a model or a provider sees it."""

import json
import re

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.tools.mcp.pins import (
    DESCRIPTION_CHARS_MAX,
    SCHEMA_BYTES_MAX,
    SCHEMA_DEPTH_MAX,
    described,
    fitted_schema,
    tool_name,
)

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
WORDS = st.sampled_from(
    ("type", "properties", "items", "anyOf", "$ref", "$defs", "required", "description", "enum", "default", "object")
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(), inner, max_size=4)
)


@given(st.from_regex(r"[a-z0-9][a-z0-9-]{0,23}", fullmatch=True), st.text(min_size=1))
def test_every_name_suits_every_provider(server: str, tool: str) -> None:
    assert re.fullmatch(r"mcp_[A-Za-z0-9_-]{1,60}", tool_name(server, tool))


@given(st.lists(st.text(min_size=1, max_size=80), min_size=2, max_size=8, unique=True))
def test_different_tools_have_different_names(tools: list[str]) -> None:
    assert len({tool_name("files", tool) for tool in tools}) == len(tools)


def test_a_plain_name_stays() -> None:
    assert tool_name("files", "read_file") == "mcp_files_read_file"
    assert tool_name("a", "b.c") != tool_name("a", "b/c")


def depth(value: object) -> int:
    match value:
        case dict():
            return 1 + max(map(depth, value.values()), default=0)
        case list():
            return 1 + max(map(depth, value), default=0)
        case _:
            return 0


@given(st.dictionaries(WORDS | st.text(), JSON, max_size=6))
def test_any_schema_becomes_a_small_one_of_an_object(schema: dict[str, object]) -> None:
    text = fitted_schema(schema)
    found = json.loads(text)
    assert found["type"] == "object"
    assert isinstance(found["properties"], dict)
    assert set(found.get("required", [])) <= found["properties"].keys()
    assert len(text.encode()) <= SCHEMA_BYTES_MAX
    assert depth(found) <= 2 * SCHEMA_DEPTH_MAX + 2


def test_a_good_schema_keeps_its_meaning() -> None:
    schema = {
        "$schema": "https://json-schema.example/draft",
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Where.", "minLength": 1},
            "edits": {"type": "array", "items": {"$ref": "#/$defs/Edit"}},
        },
        "required": ["path"],
        "additionalProperties": False,
        "$defs": {"Edit": {"type": "object", "properties": {"old": {"type": "string"}}, "required": ["old"]}},
    }
    found = json.loads(fitted_schema(schema))
    del schema["$schema"]
    assert found == schema
    jsonschema.validate({"path": "x", "edits": [{"old": "y"}]}, found)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"edits": []}, found)


@pytest.mark.parametrize(
    "reference", ["https://elsewhere.example/schema.json", "file:///etc/passwd", "#/properties/a", "#"]
)
def test_a_schema_cannot_refer_to_elsewhere(reference: str) -> None:
    found = fitted_schema({"type": "object", "properties": {"a": {"$ref": reference}}})
    assert "$ref" not in found


def test_a_large_schema_loses_its_words_before_its_names() -> None:
    wide = {f"field{number}": {"type": "string", "description": "x" * 290} for number in range(80)}
    found = json.loads(fitted_schema({"type": "object", "properties": wide}))
    assert len(found["properties"]) == 80
    assert found["properties"]["field0"] == {"type": "string"}
    huge = {f"field{number}": {"enum": ["y" * 299] * 90} for number in range(90)}
    found = json.loads(fitted_schema({"type": "object", "properties": huge}))
    assert found["properties"]["field0"] == {}


def test_descriptions_are_short_visible_and_say_whose_they_are() -> None:
    text = described("files", "Reads.\x1b[2J\u202e" + "x" * 5000)
    assert text.startswith("[Tool of the MCP server files, described by it] Reads.\\x1b[2J\\u202e")
    assert len(text) < DESCRIPTION_CHARS_MAX + 100
