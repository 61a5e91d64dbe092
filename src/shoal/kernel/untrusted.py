"""Parsing of untrusted JSON and TOML, and quoting of untrusted text so it cannot imitate other content."""

import re
import tomllib
from typing import Any, TypeVar  # noqa: TID251 - it edits documents of any form

import msgspec

from shoal.kernel import lazy_re

T = TypeVar("T")

UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""Errors that decoding untrusted JSON can raise: invalid structure, invalid text or excessive nesting."""

BAD_TOML = (ValueError, RecursionError)
"""Errors that parsing untrusted TOML can raise: invalid structure (TOMLDecodeError is a ValueError), a number with
thousands of digits, or excessive nesting.
"""

TOML_CHARS_MAX = 1_048_576
TOML_PARTS_MAX = 64
"""Maximum number of parts in a dotted key. The time and memory that tomllib needs grow quadratically with this number.
"""
ODD_MAX = 10
"""Maximum number of malformed values that are omitted from one document. With more, the document is invalid."""
SOURCE_CHARS_MAX = 300
NAME_CHARS_MAX = 120
FORWARDED = "a forwarded message"
QUOTED = "a quoted message"

_MANY_PARTS = lazy_re.compile(rf"(?<![\w\"'.-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){{{TOML_PARTS_MAX}}}")
_STEP = lazy_re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_MARK = lazy_re.compile(r"<(?=\s*+(?:/\s*+)?untrusted)", re.IGNORECASE)
_OWN_MARK = lazy_re.compile(r"<(?=\s*+(?:/\s*+)?(?:untrusted|context))", re.IGNORECASE)
_LINE_ENDS = lazy_re.compile(r"\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_HEADING = lazy_re.compile(r"^([ \t]*)(#{1,6})(?=\s|$)", re.MULTILINE)
_UNDERLINE = lazy_re.compile(r"(?<=[^\n]\n)([ \t]*(?:=+|-+)[ \t]*)$", re.MULTILINE)
_FENCE = lazy_re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$", re.MULTILINE)
_UNSAFE_IN_SOURCE = lazy_re.compile(r"[\x00-\x1f\x7f\u2028\u2029'\"<>]")


def decode_toml(text: str) -> dict[str, Any]:
    """Parse untrusted TOML. Raises one of the errors in BAD_TOML."""
    if len(text) > TOML_CHARS_MAX:
        raise ValueError(f"it has more than {TOML_CHARS_MAX:,} characters")
    if _MANY_PARTS.search(text) is not None:
        raise ValueError(f"a key has more than {TOML_PARTS_MAX} parts")
    return tomllib.loads(text)


def decode_known(content: str | bytes | msgspec.Raw, kind: type[T]) -> tuple[T, list[str]]:
    """Decode untrusted JSON as `kind`, omitting invalid values.

    Returns the result and the path of each omitted value that was not null. Raises one of the errors in UNREADABLE if
    the JSON is malformed, a required value is invalid, or more than ODD_MAX values are omitted.
    """
    odd: list[str] = []
    for _ in range(ODD_MAX):
        try:
            return msgspec.json.decode(content, type=kind), odd
        except msgspec.ValidationError as error:
            _, at, path = str(error).rpartition(" - at `$")
            path = path.removesuffix("`")
            if not at or not path:
                raise
            whole: Any = msgspec.json.decode(content)
            holder, key, value = None, "", whole
            for name, number in _STEP.findall(path):
                if number == "...":  # "..." stands for a key that the error does not name
                    break
                holder, key = value, name or int(number)
                value = holder[key]
            if holder is None:
                raise
            if value is not None:
                odd.append(path.removeprefix("."))
            del holder[key]
            content = msgspec.json.encode(whole)
    return msgspec.json.decode(content, type=kind), odd


def written_after(name: str, source: str) -> str:
    """Return the source name of a tainted file. If its author had read an untrusted source, the name includes that
    source.
    """
    return f"{name}, written after {short_source(source)}" if source else ""


def short_source(name: str) -> str:
    """Shorten a source name, keeping its start and its origin."""
    half = NAME_CHARS_MAX // 2
    return name if len(name) <= NAME_CHARS_MAX else f"{name[:half]}…{name[-half:]}"


def is_text(name: str) -> bool:
    """Return True if a name is valid UTF-8. Other names cannot be stored, sent or shown to a model."""
    if name.isascii():
        return True
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def untrusted_block(source: str, text: str) -> str:
    """Enclose a text in tags that name its source to the model. The text cannot close the block or open another."""
    name = _UNSAFE_IN_SOURCE.sub(lambda match: f"%{ord(match[0]):02X}", source)[:SOURCE_CHARS_MAX]
    return f"<untrusted source='{name}'>\n{contained(text)}\n</untrusted>"


def is_untrusted_block(text: str) -> bool:
    if not text.startswith("<untrusted source='") or not text.endswith("\n</untrusted>"):
        return False
    return len(_MARK.findall(text)) == 2


def contained(text: str) -> str:
    """Escape everything in the text that looks like the start or end of an untrusted block."""
    return _MARK.sub("‹", text)


def enclosed(text: str, deeper: int = 2) -> str:
    """Prepare a file's text for a prompt. The text cannot start a section of the prompt, and cannot open or close a
    block.

    Headings move `deeper` levels down, an open code fence is closed, and block tags are escaped.
    """
    plain = _LINE_ENDS.sub("\n", text)
    plain = _OWN_MARK.sub("‹", plain)
    plain = _HEADING.sub(lambda match: match[1] + ("#" * deeper + match[2])[:6], plain)
    plain = _UNDERLINE.sub(r"\\\1", plain)
    fence = ""
    for match in _FENCE.finditer(plain):
        marks, rest = match[1], match[2].strip()
        if not fence:
            fence = marks
        elif marks[0] == fence[0] and len(marks) >= len(fence) and not rest:
            fence = ""
    return f"{plain}\n{fence}" if fence else plain
