"""Parsing Markdown: addresses and tokens take precedence over emphasis, emphasis works next to CJK, and parsing
takes linear time.
"""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.markup import Node
from shoal.markdown.dialects import PLAIN
from shoal.markdown.parse import parse, plain_text, tokens_in
from shoal.markdown.render import render_markup


def tokens(text: str) -> list[str]:
    return [span.text for span in tokens_in(text)]


def styles(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []

    def walk(nodes: list[Node]) -> None:
        for node in nodes:
            if node.kind in ("strong", "em", "s"):
                found.append((node.kind, plain_text(node.children)))
            walk(node.children)

    walk(parse(text))
    return found


@pytest.mark.parametrize(
    "token",
    [
        "https://docs.example/pkg/__init__.py",
        "https://wiki.example/Kelp_forest_(sea)",
        "https://x.example/~ada/*/q?a_b=c_d&e=f*g",
        "https://müller.example/straße_1",
        "tg://user?id=7_7",
        "mxc://sea.example/a_b_c",
        "matrix:u/ada_b:sea.example",
        "keeper_of_tides@sea.example",
        "@keeper_of_tides",
        "@ada_b:sea.example",
        "#room_of_tides:sea.example",
        "pkg/__init__.py",
        "src/**/*.py",
        "~/my_dir/__x__"[1:],
        "C:\\my_dir\\__init__.py",
        "__init__.py",
        "self.__dict__",
        "<:low_tide_:123>",
        "<a:low_tide_:123>",
        "</tide table_:123>",
        "<t:1700000000:R>",
        "<@U0123ABC>",
        "<#C0123|low_tide_>",
        "<!date^1700000000^{date_num}|_then_>",
        "<!subteam^S123>",
        "<users/1234>",
        "<@!123456>",
        ":white_check_mark:",
    ],
)
def test_a_token_is_recognized_in_any_position(token: str) -> None:
    assert tokens(f"see {token} now")[0] == token
    assert tokens(f"**{token}**，然后")[0] == token
    assert plain_text(parse(f"_so_ ({token}).")[0].children) == f"so ({token})."


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("https://x.example/a_b。然后", "https://x.example/a_b"),
        ("(https://x.example/a_(b))", "https://x.example/a_(b)"),
        ("https://x.example/a_b!", "https://x.example/a_b"),
        ("https://x.example/Foo_ is", "https://x.example/Foo_"),
        ("_see https://x.example/a_", "https://x.example/a"),
        ("https://x.example/a\\_b\\_c", "https://x.example/a_b_c"),
    ],
)
def test_an_address_ends_before_the_rest_of_the_sentence(text: str, token: str) -> None:
    assert tokens(text) == [token]


@pytest.mark.parametrize("text", ["**Yes**/**No**", "*either*/*or*", "**/etc/hosts is read** first"])
def test_emphasis_around_words_with_slashes_is_emphasis(text: str) -> None:
    assert styles(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("**标题：**正文", [("strong", "标题：")]),
        ("这是*重点*内容", [("em", "重点")]),
        ("これは**「重要」**です", [("strong", "「重要」")]),
        ("~~旧（x）~~新", [("s", "旧（x）")]),
        ("이것은 **중요(매우)**합니다", [("strong", "중요(매우)")]),
        ("**a（b）**c", [("strong", "a（b）")]),
        ("un*believ*able", [("em", "believ")]),
        ("snake_case_word", []),
        ("5 * 3 * 2", []),
        ("**🦈！**x", [("strong", "🦈！")]),
    ],
)
def test_emphasis_next_to_cjk_needs_no_spaces(text: str, found: list[tuple[str, str]]) -> None:
    assert styles(text) == found


def test_a_link_after_an_escaped_backtick_is_a_link() -> None:
    [paragraph] = parse(r"\``` [a](http://h)")
    assert [node.url for node in paragraph.children if node.kind == "link"] == ["http://h"]


@given(st.text(alphabet="ab_*~`[](){}<>!\\/:@.#潮。 \n", max_size=80))
def test_adjacent_tokens_are_separate(text: str) -> None:
    last = 0
    for span in tokens_in(text):
        assert last <= span.start < span.end <= len(text)
        last = span.end


