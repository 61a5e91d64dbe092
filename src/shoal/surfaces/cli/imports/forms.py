"""The forms of other products' configuration files (JSON5, some YAML, .env), and which of their keys were read."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from shoal.domain.errors import InvalidInput
from shoal.surfaces.cli.imports.found import Json, as_dict, clean, text_of


class Options:
    """A configuration, and which of its keys were looked at. A key may be written in camelCase or snake_case."""

    def __init__(self, content: Json) -> None:
        self.content = content
        self._used: set[tuple[str, ...]] = set()

    def get(self, *path: str) -> Json:
        """The value at a path, which is accounted for then; None where there is none."""
        found, taken = self.content, list[str]()
        for name in path:
            table = as_dict(found)
            key = name if name in table or _snake(name) not in table else _snake(name)
            found = table.get(key)
            taken.append(key)
        self._used.add(tuple(taken))
        return found

    def text(self, *path: str) -> str:
        """A text or number as text; empty for anything else."""
        return text_of(self.get(*path))

    def texts(self, *path: str) -> tuple[str, ...]:
        """A list of texts or numbers, or one of them."""
        found = self.get(*path)
        items = found if isinstance(found, list) else [found]
        return tuple(str(one).strip() for one in items if isinstance(one, str | int) and not isinstance(one, bool))

    def table(self, *path: str) -> dict[str, Json]:
        """The table at a path, of which nothing is accounted for yet."""
        found = self.content
        for name in path:
            table = as_dict(found)
            found = table.get(name, table.get(_snake(name)))
        return as_dict(found)

    def rest(self) -> Iterator[str]:
        """The keys that nobody looked at, as far up as none below was."""
        yield from self._below(as_dict(self.content), ())

    def _below(self, table: dict[str, Json], path: tuple[str, ...]) -> Iterator[str]:
        for name, value in table.items():
            here = (*path, name)
            if here in self._used or value in (None, "", [], {}):
                continue
            if any(used[: len(here)] == here for used in self._used):
                yield from self._below(as_dict(value), here)
            else:
                yield ".".join(here)


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name)


_TOKEN = re.compile(
    r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|//[^\n]*|/\*.*?\*/|[{}\[\]:,]|[^\s{}\[\]:,"'/]+|/""", re.DOTALL
)


def json5(text: str, where: Path) -> Json:
    """JSON with comments, trailing commas, single quotes and bare keys. Raises InvalidInput."""
    words = [one for one in _TOKEN.findall(text) if not one.startswith(("//", "/*"))]
    out: list[str] = []
    for number, word in enumerate(words):
        after = words[number + 1] if number + 1 < len(words) else ""
        if word[0] == "'":
            inner = re.sub(r'(?<!\\)"', lambda _: '\\"', word[1:-1].replace("\\'", "'"))
            out.append(f'"{inner}"')
        elif after == ":" and word[0] != '"':
            out.append(json.dumps(word))
        elif word != "," or after not in ("}", "]"):
            out.append(word)
    try:
        return clean(cast("Json", json.loads(" ".join(out)))) if out else {}
    except (ValueError, RecursionError) as error:
        near = error.doc[error.pos :][:30] if isinstance(error, json.JSONDecodeError) else ""
        place = f" near {near!r}" if near else ": its end is missing, or it is nested too deeply"
        raise InvalidInput(f"{where} cannot be read as JSON{place}. Correct it, then import again.") from error


def dotenv(text: str) -> dict[str, str]:
    """The variables of a .env file."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*", line)
        if match:
            quoted = re.match(r"""(["'])(.*)\1""", match[2])
            found[match[1]] = quoted[2] if quoted else re.sub(r"\s+#.*", "", match[2]).strip()
    return {name: value for name, value in found.items() if value}


def yaml_subset(text: str) -> dict[str, Json]:
    """The part of YAML that configuration files use: nested keys, lists, plain and quoted values, blocks of text.

    What is written in another way (anchors, tags, flow mappings over several lines) is read as text or left out.
    """
    lines = [line.rstrip() for line in text.replace("\t", "  ").splitlines()]
    try:
        value, _ = _yaml_block([line for line in lines if line.strip() and not line.lstrip().startswith("#")], 0, 0)
    except RecursionError:
        return {}
    return as_dict(value)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _yaml_block(lines: list[str], at: int, indent: int) -> tuple[Json, int]:
    """The value whose lines begin at `at` and are indented by `indent`, and where it ends."""
    table, items = dict[str, Json](), list[Json]()
    while at < len(lines) and _indent(lines[at]) >= indent:
        line = lines[at]
        if _indent(line) > indent:
            at += 1
            continue
        content = line.strip()
        is_item = content == "-" or content.startswith("- ")
        if (items and not is_item) or (table and is_item):  # it belongs to the value around this one
            break
        if is_item:
            inner = content[1:].strip()
            if re.match(r"""[\w"'.-]+:(\s|$)""", inner):  # a table that begins behind the dash
                deeper = indent + 2
                lines[at] = " " * deeper + inner
                value, at = _yaml_block(lines, at, deeper)
            else:
                value, at = _yaml_scalar(inner), at + 1
            items.append(value)
            continue
        match = re.match(r"""("[^"]*"|'[^']*'|[^:#]+?)\s*:(?:\s+(.*))?$""", content)
        if match is None:
            at += 1
            continue
        name, rest = match[1].strip("\"'"), re.sub(r"\s+#.*$", "", match[2] or "").strip()
        at += 1
        below = _indent(lines[at]) if at < len(lines) else 0
        starts_list = at < len(lines) and below == indent and lines[at].strip().startswith("-")
        if rest in ("|", ">", "|-", ">-"):
            block: list[str] = []
            while at < len(lines) and _indent(lines[at]) > indent:
                block.append(lines[at].strip())
                at += 1
            table[name] = ("\n" if rest[0] == "|" else " ").join(block)
        elif not rest and (below > indent or starts_list):
            table[name], at = _yaml_block(lines, at, below)
        else:
            table[name] = _yaml_scalar(rest)
    return (items if items else table), at


def _yaml_scalar(text: str) -> Json:
    if text.startswith("[") and text.endswith("]"):
        return [_yaml_scalar(one.strip()) for one in text[1:-1].split(",") if one.strip()]
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    plain: Mapping[str, Json] = {"true": True, "false": False, "null": None, "~": None, "": None, "{}": {}}
    if text.lower() in plain:
        return plain[text.lower()]
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text
