"""Tool kinds derived from annotations. The protocol's defaults replace missing or unclear annotations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.features.mcp.kinds import KINDS, TRAITS, UNCONFIRMED, Hints, Kind, hints_of, offer_text, traits_of
from shoal.kernel.traits import Traits


def kind_of(**annotations: object) -> Kind:
    return hints_of({"name": "x", "annotations": annotations}).kind


@pytest.mark.parametrize(
    ("annotations", "kind"),
    [
        ({}, "write"),
        ({"readOnlyHint": False}, "write"),
        ({"readOnlyHint": True}, "read_outside"),
        ({"readOnlyHint": True, "openWorldHint": True}, "read_outside"),
        ({"readOnlyHint": True, "openWorldHint": False}, "read"),
        ({"readOnlyHint": True, "openWorldHint": False, "destructiveHint": False}, "read"),
        ({"readOnlyHint": True, "openWorldHint": False, "destructiveHint": True}, "write"),
        ({"openWorldHint": False, "destructiveHint": False, "idempotentHint": True}, "write"),
        ({"readOnlyHint": "yes", "openWorldHint": False}, "write"),
        ({"readOnlyHint": 1, "openWorldHint": False}, "write"),
        ({"readOnlyHint": True, "openWorldHint": "no"}, "read_outside"),
        ({"readOnlyHint": True, "openWorldHint": None}, "read_outside"),
    ],
)
def test_annotations_propose_a_kind(annotations: dict[str, object], kind: Kind) -> None:
    assert kind_of(**annotations) == kind


@pytest.mark.parametrize("annotations", [None, [], "readOnlyHint", 1, True])
def test_malformed_annotations_are_ignored(annotations: object) -> None:
    assert hints_of({"name": "x", "annotations": annotations}) == Hints()
    assert Hints().kind == "write"


@given(st.dictionaries(st.text(), st.one_of(st.booleans(), st.integers(), st.text(), st.none())))
def test_only_a_declared_read_only_tool_is_a_read(annotations: dict[str, object]) -> None:
    kind = kind_of(**annotations)
    if annotations.get("readOnlyHint") is not True:
        assert kind == "write"
    if annotations.get("openWorldHint") is not False:
        assert kind != "read"


def test_a_kind_defines_a_tools_traits() -> None:
    assert traits_of(None, Hints(read_only=True, idempotent=True)) == UNCONFIRMED == Traits(group="mcp")
    assert {kind: TRAITS[kind].effect for kind in KINDS} == {"read": "read", "read_outside": "read", "write": "outward"}
    assert {kind for kind in KINDS if TRAITS[kind].open_world} == {"read_outside"}
    assert {kind for kind in KINDS if TRAITS[kind].can_stage} == {"write"}
    assert {traits.origin for traits in TRAITS.values()} == {"foreign"}
    assert traits_of("write", Hints(idempotent=True)).idempotent
    assert not traits_of("write", Hints()).idempotent
    assert traits_of("read", Hints()).idempotent


def test_an_offer_is_described_in_words() -> None:
    tools: list[tuple[str, Kind]] = [
        ("find", "read"),
        ("send", "write"),
        ("delete", "write"),
        ("map", "read_outside"),
    ]
    assert offer_text("mail", tools) == (
        "The MCP server mail offers 4 tools: 1 read, 1 read data outside this machine (map), 2 write (delete, send)."
    )
    many: list[tuple[str, Kind]] = [(f"t{number:02}", "write") for number in range(30)]
    assert offer_text("mail", many).endswith("t19 and 10 more).")
