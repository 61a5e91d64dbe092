"""Sets Shoal up: each answer is tried, then written, then in force, without a restart where Shoal runs.

What is wrong is said in one sentence and changes nothing: neither the file, nor the secrets, nor what runs.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

import anyio
import msgspec

from shoal.agents.registry import AgentRegistry
from shoal.backend import Backend
from shoal.config import Config
from shoal.config.defaults import DEMO
from shoal.config.secrets import learned_from, watch_secrets
from shoal.kernel.clock import Clock
from shoal.kernel.errors import Conflict, InvalidInput, NotFound
from shoal.kernel.home import Home
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.secret import Secret
from shoal.kernel.settings import McpServerSettings
from shoal.permissions.profiles import Profiles
from shoal.permissions.redact import Redactor
from shoal.sandbox.choose import server_enclosure
from shoal.services import Services
from shoal.setup.changes import Changes, Entered
from shoal.setup.chats import Account, ChatChoice, ChatSetup
from shoal.setup.models import ModelChoice, ModelSetup
from shoal.setup.writing import without_table, write_section
from shoal.text.order import natural
from shoal.text.toml_edit import Value
from shoal.tools.mcp.connection import McpServers, McpState
from shoal.tools.mcp.pins import Pins
from shoal.tools.registry import Registry
from shoal.turn.compaction import ThreadTitles

CONNECT_SECONDS = 5.0
"""How long an answer waits for a server, which was tried before, to be connected."""

SecretName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", max_length=100, description="a name of letters, digits, - and _"
    ),
]
ServerName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=64, description="a name of small letters, digits, - and _"
    ),
]


Titles: TypeAlias = Literal["auto", "words", "model"]


class SetupState(msgspec.Struct, frozen=True):
    """How far setting up has come: the model that answers, the ways to have another, and the chats. `titles`: what
    titles new threads."""

    model: str
    is_demo: bool
    models: tuple[ModelChoice, ...]
    chats: tuple[ChatChoice, ...]
    accounts: tuple[Account, ...]
    titles: Titles


class NewMcpServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An MCP server: a `command` with its `args`, or a `url`. `env` and `headers` hold secrets."""

    name: ServerName
    command: Entered = ""
    args: tuple[Entered, ...] = ()
    url: Entered = ""
    env: dict[SecretName, Entered] = {}
    headers: dict[SecretName, Entered] = {}


