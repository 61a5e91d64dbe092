"""Run commands in containers of a Docker or podman daemon, through the Engine API on the daemon's unix socket.

A container has one set of mounts and is reused, but runs one command at a time. A concurrent command gets its own
container. To stop a command (timeout, cancellation, leftover processes), its container is killed, which nothing inside
can prevent. The next command starts a new container. A wrapper reports when the command's shell has ended, because
children may keep the output open. It also reports the number of remaining processes.

Containers have no network except the socket of the `proxy`. They have a read-only root, no capabilities, no new
privileges, and limits set by control groups and ulimits. A container given by name belongs to the operator. It is used
unchanged, with its own network. The processes of a command in it are found by the command's mark and killed.
"""

import asyncio
import os
import secrets
import shlex
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.kernel.errors import SandboxError
from shoal.kernel.files import to_the_end
from shoal.kernel.ports import Command, CommandResult, Mount
from shoal.kernel.untrusted import UNREADABLE
from shoal.net.connections import network_reason
from shoal.sandbox.bubblewrap import ENVIRONMENT, MountedPaths, require_inside
from shoal.sandbox.docker_output import ExecOutput
from shoal.sandbox.limits import GIBIBYTE, CommandLimits
from shoal.sandbox.processes import LINGER_SECONDS, MARK, identity_of, is_alive, is_orphaned, new_mark
from shoal.sandbox.proxy import FORWARD, FORWARDER, INSIDE_FOLDER, WEB_PORTS, HostProxy, Network

if TYPE_CHECKING:
    import httpx2

IDLE_MAX = 4
KILL_SECONDS = 30.0
MARKS_BYTES_MAX = 1_048_576
_KILLS = 3
_OWN_PROCESSES = 3  # The container's first process, its sleep, and the wrapper.

