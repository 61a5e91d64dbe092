"""Addresses and tokens are read before emphasis, emphasis works next to CJK, and no text takes long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.domain.markdown import Node, parse, plain_text, tokens_in


def tokens(text: str) -> list[str]:
    return [span.text for span in tokens_in(text)]


def styles(text: str) -> list[tuple[str, str]]:
    """What of a text is styled how."""
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
def test_a_token_is_one_wherever_it_stands(token: str) -> None:
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
def test_an_address_ends_where_the_sentence_goes_on(text: str, token: str) -> None:
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


def test_a_link_behind_an_escaped_backtick_is_a_link() -> None:
    [paragraph] = parse(r"\``` [a](http://h)")
    assert [node.url for node in paragraph.children if node.kind == "link"] == ["http://h"]


@given(st.text(alphabet="ab_*~`[](){}<>!\\/:@.#潮。 \n", max_size=80))
def test_tokens_follow_one_another(text: str) -> None:
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
    ],
)
def test_no_answer_takes_long(part: str) -> None:
    text = part * (20_000 // len(part))
    assert parse(text) or not text.strip()
