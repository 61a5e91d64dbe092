"""Extract the text of documents in a separate process. `python -m shoal.tools.document_readers KIND` reads a document
from standard input and prints one line of JSON per part.

A malicious document can use excessive memory and time, so the kernel limits both for this process. Office files are
zipped XML, and only their text is read, piece by piece. A file that unpacks to more than ARCHIVE_BYTES_MAX is
rejected.
"""

import json
import os
import re
import resource
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from shoal.tools.documents import DOCUMENT_CHARS_MAX, EXIT_TOLD, SECONDS_MAX, DocumentPart

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element
    from zipfile import ZipFile

ARCHIVE_BYTES_MAX = 134_217_728
PAGES_MAX = 2000
MEMORY_BYTES_MAX = 1_073_741_824
_DONE_WITH = frozenset(("p", "row", "si", "sp", "sheet", "Relationship"))
_SLIDE = re.compile(r"ppt/slides/slide(\d+)\.xml")
_HEADING = re.compile(r"#{1,6} +(.*)")


class CannotRead(Exception):
    """Raised if a document cannot be read. The message is a clause, such as "it is damaged"."""


def pdf_pages(content: bytes) -> Iterator[DocumentPart]:
    import io

    from pypdf import PdfReader
    from pypdf.errors import DependencyError, FileNotDecryptedError, PyPdfError

    try:
        reader = PdfReader(io.BytesIO(content), strict=False)
        for number, page in enumerate(reader.pages[:PAGES_MAX], 1):
            yield DocumentPart(str(number), f"page {number}", page.extract_text().strip())
    except (FileNotDecryptedError, DependencyError):
        raise CannotRead("it is encrypted") from None
    except PyPdfError as error:
        raise CannotRead("it is damaged") from error


def office_parts(content: bytes) -> Iterator[DocumentPart]:
    import io
    import zipfile

    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise CannotRead("it is damaged") from error
    office = OfficeArchive(archive)
    try:
        if "word/document.xml" in office.names:
            yield from word_paragraphs(office)
        elif "xl/workbook.xml" in office.names:
            yield from sheet_rows(office)
        elif "ppt/presentation.xml" in office.names:
            yield from slides_of(office)
        else:
            raise CannotRead("it is an archive, and archives are not searched")
    except RuntimeError as error:  # zipfile raises RuntimeError for an encrypted file
        raise CannotRead("it is encrypted") from error
    except (zipfile.BadZipFile, SyntaxError, EOFError, KeyError, NotImplementedError) as error:
        raise CannotRead("it is damaged") from error


class OfficeArchive:
    """A ZIP archive with the parts of an office file. Limits their total unpacked size."""

    def __init__(self, archive: "ZipFile") -> None:
        self._archive = archive
        self.names = frozenset(archive.namelist())
        self.left = ARCHIVE_BYTES_MAX

    def elements(self, name: str) -> Iterator[tuple[str, "Element"]]:
        """Parse a part incrementally and yield each element, with its local name, when it ends. Paragraphs and
        rows are emptied afterward to free memory.
        """
        from xml.etree.ElementTree import iterparse

        if name not in self.names:
            return
        with self._archive.open(name) as file:
            for _, element in iterparse(_Counted(file, self)):
                tag = element.tag.rpartition("}")[2]
                yield tag, element
                if tag in _DONE_WITH:
                    element.clear()


class _Counted:
    """A file in an archive. Reading raises CannotRead once the archive has unpacked to more than ARCHIVE_BYTES_MAX."""

    def __init__(self, file: IO[bytes], archive: OfficeArchive) -> None:
        self._file = file
        self._archive = archive

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size if size >= 0 else 65_536)
        self._archive.left -= len(data)
        if self._archive.left < 0:
            raise CannotRead(f"it unpacks to more than {ARCHIVE_BYTES_MAX // 1_048_576} MiB")
        return data


def word_paragraphs(office: OfficeArchive) -> Iterator[DocumentPart]:
    section, number = "", 0
    for tag, paragraph in office.elements("word/document.xml"):
        if tag != "p":
            continue
        pieces: list[str] = []
        is_heading = False
        for element in paragraph.iter():
            name = element.tag.rpartition("}")[2]
            if name == "t":
                pieces.append(element.text or "")
            elif name in ("tab", "br"):
                pieces.append(" ")
            elif name == "pStyle":
                is_heading = any("eading" in value or value == "Title" for value in element.attrib.values())
        text, number = "".join(pieces).strip(), number + 1
        if text and is_heading:
            section = text[:80]
        if text:
            yield DocumentPart(section, f"section “{section}”" if section else f"paragraph {number}", text)