@pytest.mark.parametrize(
    "part",
    [
        "[",
        "![",
        "[a](",
        "*a ",
        "_a",
        "**a",
        "`a",
        "<",
        "<a>",
        "> ",
        "- ",
        "~~a",
        "$a",
        "\\(",
        "https://a_",
        "=a@",
        "\n",
        "|a",
        "*a **b ",
        "[a][1]",
        "][",
        "[a][",
        "[[a]",
        "[1]: https://a\n",
        "\n\n[1]: <",
        "|<br> ",
    ],
)
def test_no_answer_parses_slowly(part: str) -> None:
    text = part * (20_000 // len(part))
    assert parse(f"{text}\n\n[1]: https://a")


# ---- reference links, and line breaks in table cells ----

DEFINED = '\n\n[1]: https://kelp.example/a_b "Kelp"\n[Long Name]: <docs/a b.md>'
KELP = ("https://kelp.example/a_b", "Kelp")


def links_in(nodes: Sequence[Node]) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for node in nodes:
        if node.kind == "link":
            found.append((plain_text(node.children), node.url, node.title))
        found += links_in(node.children)
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[the docs][1]", [("the docs", *KELP)]),
        ("[1][] and [1]", [("1", *KELP), ("1", *KELP)]),
        ("![a picture][1]", [("a picture", *KELP)]),
        ("[x][long  name], [y][LONG\nNAME]", [("x", "docs/a%20b.md", ""), ("y", "docs/a%20b.md", "")]),
        ("**[bold][1]** and [**bold** text][1]", [("bold", *KELP), ("bold text", *KELP)]),
        ("> [quoted][1]\n\n- [listed][1]", [("quoted", *KELP), ("listed", *KELP)]),
        ("| a |\n|---|\n| [cell][1] |", [("cell", *KELP)]),
        ("[[inner][1] outer][1]", [("inner", *KELP), ("1", *KELP)]),
        ("[x](docs/y.md)[1]", [("x", "docs/y.md", ""), ("1", *KELP)]),
        ("[x][2], [2], [x][2][3]", []),
        ("`[x][1]` \\[1] [1\\] [^1] [ ][ ]", []),
        ("[" * 300 + "1" + "]" * 300, [("1", *KELP)]),
    ],
)
def test_a_link_is_found_by_its_label(text: str, found: list[tuple[str, str, str]]) -> None:
    assert links_in(parse(text + DEFINED)) == found
    assert links_in(parse(DEFINED.strip() + "\n\n" + text)) == found, "also where it is defined before"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[1]: https://kelp.example", "[1]: https://kelp.example"),
        ("[x][1]\n\n[1]: https://kelp.example", "x (https://kelp.example)"),
        ("[x][1]\n\n[1]: http://x\n[1]: http://y", "x (http://x)\n\n[1]: http://y"),
        ("[x][1]\n\n[1]: http://x\n[2]: http://y\n[3]: docs", "x (http://x)\n\n[2]: http://y\n[3]: docs"),
        ("[x][1]\n\n[1]: javascript:go()", "[x][1]\n\n[1]: javascript:go()"),
        ("[x][1]\n\n[1]: not a definition", "[x][1]\n\n[1]: not a definition"),
        ("words\n[1]: https://kelp.example\n\n[x][1]", "words\n[1]: https://kelp.example\n\n[x][1]"),
        ("[Note]: read this first", "[Note]: read this first"),
        ("- one\n\n  [1]: https://kelp.example\n- [two][1]", "• one\n• two (https://kelp.example)"),
    ],
)  # fmt: skip
def test_an_unused_link_definition_is_shown(text: str, shown: str) -> None:
    assert render_markup(text, PLAIN) == shown


@pytest.mark.parametrize("tag", ["<br>", "<br/>", "<br />", "<BR>"])
def test_br_tags_break_lines_only_in_cells(tag: str) -> None:
    text = f"| a | b |\n|---|---|\n| **one{tag}two** | `{tag}` \\{tag} |\n\nout{tag}side"
    table, paragraph = parse(text)
    first, second = table.children[1].children
    assert (plain_text(first.children), plain_text(second.children)) == ("one\ntwo", f"{tag} {tag}")
    assert plain_text(paragraph.children) == f"out{tag}side"
    assert render_markup(text, PLAIN).splitlines()[3:5] == [f"one | {tag} {tag}", "two |"]
