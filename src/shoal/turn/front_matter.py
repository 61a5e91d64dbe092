"""The YAML front matter of a Markdown file, as people and other products write it.

Whole YAML is read by PyYAML, event by event: every scalar stays text, anchors and tags are refused, and nesting is
bounded, so no file expands or recurses. Where a file is not YAML, each top-level key is read on its own, and a value
that is still not YAML is taken as the text it is. Published skills need that: an unquoted description with `: ` in it
is the commonest fault (mattpocock/skills#908, BuilderIO/skills#38, n8n-skills#32).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias, cast

import msgspec

Value: TypeAlias = "str | tuple[Value, ...] | dict[str, Value]"

DEPTH_MAX = 32
"""Most levels of nesting."""
EVENTS_MAX = 20_000
"""Most scalars, lists and tables together."""
_FENCE = "---"
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_KEY = re.compile(r"[\w.-]+")
_PLAIN = re.compile(r"(?:[^\W_]|[/(./$+<=^~;_])[^:#\r]*")
"""A value that YAML reads as the same text: it begins no other form, and has no mark that could end it."""
_PLAIN_KEY = re.compile(r"([A-Za-z][A-Za-z0-9_-]*): +(\S.*)")


class FrontMatterError(Exception):
    """The front matter cannot be read; the text says why."""


class Document(msgspec.Struct, frozen=True):
    """A file's front matter by key, the same as it was written, and the text after it."""

    fields: dict[str, Value]
    written: dict[str, str]
    body: str

    def text(self, key: str) -> str:
        """The text of a key; as it was written where YAML makes a list or a table of it."""
        value = self.fields.get(key, "")
        return value.strip() if isinstance(value, str) else self.written.get(key, "")


def parse_document(text: str) -> Document:
    """Split a file into front matter and body. Raises FrontMatterError.

    Blank lines, comments and the opening of a code fence may come before the first `---`.
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
    """The index of the first `---`; None when something other than blanks and comments comes before it."""
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
    """A line with spaces for the tabs it is indented by, which YAML does not take."""
    bare = line.lstrip(" \t")
    return line[: len(line) - len(bare)].replace("\t", "  ") + bare


def _plain(lines: Sequence[str]) -> dict[str, Value] | None:
    """The fields of front matter that is one `key: plain text` a line, without loading a YAML parser; else None."""
    fields: dict[str, Value] = {}
    for line in lines:
        match = _PLAIN_KEY.fullmatch(line.rstrip())
        if match is None or _PLAIN.fullmatch(match[2]) is None or match[2] in _NULLS or not match[2].isprintable():
            return None
        fields[match[1]] = match[2]
    return fields


def _fields(lines: Sequence[str], chunks: Mapping[str, Sequence[str]], written: Mapping[str, str]) -> dict[str, Value]:
    """All fields, read as YAML; or, where they are not, each on its own, as it was written if need be."""
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
            one = read(chunk)
        except (yaml.YAMLError, FrontMatterError):
            one = ""
        fields[key] = one.get(key, written[key]) if isinstance(one, dict) else written[key]
    return fields


def _value(text: str) -> Value:
    """Read a YAML document. Raises YAMLError, and FrontMatterError for anchors, tags, deep nesting and great length."""
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the faster one is missing without libyaml
    stack: list[list[Value]] = [[]]
    events = cast("Iterator[yaml.Event]", yaml.parse(text, Loader=loader))  # pyright: ignore[reportUnknownMemberType]
    for number, event in enumerate(events):
        if number > EVENTS_MAX or len(stack) > DEPTH_MAX:
            raise FrontMatterError("the front matter is nested too deeply or too long")
        if isinstance(event, yaml.AliasEvent) or (isinstance(event, yaml.NodeEvent) and event.anchor):
            raise FrontMatterError("anchors are not read")
        if isinstance(event, yaml.CollectionStartEvent | yaml.ScalarEvent) and event.tag:
            raise FrontMatterError("tags are not read")
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
    """The lines of each top-level key: its own, and those up to the next key."""
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
    """The text of a key in one line, without the quotes around it."""
    first = chunk[0].partition(":")[2].strip()
    pieces = [] if re.fullmatch(r"[|>][-+0-9]{0,3}", first) else [first]
    text = " ".join(filter(None, (*pieces, *(line.strip() for line in chunk[1:]))))
    quote = text[:1]
    if quote in ('"', "'") and (text.count(quote) == 1 or (len(text) > 1 and text[-1] == quote)):
        text = text[1:].removesuffix(quote).replace(f"\\{quote}", quote)
    return text
