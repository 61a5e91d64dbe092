"""Parsers of foreign text take linear time on repetitive input, including the code around their regular expressions.

The measure is CPU time (`tests/growth.py`): a text four times as long may take up to eight times as long.
"""

from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from shoal.kernel.untrusted import decode_toml
from shoal.markdown.parse import CELLS_ADDED_MAX, parse
from shoal.markdown.tables import aligned
from shoal.models.markup import read_markup
from shoal.platforms.teams.wire import TeamsActivity, references_of
from shoal.shell.reader import OPERATORS_MAX, take_apart
from shoal.shell.words import Unreadable
from shoal.text.loose_json import loose_value
from tests.growth import GROWTH, slower, stopped_by_timer

CHARS = (4_000, 16_000)
ENOUGH_SECONDS = 0.05
PUMPS = (
    *(
        "<",
        "<!--",
        "<a ",
        '<a b="',
        "</",
        "&",
        "&#x",
        "<at>",
        "<script>",
        "{",
        "[",
        '{"a":',
        "'",
        '"',
        "\\",
        "`",
        "```\n",
    ),
    *("a.", "a.a=1\n", "[a]\n", "[[a]]\n", "|", "a|", "a=(", "<<a\n", "$(", "((", ";", "\n", " ", "a", "\n|-|-", "x y"),
    *(
        "<tool_call>{",
        "<tool_call>",
        "<function=a>",
        "[TOOL_CALLS]",
        "<think>",
        "<|channel|>",
        "<tool_call>a(",
        "**a",
        "_",
    ),
)


def _teams(text: str) -> None:
    page = {"contentType": "text/html", "content": f"<blockquote {text}>{text}"}
    activity = {"type": "message", "id": "1", "attachments": [page]}
    references_of(msgspec.convert(activity, TeamsActivity))


def test_a_table_does_not_grow_by_missing_cells() -> None:
    cells = parse("|a" * 200 + "|\n" + "|-" * 200 + "|\n" + "|b\n" * 200)
    assert sum(len(row.children) for table in cells for row in table.children) < 2 * CELLS_ADDED_MAX


@pytest.mark.parametrize("pump", ["a|", "a=(", "<<a\n"])
def test_a_command_of_only_operators_is_not_parsed(pump: str) -> None:
    with pytest.raises(Unreadable, match="too many operators"):
        take_apart(pump * (OPERATORS_MAX + 1))


@pytest.mark.parametrize("pump", ["<>", ">&", "a) ", "a;"])
def test_a_command_that_takes_long_to_parse_is_given_up(pump: str) -> None:
    with stopped_by_timer(), pytest.raises(Unreadable, match=r"takes too long|parts|complete"):
        take_apart(pump * (32_000 // len(pump)))


READERS: dict[str, Callable[[str], object]] = {
    "the HTML of Teams": _teams,
    "calls in a model's text": read_markup,
    "loose JSON": loose_value,
    "TOML": decode_toml,
    "rows of a table": lambda text: aligned([line.split("|") for line in text.splitlines()], 80),
    "a cell of a table": lambda text: aligned([["a", "b"], [text, "y"]], 80),
}


@pytest.mark.parametrize("name", READERS)
def test_readers_of_foreign_text_are_linear(name: str) -> None:
    def read(text: str) -> None:
        try:
            READERS[name](text)
        except (ValueError, RecursionError, LookupError, TypeError):
            return

    slow: list[str] = []
    with stopped_by_timer():
        for pump in PUMPS:
            short, long = (pump * (chars // len(pump)) for chars in CHARS)
            took = slower(partial(read, long), partial(read, short), GROWTH, ENOUGH_SECONDS)
            if took is not None:
                slow.append(f"{pump!r}: {took[0]:.3f} s, then {took[1]:.3f} s")
    assert not slow
