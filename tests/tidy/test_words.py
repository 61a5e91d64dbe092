"""The wording of messages: no raw lists of values, and no text with two sentence endings."""

import ast
import re
from typing import get_args

import pytest

from shoal.kernel.messages import FailureKind
from shoal.turn.loop import FRIENDLY, WAITING, WHY
from tests.tidy.source import GROUP, nodes, package_files, tree, where

pytestmark = pytest.mark.xdist_group(GROUP)

ENUMERATIONS = [kind for kind in get_args(FailureKind) if "_" in kind]
TWICE = re.compile(r"\w\.\.(?=\s|$)|\.…|[!?]\.(?=\s|$)")


@pytest.mark.parametrize("said", [*FRIENDLY.values(), *WAITING.values()])
def test_messages_about_models_are_sentences(said: str) -> None:
    assert re.fullmatch(r"[A-Z][^_]+[^.!?]\.", said)


@pytest.mark.parametrize("why", WHY.values())
def test_a_reason_is_a_part_of_a_sentence(why: str) -> None:
    assert re.fullmatch(r"[a-z][^_]+[^.!?]", why)


def test_messages_contain_no_doubled_punctuation_and_no_raw_enum_value() -> None:
    places: list[str] = []
    for path in package_files():
        for node in nodes(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\w \w", node.value):
                said = node.value
                if "|" not in said and (TWICE.search(said) or any(kind in said for kind in ENUMERATIONS)):
                    places.append(where(path, node, said))
    assert places == []
