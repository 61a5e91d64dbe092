"""Request bodies are bounded and files stay in their folders: large and slow bodies, uploads, and path traversal."""

import asyncio
import hashlib
import os
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.e2e.http_stand import TOKEN, Served, served

from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Prompt
from shoal.surfaces.http.endpoints import BODY_BYTES_MAX
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.routes_files import ATTACHMENT_BYTES_MAX

THREAD = ThreadId("web:lobby:one")
MESSAGES = f"/api/threads/{THREAD}/messages"
UPLOADS = f"/api/threads/{THREAD}/attachments"
FILES = f"/api/threads/{THREAD}/files"


@pytest.fixture
async def shoal(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path) as stand:
        yield stand


class Raw:
    """A connection for raw HTTP."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def head(self, path: str, *headers: str) -> None:
        lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {TOKEN}", *headers]
        self.writer.write("\r\n".join((*lines, "Content-Type: application/json", "", "")).encode())

    async def answer(self) -> tuple[int, bytes]:
        content = await self.reader.read()
        return int(content.split(b" ", 2)[1]), content


@pytest.fixture
async def raw(shoal: Served) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", shoal.port)
    yield Raw(reader, writer)
    writer.close()


async def test_a_body_at_the_limit_is_accepted_and_a_larger_one_is_not(shoal: Served) -> None:
    room = BODY_BYTES_MAX - len(b'{"text":""}')
    headers = {"Content-Type": "application/json"}
    for size, status in ((room, 202), (room + 1, 413)):
        body = b'{"text":"%s"}' % (b"x" * size)
        assert (await shoal.client.post(MESSAGES, content=body, headers=headers)).status_code == status


async def test_a_declared_oversized_body_is_rejected_unread(raw: Raw) -> None:
    raw.head(MESSAGES, f"Content-Length: {BODY_BYTES_MAX + 1}")
    status, content = await raw.answer()
    assert status == 413
    assert b'"error":"too_large"' in content
    assert b"connection: close" in content.lower()


async def test_an_undeclared_body_is_rejected_once_it_is_too_large(raw: Raw) -> None:
    raw.head(MESSAGES, "Transfer-Encoding: chunked")
    for _ in range(BODY_BYTES_MAX // 65_536 + 1):
        raw.writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
    status, content = await raw.answer()
    assert status == 413
    assert b'"error":"too_large"' in content


@pytest.mark.parametrize(
    ("path", "header", "status"),
    [
        (MESSAGES, f"Authorization: Bearer {TOKEN}", 413),
        (MESSAGES, "Authorization: Bearer wrong", 401),
        ("/v1/chat/completions", "X-None: 1", 401),
        ("/nothing/here", f"Authorization: Bearer {TOKEN}", 404),
        ("/platforms/none", "X-None: 1", 404),
        ("/hooks/none", "X-None: 1", 404),
    ],
)
@pytest.mark.parametrize("kind", [f"Content-Length: {3 * BODY_BYTES_MAX}", "Transfer-Encoding: chunked"])
async def test_a_client_that_is_still_sending_gets_the_answer(
    raw: Raw, path: str, header: str, status: int, kind: str
) -> None:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", header, kind]
    raw.writer.write("\r\n".join((*lines, "", "")).encode())
    piece = b"x" * 65_536
    if "chunked" in kind:
        piece = b"10000\r\n" + piece + b"\r\n"
    for _ in range(3 * BODY_BYTES_MAX // 65_536):
        raw.writer.write(piece)
        await raw.writer.drain()
    if "chunked" in kind:
        raw.writer.write(b"0\r\n\r\n")
    assert (await raw.answer())[0] == status


async def test_a_body_may_arrive_after_its_answer(raw: Raw) -> None:
    raw.head(MESSAGES, f"Content-Length: {3 * BODY_BYTES_MAX}")
    assert b" 413 " in await raw.reader.readuntil(b"\r\n\r\n")
    for _ in range(3 * BODY_BYTES_MAX // 65_536):
        raw.writer.write(b"x" * 65_536)
        await raw.writer.drain()
    assert b"too_large" in await raw.reader.read()


async def test_a_rejected_body_gets_no_100_continue(raw: Raw) -> None:
    raw.head(MESSAGES, f"Content-Length: {3 * BODY_BYTES_MAX}", "Expect: 100-continue")
    status, content = await raw.answer()
    assert status == 413
    assert b"100 Continue" not in content


async def test_a_stalled_body_times_out(tmp_path: Path) -> None:
    async with served(tmp_path, WebOptions(token=TOKEN, port=0, body_seconds=0.05, linger_seconds=0.05)) as stand:
        reader, writer = await asyncio.open_connection("127.0.0.1", stand.port)
        raw = Raw(reader, writer)
        raw.head(MESSAGES, "Content-Length: 100")
        status, content = await raw.answer()
        writer.close()
    assert status == 408
    assert b'"error":"slow_body"' in content


async def test_an_interrupted_body_stores_nothing(shoal: Served, raw: Raw) -> None:
    raw.head(MESSAGES, "Content-Length: 100")
    raw.writer.write(b'{"text":"ha')
    await raw.writer.drain()
    raw.writer.close()
    await raw.writer.wait_closed()
    assert (await shoal.client.get("/api/threads")).json() == []


async def test_an_upload_is_attached_to_a_message(shoal: Served) -> None:
    content = os.urandom(300_000)
    stored = (await shoal.client.post(UPLOADS, params={"name": "día 1/notes.pdf"}, content=content)).json()
    assert (stored["name"], stored["media_type"], stored["size_bytes"]) == (
        "día 1/notes.pdf",
        "application/pdf",
        300_000,
    )
    assert stored["digest"] == hashlib.sha256(content).hexdigest()
    answer = await shoal.client.post(MESSAGES, json={"text": "read it", "attachments": [{"file": stored["file"]}]})
    assert answer.status_code == 202
    prompt = shoal.orchestrator.received[-1]
    assert isinstance(prompt, Prompt)
    (attachment,) = prompt.attachments
    assert Path(attachment.path).parent == shoal.home.attachments(THREAD)
    assert Path(attachment.path).read_bytes() == content
    assert (attachment.digest, attachment.media_type) == (stored["digest"], "application/pdf")


async def test_a_small_file_can_be_inside_the_message(shoal: Served) -> None:
    inside = {"name": "dot.png", "media_type": "image/png", "data": b64encode(b"pixels").decode()}
    answer = await shoal.client.post(MESSAGES, json={"attachments": [inside], "message_id": "m1"})
    assert answer.status_code == 202
    prompt = shoal.orchestrator.received[-1]
    assert isinstance(prompt, Prompt)
    assert Path(prompt.attachments[0].path).read_bytes() == b"pixels"
    assert prompt.attachments[0].media_type == "image/png"


async def test_an_upload_above_the_limit_leaves_nothing(shoal: Served) -> None:
    async def body(size: int) -> AsyncIterator[bytes]:
        for start in range(0, size, 1_048_576):
            yield bytes(min(1_048_576, size - start))

    taken = await shoal.client.post(UPLOADS, params={"name": "a"}, content=body(ATTACHMENT_BYTES_MAX))
    assert taken.status_code == 201
    refused = await shoal.client.post(UPLOADS, params={"name": "b"}, content=body(ATTACHMENT_BYTES_MAX + 1))
    assert refused.status_code == 413
    assert [path.name for path in shoal.home.attachments(THREAD).iterdir()] == [taken.json()["file"]]


@pytest.mark.parametrize("query", ["", "name=", f"name={'x' * 256}", "name=a%00b", "name=a&other=1"])
async def test_an_upload_needs_a_name(shoal: Served, query: str) -> None:
    assert (await shoal.client.post(f"{UPLOADS}?{query}", content=b"x")).status_code == 400


@pytest.mark.parametrize(
    "name", ["../../token", "..", "/etc/passwd", ".hidden", "a" * 255, "ü" * 255, "con\n.txt", "%2e%2e"]
)
async def test_no_name_escapes_the_directory(shoal: Served, name: str) -> None:
    stored = await shoal.client.post(UPLOADS, params={"name": name}, content=b"x")
    assert stored.status_code == 201
    assert (shoal.home.attachments(THREAD) / stored.json()["file"]).read_bytes() == b"x"


async def test_files_are_listed_and_fetched(shoal: Served) -> None:
    stored = (await shoal.client.post(UPLOADS, params={"name": "page.html"}, content=b"<script>1</script>")).json()
    scratch = shoal.home.scratch(THREAD) / "deep" / "out.txt"
    scratch.parent.mkdir(parents=True)
    scratch.write_text("long output")
    listed = (await shoal.client.get(FILES)).json()
    assert {row["path"] for row in listed} == {f"attachments/{stored['file']}", "scratch/deep/out.txt"}
    page = await shoal.client.get(f"{FILES}/attachments/{stored['file']}")
    assert page.content == b"<script>1</script>"
    assert page.headers["content-disposition"].startswith("attachment;")
    assert page.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in page.headers["content-security-policy"]
    assert (await shoal.client.get(f"{FILES}/scratch/deep/out.txt")).text == "long output"


async def test_files_with_any_utf8_name_are_listed_and_fetched(shoal: Served) -> None:
    names = ["café 潮.txt", 'q"uote;.txt', "%41.txt", "x" * 250 + ".txt"]
    folder = shoal.home.scratch(THREAD)
    folder.mkdir(parents=True)
    for name in (*names, "a\udcffb.txt"):
        (folder / name).write_text("x")
    listed = (await shoal.client.get(FILES)).json()
    assert {row["path"] for row in listed} == {f"scratch/{name}" for name in names}
    for name in names:
        answer = await shoal.client.get(f"{FILES}/scratch/{quote(name)}")
        assert answer.status_code == 200, name
        assert quote(name, safe="") in answer.headers["content-disposition"]


async def test_only_images_are_shown_inline(shoal: Served) -> None:
    shown: dict[str, str] = {}
    for name in ("a.png", "a.svg", "a.html", "a.pdf"):
        stored = (await shoal.client.post(UPLOADS, params={"name": name}, content=b"x")).json()
        image = await shoal.client.get(f"{FILES}/attachments/{stored['file']}")
        shown[name] = image.headers["content-disposition"].partition(";")[0]
    assert shown == {"a.png": "inline", "a.svg": "attachment", "a.html": "attachment", "a.pdf": "attachment"}


@pytest.mark.parametrize(
    "path",
    [
        "attachments/../../../../../token",
        "attachments/%2e%2e/secret",
        "scratch/link",
        "scratch/folder/token",
        "scratch/fifo",
        "scratch",
        "scratch/",
        "attachments//x",
        "token",
        "other/file",
        "attachments/none",
        "scratch/a%00b",
    ],
)
async def test_nothing_outside_the_threads_files_is_fetched(shoal: Served, path: str) -> None:
    (shoal.home.root / "token").write_text("the token")
    scratch = shoal.home.scratch(THREAD)
    (scratch.parent / "other").mkdir(parents=True)
    (scratch.parent / "other" / "file").write_text("not for fetching")
    scratch.mkdir()
    (scratch / "link").symlink_to(shoal.home.root / "token")
    (scratch / "folder").symlink_to(shoal.home.root)
    os.mkfifo(scratch / "fifo")
    request = shoal.client.build_request("GET", "/")
    request.url = request.url.copy_with(raw_path=f"{FILES}/{path}".encode())
    answer = await shoal.client.send(request)
    assert answer.status_code == 404
    assert (await shoal.client.get(FILES)).json() == []


async def test_a_linked_directory_is_neither_listed_nor_written_to(shoal: Served, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    shoal.home.thread(THREAD).mkdir(parents=True)
    shoal.home.attachments(THREAD).symlink_to(outside)
    assert (await shoal.client.get(FILES)).json() == []
    answer = await shoal.client.post(UPLOADS, params={"name": "x"}, content=b"x")
    assert (answer.status_code, answer.json()["error"]) == (503, "store")
    assert [path.name for path in outside.iterdir()] == ["secret"]


@pytest.mark.parametrize("value", ["[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 50_000 + "1" + "}" * 50_000])
async def test_a_deeply_nested_body_is_rejected(shoal: Served, value: str) -> None:
    content = f'{{"text": "hello", "extra": {value}}}'
    answer = await shoal.client.post(MESSAGES, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
