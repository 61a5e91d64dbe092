"""Files from other programs: the file tools preserve encodings and line endings and find odd names."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.errors import ToolError
from shoal.kernel.ports import Mount
from shoal.tools.builtin.files import replace_text
from shoal.tools.jail import Jail

ENDS = st.sampled_from(["\n", "\r\n"])
LINES = st.lists(st.tuples(st.text("abä€ ", max_size=4), ENDS), min_size=1, max_size=8)


@given(LINES, st.data())
def test_an_edit_changes_its_own_text_and_keeps_every_other_byte(
    lines: list[tuple[str, str]], data: st.DataObject
) -> None:
    content = "".join(f"{text}{end}" for text, end in lines) + "last"
    plain = content.replace("\r\n", "\n")
    start = data.draw(st.integers(0, len(plain) - 1))
    old = plain[start : data.draw(st.integers(start + 1, len(plain)))]
    if plain.count(old) > 1 or any(plain.startswith(old, at) for at in range(start)):
        return
    new = data.draw(st.sampled_from(["", "X", "X\nY", f"{old}Z", f"Z{old}", f"{old}\n"]))
    changed = replace_text(content, old, new, replace_all=False, shown="f").content
    assert changed.replace("\r\n", "\n") == plain[:start] + new + plain[start + len(old) :]
    before = content[: len(content) - len(content.lstrip("\0"))]
    assert changed.startswith(before)
    kept = [line for line in content.splitlines(keepends=True)][: plain.count("\n", 0, start)]
    assert changed.startswith("".join(kept))
    rest = content.splitlines(keepends=True)[plain.count("\n", 0, start + len(old)) + 1 :]
    assert changed.endswith("".join(rest))


@pytest.mark.parametrize(
    ("content", "old", "new", "changed"),
    [
        ("a\r\nb\r\nc\n", "a\nb", "a\nB", "a\r\nB\r\nc\n"),
        ("a\nb\r\nc\n", "b\nc", "b\nx\nc", "a\nb\r\nx\nc\n"),
        ("a\nb\n", "a\r\nb", "a\r\nc", "a\nc\n"),
        ("a\rb\rc", "b\nc", "b\nd", "a\rb\rd"),
        ("a\r\nb", "b", "b\nc", "a\r\nb\r\nc"),
        ("x\r\nx\r\n", "x", "y\nz", "y\r\nz\r\ny\r\nz\r\n"),
    ],
)
def test_line_ends_are_kept(content: str, old: str, new: str, changed: str) -> None:
    assert replace_text(content, old, new, replace_all=content.count(old) > 1, shown="f").content == changed


@pytest.mark.parametrize(
    ("content", "old"),
    [("say “hi”\n", 'say "hi"'), ("it’s\n", "it's"), ("a – b\n", "a - b"), ("a  \nb\n", "a\nb"), ("a\u00a0b\n", "a b"),
     ("cafe\u0301\n", "caf\u00e9"), ("x\nfoo \t\nbar\n", "foo\nbar")],
)  # fmt: skip
def test_a_near_match_is_shown_but_not_used(content: str, old: str) -> None:
    with pytest.raises(ToolError, match="Copy the text exactly") as told:
        replace_text(content, old, "new", replace_all=False, shown="f")
    assert content.splitlines()[-1] in str(told.value)


@pytest.mark.parametrize(
    ("there", "asked"),
    [
        ("cafe\u0301.txt", "caf\u00e9.txt"),
        ("caf\u00e9.txt", "cafe\u0301.txt"),
        ("Screenshot at 9.41\u202fAM.png", "Screenshot at 9.41 AM.png"),
        ("Bob\u2019s notes.md", "Bob's notes.md"),
        ("a \u2013 b.txt", "a - b.txt"),
        ("a\u00a0b.txt", "a b.txt"),
        ("name .txt ", "name .txt"),
        ("README.md", "readme.md"),
        ("my file.txt", "my\\ file.txt"),
        ("De\u0301j\u00e0/vu\u2019s.txt", "D\u00e9j\u00e0/vu's.txt"),
    ],
)
def test_a_visually_equal_name_is_found(tmp_path: Path, there: str, asked: str) -> None:
    (tmp_path / there).parent.mkdir(exist_ok=True)
    (tmp_path / there).write_text("x")
    jail = Jail((Mount(tmp_path, "/workspace", writable=True),))
    assert jail.resolve(asked).shown == f"/workspace/{there}"
    assert jail.resolve(asked, is_new=True).shown == f"/workspace/{asked}"
    (tmp_path / asked).parent.mkdir(exist_ok=True)
    (tmp_path / asked).write_text("y")
    assert jail.read(jail.resolve(asked)) == b"y"


def test_ambiguous_visually_equal_names_are_reported(tmp_path: Path) -> None:
    for name in ("caf\u00e9", "cafe\u0301"):
        (tmp_path / f"a\u2019{name}").write_text("x")
    jail = Jail((Mount(tmp_path, "/workspace"),))
    place = jail.resolve("a'caf\u00e9")
    assert place.shown == "/workspace/a'caf\u00e9"
    with pytest.raises(ToolError, match="Similar names: "):
        jail.read(place)
    assert unicodedata.is_normalized("NFC", place.shown)


def test_a_visually_equal_name_does_not_follow_a_link_out(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "inside" / "it\u2019s").symlink_to(tmp_path / "secret")
    with pytest.raises(ToolError, match="is outside"):
        Jail((Mount(tmp_path / "inside", "/workspace"),)).resolve("it's")


def test_file_tools_use_the_home_of_commands(tmp_path: Path) -> None:
    jail = Jail((Mount(tmp_path, "/workspace"),))
    assert (jail.resolve("~/a").shown, jail.resolve("~").shown) == ("/workspace/a", "/workspace")
    with pytest.raises(ToolError, match="outside"):
        Jail((Mount(tmp_path, "/workspace"),), home="/somewhere").resolve("~/a")
