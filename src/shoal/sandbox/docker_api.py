"""The few calls of the Docker Engine API that the Docker sandbox needs, over the daemon's unix socket; podman's too."""

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.domain.errors import SandboxError

if TYPE_CHECKING:
    import httpx2

CALL_SECONDS = 60.0
"""Longest wait for an answer of the daemon."""
OWNER_LABEL = "shoal.owner"
_HEADER_BYTES = 8


class ExecSpec(msgspec.Struct, frozen=True, rename="pascal"):
    """A process to run in a container."""

    cmd: tuple[str, ...]
    env: tuple[str, ...]
    working_dir: str
    attach_stdout: bool = True
    attach_stderr: bool = True


class Ulimit(msgspec.Struct, frozen=True, rename="pascal"):
    """A limit of the kernel's for each process."""

    name: str
    soft: int
    hard: int


class BindSpec(msgspec.Struct, frozen=True, rename="pascal"):
    """A directory of the host and its place in a container."""

    source: str
    target: str
    read_only: bool
    type: str = "bind"


class HostSpec(msgspec.Struct, frozen=True, rename="pascal"):
    """What a container may use of the host."""

    mounts: tuple[BindSpec, ...]
    tmpfs: dict[str, str]
    network_mode: str
    memory: int
    memory_swap: int
    pids_limit: int
    shm_size: int
    ulimits: tuple[Ulimit, ...]
    readonly_rootfs: bool = True
    cap_drop: tuple[str, ...] = ("ALL",)
    security_opt: tuple[str, ...] = ("no-new-privileges",)
    auto_remove: bool = True


class ContainerSpec(msgspec.Struct, frozen=True, rename="pascal"):
    """A container to make."""

    image: str
    cmd: tuple[str, ...]
    user: str
    labels: dict[str, str]
    host_config: HostSpec
    network_disabled: bool
    hostname: str = "sandbox"
    entrypoint: tuple[str, ...] = ()


class _Made(msgspec.Struct):
    id: str = msgspec.field(name="Id")


class _Exec(msgspec.Struct, rename="pascal"):
    exit_code: int | None = None
    running: bool = False


class _Listed(msgspec.Struct, rename="pascal"):
    names: list[str]
    labels: dict[str, str]


class _Problem(msgspec.Struct):
    message: str = ""


class DockerApi:
    """A client of one daemon. Every call raises SandboxError when the daemon is away or refuses."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._client: httpx2.AsyncClient | None = None

    async def create(self, spec: ContainerSpec) -> str:
        """Make a container and start it; its name. Cancelled or refused, it leaves none."""
        name = f"shoal-{secrets.token_hex(8)}"
        try:
            await self._call("POST", f"/containers/create?name={name}", spec)
            await self._call("POST", f"/containers/{name}/start")
        except BaseException:
            await self.remove(name)
            raise
        return name

    async def remove(self, container: str) -> None:
        """Kill and remove a container; one that is gone already is fine."""
        await self._call("DELETE", f"/containers/{container}?force=true&v=true", missing_ok=True)

    async def owned(self) -> list[tuple[str, str]]:
        """The containers that any Shoal on this machine has made: name and owner."""
        answer = await self._call("GET", f'/containers/json?all=true&filters={{"label":["{OWNER_LABEL}"]}}')
        listed = msgspec.json.decode(answer, type=list[_Listed])
        return [(found.names[0].removeprefix("/"), found.labels[OWNER_LABEL]) for found in listed]

    async def prepare(self, container: str, spec: ExecSpec) -> str:
        """Make a process ready to be started; its id."""
        answer = await self._call("POST", f"/containers/{container}/exec", spec)
        return msgspec.json.decode(answer, type=_Made).id

    async def exit_code(self, process: str) -> int | None:
        """The exit code of a process that has ended."""
        return msgspec.json.decode(await self._call("GET", f"/exec/{process}/json"), type=_Exec).exit_code

    @asynccontextmanager
    async def start(self, process: str) -> AsyncGenerator["AsyncGenerator[tuple[int, bytes]]"]:
        """Start a prepared process: its output in pieces, stream 1 (output) or 2 (errors), until all have closed it."""
        import httpx2

        request = self._http().build_request("POST", f"/exec/{process}/start", json={"Detach": False, "Tty": False})
        try:
            response = await self._http().send(request, stream=True)
            try:
                if response.status_code >= 400:
                    raise _refused(response.status_code, await response.aread())
                yield _frames(response)
            finally:
                await response.aclose()
        except httpx2.HTTPError as error:
            raise self._away(error) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _call(
        self,
        method: str,
        path: str,
        body: msgspec.Struct | Mapping[str, str] | None = None,
        *,
        missing_ok: bool = False,
    ) -> bytes:
        import httpx2

        content = b"" if body is None else msgspec.json.encode(body)
        try:
            headers = {"Content-Type": "application/json"}
            response = await self._http().request(method, path, content=content, headers=headers, timeout=CALL_SECONDS)
        except httpx2.HTTPError as error:
            raise self._away(error) from error
        if response.status_code >= 400 and not (missing_ok and response.status_code in (404, 409)):
            raise _refused(response.status_code, response.content)
        return response.content

    def _http(self) -> "httpx2.AsyncClient":
        if self._client is None:
            import httpx2

            transport = httpx2.AsyncHTTPTransport(uds=str(self._socket))
            self._client = httpx2.AsyncClient(transport=transport, base_url="http://docker", timeout=None)
        return self._client

    def _away(self, error: Exception) -> SandboxError:
        return SandboxError(
            f"The Docker daemon at {self._socket} does not answer ({type(error).__name__}: {error}). Is it running?"
        )


def _refused(status: int, content: bytes) -> SandboxError:
    try:
        message = msgspec.json.decode(content, type=_Problem).message
    except msgspec.MsgspecError:
        message = content.decode(errors="replace")[:200]
    return SandboxError(f"Docker refused ({status}): {message}")


async def _frames(response: "httpx2.Response") -> AsyncGenerator[tuple[int, bytes]]:
    """The pieces of an attached stream: a header of 8 bytes (stream, three zeros, length), then the piece."""
    held = bytearray()
    async for chunk in response.aiter_raw():
        held += chunk
        while len(held) >= _HEADER_BYTES:
            end = _HEADER_BYTES + int.from_bytes(held[4:_HEADER_BYTES], "big")
            if len(held) < end:
                break
            yield held[0], bytes(held[_HEADER_BYTES:end])
            del held[:end]
