"""Setting a key in a TOML file changes only that key."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.text.toml_edit import CannotEdit, literal, with_element, with_value, without_key

FILE = """# mine
[model]  # which one
# name = "openai/gpt-5"

[web]
port = 1  # the old one
allow = [
    "a",
]

[[platforms.telegram]]
token = "t"
"""


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("model", "name"), "a/b", '# name = "openai/gpt-5"\nname = "a/b"\n\n[web]'),
        (("web", "port"), 8421, "[web]\nport = 8421  # the old one\nallow"),
        (("web", "allow"), ["x", "y"], 'allow = ["x", "y"]\n\n[['),
        (("platforms", "telegram", "owner"), "7", 'token = "t"\nowner = "7"\n'),
        (("providers", "a b", "kind"), "openai", '\n\n[providers."a b"]\nkind = "openai"\n'),
        (("providers", "x", "api_key"), {"file": "secrets/x"}, 'api_key = { file = "secrets/x" }\n'),
    ],
)
def test_a_key_is_set_in_its_table(path: tuple[str, ...], value: str | int | list[str], line: str) -> None:
    changed = with_value(FILE, path, value)
    assert line in changed
    kept = [one for one in FILE.splitlines() if not one.startswith((f"{path[-1]} =", '    "a"', "]"))]
    assert [one for one in kept if one not in changed.splitlines()] == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (
            "[[platforms.telegram]]\naccount = 'a'\n[[platforms.telegram]]\naccount = 'b'\n",
            ("platforms", "telegram", "x"),
        ),
        ("model = 'x'\n", ("model", "name")),
        ("not toml", ("model", "name")),
    ],
)
def test_a_file_in_an_unsupported_form_is_left_alone(text: str, path: tuple[str, ...]) -> None:
    with pytest.raises(CannotEdit):
        with_value(text, path, 1)


names = st.sampled_from(["model", "web", "a-b", "with space", "ünï", 'quo"te', "x.y"])
values = st.one_of(st.text(), st.integers(-5, 5), st.booleans(), st.lists(st.text(max_size=5), max_size=3))


@given(st.lists(st.tuples(st.lists(names, min_size=1, max_size=3), values), max_size=6))
def test_a_set_value_is_read_back_and_nothing_else_changes(
    settings: list[tuple[list[str], str | int | list[str]]],
) -> None:
    text = FILE
    for path, value in settings:
        before = tomllib.loads(text)
        try:
            text = with_value(text, tuple(path), value)
        except CannotEdit:
            continue
        table, wanted = before, tomllib.loads(text)
        for name in path[:-1]:
            table = table.setdefault(name, {})
        table[path[-1]] = value
        assert before == wanted


@given(values)
def test_a_literal_is_preserved(value: str | int | list[str]) -> None:
    assert tomllib.loads(f"x = {literal(value)}")["x"] == value


ELEMENTS = """# mine
[[a.rules]]  # the first
allow = ["x"]

# about the second
[[a.rules]]
allow = [
  "y",
]
# about the web
[web]
port = 1
"""
RULES = ("a", "rules")


def test_an_element_is_replaced() -> None:
    changed = with_element(ELEMENTS, RULES, 1, {"deny": ("z",), "agents": ("main",)})
    assert tomllib.loads(changed)["a"]["rules"] == [{"allow": ["x"]}, {"deny": ["z"], "agents": ["main"]}]
    assert "# about the second\n[[a.rules]]\ndeny" in changed
    assert "# about the web\n[web]" in changed


def test_an_element_is_removed_and_comments_of_others_are_kept() -> None:
    changed = with_element(ELEMENTS, RULES, 1, None)
    assert tomllib.loads(changed) == {"a": {"rules": [{"allow": ["x"]}]}, "web": {"port": 1}}
    assert "# about the web\n[web]" in changed
    assert tomllib.loads(with_element(changed, RULES, 0, None)) == {"web": {"port": 1}}


def test_an_element_is_added_at_the_end() -> None:
    changed = with_element(ELEMENTS, RULES, 2, {"allow": ("z",)})
    assert changed == f'{ELEMENTS}\n[[a.rules]]\nallow = ["z"]\n'
    assert with_element("", RULES, 0, {"allow": ("z",)}) == '[[a.rules]]\nallow = ["z"]\n'


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("web = { port = 1 }  # small\n", "web = { port = 8421 }  # small\n"),
        ('web.port = 1\nweb.host = "h"\n', 'web.port = 8421\nweb.host = "h"\n'),
        ('"web" = {}\n', '"web" = {port = 8421}\n'),
        ("[web]\nport=1 # old\n[model]\n[web.sub]\na=1\n", "[web]\nport=8421 # old\n[model]\n[web.sub]\na=1\n"),
        ("[web]\n'port' = 1\n", "[web]\n'port' = 8421\n"),
        ("[web]\nport = [\n 1, # one\n]\n", "[web]\nport = 8421\n"),
        ("web.host = 'h'\n", "web.host = 'h'\nweb.port = 8421\n"),
        ("[web.sub]\na = 1\n", "[web.sub]\na = 1\n\n[web]\nport = 8421\n"),
    ],
)
def test_a_key_is_set_in_any_form_of_table(text: str, changed: str) -> None:
    assert with_value(text, ("web", "port"), 8421) == changed


@pytest.mark.parametrize("text", ['[a]\nrules = [{ allow = ["x"] }]\n', "[[a.rules]]\n[a.rules.inner]\nx = 1\n"])
def test_elements_in_any_form_are_changed(text: str) -> None:
    assert tomllib.loads(with_element(text, RULES, 0, {"allow": ("z",)})) == {"a": {"rules": [{"allow": ["z"]}]}}
    assert tomllib.loads(with_element(text, RULES, 0, None)).get("a", {}).get("rules", []) == []
    assert len(tomllib.loads(with_element(text, RULES, 1, {"allow": ("z",)}))["a"]["rules"]) == 2


def test_unsupported_elements_are_left_to_the_user() -> None:
    with pytest.raises(CannotEdit, match="Shoal cannot change"):
        with_element("a.rules = 1\n", RULES, 0, {"allow": ("z",)})


TABLES = "[a.b]\nx = 1\n# about c\n[a.c]\ny = 2\n"


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (TABLES, "# about c\n[a.c]\ny = 2\n"),
        ("a = { b = { x = 1 }, c = 1 }\n", "a = {  c = 1 }\n"),
        ("a.b.x = 1\na.c = 1\n", "a.c = 1\n"),
    ],
)
def test_a_table_is_removed(text: str, changed: str) -> None:
    assert without_key(text, ("a", "b")) == changed


def test_a_missing_key_cannot_be_removed() -> None:
    with pytest.raises(CannotEdit):
        without_key(TABLES, ("a", "d"))