_INIT = ("/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done")
_WRAPPER = (
    '"$1" -c "$2"; code=$?; set -- "$3" /proc/[0-9]*; '
    'printf "\\000%s %d %d\\n" "$1" "$code" $(($# - 1)) >&2; exit $code'
)
_SHELL = "command -v bash || command -v sh"
_PYTHON = "command -v python3"
_KILL = (
    'for folder in /proc/[0-9]*; do tr "\\0" "\\n" <"$folder/environ" 2>/dev/null | grep -qxF "$1" '
    '&& kill -9 "${folder#/proc/}"; done; exit 0'
)
_LIST = 'for folder in /proc/[0-9]*; do tr "\\0" "\\n" <"$folder/environ" 2>/dev/null | grep "^$1="; done; exit 0'
_ENVIRONMENT = {**ENVIRONMENT, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
CALL_SECONDS = 60.0
OWNER_LABEL = "shoal.owner"
_HEADER_BYTES = 8


class DockerSandbox(MountedPaths):
    """A `Sandbox` that runs commands in containers started from `image`. `container` names a running container to use
    instead.
    """

    name = "docker"
    isolated = True

    def __init__(
        self,
        daemon: Path,
        limits: CommandLimits | None = None,
        network: Network = "off",
        image: str = "",
        container: str = "",
        ports: Sequence[int] = WEB_PORTS,
    ) -> None:
        self._api = DockerApi(daemon)
        self._limits = limits or CommandLimits()
        self._network: Network = network
        self._image = image
        self._container = container
        self._ports = ports
        self._proxy: HostProxy | None = None
        self._idle: list[tuple[tuple[Mount, ...], str]] = []
        self._shell = ""
        self._is_swept = False

    async def run(self, command: Command) -> CommandResult:
        if not self._image and not self._container:
            raise SandboxError(
                "Docker needs an image. Set sandbox.image, or set sandbox.container to use a running container."
            )
        if self._container and isinstance(self._network, tuple):
            raise SandboxError(
                "The container in sandbox.container has its own network. Set sandbox.network to on, or set "
                "sandbox.image instead of sandbox.container."
            )
        if "\0" in command.text:
            raise SandboxError("The command contains a NUL character.")
        if not command.cwd.is_dir():
            raise SandboxError(f"The working directory {command.cwd} does not exist.")
        cwd = require_inside(command.cwd, command.mounts)
        if not self._is_swept:
            # Remove the containers of dead servers. In the operator's container, kill the commands of dead servers.
            if self._container:
                listed = await self._output_of(self._container, _LIST, MARK)
                for mark in filter(is_orphaned, {line.removeprefix(f"{MARK}=") for line in listed.splitlines()}):
                    await self._kill_marked(mark)
            else:
                for owned, owner in await self._api.owned():
                    host, _, process = owner.partition(" ")
                    if host == socket.gethostname() and not is_alive(process):
                        await self._api.remove(owned)
            self._is_swept = True
        container = self._container
        if not container and self._network != "off" and self._proxy is None:
            # The user in the container may differ, so all users may connect. The folder's name is random.
            self._proxy = HostProxy(self._network, self._ports)
            Path(self._proxy.folder).chmod(0o711)
            await self._proxy.__aenter__()
            Path(self._proxy.folder, "socket").chmod(0o666)
        if not container:
            idle = next((container for container in self._idle if container[0] == command.mounts), None)
            if idle is not None:
                self._idle.remove(idle)
            container = idle[1] if idle is not None else await self._api.create(self.container_spec(command.mounts))
        mark = f"{new_mark()}/{secrets.token_hex(8)}."
        output = ExecOutput(0 if command.watch else command.output_bytes_max, mark, command.watch, command.see)
        is_clean = False
        try:
            if not self._shell:
                shell = (await self._output_of(container, _SHELL)).strip()
                if not shell.startswith("/"):
                    raise SandboxError(
                        f"The Docker image {self._image} has no shell. It needs /bin/sh, and preferably bash."
                    )
                if self._proxy and not (await self._output_of(container, _PYTHON)).strip():
                    raise SandboxError(
                        f"The Docker image {self._image} has no python3, which the sandbox's network needs. Use an "
                        "image with python3, or set sandbox.network to off."
                    )
                self._shell = shell
            environment = {**_ENVIRONMENT, **dict(command.env), MARK: mark}
            text = command.text
            if self._proxy:
                environment |= self._proxy.environment
                text = "exec " + shlex.join(("python3", *FORWARD, self._shell, "-c", text))
            words = (self._shell, "-c", _WRAPPER, "sh", self._shell, text, mark)
            process = await self._api.prepare(container, words, environment, cwd)
            if command.watch is not None:
                command.watch.started(0)
            try:
                async with asyncio.timeout(command.timeout_seconds):
                    await self._read(process, output)
            except TimeoutError:
                return output.result(None, timed_out=True)
            code = output.code if output.code is not None else await self._api.exit_code(process)
            is_clean = output.is_closed and (bool(self._container) or output.processes == _OWN_PROCESSES)
            return output.result(code)
        finally:

            async def give_back() -> None:
                if is_clean and not self._container:
                    self._idle.append((command.mounts, container))
                    if len(self._idle) > IDLE_MAX:
                        await self._api.remove(self._idle.pop(0)[1])
                elif not is_clean:
                    await (self._kill_marked(mark) if self._container else self._api.remove(container))

            await to_the_end(asyncio.gather(give_back()))

    def container_spec(self, mounts: tuple[Mount, ...]) -> dict[str, object]:
        limits = self._limits
        binds: list[dict[str, object]] = []
        for mount in mounts:
            if mount.host.is_dir():
                bind = {"Type": "bind", "Source": str(mount.host), "Target": mount.inside}
                binds.append({**bind, "ReadOnly": not mount.writable})
            elif mount.writable:
                raise SandboxError(f"The directory {mount.host}, mounted at {mount.inside}, does not exist.")
        if self._proxy:
            shown = ((str(FORWARDER), "forward.py"), (self._proxy.folder, "proxy"))
            for host, name in shown:
                target = f"{INSIDE_FOLDER}/{name}"
                binds.append({"Type": "bind", "Source": host, "Target": target, "ReadOnly": True})
        # Commands run as the owner of the workspace, which must not be root.
        folder = next((mount.host for mount in mounts if mount.writable), None)
        owner = os.stat(folder) if folder else None
        if owner is not None and owner.st_uid == 0:
            raise SandboxError(
                f"{folder} belongs to root, and Docker would run commands as root. Run Shoal as another user, "
                "or change the owner of the agents' workspaces: chown -R 1000:1000."
            )
        ulimits = {
            "core": 0,
            "fsize": limits.file_bytes_max or -1,
            "nofile": limits.open_files_max or 65_536,
            "cpu": limits.cpu_seconds_max or -1,
        }
        temporary = f"rw,nosuid,nodev,mode=1777,size={limits.temporary_bytes_max or GIBIBYTE}"
        return {
            "Image": self._image,
            "Cmd": _INIT,
            "Entrypoint": (),
            "User": f"{owner.st_uid}:{owner.st_gid}" if owner is not None else "65534:65534",
            "Hostname": "sandbox",
            "Labels": {OWNER_LABEL: f"{socket.gethostname()} {identity_of(os.getpid())}"},
            "NetworkDisabled": True,
            "HostConfig": {
                "Mounts": binds,
                "Tmpfs": {"/tmp": temporary},
                "NetworkMode": "none",
                "Memory": limits.memory_bytes_max,
                "MemorySwap": limits.memory_bytes_max,
                "PidsLimit": limits.processes_max,
                "ShmSize": limits.temporary_bytes_max,
                "Ulimits": [{"Name": name, "Soft": limit, "Hard": limit} for name, limit in ulimits.items()],
                "ReadonlyRootfs": True,
                "CapDrop": ("ALL",),
                "SecurityOpt": ("no-new-privileges",),
                "AutoRemove": True,
            },
        }

    async def _output_of(self, container: str, script: str, *words: str) -> str:
        output = ExecOutput(MARKS_BYTES_MAX, "")
        await self._read(await self._api.prepare(container, ("/bin/sh", "-c", script, "sh", *words)), output)
        return output.result(0).stdout.decode(errors="replace")

    async def _read(self, process: str, output: ExecOutput) -> None:
        """Read until all processes have closed the output, or until LINGER_SECONDS pass without output after the shell
        has ended.
        """
        async with self._api.start(process) as pieces, aclosing(pieces):
            while True:
                try:
                    async with asyncio.timeout(LINGER_SECONDS if output.code is not None else None):
                        output.take(*await anext(pieces))
                except StopAsyncIteration:
                    output.is_closed = True
                    return
                except TimeoutError:
                    return

    async def _kill_marked(self, mark: str) -> None:
        for _ in range(_KILLS):
            async with asyncio.timeout(KILL_SECONDS):
                await self._output_of(self._container, _KILL, f"{MARK}={mark}")

    async def close(self) -> None:
        while self._idle:
            _, container = self._idle.pop()
            await self._api.remove(container)
        if self._proxy:
            await self._proxy.__aexit__()
        await self._api.close()


# ---- the Engine API ----


class _Answer(msgspec.Struct, rename="pascal"):
    id: str = ""
    exit_code: int | None = None
    names: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    message: str = msgspec.field(name="message", default="")


class DockerApi:
    """A client of one daemon. Every call raises SandboxError if the daemon is down or returns an error."""

    def __init__(self, daemon: Path) -> None:
        self._socket = daemon
        self._client: httpx2.AsyncClient | None = None

    async def create(self, spec: dict[str, object]) -> str:
        """Create and start a container, and return its name. If that fails or is cancelled, the container is
        removed.
        """
        name = f"shoal-{secrets.token_hex(8)}"
        try:
            await self._call("POST", f"/containers/create?name={name}", spec)
            await self._call("POST", f"/containers/{name}/start")
        except BaseException:
            await self.remove(name)
            raise
        return name

    async def remove(self, container: str) -> None:
        await self._call("DELETE", f"/containers/{container}?force=true&v=true", missing_ok=True)

    async def owned(self) -> list[tuple[str, str]]:
        answer = await self._call("GET", f'/containers/json?all=true&filters={{"label":["{OWNER_LABEL}"]}}')
        listed = msgspec.json.decode(answer, type=list[_Answer])
        return [(container.names[0].removeprefix("/"), container.labels[OWNER_LABEL]) for container in listed]

    async def prepare(
        self, container: str, words: Sequence[str], environment: Mapping[str, str] | None = None, cwd: str = "/"
    ) -> str:
        settings = [f"{name}={value}" for name, value in (environment or {}).items()]
        spec = {"Cmd": words, "Env": settings, "WorkingDir": cwd, "AttachStdout": True, "AttachStderr": True}
        return msgspec.json.decode(await self._call("POST", f"/containers/{container}/exec", spec), type=_Answer).id

    async def exit_code(self, process: str) -> int | None:
        return msgspec.json.decode(await self._call("GET", f"/exec/{process}/json"), type=_Answer).exit_code

    @asynccontextmanager
    async def start(self, process: str) -> AsyncGenerator["AsyncGenerator[tuple[int, bytes]]"]:
        """Start a process and yield its output in pieces, until the output is closed.

        Each piece has the number of its stream, 1 (stdout) or 2 (stderr).
        """
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
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _call(
        self, method: str, path: str, body: Mapping[str, object] | None = None, *, missing_ok: bool = False
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
            f"The Docker daemon at {self._socket} does not respond: {network_reason(error)}. Start Docker, or "
            "choose another sandbox."
        )


def _refused(status: int, content: bytes) -> SandboxError:
    try:
        message = msgspec.json.decode(content, type=_Answer).message
    except UNREADABLE:
        message = content.decode(errors="replace")[:200]
    return SandboxError(f"Docker returned status {status}: {message}")


async def _frames(response: "httpx2.Response") -> AsyncGenerator[tuple[int, bytes]]:
    """Yield the pieces of an attached stream. Each piece has a header of 8 bytes: the stream, three zeros and the
    length.
    """
    held = bytearray()
    async for chunk in response.aiter_raw():
        held += chunk
        while len(held) >= _HEADER_BYTES:
            end = _HEADER_BYTES + int.from_bytes(held[4:_HEADER_BYTES], "big")
            if len(held) < end:
                break
            yield held[0], bytes(held[_HEADER_BYTES:end])
            del held[:end]
