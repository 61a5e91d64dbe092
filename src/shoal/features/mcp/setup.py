"""Add, enable, disable and remove MCP servers while Shoal runs. A new server is tested before it is saved."""

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import anyio
import msgspec

from shoal.backend import Backend
from shoal.config import Config
from shoal.config.secrets import learned_from, watch_secrets
from shoal.features.mcp.connection import McpState
from shoal.features.mcp.pins import Pins
from shoal.features.mcp.servers import McpServers
from shoal.features.mcp.settings import McpServerSettings, servers_of
from shoal.kernel.clock import Clock
from shoal.kernel.errors import Conflict, InvalidInput, NotFound
from shoal.kernel.home import Home
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.secret import Secret
from shoal.permissions.redact import Redactor
from shoal.sandbox.choose import server_enclosure
from shoal.setup.changes import Changes, Entered
from shoal.setup.writing import without_table
from shoal.text.order import natural
from shoal.text.toml_edit import Value
from shoal.tools.registry import Registry

if TYPE_CHECKING:
    from shoal.services import Services

CONNECT_SECONDS = 5.0
"""Maximum time to wait for the first connection attempt of a server that was added or enabled, in seconds."""

SecretName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", max_length=100, description="a name of letters, digits, - and _"
    ),
]
ServerName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=64, description="a name of lowercase letters, digits, - and _"
    ),
]


class NewMcpServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An MCP server to add. Set either `command` with its `args`, or `url`. `env` and `headers` are stored as
    secrets.
    """

    name: ServerName
    command: Entered = ""
    args: tuple[Entered, ...] = ()
    url: Entered = ""
    env: dict[SecretName, Entered] = {}
    headers: dict[SecretName, Entered] = {}


class McpServerState(msgspec.Struct, frozen=True):
    """A configured MCP server and its status. Never includes secret values.

    `where`: program, or scheme and host of the URL.
    `args`: arguments of the program, or the rest of the URL. Visible only to the owner.
    `secrets`: names in `env` and `headers`. Visible only to the owner.
    """

    name: str
    where: str
    args: tuple[str, ...]
    secrets: tuple[str, ...]
    enabled: bool
    status: Literal["off", "starting", "up", "lost", "down"]
    tools: tuple[str, ...]
    why: str
    waiting: int
    left_out: tuple[str, ...] = ()
    """Unusable tools, each with the reason."""


class McpSetup:
    """Service that manages the configured servers. The argument `by` identifies a person as PLATFORM:USER for the audit
    log.
    """

    def __init__(self, services: "Services") -> None:
        self._changes = services[Changes]
        self._home = services[Home]
        self._config = services[LiveConfig]
        self._clock = services[Clock]
        self._backend = services[Backend]
        self._servers = services[McpServers]
        self._pins = services[Pins]
        self._redactor = services[Redactor]

    @classmethod
    def of(cls, services: "Services") -> "McpSetup":
        return cls(services)

    def servers(self, *, for_owner: bool = True) -> tuple[McpServerState, ...]:
        """Return all configured servers. Arguments are included only for the owner, with likely secrets masked."""
        states = {connection.server.name: connection.state for connection in self._servers.connections}
        last_states = list[McpServerState]()
        for name, server in sorted(servers_of(self._config.current).items(), key=lambda item: natural(item[0])):
            state = states.get(name, McpState(name))
            status = state.status if name in states else "off"
            where, args = shown_server(server.url, server.command, server.args)
            secrets = (*server.env, *server.headers)
            status_parts = (status, state.tools, self._redactor.redact(state.why), state.waiting)
            private = (tuple(map(self._redactor.redact, args)), secrets) if for_owner else ((), ())
            left_out = tuple(map(self._redactor.redact, state.left_out))
            last_states.append(McpServerState(name, where, *private, server.enabled, *status_parts, left_out))
        return tuple(last_states)

    async def add(self, wanted: NewMcpServer, by: str) -> McpServerState:
        """Add an MCP server after a successful connection.

        Raises InvalidInput with the reason if the connection fails, and Conflict if the name is taken.
        """
        name = wanted.name
        async with self._changes.changing(f"MCP server {name}", by):
            if name in servers_of(self._config.current):
                raise Conflict(f"An MCP server named {name} already exists. Remove it first, or choose another name.")
            table = f"mcp.{name}"
            values: dict[str, Value] = {f"{table}.url": wanted.url, f"{table}.command": wanted.command}
            values[f"{table}.args"] = wanted.args
            values = {key: value for key, value in values.items() if value}
            if bool(wanted.url) == bool(wanted.command):
                raise InvalidInput("Specify either a command or a URL.")
            secrets = {f"{table}.env.{key}": value for key, value in wanted.env.items()}
            secrets |= {f"{table}.headers.{key}": value for key, value in wanted.headers.items()}
            for key, value in (*wanted.env.items(), *wanted.headers.items()):
                learned_from(key, Secret("value", value), self._redactor.learn)(value)
            state = await self._probe(name, servers_of(self._changes.loaded({**values, **secrets}))[name])
            if state.status != "up":
                raise InvalidInput(f"Shoal could not connect to the server. {state.why}".strip())
            await self._apply(await self._changes.write(values, secrets), name)
        return next(server for server in self.servers() if server.name == name)

    async def switch(self, name: str, enabled: bool, by: str) -> McpServerState:
        """Enable or disable a configured MCP server. Raises NotFound, InvalidInput."""
        async with self._changes.changing(f"{'on' if enabled else 'off'} MCP server {name}", by):
            self._check_known(name)
            await self._end(name)
            await self._apply(await self._changes.write({f"mcp.{name}.enabled": enabled}, {}), name)
        return next(server for server in self.servers() if server.name == name)

    async def remove(self, name: str, by: str) -> None:
        """Remove an MCP server and its secrets from the configuration. Raises NotFound, InvalidInput."""
        async with self._changes.changing(f"remove MCP server {name}", by):
            self._check_known(name)
            await asyncio.to_thread(without_table, self._home, ("mcp", name))
            await self._end(name)
            for secret in self._home.secrets.glob(f"mcp.{name}.*"):
                secret.unlink()
            await self._apply(self._changes.loaded({}), name)

    def _check_known(self, name: str) -> None:
        if name not in servers_of(self._config.current):
            raise NotFound(
                f"No MCP server named {name[:80]!r} is configured. Run `shoal mcp list` to see the servers and "
                "their tools."
            )

    async def _end(self, name: str) -> None:
        await self._backend.end(f"mcp {name}")
        self._servers.drop(name)

    async def _apply(self, config: Config, name: str) -> None:
        self._config.current = msgspec.structs.replace(self._config.current, mcp=servers_of(config))
        self._pins.know(servers_of(config))
        watch_secrets(self._config.current, self._redactor.learn)
        if name in servers_of(config) and servers_of(config)[name].enabled:
            connection = self._servers.add(name, servers_of(config)[name])
            self._backend.begin(f"mcp {name}", connection.run)
            with anyio.move_on_after(CONNECT_SECONDS):
                await connection.has_tried.wait()

    async def _probe(self, name: str, server: McpServerSettings) -> McpState:
        trial = McpServers({}, self._home, Registry(), self._clock, server_enclosure(self._config.current.sandbox))
        connection, states = trial.add(name, server), list[McpState]()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.run)
            await connection.has_tried.wait()
            states.append(connection.state)
            tasks.cancel_scope.cancel()
        return states[0]


_SECRET_NAME = re.compile(r"(?i)(key|token|secret|pass|pwd|auth|cred|bearer)")
_SECRET_LOOK = re.compile(r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_+=.-]{20,}")
_MASK = "•••"


def shown_server(url: str, command: str, args: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the program and its arguments, or the host and the rest of the URL, with likely secrets masked.

    A value is a likely secret if it follows a name such as `--token` or looks like a key.
    """
    if url:
        address = urlsplit(url)
        path = "/".join(_MASK if _SECRET_LOOK.fullmatch(part) else part for part in address.path.split("/"))
        rest = f"{'' if path == '/' else path}{f'?{_MASK}' if address.query else ''}"
        return f"{address.scheme}://{address.netloc.rpartition('@')[2]}", (rest,) if rest else ()
    shown, is_secret = list[str](), False
    for arg in args:
        name, equals, _ = arg.partition("=")
        if equals and _SECRET_NAME.search(name):
            shown.append(f"{name}={_MASK}")
        else:
            shown.append(_MASK if is_secret or _SECRET_LOOK.fullmatch(arg) else arg)
        is_secret = arg.startswith("-") and not equals and bool(_SECRET_NAME.search(name))
    return command, tuple(shown)
