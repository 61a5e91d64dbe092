"""Calls to a platform return a bounded response or raise an error that the delivery code catches."""

import asyncio
import gc
import gzip
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.connections import listening

from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import PlatformError
from shoal.platforms import http
from shoal.platforms.http import PlatformHttp

CLOCK = SystemClock()
SECONDS = 0.1
BYTES_MAX = 1000
Answers = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(answer: Answers) -> AsyncGenerator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await answer(writer)

    async with listening(serve) as port:
        yield f"http://127.0.0.1:{port}/"


def at_once(content: bytes) -> Answers:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(content)
        await writer.drain()

    return answer


def without_end(head: bytes, piece: bytes, pause: float) -> Answers:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            await CLOCK.sleep(pause)

    return answer


OK = b"HTTP/1.1 200 OK\r\n"
PACKED = OK + b"content-encoding: gzip\r\nconnection: close\r\n\r\n"
ODD = {
    "nothing": at_once(b""),
    "no HTTP": at_once(b"\x15\x03\x01\x00\x02\x02("),
    "half a head": at_once(b"HTTP/1.1 200"),
    "half a body": at_once(OK + b'content-length: 900\r\n\r\n{"a"'),
    "a header of no text": at_once(OK + b"x\xff: \xfe\r\n\r\n"),
    "an odd chunk": at_once(OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}"),
    "no gzip": at_once(PACKED + b"not gzip!"),
    "a gzip that breaks": at_once(PACKED + gzip.compress(b"{}")[:10] + b"\xff" * 40),
    "too much": at_once(OK + b"connection: close\r\n\r\n" + b" " * (BYTES_MAX + 1)),
    "too much, packed": at_once(PACKED + gzip.compress(b" " * 1_000_000)),
    "silence": without_end(b"", b"", SECONDS),
    "a head without end": without_end(OK, b"a: b\r\n", SECONDS / 4),
    "a body without end": without_end(OK + b"\r\n", b"x", SECONDS / 4),
}


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_BYTES_MAX", BYTES_MAX)
    monkeypatch.setattr(http, "TRANSFER_SECONDS", SECONDS)


@pytest.mark.parametrize("what", ODD)
async def test_a_malformed_answer_is_a_platform_failure(what: str) -> None:
    async with answering(ODD[what]) as address:
        platform = PlatformHttp("the platform")
        try:
            for method, is_unknown in (("GET", False), ("POST", True)):
                with pytest.raises(PlatformError) as failed:
                    await platform.request(method, address, seconds=SECONDS)
                assert failed.value.outcome_unknown == is_unknown
                assert not failed.value.permanent
            with pytest.raises(PlatformError):
                await platform.download(address, BYTES_MAX)
        finally:
            await platform.close()


async def test_a_redirect_loop_is_a_platform_failure() -> None:
    async with answering(at_once(b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n")) as address:
        platform = PlatformHttp("the platform")
        with pytest.raises(PlatformError):
            await platform.download(address, BYTES_MAX, follow=True)
        await platform.close()


async def test_an_answer_may_be_slow_and_compressed() -> None:
    packed = gzip.compress(b'{"ok": true}')

    async def answer(writer: asyncio.StreamWriter) -> None:
        for part in (PACKED, packed[:9], packed[9:]):
            writer.write(part)
            await writer.drain()
            await CLOCK.sleep(SECONDS / 2)

    async with answering(answer) as address:
        platform = PlatformHttp("the platform")
        assert (await platform.request("POST", address, seconds=SECONDS)).content == b'{"ok": true}'
        await platform.close()


@pytest.mark.parametrize("steps", range(0, 40, 4))
async def test_a_call_gets_its_response_although_the_account_is_closed(steps: int) -> None:
    async with answering(at_once(OK + b"content-length: 2\r\n\r\nok")) as address:
        platform = PlatformHttp("the platform")
        call = asyncio.ensure_future(platform.request("POST", address, seconds=SECONDS))
        await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0)
        await platform.close()
        assert (await call).content == b"ok"
        gc.collect()  # a connection that is still open fails the test with a ResourceWarning
