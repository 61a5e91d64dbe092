"""Parallel tool calls in the formats of real servers, split at any point.

Seen in ollama#15457 and #7881 (one index, or none), litellm and langchain#34811 (equal indices), sglang#7117,
Qwen-Agent#943 (alternating chunks), oracle/langchain-oracle#108 and #254 (an index without an id), gcli2api#406
(Gemini's calls all at index 0), vLLM's streaming deltas (id and name again in the last chunk).
"""

import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.models.answers import CallCollector, CallParts

Piece = tuple[int | None, str, str, str]
Call = tuple[str, str]
Notation = Callable[[Sequence[Call], Callable[[str], list[str]]], list[Piece]]


def openai(calls: Sequence[Call], cut: Callable[[str], list[str]]) -> list[Piece]:
    pieces: list[Piece] = []
    for index, (name, arguments) in enumerate(calls):
        pieces.append((index, f"call_{index}", name, ""))
        pieces += [(index, "", "", piece) for piece in cut(arguments)]
    return pieces


def alternating(calls: Sequence[Call], cut: Callable[[str], list[str]]) -> list[Piece]:
    rests = [cut(arguments) for _, arguments in calls]
    pieces: list[Piece] = [(index, f"call_{index}", name, "") for index, (name, _) in enumerate(calls)]
    while any(rests):
        pieces += [(index, "", "", rest.pop(0)) for index, rest in enumerate(rests) if rest]
    return pieces


def one_index(calls: Sequence[Call], cut: Callable[[str], list[str]]) -> list[Piece]:
    """Ollama and LiteLLM send complete calls, all at index 0, with separate ids."""
    return [(0, f"call_{index}", name, arguments) for index, (name, arguments) in enumerate(calls)]


def one_index_in_pieces(calls: Sequence[Call], cut: Callable[[str], list[str]]) -> list[Piece]:
    return [(0, piece[1], piece[2], piece[3]) for piece in openai(calls, cut)]


def one_index_without_ids(calls: Sequence[Call], cut: Callable[[str], list[str]]) -> list[Piece]:
    """Gemini's compatible interface and llama.cpp send complete calls with an empty id."""
    return [(0, "", name, arguments) for name, arguments in calls]


def one_index_with_one_id(calls: Sequence[Call], cut: Callable[[str], list[str]]) -> list[Piece]:
    return [(0, "call_0", name, arguments) for name, arguments in calls]


def no_index(calls: Sequence[Call], cut: Callable[[str], list[str]]) -> list[Piece]:
    return [(None, piece[1], piece[2], piece[3]) for piece in openai(calls, cut)]


def no_index_name_always(calls: Sequence[Call], cut: Callable[[str], list[str]]) -> list[Piece]:
    return [(None, "", name, piece) for name, arguments in calls for piece in cut(arguments)]


def name_and_id_always(calls: Sequence[Call], cut: Callable[[str], list[str]]) -> list[Piece]:
    return [
        (index, f"call_{index}", name, piece)
        for index, (name, arguments) in enumerate(calls)
        for piece in cut(arguments)
    ]


def whole_again_at_the_end(calls: Sequence[Call], cut: Callable[[str], list[str]]) -> list[Piece]:
    """vLLM and LM Studio repeat the complete calls in the last chunk."""
    return [*openai(calls, cut), *(one for one in name_and_id_always(calls, lambda text: [text]))]


def growing(calls: Sequence[Call], cut: Callable[[str], list[str]]) -> list[Piece]:
    """Each chunk repeats all arguments sent so far."""
    pieces: list[Piece] = []
    for index, (name, arguments) in enumerate(calls):
        so_far = ""
        for piece in cut(arguments):
            so_far += piece
            pieces.append((index, f"call_{index}", name, so_far))
    return pieces


def empty_object_first(calls: Sequence[Call], cut: Callable[[str], list[str]]) -> list[Piece]:
    """Proxies for Anthropic send `{}` with the name, then the arguments."""
    pieces: list[Piece] = []
    for index, (name, arguments) in enumerate(calls):
        pieces.append((index, f"toolu_{index}", name, "{}"))
        pieces += [(index, "", "", piece) for piece in cut(arguments)]
    return pieces


def mistral(calls: Sequence[Call], cut: Callable[[str], list[str]]) -> list[Piece]:
    """Mistral sends complete calls in one chunk, all at index 0, with ids of nine characters."""
    return [(0, f"aB3dE6gH{index}", name, arguments) for index, (name, arguments) in enumerate(calls)]


NOTATIONS: tuple[Notation, ...] = (
    openai, alternating, one_index, one_index_in_pieces, one_index_without_ids, one_index_with_one_id, no_index,
    no_index_name_always, name_and_id_always, whole_again_at_the_end, growing, empty_object_first, mistral,
)  # fmt: skip

values = st.dictionaries(
    st.sampled_from(["a", "command"]), st.text(max_size=8) | st.integers() | st.just({"b": [1]}), min_size=1, max_size=2
)
call = st.tuples(st.sampled_from(["bash", "read", "time"]), st.builds(json.dumps, values))


def collected(pieces: Sequence[Piece]) -> list[Call]:
    calls: list[CallParts] = []
    collector = CallCollector(calls)
    for piece in pieces:
        collector.add(*piece)
    return [(call.name, call.final) for call in calls]


@pytest.mark.parametrize("notation", NOTATIONS)
@settings(max_examples=20)
@given(calls=st.lists(call, min_size=1, max_size=4), sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_every_format_yields_the_original_calls(notation: Notation, calls: list[Call], sizes: list[int]) -> None:
    def cut(text: str) -> list[str]:
        pieces: list[str] = []
        while text:
            size = sizes[len(pieces) % len(sizes)]
            pieces.append(text[:size])
            text = text[size:]
        return pieces

    if notation is one_index_with_one_id:  # equal calls with one id count as one call
        calls = list(dict.fromkeys(calls))
    assert collected(notation(calls, cut)) == calls


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        ([(0, "a", "x", ""), (0, "b", "y", "")], [("x", "{}"), ("y", "{}")]),
        ([(0, "", "x", ""), (0, "", "y", "")], [("x", "{}"), ("y", "{}")]),
        ([(0, "a", "x", ""), (0, "a", "x", '{"k":1}')], [("x", '{"k":1}')]),
        ([(0, "", "x", ""), (0, "", "x", '{"k":1}')], [("x", '{"k":1}')]),
        ([(0, "r1", "x", '{"k'), (0, "r2", "", '":1}')], [("x", '{"k":1}')]),
        ([(0, "a", "x", '{"k'), (1, "", "", '":1}')], [("x", '{"k":1}')]),
        ([(0, "a", "x", "{}"), (1, "a", "x", "{}")], [("x", "{}"), ("x", "{}")]),
        ([(None, "", "x", "{}"), (None, "", "x", "{}")], [("x", "{}"), ("x", "{}")]),
        ([(0, "", "", "")], []),
        ([(0, "a", "x", "{}"), (0, "", "", '{"k":'), (0, "", "", "{}")], [("x", '{}{"k":{}')]),
    ],
)
def test_server_specific_forms_are_read(pieces: list[Piece], calls: list[Call]) -> None:
    assert collected(pieces) == calls
