"""Recall: 8-bit vectors, document chunks, and a real model over 1,000 notes."""

import asyncio
import io
import math
import os
import random
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from shoal.features.recall.library import Library
from shoal.features.recall.settings import RecallSettings
from shoal.features.recall.vectors import COHORT, Floor, bits_of, closeness, code_of
from shoal.kernel.errors import ToolError
from shoal.kernel.home import Home
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing import ManualClock
from shoal.testing.model.embeddings import vector
from shoal.tools.documents import PIECE_CHARS, DocumentPart, document_parts, pieces_of

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
RELATION = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
SLIDE = "http://schemas.openxmlformats.org/drawingml/2006/main"


def office(**parts: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name.replace("__", "/").replace("_xml", ".xml"), text)
    return file.getvalue()


def word(*paragraphs: str) -> bytes:
    body = "".join(paragraphs)
    return office(word__document_xml=f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>')


HEADING = '<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>Fees</w:t></w:r></w:p>'
PARAGRAPH = "<w:p><w:r><w:t>The berth </w:t></w:r><w:r><w:t>costs ten.</w:t></w:r></w:p>"
BOOK = f'<workbook xmlns="{SHEET}" xmlns:r="{RELATION}"><sheets><sheet name="Berths" r:id="r1"/></sheets></workbook>'
LINKS = '<Relationships><Relationship Id="r1" Target="worksheets/sheet1.xml"/></Relationships>'
CELLS = '<row r="7"><c t="s"><v>0</v></c><c><v>12.5</v></c></row>'
XLSX = {
    "xl/workbook.xml": BOOK,
    "xl/_rels/workbook.xml.rels": LINKS,
    "xl/sharedStrings.xml": f'<sst xmlns="{SHEET}"><si><t>pier four</t></si></sst>',
    "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{SHEET}"><sheetData>{CELLS}</sheetData></worksheet>',
}


def xlsx() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in XLSX.items():
            archive.writestr(name, text)
    return file.getvalue()


DOCUMENTS = {
    "fees.docx": (word(HEADING, PARAGRAPH), ("section “Fees”", "Fees\nThe berth costs ten.")),
    "prices.xlsx": (xlsx(), ("sheet Berths, row 7", "pier four | 12.5")),
    "talk.pptx": (
        office(
            ppt__presentation_xml="<p/>",
            ppt__slides__slide2_xml=f'<s xmlns:a="{SLIDE}"><a:p><a:r><a:t>High tide</a:t></a:r></a:p></s>',
        ),
        ("slide 2", "High tide"),
    ),
    "page.html": (b"<html><script>no()</script><h2>Tides</h2><p>Low at six</p></html>", ("section “Tides”", None)),
    "letter.eml": (b"From: ada@x.test\r\nSubject: hi\r\n\r\nThe fee is due.\r\n", ("message headers", None)),
    "notes.txt": (b"one\n\ntwo\n", ("line 1", "one\ntwo")),
}


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
async def test_a_document_is_read_with_its_locations(name: str) -> None:
    content, (place, text) = DOCUMENTS[name]
    found = list(pieces_of(await document_parts(name, content)))
    assert found[0][0] == place
    assert text is None or found[0][1] == text
    assert "no()" not in str(found)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("laughs.docx", word("&lol;").replace(b"x", b"x"), "it is damaged"),
        ("old.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 99, "encrypted or in an old format"),
        ("cut.docx", word(PARAGRAPH)[:-40], "it is damaged"),
        ("cut.pdf", b"%PDF-1.7 nothing", "it is damaged"),
        ("files.zip", office(a="b"), "an archive"),
    ],
    ids=["entities", "old", "cut office file", "cut PDF", "archive"],
)
async def test_a_document_that_cannot_be_read_says_why(name: str, content: bytes, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        await document_parts(name, content)


async def test_a_document_that_expands_too_far_says_why() -> None:
    with pytest.raises(ToolError, match="unpacks to more than 128 MiB"):
        await document_parts("bomb.docx", word(f"<w:p><w:r><w:t>{'x' * 150_000_000}</w:t></w:r></w:p>"))


async def test_a_document_without_text_has_no_parts() -> None:
    assert await document_parts("a.png", b"\x89PNG\r\n\x1a\n\0\0") == []


def test_pieces_lose_nothing_and_stay_within_their_group() -> None:
    parts = [DocumentPart(str(page), f"page {page}", f"word{page} " * (page * 40)) for page in range(1, 12)]
    found = list(pieces_of(parts))
    assert sum(text.count("word") for _, text in found) == sum(page * 40 for page in range(1, 12))
    assert all(len(text) <= PIECE_CHARS * 1.6 for _, text in found)
    assert all(len({one for one in text.split()}) == 1 for _, text in found), "no piece has words of two pages"


def test_quantization_to_eight_bits_keeps_the_angle_and_the_signs() -> None:
    chance = random.Random(7)
    for _ in range(50):
        one, other = ([chance.gauss(0, 1) for _ in range(384)] for _ in range(2))
        exact = sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))
        assert abs(closeness(code_of(one), code_of(other)) - exact) < 0.01
        assert bits_of(code_of(one)).bit_count() == sum(number < 0 for number in code_of_signed(one))
    assert closeness(code_of([1.0]), code_of([1.0, 2.0])) == -1.0
    for nothing in (0.0, 5e-324):
        assert closeness(code_of([nothing, 0.0]), code_of([1.0, 2.0])) == -1.0
    assert closeness(code_of([1e308, 1e308]), code_of([1e-200, 1e-200])) == pytest.approx(1.0)