class McpServerState(msgspec.Struct, frozen=True):
    """A configured MCP server, and how it is. `where` is its program or the host of its address. Only the owner is
    shown `args`, or the rest of the address, and the names in `env` and `headers` (`secrets`), without secret values.
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
    """Tools of it that no model can be told of, each with the reason."""


class LiveSetup:
    """What is set up, and all but models and chats of it. `by` is always a person, PLATFORM:USER, for the audit log."""

    def __init__(self, services: Services) -> None:
        self._changes = services[Changes]
        self._model_setup = services[ModelSetup]
        self._chat_setup = services[ChatSetup]
        self._home = services[Home]
        self._config = services[LiveConfig]
        self._clock = services[Clock]
        self._backend = services[Backend]
        self._agents = services[AgentRegistry]
        self._mcp = services[McpServers]
        self._pins = services[Pins]
        self._profiles = services[Profiles]
        self._titles = services[ThreadTitles]
        self._redactor = services[Redactor]

    @classmethod
    def of(cls, services: Services) -> "LiveSetup":
        """Make it of the services of one Shoal."""
        return cls(services)

    def state(self) -> SetupState:
        """What is set up."""
        model = self._agents.defaults.model
        return SetupState(
            model,
            model == DEMO,
            self._model_setup.choices(),
            self._chat_setup.choices(),
            self._chat_setup.accounts(),
            self._config.current.threads.titles,
        )

    def mcp(self, *, for_owner: bool = True) -> tuple[McpServerState, ...]:
        """Every configured MCP server, and how it is; arguments are the owner's alone, and masked."""
        states = {one.server.name: one.state for one in self._mcp.connections}
        found = list[McpServerState]()
        for name, server in sorted(self._config.current.mcp.items(), key=lambda one: natural(one[0])):
            state = states.get(name, McpState(name))
            status = state.status if name in states else "off"
            where, args = shown_server(server.url, server.command, server.args)
            secrets = (*server.env, *server.headers)
            told = (status, state.tools, self._redactor.redact(state.why), state.waiting)
            private = (tuple(map(self._redactor.redact, args)), secrets) if for_owner else ((), ())
            left_out = tuple(map(self._redactor.redact, state.left_out))
            found.append(McpServerState(name, where, *private, server.enabled, *told, left_out))
        return tuple(found)

    # ---- MCP servers ----

    async def put_mcp(self, wanted: NewMcpServer, by: str) -> McpServerState:
        """Add an MCP server, once it has answered. Raises InvalidInput with the reason why it does not, Conflict."""
        name = wanted.name
        async with self._changes.changing(f"MCP server {name}", by):
            if name in self._config.current.mcp:
                raise Conflict(f"There is an MCP server {name} already. Remove it first, or take another name.")
            table = f"mcp.{name}"
            values: dict[str, Value] = {f"{table}.url": wanted.url, f"{table}.command": wanted.command}
            values[f"{table}.args"] = wanted.args
            values = {key: value for key, value in values.items() if value}
            if bool(wanted.url) == bool(wanted.command):
                raise InvalidInput("Give a command or an address, one of both.")
            secrets = {f"{table}.env.{key}": value for key, value in wanted.env.items()}
            secrets |= {f"{table}.headers.{key}": value for key, value in wanted.headers.items()}
            for key, value in (*wanted.env.items(), *wanted.headers.items()):
                learned_from(key, Secret("value", value), self._redactor.learn)(value)
            state = await self._probe(name, self._changes.loaded({**values, **secrets}).mcp[name])
            if state.status != "up":
                raise InvalidInput(f"The server does not answer. {state.why}".strip())
            await self._apply_mcp(await self._changes.write(values, secrets), name)
        return next(one for one in self.mcp() if one.name == name)

    async def switch_mcp(self, name: str, enabled: bool, by: str) -> McpServerState:
        """Connect a configured MCP server, or end its connection. Raises NotFound, InvalidInput."""
        async with self._changes.changing(f"{'on' if enabled else 'off'} MCP server {name}", by):
            self._known_mcp(name)
            await self._end_mcp(name)
            await self._apply_mcp(await self._changes.write({f"mcp.{name}.enabled": enabled}, {}), name)
        return next(one for one in self.mcp() if one.name == name)

    async def remove_mcp(self, name: str, by: str) -> None:
        """Take an MCP server out of the configuration. Raises NotFound, InvalidInput."""
        async with self._changes.changing(f"remove MCP server {name}", by):
            self._known_mcp(name)
            await asyncio.to_thread(without_table, self._home, ("mcp", name))
            await self._end_mcp(name)
            for secret in self._home.secrets.glob(f"mcp.{name}.*"):
                secret.unlink()
            await self._apply_mcp(self._changes.loaded({}), name)

    def _known_mcp(self, name: str) -> None:
        if name not in self._config.current.mcp:
            raise NotFound(f"There is no MCP server {name[:80]!r} in the configuration.")

    async def _end_mcp(self, name: str) -> None:
        await self._backend.end(f"mcp {name}")
        self._mcp.drop(name)

    async def _apply_mcp(self, config: Config, name: str) -> None:
        self._config.current = msgspec.structs.replace(self._config.current, mcp=config.mcp)
        self._pins.know(config.mcp)
        watch_secrets(self._config.current, self._redactor.learn)
        if name in config.mcp and config.mcp[name].enabled:
            connection = self._mcp.add(name, config.mcp[name])
            self._backend.begin(f"mcp {name}", connection.run)
            with anyio.move_on_after(CONNECT_SECONDS):
                await connection.settled.wait()

    # ---- permission rules ----

    async def change_rules(self, what: str, edit: Callable[[str], str], by: str) -> None:
        """Have shoal.toml as `edit` makes its text, and its rules in force from the next turns on.

        Raises InvalidInput with the reason why that cannot be, and what `edit` raises, and changes nothing then.
        """
        async with self._changes.changing(what, by):
            fresh = (await asyncio.to_thread(write_section, self._home, "permissions", edit)).permissions
            self._profiles.replace(fresh.profiles, fresh.overrides)
            permissions = msgspec.structs.replace(
                self._config.current.permissions, profiles=fresh.profiles, overrides=fresh.overrides
            )
            self._config.current = msgspec.structs.replace(self._config.current, permissions=permissions)

    async def set_titles(self, titles: Titles, by: str) -> None:
        """Have a model title new threads from now on, their first words, or what is cheap. Raises InvalidInput."""
        async with self._changes.changing(f"titles {titles}", by):
            config = await self._changes.write({"threads.titles": titles}, {})
            self._config.current = msgspec.structs.replace(self._config.current, threads=config.threads)
            self._titles.mode = titles

    async def change_section(
        self,
        what: str,
        section: str,
        values: Mapping[str, Value],
        by: str,
        try_out: Callable[[Config], Awaitable[None]],
    ) -> None:
        """Write live keys of one section of shoal.toml, after `try_out` has accepted the new configuration.

        Raises InvalidInput with the reason why that cannot be, and changes nothing then; and StoreError.
        """
        async with self._changes.changing(what, by):
            await try_out(self._changes.loaded(values))
            config = await self._changes.write(values, {})
            changed = {section: getattr(config, section)}
            self._config.current = msgspec.structs.replace(self._config.current, **changed)

    async def _probe(self, name: str, server: McpServerSettings) -> McpState:
        """How a server is when it is connected once, beside what runs."""
        trial = McpServers({}, self._home, Registry(), self._clock, server_enclosure(self._config.current.sandbox))
        connection, found = trial.add(name, server), list[McpState]()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.run)
            await connection.settled.wait()
            found.append(connection.state)
            tasks.cancel_scope.cancel()
        return found[0]


_SECRET_NAME = re.compile(r"(?i)(key|token|secret|pass|pwd|auth|cred|bearer)")
_SECRET_LOOK = re.compile(r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_+=.-]{20,}")
_MASK = "•••"


def shown_server(url: str, command: str, args: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """What an MCP server is, and its arguments or the rest of its address, without what may be a secret: what follows a
    name like `--token`, and what looks like a key."""
    if url:
        address = urlsplit(url)
        path = "/".join(_MASK if _SECRET_LOOK.fullmatch(one) else one for one in address.path.split("/"))
        rest = f"{'' if path == '/' else path}{f'?{_MASK}' if address.query else ''}"
        return f"{address.scheme}://{address.netloc.rpartition('@')[2]}", (rest,) if rest else ()
    shown, is_secret = list[str](), False
    for one in args:
        name, equals, _ = one.partition("=")
        if equals and _SECRET_NAME.search(name):
            shown.append(f"{name}={_MASK}")
        else:
            shown.append(_MASK if is_secret or _SECRET_LOOK.fullmatch(one) else one)
        is_secret = one.startswith("-") and not equals and bool(_SECRET_NAME.search(name))
    return command, tuple(shown)
