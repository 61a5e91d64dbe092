"""The documents are correct: code compiles, marked code runs, and links have targets.

A fenced `python` block must compile. If its first line is `# runs`, it also runs in an empty folder. Blocks of
`toml`, `json`, `bash` and `sh` must parse. Terminal sessions belong in a `console` block, which is not checked.
"""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from shoal.surfaces.cli import main
from shoal.surfaces.cli.docs import matches
from tests.tidy.source import GROUP, PACKAGE, ROOT, nodes, package_files, project_files, text, tree, where

BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^(?P=indent)```\s*$", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\[[^\]]*\]\((?!\w+:|#|/)(?P<target>[^)#\s]+)")
RUN_SECONDS_MAX = 60


class Block(NamedTuple):
    """A fenced block with its position, language and text."""

    place: str
    language: str
    code: str


def documents() -> list[Path]:
    return [
        path
        for path in project_files()
        if path.suffix == ".md" and path.relative_to(ROOT).parts[0] not in ("src", "tests")
    ]


def blocks(path: Path) -> list[Block]:
    said = path.read_text(encoding="utf-8")
    return [
        Block(
            place=f"{where(path)}:{said.count(chr(10), 0, match.start()) + 1}",
            language=match["language"],
            code=textwrap.dedent(match["code"]),
        )
        for match in BLOCK.finditer(said)
    ]


def runs(block: Block) -> bool:
    return block.language == "python" and block.code.lstrip().startswith("# runs")


BLOCKS = [block for path in documents() for block in blocks(path)]


def check(block: Block) -> None:
    match block.language:
        case "python":
            compile(block.code, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        case "toml":
            tomllib.loads(block.code)
        case "json":
            json.loads(block.code)
        case "bash" | "sh":
            subprocess.run(["bash", "-n"], input=block.code, check=True, capture_output=True, text=True)
        case _:
            pass


@pytest.mark.parametrize("block", BLOCKS, ids=[block.place for block in BLOCKS])
def test_a_block_parses(block: Block) -> None:
    check(block)


@pytest.mark.parametrize("block", [block for block in BLOCKS if runs(block)], ids=lambda block: block.place)
def test_a_block_marked_as_runnable_runs(block: Block, tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "SHOAL_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", block.code]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True, timeout=RUN_SECONDS_MAX
    )
    assert result.returncode == 0, result.stderr


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub generates for a document's headings."""
    said = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", said, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_to_headings_have_a_target() -> None:
    broken = [
        where(path, name=f"{target}#{heading}")
        for path in documents()
        for target, heading in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", path.read_text(encoding="utf-8"))
        if (page := path.parent / target if target else path).suffix == ".md" and heading not in anchors(page)
    ]
    assert broken == []


def test_links_have_a_target() -> None:
    broken = [
        where(path, name=match["target"])
        for path in documents()
        for match in LINK.finditer(path.read_text(encoding="utf-8"))
        if not (path.parent / match["target"]).exists()
    ]
    assert not broken


@pytest.mark.parametrize(
    ("language", "code"), [("python", "def f(:"), ("toml", "a = "), ("json", "{'a': 1}"), ("bash", "if true; then")]
)
def test_an_invalid_block_is_detected(language: str, code: str) -> None:
    with pytest.raises((SyntaxError, ValueError, subprocess.CalledProcessError)):
        check(Block("here", language, code))


def test_code_blocks_are_found_in_markdown() -> None:
    text = "Text\n\n```python\nx = 1\n```\n\n- item\n\n  ```toml\n  a = 1\n  ```\n"
    parsed = [(match["language"], textwrap.dedent(match["code"])) for match in BLOCK.finditer(text)]
    assert parsed == [("python", "x = 1\n"), ("toml", "a = 1\n")]


def test_the_architecture_page_lists_what_exists() -> None:
    said = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.(?:py|js))`", said)
    missing = [
        name for name in files if not any((root / name).exists() for root in (PACKAGE, ROOT)) and "*" not in name
    ]
    code = "\n".join(text(path) for path in package_files())
    methods = re.findall(r"`([A-Z]\w+)\.([a-z]\w+)`", said)
    missing += [f"{owner}.{name}" for owner, name in methods if not re.search(rf"def {name}\(", code)]
    missing += [owner for owner, _ in methods if not re.search(rf"class {owner}\b", code)]
    assert missing == []
    assert len(files) > 20
    assert len(methods) > 10


@pytest.mark.xdist_group(GROUP)
def test_pages_named_in_messages_are_available_in_shoal_docs() -> None:
    """A wheel has no docs/ folder, so messages must refer to existing pages through the command `shoal docs`."""
    named, bare = list[tuple[Path, str]](), list[str]()
    for path in package_files():
        docstrings = {
            id(node.body[0].value)
            for node in nodes(tree(path))
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in nodes(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                named += [(path, page) for page in re.findall(r"`shoal docs ([\w/-]+)`", node.value)]
                bare += [f"{where(path)}: {page}" for page in re.findall(r"\bdocs/[\w/-]+\.md", node.value)]
    assert len(named) > 5
    folder = ROOT / "docs"
    texts = {path.relative_to(folder).with_suffix("").as_posix(): text(path) for path in folder.rglob("*.md")}
    missing = [(where(path), page) for path, page in named if len(matches(texts, page)) != 1]
    assert (missing, bare) == ([], [])


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    names = sorted(path.name for path in folder.glob("0*.md"))
    index = re.findall(
        r"^\| \d{3} \| \[.*\]\((0[^)]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert index == names[1:]
    assert [int(name[:3]) for name in names] == list(range(len(names)))


COMMAND = re.compile(r"^(?:\w+=\S+ )*(?:\.venv/bin/)?shoal (.+)$", re.MULTILINE)
TYPED = [
    (block.place, line)
    for block in BLOCKS
    if block.language == "bash"
    for line in COMMAND.findall(block.code.replace("\\\n", ""))
]


@pytest.mark.parametrize(("place", "line"), TYPED)
def test_commands_in_documents_parse(place: str, line: str) -> None:
    """Also checks options and arguments. No command is run."""
    words = shlex.split(line.partition(" && ")[0], comments=True)
    assert words == ["--version"] or parse_command(words), place


def test_commands_in_sentences_exist() -> None:
    broken = list[str]()
    for path in documents():
        for line in re.findall(r"(?<!`)`(?:\.venv/bin/)?shoal ([a-z][^`\n…|<]*)`", path.read_text(encoding="utf-8")):
            words = [word for word in re.sub(r"\[.*?\]", "", line).split() if not word.startswith("-")]
            try:
                command: click.Command | None = main.shoal
                while isinstance(command, click.Group) and words:
                    _, command, words = command.resolve_command(click.Context(command), words)
            except click.UsageError as error:
                broken.append(f"{where(path)}: shoal {line}: {error.format_message()}")
    assert [line for line in broken if not line.startswith("docs/extending.md: shoal tides")] == []


def parse_command(words: list[str]) -> bool:
    parsed = main.shoal.make_context("shoal", words)
    while isinstance(parsed.command, click.Group) and (left := [*parsed._protected_args, *parsed.args]):
        name, command, rest = parsed.command.resolve_command(parsed, left)
        assert command is not None, left
        parsed = command.make_context(name, rest, parent=parsed)
    return True
