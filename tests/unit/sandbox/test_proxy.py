"""The allow-listed proxy: what is on the list is reached, and nothing else, whoever asks however."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.connections import listening

from shoal.kernel.ports import Command, CommandResult, Mount
from shoal.sandbox import proxy
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.proxy import WEB_PORTS, AllowedHosts, ProxyRefusal, PublicHosts, parse_request

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
    assert AllowedHosts((host,)).may_open(host, address) is may


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
        *(
            "169.254.169.254",
            "169.254.170.2",
            "100.64.0.1",
            "100.100.100.200",
            "192.0.0.192",
            "198.18.0.1",
            "224.0.0.251",
        ),
        *("240.0.0.1", "255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1"),
        *("64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "fd00::1", "fd00:ec2::254", "fc00::1", "fe80::1%lo"),
        *("fec0::1", "ff02::1", "100::1", "2001:db8::1", "2001::1", "3fff::1", "5f00::1"),
    ],
)
def test_no_name_and_no_number_leads_to_a_private_address(address: str) -> None:
    assert not PublicHosts(WEB_PORTS).may_open("example.org", address)
    assert not PublicHosts(WEB_PORTS).may_open(address, address)


@pytest.mark.parametrize(("port", "allows"), [(80, True), (443, True), (22, False), (5432, False), (0, False)])
def test_public_hosts_are_reached_at_the_owners_ports(port: int, allows: bool) -> None:
    assert PublicHosts(WEB_PORTS).allows("example.org", port) is allows


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
    async with proxy.HostProxy(("example.org",)) as network:
        reader, writer = await asyncio.open_unix_connection(f"{network.folder}/socket")
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


@needs_bubblewrap
async def test_with_the_network_on_this_machine_is_not_reached(tmp_path: Path, server: Server) -> None:
    """Nor by any spelling of its address, past the proxy, or by an abstract socket."""
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0shoal-test-{server.port}")
    abstract.listen()
    own = [str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    hosts = ("127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "0.0.0.0", "[::1]")
    hosts += ("[::ffff:127.0.0.1]", "[::]", "[64:ff9b::7f00:1]", *own)
    sandbox = BubblewrapSandbox(network="on", ports=(server.port,))
    asked = [
        f"{options} http://{host}:{server.port}/" for host in hosts for options in ("--noproxy ''", "--noproxy '*'")
    ]
    asked += [f"--noproxy '' --proxytunnel http://{host}:{server.port}/" for host in hosts]
    asked += [
        "http://169.254.169.254/",
        "http://[fd00:ec2::254]/",
        f"--abstract-unix-socket shoal-test-{server.port} http://x/",
    ]
    commands = "\n".join(f"curl -sf -m 5 {line} && echo REACHED {line} &" for line in asked)
    mount = Mount(tmp_path, "/workspace", writable=True)
    result = await sandbox.run(Command(f"{commands}\nwait; cat /proc/net/dev", tmp_path, (mount,)))
    await sandbox.close()
    abstract.close()
    assert b"REACHED" not in result.stdout
    assert [line.split(b":")[0].strip() for line in result.stdout.splitlines()[2:]] == [b"lo"]
    assert not server.heads


@needs_bubblewrap
async def test_what_a_command_serves_it_reaches_itself(tmp_path: Path) -> None:
    sandbox = BubblewrapSandbox(network="on")
    mount = Mount(tmp_path, "/workspace", writable=True)
    serve = "; ".join(
        (
            "import socket",
            's = socket.create_server(("127.0.0.1", 3000))',
            "print(1, flush=True)",
            "c = s.accept()[0]",
            "c.recv(999)",
            'c.sendall(b"HTTP/1.0 200 OK\\n\\nmine")',
        )
    )
    text = f"python3 -S -c '{serve}' > ready & until [ -s ready ]; do :; done; curl -s -m 5 http://localhost:3000/"
    result = await sandbox.run(Command(text, tmp_path, (mount,)))
    await sandbox.close()
    assert result.stdout == b"mine"
