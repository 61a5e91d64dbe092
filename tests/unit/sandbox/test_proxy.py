"""The allow-listed proxy: what is on the list is reached, and nothing else, whoever asks however."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.connections import listening

from shoal.domain.ports import Command, CommandResult, Mount
from shoal.sandbox import proxy
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.proxy import AllowedHosts, ProxyRefusal, parse_request

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"


@pytest.mark.parametrize(
    ("entry", "allowed", "refused"),
    [
        (
            "example.org",
            ["example.org:443", "EXAMPLE.org.:80"],
            ["example.org:22", "a.example.org:443", "xexample.org:443"],
        ),
        ("*.example.org", ["a.example.org:443", "a.b.example.org:80"], ["example.org:443", "badexample.org:443"]),
        ("example.org:8080", ["example.org:8080"], ["example.org:443"]),
        ("192.0.2.7", ["192.0.2.7:80"], ["192.0.2.70:80", "192.0.2.7:81"]),
        ("[2001:db8::1]:8080", ["2001:db8::1:8080"], ["2001:db8::1:80"]),
        ("2001:db8::1", ["2001:db8::1:443"], ["2001:db8::2:443"]),
    ],
)
def test_the_list_says_which_hosts(entry: str, allowed: list[str], refused: list[str]) -> None:
    hosts = AllowedHosts((entry,))

    def allows(name: str) -> bool:
        host, _, port = name.rpartition(":")
        return hosts.allows(host, int(port))

    assert [name for name in allowed if not allows(name)] == []
    assert [name for name in refused if allows(name)] == []


@given(st.text(max_size=40), st.integers(0, 65535))
def test_an_empty_list_allows_nothing(host: str, port: int) -> None:
    assert not AllowedHosts(()).allows(host, port)


def test_a_tunnel_and_a_plain_request_are_understood() -> None:
    tunnel = parse_request(b"CONNECT example.org:443 HTTP/1.1\r\nHost: other\r\n\r\n")
    assert tunnel == ("example.org", 443, b"")
    plain = parse_request(
        b"GET http://user@example.org:81/a?b=c HTTP/1.1\r\nHost: other\r\nAccept: */*\r\n"
        b"Proxy-Authorization: secret\r\nConnection: keep-alive\r\n\r\n"
    )
    head = b"GET /a?b=c HTTP/1.1\r\nHost: example.org:81\r\nConnection: close\r\nAccept: */*\r\n\r\n"
    assert plain == ("example.org", 81, head)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
        b"GET https://example.org/ HTTP/1.1\r\n\r\n",
        b"GET file:///etc/passwd HTTP/1.1\r\n\r\n",
        b"CONNECT example.org HTTP/1.1\r\n\r\n",
        b"CONNECT example.org:99999 HTTP/1.1\r\n\r\n",
        b"CONNECT :443 HTTP/1.1\r\n\r\n",
        b"\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
        b"GET http://[::1/ HTTP/1.1\r\n\r\n",
    ],
)
def test_anything_else_is_refused(head: bytes) -> None:
    with pytest.raises(ProxyRefusal, match="400"):
        parse_request(head)


@given(st.binary(max_size=200))
def test_no_bytes_break_it(head: bytes) -> None:
    try:
        target = parse_request(head)
    except ProxyRefusal:
        return
    assert target.host


@pytest.mark.parametrize(
    ("host", "address", "may"),
    [
        ("example.org", "93.184.216.34", True),
        ("example.org", "127.0.0.1", False),
        ("example.org", "169.254.169.254", False),
        ("example.org", "10.0.0.1", False),
        ("example.org", "::1", False),
        ("example.org", "::ffff:127.0.0.1", False),
        ("example.org", "fe80::1%eth0", False),
        ("example.org", "224.0.0.1", False),
        ("example.org", "0.0.0.0", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.1", "127.0.0.1", False),
    ],
)
def test_a_name_leads_to_public_addresses_only(host: str, address: str, may: bool) -> None:
    assert proxy._may_reach(host, address) is may


class Server:
    """A web server on loopback that keeps what it was asked."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(ANSWER)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """Running."""
    server = Server()
    async with listening(server.answer) as server.port:
        yield server


async def curl(tmp_path: Path, hosts: tuple[str, ...], arguments: str) -> CommandResult:
    """What curl says inside a sandbox with these hosts."""
    sandbox = BubblewrapSandbox(network=hosts)
    mount = Mount(tmp_path, "/workspace", writable=True)
    result = await sandbox.run(Command(f"curl -sS -m 20 {arguments}", tmp_path, (mount,)))
    await sandbox.close()
    return result


@needs_bubblewrap
async def test_an_allowed_host_is_reached_from_inside(tmp_path: Path, server: Server) -> None:
    address = f"127.0.0.1:{server.port}"
    plain = await curl(tmp_path, (address,), f"http://{address}/path")
    tunnelled = await curl(tmp_path, (address,), f"--proxytunnel http://{address}/path")
    assert (plain.stdout, tunnelled.stdout) == (b"hello", b"hello")
    assert [head.split(b"\r\n")[0] for head in server.heads] == [b"GET /path HTTP/1.1"] * 2


@needs_bubblewrap
async def test_another_host_or_port_is_not(tmp_path: Path, server: Server) -> None:
    for arguments in (
        f"http://127.0.0.1:{server.port}/",
        f"--proxytunnel http://127.0.0.1:{server.port}/",
        f"--noproxy '*' http://127.0.0.1:{server.port}/",
        f"http://localhost:{server.port}/",
        "http://169.254.169.254/",
        f"--resolve example.org:80:127.0.0.1 http://example.org:{server.port}/",
    ):
        result = await curl(tmp_path, ("example.org", "127.0.0.1:1"), f"-f {arguments}")
        assert result.exit_code != 0
        assert b"hello" not in result.stdout
    assert not server.heads


@needs_bubblewrap
async def test_a_listed_name_that_leads_to_this_machine_is_refused(tmp_path: Path, server: Server) -> None:
    result = await curl(tmp_path, (f"localhost:{server.port}",), f"-i http://localhost:{server.port}/")
    assert b"403" in result.stdout.splitlines()[0]
    assert not server.heads


async def test_whoever_still_sends_a_body_sees_why_it_was_refused() -> None:
    async with proxy.ProxiedNetwork(("example.org",)) as network:
        reader, writer = await asyncio.open_unix_connection(f"{network._folder}/socket")
        writer.write(b"POST http://other.org/ HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n")
        for _ in range(30):
            writer.write(b"x" * 100_000)
            await writer.drain()
        assert b"403 other.org:80 is not among the hosts" in await reader.read()
        writer.close()


@needs_bubblewrap
async def test_the_commands_exit_code_and_end_come_through(tmp_path: Path) -> None:
    sandbox = BubblewrapSandbox(network=("example.org",))
    mount = Mount(tmp_path, "/workspace", writable=True)
    result = await sandbox.run(Command("echo out; echo err >&2; exit 7", tmp_path, (mount,)))
    killed = await sandbox.run(Command("kill -9 $$", tmp_path, (mount,)))
    late = await sandbox.run(Command("sleep 600", tmp_path, (mount,), timeout_seconds=1))
    await sandbox.close()
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 7)
    assert (killed.exit_code, late.timed_out) == (137, True)


@needs_bubblewrap
async def test_too_many_connections_and_slow_heads_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    monkeypatch.setattr(proxy, "CONNECTIONS_MAX", 0)
    address = f"127.0.0.1:{server.port}"
    assert b"503" in (await curl(tmp_path, (address,), f"-i http://{address}/")).stdout
    monkeypatch.setattr(proxy, "CONNECTIONS_MAX", 4)
    monkeypatch.setattr(proxy, "HEAD_SECONDS", 0.05)
    sandbox = BubblewrapSandbox(network=(address,))
    mount = Mount(tmp_path, "/workspace", writable=True)
    text = f"exec 3<>/dev/tcp/127.0.0.1/{proxy.PORT}; cat <&3; echo ended"
    assert (await sandbox.run(Command(text, tmp_path, (mount,)))).stdout == b"ended\n"
    await sandbox.close()
    assert not server.heads
