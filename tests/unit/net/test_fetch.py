"""The guarded HTTP client: pinned addresses, checks at every redirect, size bounds and no credentials."""

import asyncio
import gzip
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_network

import pytest
from tests.connections import listening

from shoal.kernel.errors import FetchError
from shoal.net.addresses import Fetched, FetchRequest, WebAddress
from shoal.net.fetch import GuardedFetcher

LOOPBACK = (ip_network("127.0.0.0/8"),)
Answer = Callable[[str, dict[str, str]], bytes]


class Names:
    """A resolver that returns each name's answers in turn and repeats the last one."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        found = self.answers.get(host.split(".", maxsplit=1)[0])
        if found is None:
            raise OSError("unknown")
        return found.pop(0) if len(found) > 1 else found[0]


def reply(body: bytes = b"ok", status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def server(answer: Answer) -> AsyncGenerator[tuple[int, list[tuple[str, dict[str, str]]]]]:
    seen: list[tuple[str, dict[str, str]]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        await reader.readexactly(int(headers.get("content-length", "0")))
        seen.append((head[0], headers))
        writer.write(answer(head[0].split()[1], headers))
        await writer.drain()

    async with listening(serve) as port:
        yield port, seen


def always(body: bytes) -> Answer:
    return lambda path, headers: body


async def test_a_page_request_carries_its_host_name_and_no_ambient_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with server(always(reply(b"hello", Set_Cookie="a=b"))) as (port, seen):
        fetcher = GuardedFetcher(Names(site=[["127.0.0.1"]]), LOOPBACK)
        request = FetchRequest(f"http://site.example:{port}/a?b=c")
        await fetcher.fetch(request)
        answer = await fetcher.fetch(request)
        assert (answer.status, answer.body, answer.cut) == (200, b"hello", False)
        assert seen[1][0] == "GET /a?b=c HTTP/1.1"
        assert seen[1][1]["host"] == f"site.example:{port}"
        assert not {"cookie", "authorization", "proxy-authorization"} & set(seen[1][1])


async def test_a_name_is_resolved_once_and_the_checked_address_is_used() -> None:
    async with server(always(reply(b"the checked one"))) as (port, seen):
        names = Names(site=[["127.0.0.1"], ["127.0.0.99"]])
        fetcher = GuardedFetcher(names, (ip_network("127.0.0.1/32"),))
        assert (await fetcher.fetch(FetchRequest(f"http://site.example:{port}/"))).body == b"the checked one"
        assert names.asked == ["site.example"]
        with pytest.raises(FetchError, match="not a public address"):
            await fetcher.fetch(FetchRequest(f"http://site.example:{port}/"))
        assert len(seen) == 1


async def test_a_name_with_one_private_address_among_public_ones_is_refused() -> None:
    fetcher = GuardedFetcher(Names(site=[["8.8.8.8", "10.0.0.1"]]))
    with pytest.raises(FetchError, match="not a public address"):
        await fetcher.fetch(FetchRequest("http://site.example/"))


@pytest.mark.parametrize("location", ["http://127.0.0.2/", "http://inner.example/", "file:///etc/passwd", "//[::1]/"])
async def test_a_redirect_is_checked_like_the_first_address(location: str) -> None:
    async with server(always(reply(status="302 Found", Location=location))) as (port, seen):
        names = Names(site=[["127.0.0.1"]], inner=[["192.168.0.1"]])
        with pytest.raises(FetchError):
            await GuardedFetcher(names, (ip_network("127.0.0.1/32"),)).fetch(
                FetchRequest(f"http://site.example:{port}/")
            )
        assert len(seen) == 1


async def test_a_redirect_to_another_origin_is_followed_without_headers() -> None:
    async with server(always(reply(b"end"))) as (last, seen):
        elsewhere = f"http://other.example:{last}/end"
        async with server(always(reply(status="302 Found", Location=elsewhere))) as (first, first_seen):
            fetcher = GuardedFetcher(Names(site=[["127.0.0.1"]], other=[["127.0.0.1"]]), LOOPBACK)
            request = FetchRequest(f"http://site.example:{first}/", headers=(("X-Key", "secret"),))
            answer = await fetcher.fetch(request)
            assert (answer.url, answer.body) == (elsewhere, b"end")
            assert first_seen[0][1]["x-key"] == "secret"
            assert "x-key" not in seen[0][1]


@pytest.mark.parametrize("is_first", [True, False])
async def test_https_is_never_downgraded(is_first: bool) -> None:
    class Leading(GuardedFetcher):
        async def fetch_once(self, target: WebAddress, request: FetchRequest, name: str) -> Fetched:
            if target.scheme == "https":
                return Fetched(target.url, 302, (("location", f"http://127.0.0.1:{port}/"),), b"")
            return await super().fetch_once(target, request, name)

    async with server(always(reply())) as (port, seen):
        url = f"http://127.0.0.1:{port}/" if is_first else "https://site.example/"
        with pytest.raises(FetchError, match="Only https:// is allowed"):
            await Leading(allowed=LOOPBACK).fetch(FetchRequest(url, tls_only=True))
        assert seen == []


@pytest.mark.parametrize(
    "answer",
    [
        reply(status="302 Found", Location="http://obey-this.example/obey-this"),
        reply(status="302 Found", Location="http://obey-this.inner.example/"),
        reply(status="302 Found", Location="http://inner.example:1/obey-this"),
        reply(status="302 Found", Location="obey-this://now"),
        reply(status="302 Found", Location="http://obey this/"),
        reply(status="302 Found", Location="http://obey-this@site.example/"),
        reply(status="302 Found", Location="http://obey-this..example/"),
        reply(status="302 Found", Location="http://[obey-this]/"),
        reply(Content_Encoding="obey-this"),
        b"obey-this now\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nobey-this\r\n\r\n",
        b"HTTP/1.1 obey-this\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: obey-this\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: obey-this\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nobey-this\r\n",
    ],
)
async def test_no_failure_quotes_what_a_server_says(answer: bytes) -> None:
    async with server(always(answer)) as (port, _):
        names = Names(site=[["127.0.0.1"]], inner=[["192.168.0.1"]])
        with pytest.raises(FetchError) as told:
            await GuardedFetcher(names, LOOPBACK).fetch(FetchRequest(f"http://site.example:{port}/"))
        assert "obey" not in str(told.value)


async def test_redirects_are_bounded() -> None:
    async with server(always(reply(status="302 Found", Location="/again"))) as (port, seen):
        with pytest.raises(FetchError, match="more than 3 times"):
            await GuardedFetcher(allowed=LOOPBACK).fetch(FetchRequest(f"http://127.0.0.1:{port}/", redirects_max=3))
        assert len(seen) == 4


async def test_a_head_request_returns_headers_and_no_body() -> None:
    async with server(always(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nX-Tide: high\r\n\r\n")) as (port, _):
        request = FetchRequest(f"http://127.0.0.1:{port}/", method="HEAD", seconds_max=20)
        answer = await GuardedFetcher(allowed=LOOPBACK).fetch(request)
        assert (answer.status, answer.header("x-tide"), answer.body) == (200, "high", b"")


async def test_a_post_body_is_not_forwarded_to_another_origin() -> None:
    async with server(always(reply(status="307 Temporary Redirect", Location="http://127.0.0.2/"))) as (port, seen):
        with pytest.raises(FetchError, match="redirects this POST to another host"):
            await GuardedFetcher(allowed=LOOPBACK).fetch(
                FetchRequest(f"http://127.0.0.1:{port}/", method="POST", body=b"{}")
            )
        assert seen[0][1]["content-length"] == "2"


@pytest.mark.parametrize("packed", [False, True])
async def test_a_body_is_cut_at_its_bound_compressed_or_not(packed: bool) -> None:
    body = b"x" * 3_000_000
    answer = reply(gzip.compress(body), Content_Encoding="gzip") if packed else reply(body)
    async with server(always(answer)) as (port, _):
        found = await GuardedFetcher(allowed=LOOPBACK).fetch(FetchRequest(f"http://127.0.0.1:{port}/", bytes_max=1000))
        assert (found.body, found.cut) == (b"x" * 1000, True)


async def test_a_compressed_body_is_decompressed_and_a_damaged_one_reported() -> None:
    async with server(always(reply(gzip.compress(b"text"), Content_Encoding="gzip"))) as (port, _):
        found = await GuardedFetcher(allowed=LOOPBACK).fetch(FetchRequest(f"http://127.0.0.1:{port}/"))
        assert (found.body, found.cut) == (b"text", False)
    for encoding in ("gzip", "br"):
        async with server(always(reply(b"no such thing", Content_Encoding=encoding))) as (port, _):
            with pytest.raises(FetchError):
                await GuardedFetcher(allowed=LOOPBACK).fetch(FetchRequest(f"http://127.0.0.1:{port}/"))


async def test_a_silent_server_times_out() -> None:
    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        gone.set()

    async with listening(silent) as port:
        with pytest.raises(FetchError, match="No response arrived within"):
            await GuardedFetcher(allowed=LOOPBACK).fetch(FetchRequest(f"http://127.0.0.1:{port}/", seconds_max=0.2))
        await gone.wait()


async def test_an_unreachable_host_is_reported() -> None:
    with pytest.raises(FetchError, match="does not exist"):
        await GuardedFetcher(Names()).fetch(FetchRequest("http://site.example/"))
    async with server(always(b"")) as (port, _):
        pass
    with pytest.raises(FetchError, match="does not respond"):
        await GuardedFetcher(allowed=LOOPBACK).fetch(FetchRequest(f"http://127.0.0.1:{port}/"))


async def test_a_non_http_answer_is_reported() -> None:
    async with server(always(b"garbage\r\n\r\n")) as (port, _):
        with pytest.raises(FetchError, match="does not respond"):
            await GuardedFetcher(allowed=LOOPBACK).fetch(FetchRequest(f"http://127.0.0.1:{port}/"))


@pytest.mark.parametrize(
    "location", ["http://[bad", "//[", "http://[::1%25lo]/", "http://user@h/", "file:///etc/passwd"]
)
async def test_a_redirect_to_an_invalid_address_is_refused(location: str) -> None:
    async with server(always(reply(status="302 Found", Location=location))) as (port, seen):
        fetcher = GuardedFetcher(Names(site=[["127.0.0.1"]]), LOOPBACK)
        with pytest.raises(FetchError):
            await fetcher.fetch(FetchRequest(f"http://site.example:{port}/"))
        assert len(seen) == 1