@pytest.mark.parametrize("common", [0.0, 1.5], ids=["texts far apart", "texts close together"])
def test_a_match_must_be_closer_than_unrelated_texts(common: float) -> None:
    def embedded(text: str) -> list[float]:
        found = vector(text)
        length = math.hypot(*found)
        return [common, *(number / length for number in found)]

    floor = Floor([embedded(one) for one in COHORT])
    asked, answer, other = map(
        code_of, map(embedded, ("How much is a berth for boats?", "A berth for boats costs ten.", "Ada prefers tea."))
    )
    assert closeness(asked, other) < floor.of(asked) < closeness(asked, answer)


def code_of_signed(vector: list[float]) -> list[int]:
    return [number - 256 if number > 127 else number for number in code_of(vector)]


class Flat:
    """A model that embeds every text as the same vector. Implements `Embeddings`."""

    name = "flat/flat"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [[1.0, 2.0] for _ in texts]

    async def close(self) -> None:
        pass


async def test_undecodable_names_and_a_broken_row_do_not_stop_indexing(tmp_path: Path) -> None:
    clock, home = ManualClock(), Home(tmp_path)
    store = Store(SqliteDriver(tmp_path / "shoal.db"), clock)
    library = Library(home, store, clock, RecallSettings(model="flat/flat", texts_per_minute=100_000), Flat())
    odd = (b"agents/main/docs/\xff/a", b"agents/\xff/docs/a", b"data/\xff/MEMORY.md", b"data/web/\xff/MEMORY.md")
    for name in (*odd, b"agents/main/docs/\xe9.txt", b"agents/main/docs/tides.txt"):
        path = tmp_path / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"High tide is at six.")
    await store.settings.put("recall", "said", "lately")
    catching_up = asyncio.create_task(library.catch_up())
    await clock.sleepers()
    await clock.advance(60)
    await catching_up
    assert list(await library.pieces.sources(["agents/", "data/"])) == ["agents/main/docs/tides.txt"]
    await store.close()


async def test_folders_that_cannot_be_listed_are_retried(tmp_path: Path) -> None:
    clock, store = ManualClock(), Store(SqliteDriver(tmp_path / "shoal.db"), ManualClock())
    data = tmp_path.joinpath(*["d" * 200] * 18) / "data"  # close to the longest path that the kernel accepts
    data.mkdir(parents=True)
    folder = os.open(data, os.O_RDONLY)
    for _ in range(2):
        os.mkdir("e" * 200, dir_fd=folder)
        below = os.open("e" * 200, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    library = Library(Home(data.parent), store, clock, RecallSettings(model="flat/flat"), Flat())
    running = asyncio.create_task(library.run())
    for _ in range(4):
        await clock.sleepers()
        await clock.advance_to_next()
    assert not running.done()
    running.cancel()
    await store.close()
