"""Parse the YAML front matter of a Markdown file, and tolerate common mistakes.

Scalars stay text. Anchors and named tags are rejected and nesting is limited, so a file cannot expand or recurse.
The tag `!` is ignored.

If the front matter is not valid YAML, each top-level key is parsed separately, and an invalid value is kept as text.
Published skills need this: their most common mistake is an unquoted description that contains `: `
(mattpocock/skills#908, BuilderIO/skills#38, n8n-skills#32).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias, cast

import msgspec

from shoal.kernel import lazy_re

Value: TypeAlias = "str | tuple[Value, ...] | dict[str, Value]"

DEPTH_MAX = 32
EVENTS_MAX = 20_000
"""Maximum number of YAML parser events: scalars, and the starts and ends of lists and mappings."""
_FENCE = "---"
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_KEY = lazy_re.compile(r"[\w.-]+")
_PLAIN = lazy_re.compile(r"(?:[^\W_]|[/(./$+<=^~;_])[^:#\r]*")
"""Matches a value that can be read without a YAML parser: a plain scalar without special characters."""
_PLAIN_KEY = lazy_re.compile(r"([A-Za-z][A-Za-z0-9_-]*): +(\S.*)")


class FrontMatterError(Exception):
    """Unreadable front matter. The message states the reason."""


class Document(msgspec.Struct, frozen=True):
    """A Markdown file with its parsed front matter.

    `written` contains the raw text of each key, unless all values are plain text.
    """

    fields: dict[str, Value]
    written: dict[str, str]
    body: str

    def text(self, key: str) -> str:
        """Return a key's text, or its raw text if YAML parses it as a list or mapping."""
        value = self.fields.get(key, "")
        return value.strip() if isinstance(value, str) else self.written.get(key, "")


def parse_document(text: str) -> Document:
    """Split a file into front matter and body. Raises FrontMatterError.

    Blank lines, comments and the opening of a code fence may precede the first `---`.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff\u200b").split("\n")
    opening = _opening(lines)
    if opening is None:
        raise FrontMatterError("must begin with a line `---`, then `name:` and `description:`")
    for number in range(opening + 1, len(lines)):
        if lines[number].rstrip() in (_FENCE, "..."):
            inner = [_spaced(line) for line in lines[opening + 1 : number]]
            body = "\n".join(lines[number + 1 :]).strip()
            plain = _plain(inner)
            if plain is not None:
                return Document(plain, {}, body)
            chunks = dict(_chunks(inner))
            written = {key: _as_written(chunk) for key, chunk in chunks.items()}
            return Document(_fields(inner, chunks, written), written, body)
    raise FrontMatterError("has front matter that is not closed by a line `---`")


def _opening(lines: Sequence[str]) -> int | None:
    in_comment = False
    for number, line in enumerate(lines):
        bare = line.strip().strip("\ufeff\u200b")
        if in_comment or bare.startswith("<!--"):
            in_comment = "-->" not in bare
        elif bare == _FENCE:
            return number
        elif bare and not bare.startswith(("#", "```", "//")):
            return None
    return None


def _spaced(line: str) -> str:
    bare = line.lstrip(" \t")
    return line[: len(line) - len(bare)].replace("\t", "  ") + bare


def _plain(lines: Sequence[str]) -> dict[str, Value] | None:
    """Fast path: parse plain `key: text` lines without a YAML parser. Return None for anything more complex."""
    fields: dict[str, Value] = {}
    for line in lines:
        match = _PLAIN_KEY.fullmatch(line.rstrip())
        if match is None or _PLAIN.fullmatch(match[2]) is None or match[2] in _NULLS or not match[2].isprintable():
            return None
        fields[match[1]] = match[2]
    return fields


def _fields(lines: Sequence[str], chunks: Mapping[str, Sequence[str]], written: Mapping[str, str]) -> dict[str, Value]:
    import yaml

    def read(some: Sequence[str]) -> Value:
        return _value("\n".join(some))

    try:
        whole = read(lines)
    except (yaml.YAMLError, FrontMatterError):
        whole = ""
    if isinstance(whole, dict):
        return whole
    fields: dict[str, Value] = {}
    for key, chunk in chunks.items():
        try:
            value = read(chunk)
        except (yaml.YAMLError, FrontMatterError):
            value = ""
        fields[key] = value.get(key, written[key]) if isinstance(value, dict) else written[key]
    return fields


def _value(text: str) -> Value:
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # Fall back to the slower loader if libyaml is missing.
    stack: list[list[Value]] = [[]]
    events = cast("Iterator[yaml.Event]", yaml.parse(text, Loader=loader))  # pyright: ignore[reportUnknownMemberType]
    for number, event in enumerate(events):
        if number > EVENTS_MAX or len(stack) > DEPTH_MAX:
            raise FrontMatterError("the front matter is nested too deeply or too long")
        if isinstance(event, yaml.AliasEvent) or (isinstance(event, yaml.NodeEvent) and event.anchor):
            raise FrontMatterError("anchors are not supported")
        if isinstance(event, yaml.CollectionStartEvent | yaml.ScalarEvent) and event.tag not in (None, "!"):
            raise FrontMatterError("named tags are not supported")
        if isinstance(event, yaml.CollectionStartEvent):
            stack.append([])
        elif isinstance(event, yaml.ScalarEvent):
            is_null = not event.style and event.value in _NULLS
            stack[-1].append("" if is_null else event.value)
        elif isinstance(event, yaml.SequenceEndEvent):
            items = stack.pop()
            stack[-1].append(tuple(items))
        elif isinstance(event, yaml.MappingEndEvent):
            items = stack.pop()
            pairs = zip(items[::2], items[1::2], strict=True)
            stack[-1].append({key: value for key, value in pairs if isinstance(key, str)})
    return stack[0][0] if stack[0] else {}


def _chunks(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    key, chunk = "", list[str]()
    for line in lines:
        name, colon, rest = line.partition(":")
        name = name.strip("\"'") if line[:1] not in (" ", "#") else ""
        starts = bool(colon) and _KEY.fullmatch(name) is not None
        if starts and (not rest or rest[0].isspace() or name in ("name", "description")):
            if key:
                yield key, chunk
            key, chunk = name, []
        chunk.append(line)
    if key:
        yield key, chunk


def _as_written(chunk: Sequence[str]) -> str:
    first = chunk[0].partition(":")[2].strip()
    pieces = [] if re.fullmatch(r"[|>][-+0-9]{0,3}", first) else [first]
    text = " ".join(filter(None, (*pieces, *(line.strip() for line in chunk[1:]))))
    quote = text[:1]
    if quote in ('"', "'") and (text.count(quote) == 1 or (len(text) > 1 and text[-1] == quote)):
        text = text[1:].removesuffix(quote).replace(f"\\{quote}", quote)
    return text
