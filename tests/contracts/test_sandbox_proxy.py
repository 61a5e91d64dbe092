"""The hosts that sandboxed commands can reach through the proxy."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.connections import listening

from shoal.kernel.ports import Command, CommandResult, Mount
from shoal.sandbox import proxy
from shoal.sandbox.bubblewrap import BubblewrapSandbox

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"


class Server:
    """A web server on loopback that records its requests."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(ANSWER)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    async with listening(server.answer) as server.port:
        yield server


async def curl(tmp_path: Path, hosts: tuple[str, ...], arguments: str) -> CommandResult:
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
async def test_another_host_or_port_is_not_reached(tmp_path: Path, server: Server) -> None:
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
async def test_an_allowed_name_that_resolves_to_this_machine_is_refused(tmp_path: Path, server: Server) -> None:
    result = await curl(tmp_path, (f"localhost:{server.port}",), f"-i http://localhost:{server.port}/")
    assert b"403" in result.stdout.splitlines()[0]
    assert not server.heads


@needs_bubblewrap
async def test_the_commands_exit_code_and_end_are_reported(tmp_path: Path) -> None:
    sandbox = BubblewrapSandbox(network=("example.org",))
    mount = Mount(tmp_path, "/workspace", writable=True)
    result = await sandbox.run(Command("echo out; echo err >&2; exit 7", tmp_path, (mount,)))
    killed = await sandbox.run(Command("kill -9 $$", tmp_path, (mount,)))
    late = await sandbox.run(Command("sleep 600", tmp_path, (mount,), timeout_seconds=1))
    await sandbox.close()
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 7)
    assert (killed.exit_code, late.timed_out) == (137, True)


@needs_bubblewrap
async def test_excess_connections_and_slow_request_heads_are_closed(
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
async def test_even_with_the_network_on_this_machine_is_unreachable(tmp_path: Path, server: Server) -> None:
    """This includes other spellings of the loopback address, attempts to bypass the proxy, and abstract sockets."""
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0shoal-test-{server.port}")
    abstract.listen()
    own = [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
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
async def test_a_command_reaches_its_own_server(tmp_path: Path) -> None:
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