def sheet_rows(office: OfficeArchive) -> Iterator[DocumentPart]:
    """Yield one part per row. Dates appear as the numbers that the file stores."""
    shared = ["".join(element.itertext()) for tag, element in office.elements("xl/sharedStrings.xml") if tag == "si"]
    relations = office.elements("xl/_rels/workbook.xml.rels")
    targets = {
        element.attrib["Id"]: element.attrib.get("Target", "") for _, element in relations if "Id" in element.attrib
    }
    sheets: list[tuple[str, str]] = []
    for tag, element in office.elements("xl/workbook.xml"):
        if tag == "sheet":
            relation = next((value for key, value in element.attrib.items() if key.endswith("}id")), "")
            sheets.append((element.attrib.get("name", ""), targets.get(relation, "")))
    for name, target in sheets:
        for tag, row in office.elements(target[1:] if target.startswith("/") else f"xl/{target}"):
            if tag != "row":
                continue
            cells: list[str] = []
            for cell in row:
                values = [child for child in cell if child.tag.rpartition("}")[2] in ("v", "is")]
                value = "".join(text for value in values for text in value.itertext()).strip()
                if cell.attrib.get("t") == "s" and value.isdecimal() and int(value) < len(shared):
                    value = shared[int(value)].strip()
                if value:
                    cells.append(value)
            if cells:
                yield DocumentPart(name, f"sheet {name}, row {row.attrib.get('r', '?')}", " | ".join(cells))


def slides_of(office: OfficeArchive) -> Iterator[DocumentPart]:
    names = [(int(match[1]), name) for name in office.names if (match := _SLIDE.fullmatch(name))]
    for number, name in sorted(names):
        lines: list[str] = []
        for tag, paragraph in office.elements(name):
            if tag == "p":
                lines.append(
                    "".join(element.text or "" for element in paragraph.iter() if element.tag.rpartition("}")[2] == "t")
                )
        yield DocumentPart(str(number), f"slide {number}", "\n".join(line for line in lines if line.strip()))


def html_lines(content: bytes) -> Iterator[DocumentPart]:
    import turbohtml

    page, section = turbohtml.parse(content), ""
    for element in page.select("script, style, noscript, template"):
        element.decompose()
    for number, line in enumerate(page.to_markdown().splitlines(), 1):
        if match := _HEADING.match(line):
            section = match[1].strip()[:80]
        yield DocumentPart(section, f"section “{section}”" if section else f"line {number}", line)


def mail_parts(content: bytes) -> Iterator[DocumentPart]:
    from email import policy
    from email.message import EmailMessage
    from email.parser import BytesParser

    message = BytesParser(_class=EmailMessage, policy=policy.default).parsebytes(content)
    head = [f"{name}: {message[name]}" for name in ("From", "To", "Cc", "Date", "Subject") if message[name]]
    names = [part.get_filename() or "" for part in message.iter_attachments()]
    head += [f"Attached: {', '.join(name for name in names if name)}"] if any(names) else []
    yield DocumentPart("head", "message headers", "\n".join(head))
    body = message.get_body(("plain", "html"))
    if not isinstance(body, EmailMessage):
        return
    text = body.get_content()
    if body.get_content_subtype() == "html":
        yield from html_lines(str(text).encode())
        return
    for number, line in enumerate(str(text).splitlines(), 1):
        yield DocumentPart("", f"line {number} of the message", line)


_READERS = {"pdf": pdf_pages, "office": office_parts, "html": html_lines, "mail": mail_parts}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_MAX, SECONDS_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    lines: list[str] = []
    room, code = DOCUMENT_CHARS_MAX, 0
    try:
        for part in _READERS[sys.argv[1]](sys.stdin.buffer.read()):
            lines.append(json.dumps((part.group, part.place, part.text[:room])))
            room -= len(part.text)
            if room <= 0:
                break
    except CannotRead as error:
        lines, code = [str(error)], EXIT_TOLD
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError, AssertionError):
        lines, code = ["it is damaged"], EXIT_TOLD
    sys.stdout.buffer.write("\n".join(lines).encode("utf-8", errors="replace"))
    sys.stdout.buffer.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
