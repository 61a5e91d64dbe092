"""Let a sandboxed command reach only public hosts, or listed ones, through an HTTP proxy.

The only interface in the command's network namespace is loopback. A forwarder inside listens on loopback and sends
each connection to the proxy in this process, through a unix socket that is the only way out. The proxy accepts
`CONNECT` and plain `http://` requests, checks the host and the port, and resolves the name. It connects to a public
address that it has checked, or to an address that the list names. A DNS answer that changes later has no effect. The
proxy never connects to this machine's own public addresses. Programs find the proxy by the usual environment
variables. A program that ignores them has no network.
"""

import asyncio
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypeAlias
from urllib.parse import urlsplit

from shoal.kernel.errors import SandboxError
from shoal.net.addresses import literal, why_refused

Network: TypeAlias = Literal["off", "on"] | tuple[str, ...]
"""`off`: no network.
`on`: all public hosts.
A tuple: only these hosts, such as `example.org`, `*.example.org`, `192.0.2.7` or `name:8080`.
"""

PORT = 3128
INSIDE_FOLDER = "/run/shoal"
FORWARDER = Path(__file__).with_name("forward.py")
FORWARD = ("-I", "-S", "-B", f"{INSIDE_FOLDER}/forward.py", f"{INSIDE_FOLDER}/proxy/socket", str(PORT))
"""Arguments for Python that run the forwarder inside the sandbox. The command to execute follows them."""
HEAD_BYTES_MAX = 65_536
HEAD_SECONDS = 15.0
CONNECT_SECONDS = 15.0
LINGER_SECONDS = 2.0
CONNECTIONS_MAX = 64
CHUNK_BYTES = 65_536
WEB_PORTS = (80, 443)


class ProxyRefusal(Exception):
    """Raised for a rejected request. The message is the status of the response."""


class ProxyTarget(NamedTuple):
    """The destination of a request. `head` contains the bytes to send there first."""

    host: str
    port: int
    head: bytes


class AllowedHosts:
    """The listed hosts. A name without a port allows ports 80 and 443. `*.` matches every subdomain."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._exact: dict[str, tuple[int, ...]] = {}
        self._below: dict[str, tuple[int, ...]] = {}
        for entry in entries:
            text = entry.strip().lower()
            host, colon, port = text.rpartition(":")
            if colon and port.isdigit() and (":" not in host or host.startswith("[")):
                host, ports = host.strip("[]"), (int(port),)
            else:
                host, ports = text.strip("[]").rstrip("."), WEB_PORTS
            table = self._below if host.startswith("*.") else self._exact
            key = host.removeprefix("*")
            table[key] = (*table.get(key, ()), *ports)

    def allows(self, host: str, port: int) -> bool:
        name = host.lower().rstrip(".")
        if port in self._exact.get(name, ()):
            return True
        return any(name.endswith(below) and port in ports for below, ports in self._below.items())

    def may_open(self, host: str, address: str) -> bool:
        """Return True if the proxy may connect to this address of an allowed host. The address must be public or in the
        list.
        """
        named = literal(host)
        return not why_refused(address) if named is None else named == literal(address)


class PublicHosts:
    """All hosts with a public address, on these ports."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = frozenset(ports)

    def allows(self, host: str, port: int) -> bool:
        return bool(host) and port in self._ports

    def may_open(self, host: str, address: str) -> bool:
        return not why_refused(address)


