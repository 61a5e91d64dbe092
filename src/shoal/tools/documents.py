"""Extract the text of PDFs, office files, HTML, e-mails and plain text, in parts with their positions.

Everything except plain text is parsed in a separate process (tools/document_readers.py), which ends when the caller
is cancelled.
"""

import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import NamedTuple, TypeAlias

import msgspec

from shoal.files.deep_folders import walk
from shoal.kernel import lazy_re
from shoal.kernel.errors import ToolError
from shoal.kernel.untrusted import UNREADABLE
from shoal.tools.output import is_binary, text_of

SECONDS_MAX = 25
TEXT_CHARS_MAX = 200_000
"""Maximum number of characters that are read from a PDF on the web."""
DOCUMENT_BYTES_MAX = 33_554_432
DOCUMENT_CHARS_MAX = 1_000_000
PIECE_CHARS = 900
"""Approximate length of the pieces into which a document is split for searching."""
FOLDER_FILES_MAX = 1_000
FOLDER_DEPTH_MAX = 3
EXIT_TOLD = 3
"""Exit code of a child process that has printed the reason for its failure."""
DocumentState: TypeAlias = Callable[[Path], Awaitable[Mapping[Path, str]]]
"""Function that returns the searchable documents below a folder. The value for each document describes the part that is
not searched, or is empty.
"""


class DocumentStates(list[DocumentState]):
    """`DocumentState` functions that features register."""


_HTML = lazy_re.compile(rb"\s*+(?:<!--(?:[^-]|-(?!->))*+-->\s*+)*+<(?:!doctype html|html)\b", re.IGNORECASE)
_MAIL = lazy_re.compile(
    rb"(?:Return-Path|Received|Delivered-To|MIME-Version|Message-ID|From|Date|Subject): ", re.IGNORECASE
)
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


class DocumentPart(NamedTuple):
    """A passage of a document and its position. Only parts of the same `group`, such as a page or a sheet, are
    joined into a piece.
    """

    group: str
    place: str
    text: str


_part_decoder = msgspec.json.Decoder(DocumentPart)


def kind_of(name: str, content: bytes) -> str:
    """Return `pdf`, `office`, `html`, `mail` or `text`, or an empty string if the file contains no text.

    Raises ToolError for an old or encrypted office file.
    """
    suffix = PurePath(name).suffix.lower()
    if content.startswith(b"%PDF-"):
        return "pdf"
    if content.startswith(b"PK\x03\x04"):
        return "office"
    if content.startswith(_OLE):
        raise ToolError("it is encrypted or in an old format; save it as .docx, .xlsx or .pptx without a password")
    if is_binary(content):
        return ""
    if suffix in (".html", ".htm", ".xhtml") or _HTML.match(content[:4096]):
        return "html"
    if suffix == ".eml" or (suffix == "" and _MAIL.match(content)):
        return "mail"
    return "text"


async def document_parts(name: str, content: bytes) -> list[DocumentPart]:
    """Return the parts of a document, at most DOCUMENT_CHARS_MAX characters in total. The list is empty if the document
    has no text.

    Raises ToolError if the document cannot be read. The message is a clause, such as "it is damaged".
    """
    kind = kind_of(name, content)
    if kind == "text":
        text = text_of(content)[:DOCUMENT_CHARS_MAX]
        return [DocumentPart("", f"line {number}", line) for number, line in enumerate(text.splitlines(), 1)]
    return await _read_apart(kind, content) if kind else []


async def pdf_text(content: bytes) -> str:
    """Return at most TEXT_CHARS_MAX characters of a PDF. Raises ToolError if it cannot be read."""
    try:
        parts = await _read_apart("pdf", content)
    except ToolError as error:
        raise ToolError(f"Reading the PDF failed: {error}.") from error
    text = "\n\n".join(part.text for part in parts)[:TEXT_CHARS_MAX].strip()
    return text or "[The PDF has no text; its pages may be pictures.]"


def pieces_of(parts: list[DocumentPart]) -> Iterator[tuple[str, str]]:
    group = place = ""
    held: list[str] = []
    size = 0
    for part in parts:
        text = part.text.strip()
        if held and (part.group != group or size + len(text) > PIECE_CHARS):
            yield place, "\n".join(held)
            held, size = [], 0
        if not text:
            continue
        if not held:
            group, place = part.group, part.place
        while len(text) > PIECE_CHARS * 3 // 2:
            cut = max(text.rfind(mark, PIECE_CHARS // 2, PIECE_CHARS) + 1 for mark in ("\n", ". ", " "))
            cut = cut if cut > 0 else PIECE_CHARS
            yield place, text[:cut].strip()
            text = text[cut:].strip()
        held.append(text)
        size += len(text) + 1
    if held:
        yield place, "\n".join(held)


def documents_below(folder: Path) -> list[Path]:
    paths: list[Path] = []
    for path, folders, names in walk(folder):
        depth = len(Path(path).relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < FOLDER_DEPTH_MAX else []
        paths += [Path(path, name) for name in sorted(names) if not name.startswith(".")]
        if len(paths) >= FOLDER_FILES_MAX:
            break
    return paths[:FOLDER_FILES_MAX]


async def _read_apart(kind: str, content: bytes) -> list[DocumentPart]:
    import anyio

    command = [sys.executable, "-I", "-m", "shoal.tools.document_readers", kind]
    environment = {"PATH": os.defpath, "PYTHONUTF8": "1"}
    try:
        with anyio.fail_after(SECONDS_MAX + 5):
            done = await anyio.run_process(
                command, input=content, check=False, env=environment, stderr=subprocess.DEVNULL
            )
    except TimeoutError as error:
        raise ToolError("it takes too long to read") from error
    if done.returncode == EXIT_TOLD:
        raise ToolError(done.stdout.decode("utf-8", errors="replace").strip())
    if done.returncode:
        raise ToolError("it takes too much memory or time")
    try:
        return [_part_decoder.decode(line) for line in done.stdout.splitlines()]
    except UNREADABLE as error:
        raise ToolError("it takes too much memory or time") from error
