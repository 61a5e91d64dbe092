"""Here-documents: where the shell will see one begin and end, found without the grammar and compared with it."""

import re

import msgspec

from shoal.permissions.words import Unreadable

_DELIMITER = re.compile(
    rb"'(?P<single>[A-Za-z0-9_.+-]+)'|\"(?P<double>[A-Za-z0-9_.+-]+)\"|(?P<back>\\?)(?P<bare>[A-Za-z0-9_.+-]+)"
)
_REST_OF_LINE = re.compile(
    rb"(?:[^'\"`\\\n$#<]|<(?!<)|(?<![\s;&|()])#|'[^'\n]*'|\"[^\"`\\$\n]*\"|\$(?=[A-Za-z_])|\\.)*"
)


class HereDocument(msgspec.Struct, frozen=True):
    """Byte offsets of the text and of the end of its closing line; `expands` when the shell looks into the text."""

    begin: int
    end: int
    closed: int
    expands: bool


def here_document(source: bytes, start: int, stop: int, *, tabs: bool) -> HereDocument:
    """The here-document whose delimiter stands between two offsets; `tabs` for `<<-`. Raises Unreadable if in doubt."""
    found = _DELIMITER.fullmatch(source, start, stop)
    if found is None:
        raise Unreadable("a here-document with an unusual delimiter")
    delimiter = found["single"] or found["double"] or found["bare"]
    expands = found["bare"] is not None and not found["back"]
    rest = _REST_OF_LINE.match(source, stop)
    begin = (rest.end() if rest else stop) + 1
    if source[begin - 1 : begin] != b"\n":
        raise Unreadable("a here-document on a line that cannot be followed")
    at = begin
    while at < len(source):
        newline = source.find(b"\n", at)
        line_end = len(source) if newline < 0 else newline
        line = source[at:line_end]
        if (line.lstrip(b"\t") if tabs else line) == delimiter:
            return HereDocument(begin, at, line_end, expands)
        if expands and line.endswith(b"\\"):
            raise Unreadable("a here-document with a joined line")
        at = line_end + 1
    raise Unreadable("a here-document without an end")
