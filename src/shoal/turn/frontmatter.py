"""The front matter of a SKILL.md: the small part of YAML that such files use, read strictly.

Taken: `key: value` with plain, 'single' and "double" quoted scalars, `|` and `>` blocks, lists of scalars (`[a, b]`, or
a line `- a` each), one level of nested keys, and comments. A plain value may hold `: `, as many published skills do.
Not taken: anchors, tags, several documents, deeper nesting; these are problems with a line number.
"""

import json
import re
from typing import TypeAlias

import msgspec

Value: TypeAlias = str | tuple[str, ...] | dict[str, str]

_FENCE = re.compile(r"---[ \t]*")
_KEY = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)[ \t]*:(?:[ \t]+(.*))?")
_BLOCK = re.compile(r"([|>])([+-]?)(?:[ \t]+#.*)?")
_COMMENT = re.compile(r"(?:^|[ \t])#.*")
_FOLD = re.compile(r"(?<!\n)\n+(?![ \t\n])")
_UNSUPPORTED = re.compile(r"[&*!%@`{]")


class Problem(Exception):
    """The front matter cannot be read; the text says where and why."""


class Document(msgspec.Struct, frozen=True):
    """A file's front matter by key, and the text after it."""

    fields: dict[str, Value]
    body: str


def parse_document(text: str) -> Document:
    """Split a file into front matter and body. Raises Problem when either fence or anything between is wrong."""
    lines = text.removeprefix("\ufeff").split("\n")
    if not _FENCE.fullmatch(lines[0]):
        raise Problem("must begin with a line `---`, then `name:` and `description:`")
    for number, line in enumerate(lines[1:], 1):
        if _FENCE.fullmatch(line):
            return Document(_Reader(lines[1:number]).fields(), "\n".join(lines[number + 1 :]).strip())
    raise Problem("the front matter is not closed by a line `---`")


class _Reader:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0

    def fields(self) -> dict[str, Value]:
        found: dict[str, Value] = {}
        while (line := self._next_line()) is not None:
            key, rest = self._key(line)
            if key in found:
                raise self._problem(f"{key!r} stands twice")
            found[key] = self._value(rest)
        return found

    def _next_line(self) -> str | None:
        """The next line that is neither empty nor a comment; stays before it."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.strip() and not line.lstrip().startswith("#"):
                return line
            self._at += 1
        return None

    def _key(self, line: str) -> tuple[str, str]:
        self._at += 1
        if line[0] in " \t":
            raise self._problem("is indented, but belongs to no key")
        match = _KEY.fullmatch(line.rstrip())
        if match is None:
            raise self._problem("is not of the form `key: value`")
        return match[1], (match[2] or "").strip()

    def _value(self, rest: str) -> Value:
        block = _BLOCK.fullmatch(rest)
        if block:
            return self._block(folded=block[1] == ">")
        if rest.startswith("["):
            return self._flow_list(rest)
        if rest and not rest.startswith("#"):
            return self._continued(rest)
        return self._nested()

    def _indented(self) -> list[str]:
        """The lines below a key that belong to it: indented or empty ones."""
        start = self._at
        while self._at < len(self._lines) and (not self._lines[self._at].strip() or self._lines[self._at][0] in " \t"):
            self._at += 1
        return [line.rstrip() for line in self._lines[start : self._at]]

    def _block(self, *, folded: bool) -> str:
        lines = self._indented()
        indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
        text = "\n".join(line[min(indents, default=0) :] for line in lines).strip("\n")
        return _FOLD.sub(lambda breaks: breaks[0][1:] or " ", text) if folded else text

    def _continued(self, rest: str) -> str:
        """A scalar on the key's own line, which indented lines may continue."""
        more = [line.strip() for line in self._indented() if line.strip()]
        return self._scalar(" ".join([rest, *more]))

    def _nested(self) -> Value:
        listed: list[str] = []
        while (line := self._next_line()) is not None and (item := re.fullmatch(r"[ \t]*-[ \t]+(.*)", line)):
            self._at += 1
            listed.append(self._scalar(item[1].strip()))
        if listed:
            return tuple(listed)
        found: dict[str, str] = {}
        while (line := self._next_line()) is not None and line[0] in " \t":
            self._at += 1
            match = _KEY.fullmatch(line.strip())
            if match is None or not match[2]:
                raise self._problem("is not of the form `key: value`; only one level of nesting is read")
            found[match[1]] = self._scalar(match[2].strip())
        return found or ""

    def _flow_list(self, rest: str) -> tuple[str, ...]:
        text = _COMMENT.sub("", " ".join([rest, *(line.strip() for line in self._indented())])).strip()
        if not text.endswith("]"):
            raise self._problem("opens a list with `[` and does not close it")
        return tuple(self._scalar(item.strip()) for item in text[1:-1].split(",") if item.strip())

    def _scalar(self, text: str) -> str:
        if text.startswith('"'):
            return self._double_quoted(text)
        if text.startswith("'"):
            match = re.fullmatch(r"'((?:[^']|'')*)'[ \t]*(?:#.*)?", text)
            if match is None:
                raise self._problem("a text in single quotes is not closed")
            return match[1].replace("''", "'")
        if _UNSUPPORTED.match(text):
            raise self._problem(f"a value that begins with {text[0]!r} has to stand in quotes")
        return _COMMENT.sub("", text).strip()

    def _double_quoted(self, text: str) -> str:
        match = re.fullmatch(r'("(?:[^"\\]|\\.)*")[ \t]*(?:#.*)?', text)
        if match is None:
            raise self._problem("a text in double quotes is not closed")
        try:
            decoded: str = json.loads(match[1])
        except ValueError:
            raise self._problem("a text in double quotes has an escape that is not known") from None
        return decoded

    def _problem(self, what: str) -> Problem:
        return Problem(f"line {self._at + 1} of the file: {what}")
