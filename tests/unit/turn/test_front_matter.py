"""Front matter written by people and other products, and limits on parsing it."""

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.turn.front_matter import FrontMatterError, parse_document


def test_every_form_of_value_is_read() -> None:
    document = parse_document(
        "---\n"
        "# a comment\n"
        "name: tide   # and one here\n"
        "description: >-\n"
        "  Tells the tide:\n"
        "  high and low.\n"
        "\n"
        "  Twice a day.\n"
        "literal: |\n"
        "  one\n"
        "    two\n"
        "single: 'it''s: fine'\n"
        'double: "a\\tb # no comment"\n'
        "flow: [bash, 'read file']  # two\n"
        "flush:\n"
        "- one\n"
        "metadata:\n"
        "  openclaw: {emoji: 🌊, requires: {bins: [curl, jq]}}\n"
        "  hermes:\n"
        "    tags: [a]\n"
        'json: {"nanobot":{"always":true,"since":2024-01-01},}\n'
        "long: first\n"
        "  second\n"
        "empty:\n"
        "date: 2024-01-01\n"
        "yes: no\n"
        "---   \n"
        "\nBody\n---\nmore\n"
    )
    assert document.fields == {
        "name": "tide",
        "description": "Tells the tide: high and low.\nTwice a day.",
        "literal": "one\n  two\n",
        "single": "it's: fine",
        "double": "a\tb # no comment",
        "flow": ("bash", "read file"),
        "flush": ("one",),
        "metadata": {"openclaw": {"emoji": "🌊", "requires": {"bins": ("curl", "jq")}}, "hermes": {"tags": ("a",)}},
        "json": {"nanobot": {"always": "true", "since": "2024-01-01"}},
        "long": "first second",
        "empty": "",
        "date": "2024-01-01",
        "yes": "no",
    }
    assert document.body == "Body\n---\nmore"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("description: Use when: someone asks http://x#y", "Use when: someone asks http://x#y"),
        ("description: Four verbs: a, b. Fires when ANY: c\nlicense: MIT", "Four verbs: a, b. Fires when ANY: c"),
        ('description:\n  "plan". With x: grill,\n  then', '"plan". With x: grill, then'),
        ("description: **Bold** and more", "**Bold** and more"),
        ("description: *one* star", "*one* star"),
        ("description: &anchored text", "&anchored text"),
        ("description: !urgent text", "!urgent text"),
        ("description: @someone `code`", "@someone `code`"),
        ("description: `code` first", "`code` first"),
        ("description: %d things", "%d things"),
        ("description: [Beta] does it", "[Beta] does it"),
        ("description: [Beta]", "[Beta]"),
        ("description: {baseDir}/run", "{baseDir}/run"),
        ('description: "quoted" and then not', '"quoted" and then not'),
        ('description: "never closed', "never closed"),
        ("description: 'it's broken'", "it's broken"),
        ('description: "bad \\q escape"', "bad \\q escape"),
        ("description:\ttabbed", "tabbed"),
        ("description: >\n\tfolded by a tab\n\ttwice", "folded by a tab twice"),
        ("description:no space", "no space"),
        ("description:\u00a0a hard space", "a hard space"),
        ("description: first\ndescription: second", "second"),
        ("other: [open\ndescription: whole", "whole"),
        ("- a\n- b\ndescription: whole", "whole"),
        ("description: a \x07 bell", "a \x07 bell"),
        ("  description: all is indented\n  name: x", "all is indented"),
    ],
)  # fmt: skip
def test_a_non_yaml_description_is_used_literally(written: str, text: str) -> None:
    assert parse_document(f"---\n{written}\n---\nBody").text("description") == text


def test_an_error_in_one_key_does_not_affect_the_others() -> None:
    document = parse_document(
        "---\ndescription: Use: this\nallowed-tools:\n  - a\n\t- b\nmetadata: {x: {y: z}}\nok: [a, b]\n---"
    )
    assert document.fields["metadata"] == {"x": {"y": "z"}}
    assert document.fields["ok"] == ("a", "b")
    assert document.fields["allowed-tools"] == ("a", "b")


@pytest.mark.parametrize(
    "before",
    [
        "\n\n",
        "\ufeff",
        "# a comment\n\n",
        "<!-- one\nand two -->\n",
        "<!-- one -->\n \t\n",
        "```markdown\n",
        "\n\ufeff",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_blank_lines_and_comments_may_come_first(before: str, end: str) -> None:
    text = f"{before}--- \nname: tide\n---\t\nBody".replace("\n", end)
    document = parse_document(text)
    assert (document.fields, document.body) == ({"name": "tide"}, "Body")


@pytest.mark.parametrize(
    ("text", "what"),
    [("name: x", "must begin with a line"), ("", "must begin"), ("# Title\ntext\n---\na: b\n---", "must begin"),
     ("---\nname: x", "not closed by a line"), ("<!-- never ends\n---\nname: x\n---", "must begin")],
)  # fmt: skip
def test_a_file_without_front_matter_is_reported(text: str, what: str) -> None:
    with pytest.raises(FrontMatterError, match=what):
        parse_document(text)


@pytest.mark.parametrize(
    "bomb",
    [
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]",
        f"a: {'[' * 20_000}",
        f"a: {'{a: ' * 5_000}",
        "\n".join(f"{' ' * depth}a:" for depth in range(300)),
        f"a: {'- ' * 20_000}",
        f"a: [{'x, ' * 20_000}]",
        f"a: {'? ' * 10_000}",
        f"a: {chr(34)}{'x' * 60_000}",
    ],
)
def test_yaml_aliases_are_read_as_text(bomb: str) -> None:
    document = parse_document(f"---\nname: tide\n{bomb}\n---\nBody")
    assert document.text("name") == "tide"


TEXTS = st.text(max_size=30) | st.builds("".join, st.tuples(st.sampled_from("!&*%@`"), st.text(" !ab:#", max_size=4)))


@given(st.lists(st.tuples(st.from_regex(r"[a-z][a-z-]{0,8}", fullmatch=True), TEXTS), max_size=5))
@example([("a", "!"), ("b", "! c")])
def test_the_fast_path_matches_yaml(pairs: list[tuple[str, str]]) -> None:
    text = "\n".join(f"{key}: {value}" for key, value in pairs)
    try:
        expected = yaml.load(text, Loader=yaml.BaseLoader)
        events = list(yaml.parse(text, Loader=yaml.BaseLoader))
    except yaml.YAMLError:
        return
    if any(getattr(event, "anchor", None) or getattr(event, "tag", None) not in (None, "!") for event in events):
        return  # Shoal reads anchors and tags as text
    try:
        document = parse_document(f"---\n{text}\n---")
    except FrontMatterError:
        return
    if isinstance(expected, dict) and all(isinstance(one, str) for one in expected.values()):
        names = {key: "" if value in ("~", "null", "Null", "NULL") else value for key, value in expected.items()}
        assert {key: document.text(key) for key in document.fields} == {key: one.strip() for key, one in names.items()}