class HostProxy:
    """The proxy that commands reach through the socket in `folder`. Use it as an async context manager.

    `environment` contains the variables that point programs to the forwarder.
    """

    def __init__(self, network: Literal["on"] | tuple[str, ...], ports: Sequence[int] = WEB_PORTS) -> None:
        self._allowed = PublicHosts(ports) if network == "on" else AllowedHosts(network)
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.folder = tempfile.mkdtemp(prefix="shoal-proxy-")
        address = f"http://127.0.0.1:{PORT}"
        names = ("http_proxy", "https_proxy", "all_proxy")
        self.environment = {name: address for lower in names for name in (lower, lower.upper())}
        self.environment["NODE_USE_ENV_PROXY"] = "1"  # makes Node.js use the proxy variables
        if network == "on":  # Connections to the command's own servers bypass the proxy.
            self.environment |= dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")

    async def __aenter__(self) -> Self:
        try:
            path = f"{self.folder}/socket"
            self._server = await asyncio.start_unix_server(self._accept, path, limit=HEAD_BYTES_MAX)
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise SandboxError(f"Failed to start the sandbox's network proxy: {error}.") from error
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        shutil.rmtree(self.folder, ignore_errors=True)
        await self._idle.wait()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving += 1
        self._idle.clear()
        self._writers.add(writer)
        try:
            if self._serving > CONNECTIONS_MAX:
                raise ProxyRefusal("503 Too Many Connections")
            async with asyncio.timeout(HEAD_SECONDS):
                try:
                    target = parse_request(await reader.readuntil(b"\r\n\r\n"))
                except asyncio.LimitOverrunError as error:
                    raise ProxyRefusal("431 Request Header Fields Too Large") from error
            if not self._allowed.allows(target.host, target.port):
                raise ProxyRefusal(
                    f"403 {target.host}:{target.port} is not among the hosts and ports that this sandbox may reach"
                )
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    loop = asyncio.get_running_loop()
                    infos = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
                    addresses = [
                        str(info[4][0]) for info in infos if self._allowed.may_open(target.host, str(info[4][0]))
                    ]
                    if not addresses:
                        raise ProxyRefusal(f"403 {target.host} resolves to a private address")
                    far_reader, far_writer = await asyncio.open_connection(addresses[0], target.port)
            except (OSError, TimeoutError, UnicodeError) as error:
                raise ProxyRefusal(f"502 {target.host} cannot be reached") from error
            self._writers.add(far_writer)
            try:
                own, far = (str(far_writer.get_extra_info(name)[0]) for name in ("sockname", "peername"))
                if own == far and isinstance(self._allowed, PublicHosts):  # The address belongs to this machine.
                    raise ProxyRefusal(f"403 {target.host} resolves to this machine")
                if target.head:
                    far_writer.write(target.head)
                else:
                    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
            finally:
                self._writers.discard(far_writer)
                far_writer.close()
        except ProxyRefusal as refused:
            with suppress(OSError, TimeoutError):
                writer.write(f"HTTP/1.1 {refused}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode())
                writer.write_eof()
                # Read the rest of the request before closing. Otherwise, a client that is still sending a body could
                # lose the response.
                async with asyncio.timeout(LINGER_SECONDS):
                    while await reader.read(CHUNK_BYTES):
                        pass
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # One side closed the connection.
        finally:
            self._writers.discard(writer)
            writer.close()
            self._serving -= 1
            if not self._serving:
                self._idle.set()


class ProxiedNetwork(HostProxy):
    """The proxy of one command under bubblewrap.

    `mounts` contains bubblewrap's options, and `forwarder` is the program that runs the command.
    """

    def __init__(self, network: Literal["on"] | tuple[str, ...], ports: Sequence[int] = WEB_PORTS) -> None:
        # The forwarder runs on this Python, so the sandbox shows its installation read-only.
        prefix = Path(sys.base_prefix).resolve()
        python, shown = os.path.realpath(sys.executable), list[str]()
        if not prefix.is_relative_to("/usr"):
            if len(prefix.parts) < 3 or Path.home().is_relative_to(prefix) or not Path(python).is_relative_to(prefix):
                raise SandboxError(
                    f"The sandbox's proxy needs this Python installation ({prefix}), but the sandbox cannot mount "
                    "it. Set sandbox.network to off, or install Shoal with its own Python."
                )
            shown = ["--ro-bind", str(prefix), str(prefix)]
        super().__init__(network, ports)
        self.mounts = [*shown, "--ro-bind", str(FORWARDER), f"{INSIDE_FOLDER}/forward.py"]
        self.mounts += ["--ro-bind", self.folder, f"{INSIDE_FOLDER}/proxy"]
        self.forwarder = [python, *FORWARD]


def parse_request(head: bytes) -> ProxyTarget:
    """Parse the head of a proxy request, which must be `CONNECT` or have an absolute `http://` address. Raises
    ProxyRefusal.

    A plain request is rewritten for the server. The rewritten request has only the path and the host of the address,
    and closes the connection, so no other request can follow.
    """
    first, _, rest = head.decode("latin-1").partition("\r\n")
    method, _, address = first.partition(" ")
    address = address.rpartition(" ")[0]
    try:
        parts = urlsplit(f"//{address}" if method == "CONNECT" else address)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ProxyRefusal("400 Bad Address") from error
    if method == "CONNECT" and host and port:
        return ProxyTarget(host, port, b"")
    if parts.scheme != "http" or not host:
        raise ProxyRefusal("400 Only CONNECT and http:// requests are supported")
    dropped = ("host:", "connection:", "proxy-connection:", "proxy-authorization:", "keep-alive:")
    headers = [line for line in rest.split("\r\n") if line and not line.lower().startswith(dropped)]
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"{method} {path} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}", "Connection: close", *headers]
    return ProxyTarget(host, port or 80, ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
