"""Sets up a Shoal that runs: each answer is tried, then written, then in force, without a restart.

What is wrong is said in one sentence and changes nothing: neither the file, nor the secrets, nor what runs.
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

import anyio
import msgspec

from shoal.accounts import every_account
from shoal.agents.registry import AgentRegistry
from shoal.backend import Backend
from shoal.config import Config, load_config
from shoal.config.defaults import DEMO, KNOWN_PROVIDERS
from shoal.config.load import is_live
from shoal.config.secrets import learned_from, watch_secrets
from shoal.connections import Connections
from shoal.installation import how_to_add
from shoal.kernel.clock import Clock
from shoal.kernel.errors import (
    ConfigError,
    Conflict,
    InvalidInput,
    NotFound,
    PlatformError,
    ProviderError,
    ShoalError,
    ToolError,
)
from shoal.kernel.home import Home
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.ports import Models
from shoal.kernel.records import AuditEntry
from shoal.kernel.secret import Secret
from shoal.kernel.settings import McpServerSettings, Price
from shoal.kernel.settings_platforms import AccountSettings
from shoal.maintenance import missing_model
from shoal.models.catalog import Catalog
from shoal.notices import Notices
from shoal.permissions.profiles import Profiles
from shoal.permissions.redact import Redactor
from shoal.sandbox.choose import server_enclosure
from shoal.services import Services
from shoal.setup import trying
from shoal.setup.choices import CHATS, KEYS, MODELS, OWN_SERVER, PACKAGES, QUESTIONS, bot_of, mistaken
from shoal.setup.writing import without_table, write_section, write_with_secrets
from shoal.store.store import Store
from shoal.text.order import natural
from shoal.text.toml_edit import Value
from shoal.threads.access_gate import Pairing
from shoal.tools.mcp.connection import McpServers, McpState
from shoal.tools.mcp.pins import Pins
from shoal.tools.registry import Registry
from shoal.turn.compaction import ThreadTitles

CHAIN = "setup"
"""The audit chain of what was set up while Shoal ran."""
CONNECT_SECONDS = 5.0
"""How long an answer waits for an account or server, which was tried before, to be connected."""

AccountState = Literal["connected", "connecting", "failing", "off"]
Entered = Annotated[str, msgspec.Meta(max_length=4000)]
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


class ModelChoice(msgspec.Struct, frozen=True):
    """A way to have a model. `wants`: what is asked for; `is_set`: there is a table of it; `has_key`: with a key, which
    is never shown; `address` is where it is, or would be."""

    name: str
    title: str
    wants: tuple[Literal["key", "address", "model_file"], ...]
    is_set: bool
    has_key: bool
    address: str
    usual_model: str


class Field(msgspec.Struct, frozen=True):
    """What a platform's account needs. `is_set` tells of a secret that there is one; `value` is empty for those."""

    name: str
    question: str
    secret: bool
    is_set: bool
    value: str


class ChatChoice(msgspec.Struct, frozen=True):
    """A platform that can be set up, and what has to be `installed` first, as a command; empty where nothing."""

    name: str
    title: str
    fields: tuple[Field, ...]
    install: str


class Account(msgspec.Struct, frozen=True):
    """An account on a platform; `name` is the first part of its threads' ids. `failure` is what went wrong last."""

    name: str
    platform: str
    title: str
    state: AccountState
    failure: str
    owner: str
    agent: str


class SetupState(msgspec.Struct, frozen=True):
    """How far setting up has come: the model that answers, the ways to have another, and the chats. `titles`: what
    titles new threads."""

    model: str
    is_demo: bool
    models: tuple[ModelChoice, ...]
    chats: tuple[ChatChoice, ...]
    accounts: tuple[Account, ...]
    titles: Titles


class ProviderEntered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was entered of a provider; an empty `key` is the one that is there already. `price` is in US dollars a
    million tokens, for all or by kind; null leaves the one that is there."""

    key: Entered = ""
    address: Entered = ""
    model_file: Entered = ""
    price: Price | None = None


class OfferedModels(msgspec.Struct, frozen=True):
    """The models that a provider has, and the one that is taken where nobody chooses."""

    models: tuple[str, ...]
    usual: str


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
    """One change at a time. `by` is always a person, PLATFORM:USER, for the audit log."""

    def __init__(self, services: Services) -> None:
        self._home = services[Home]
        self._config = services[LiveConfig]
        self._clock = services[Clock]
        self._store = services[Store]
        self._backend = services[Backend]
        self._models = services[Models]
        self._agents = services[AgentRegistry]
        self._connections = services[Connections]
        self._pairing = services[Pairing]
        self._mcp = services[McpServers]
        self._pins = services[Pins]
        self._profiles = services[Profiles]
        self._titles = services[ThreadTitles]
        self._notices = services[Notices]
        self._redactor = services[Redactor]
        self._lock = asyncio.Lock()

    # ---- how things stand ----

    def state(self) -> SetupState:
        """What is set up."""
        model = self._agents.defaults.model
        return SetupState(
            model,
            model == DEMO,
            tuple(self._model_choice(name, title) for name, title in MODELS.items() if name != DEMO),
            tuple(self._chat_choice(name) for name in QUESTIONS),
            self.accounts(),
            self._config.current.threads.titles,
        )

    def accounts(self) -> tuple[Account, ...]:
        """Every configured account on a platform, and how it is."""
        found: list[Account] = []
        for platform, name, account in every_account(self._config.current):
            adapter = self._connections.adapters.get(name)
            state: AccountState = "off"
            failure = ""
            if account.enabled and adapter is not None:
                connected: asyncio.Event | None = getattr(adapter, "connected", None)
                failure = getattr(adapter, "failure", "")
                is_up = connected is None or connected.is_set()
                state = "failing" if failure else "connected" if is_up else "connecting"
            title = CHATS.get(platform, platform.capitalize())
            found.append(Account(name, platform, title, state, failure, account.owner, account.agent))
        return tuple(found)

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

    def _model_choice(self, name: str, title: str) -> ModelChoice:
        known = KNOWN_PROVIDERS.get(name)
        row = self._config.current.providers.get(_table(name))
        wants: tuple[Literal["key", "address", "model_file"], ...]
        wants = ("model_file",) if name == "local" else ("key",) if name in KEYS else ("address",)
        wants = ("address", "key") if name == "server" else wants
        address = row.base_url if row is not None else known.base_url if known is not None else ""
        has_key = row is not None and bool(row.api_key)
        return ModelChoice(name, title, wants, row is not None, has_key, address, known.model if known else "")

    def _chat_choice(self, platform: str) -> ChatChoice:
        accounts = self._config.current.platforms.of(platform)
        account = accounts[0] if accounts else None
        fields: list[Field] = []
        for name, question, kind in QUESTIONS[platform]:
            value = getattr(account, name) if account is not None else ""
            fields.append(Field(name, question, bool(kind), bool(value), "" if kind or not value else str(value)))
        return ChatChoice(platform, CHATS[platform], tuple(fields), _missing(platform))

    # ---- a model ----

    async def offer(self, name: str, entered: ProviderEntered) -> OfferedModels:
        """What a provider has, if it takes the key; nothing is changed. Raises InvalidInput with the reason."""
        values, secrets = self._provider(name, entered)
        with self._in_a_sentence():
            models = await trying.offered(self._loaded({**values, **secrets}), _table(name))
        usual = KNOWN_PROVIDERS[name].model if name in KNOWN_PROVIDERS else ""
        if not models and not usual:
            raise InvalidInput(f"{_table(name)} has no model yet. Load one there, then try again.")
        return OfferedModels(tuple(models), usual if usual in models or not models else models[0])

    async def use_model(self, name: str, entered: ProviderEntered, model: str, by: str) -> str:
        """Have a model answer from the next turn on, once it has said something; returns that.

        Raises InvalidInput with the reason why it cannot, and changes nothing then.
        """
        table = _table(name)
        chosen = f"{table}/{model.removeprefix(f'{table}/')}"
        async with self._changing(f"model {chosen}", by):
            values, secrets = self._provider(name, entered)
            values["model.name"] = chosen
            said = await trying.answer_of(self._loaded({**values, **secrets}), chosen)
            config = await self._write(values, secrets)
            before = missing_model(self._models, self._agents.defaults.model)
            self._config.current = msgspec.structs.replace(
                self._config.current, providers=config.providers, model=config.model
            )
            if isinstance(self._models, Catalog):
                self._models.replace(table, config.providers[table])
                await self._models.refresh()
            self._agents.answer_with(chosen)
            self._notices.notes = [note for note in self._notices.notes if note != before]
            return said

    def _provider(self, name: str, entered: ProviderEntered) -> tuple[dict[str, Value], dict[str, str]]:
        """What the file would say, and the secrets it would name. Raises InvalidInput."""
        if name not in MODELS or name == DEMO:
            raise InvalidInput(f"There is no provider {name[:80]!r} to set up. There are: {', '.join(MODELS)}.")
        table, known = f"providers.{_table(name)}", KNOWN_PROVIDERS.get(name)
        row = self._config.current.providers.get(_table(name))
        values, secrets = dict[str, Value](), dict[str, str]()
        if install := _missing(name):
            raise InvalidInput(f"That needs the extra `{name}`. {install}, then restart Shoal.")
        if name == "local":
            file = Path(entered.model_file or (row.model_file if row is not None else "")).expanduser()
            if not file.is_absolute() or not _is_gguf(file):
                raise InvalidInput(f"{str(file)[:300]!r} is no GGUF file on Shoal's machine; give its whole path.")
            values[f"{table}.model_file"] = str(file)
        elif name not in KEYS:
            before = row.base_url if row is not None else known.base_url if known is not None else ""
            address = (entered.address or before).rstrip("/")
            if row is not None and row.api_key and address != row.base_url.rstrip("/") and not entered.key:
                raise InvalidInput("For another address, give the key again: the one that is there is not sent to it.")
            values[f"{table}.base_url"] = address
            if name == "server":
                values[f"{table}.kind"] = "openai"
        if entered.price is not None:
            values[f"{table}.price"] = {**entered.price} if isinstance(entered.price, dict) else entered.price
        if entered.key:
            self._redactor.learn(entered.key)
            if problem := mistaken(entered.key, KEYS[name]) if name in KEYS else "":
                raise InvalidInput(problem)
            secrets[f"{table}.api_key"] = entered.key
        elif name in KEYS and (row is None or not row.api_key):
            raise InvalidInput("The key is missing.")
        return values, secrets

    # ---- a chat ----

    async def try_chat(self, platform: str, given: Mapping[str, str]) -> None:
        """See whether a platform takes what was entered; nothing is changed. Raises InvalidInput with the reason."""
        values, secrets = self._chat(platform, given)
        with self._in_a_sentence():
            await trying.try_account(self._loaded({**values, **secrets}), platform)

    async def connect_chat(self, platform: str, given: Mapping[str, str], by: str) -> Account:
        """Connect a platform's account, once it has taken what was entered. Raises InvalidInput with the reason."""
        async with self._changing(f"connect {platform}", by):
            values, secrets = self._chat(platform, given)
            await trying.try_account(self._loaded({**values, **secrets}), platform)
            await self._reconnect(await self._write(values, secrets), platform)
        return next(one for one in self.accounts() if one.platform == platform)

    async def own_chat(self, platform: str, code: str, by: str) -> Account:
        """Make whoever was shown this pairing code the owner there. Raises NotFound for a code that nobody has."""
        async with self._changing(f"owner of {platform}", by):
            if platform not in self._connections.adapters:
                raise NotFound(f"{platform[:80]} is not connected.")
            try:
                _, user = await self._pairing.confirm(code, [platform], by)
            except NotFound as error:
                raise NotFound("No such code waits, or it has expired. Write to your bot once more.") from error
            config = await self._write({f"platforms.{platform}.owner": user}, {})
            await self._pairing.remove(platform, user, by)  # the owner needs no pairing
            self._connections.settle(self._with_platforms(config))
        return next(one for one in self.accounts() if one.name == platform)

    async def switch_chat(self, platform: str, enabled: bool, by: str) -> Account:
        """Connect a configured account again, or end its connection. Raises NotFound, InvalidInput."""
        async with self._changing(f"{'on' if enabled else 'off'} {platform}", by):
            if not any(one.name == platform for one in self.accounts()):
                raise NotFound(f"There is no account {platform[:80]!r} in the configuration.")
            await self._reconnect(await self._write({f"platforms.{platform}.enabled": enabled}, {}), platform)
        return next(one for one in self.accounts() if one.name == platform)

    def _chat(self, platform: str, given: Mapping[str, str]) -> tuple[dict[str, Value], dict[str, str]]:
        """What the file would say, and the secrets it would name. Raises InvalidInput."""
        if platform not in QUESTIONS:
            raise InvalidInput(f"There is no platform {platform[:80]!r} to set up. There are: {', '.join(QUESTIONS)}.")
        if install := _missing(platform):
            raise InvalidInput(f"That needs the extra `{platform}`. {install}, then restart Shoal.")
        accounts: tuple[AccountSettings, ...] = self._config.current.platforms.of(platform)
        account, table = accounts[0] if accounts else None, f"platforms.{platform}"
        values, secrets = dict[str, Value](), dict[str, str]()
        if account is not None and not account.enabled:
            values[f"{table}.enabled"] = True
        for name, question, kind in QUESTIONS[platform]:
            value, before = given.get(name, "").strip(), getattr(account, name) if account is not None else ""
            if not value and not before and name != "subscription":
                raise InvalidInput(f"{question.partition(',')[0].partition(' (')[0]} is missing.")
            if not value:
                continue
            if not kind:
                values[f"{table}.{name}"] = value
                continue
            self._redactor.learn(value)
            if problem := mistaken(value, kind):
                raise InvalidInput(problem)
            if before and bot_of(before.reveal()) not in ("", bot_of(value)):
                raise InvalidInput(
                    "That is the token of another bot. The people and threads here belong to the present one; a second "
                    f"bot is a table of its own, [{table}.NAME]."
                )
            secrets[f"{table}.{name}"] = value
        return values, secrets

    async def _reconnect(self, config: Config, name: str) -> None:
        """Have an account as it is configured now: connected, or not there."""
        if name in self._connections.adapters:
            await self._connections.remove(name)
        config = self._with_platforms(config)
        watch_secrets(config, self._redactor.learn)
        account = next(one for _, there, one in every_account(config) if there == name)
        if account.enabled:
            adapter = trying.adapter_of(config, name, self._store.settings)
            self._connections.add(adapter)
            self._connections.settle(config)
            with anyio.move_on_after(CONNECT_SECONDS):
                await adapter.connected.wait()
        self._connections.settle(config)

    def _with_platforms(self, config: Config) -> Config:
        return msgspec.structs.replace(self._config.current, platforms=config.platforms)

    # ---- MCP servers ----

    async def put_mcp(self, wanted: NewMcpServer, by: str) -> McpServerState:
        """Add an MCP server, once it has answered. Raises InvalidInput with the reason why it does not, Conflict."""
        name = wanted.name
        async with self._changing(f"MCP server {name}", by):
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
            state = await self._probe(name, self._loaded({**values, **secrets}).mcp[name])
            if state.status != "up":
                raise InvalidInput(f"The server does not answer. {state.why}".strip())
            await self._apply_mcp(await self._write(values, secrets), name)
        return next(one for one in self.mcp() if one.name == name)

    async def switch_mcp(self, name: str, enabled: bool, by: str) -> McpServerState:
        """Connect a configured MCP server, or end its connection. Raises NotFound, InvalidInput."""
        async with self._changing(f"{'on' if enabled else 'off'} MCP server {name}", by):
            self._known_mcp(name)
            await self._end_mcp(name)
            await self._apply_mcp(await self._write({f"mcp.{name}.enabled": enabled}, {}), name)
        return next(one for one in self.mcp() if one.name == name)

    async def remove_mcp(self, name: str, by: str) -> None:
        """Take an MCP server out of the configuration. Raises NotFound, InvalidInput."""
        async with self._changing(f"remove MCP server {name}", by):
            self._known_mcp(name)
            await asyncio.to_thread(without_table, self._home, ("mcp", name))
            await self._end_mcp(name)
            for secret in self._home.secrets.glob(f"mcp.{name}.*"):
                secret.unlink()
            await self._apply_mcp(self._loaded({}), name)

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
        async with self._changing(what, by):
            fresh = (await asyncio.to_thread(write_section, self._home, "permissions", edit)).permissions
            self._profiles.replace(fresh.profiles, fresh.overrides)
            permissions = msgspec.structs.replace(
                self._config.current.permissions, profiles=fresh.profiles, overrides=fresh.overrides
            )
            self._config.current = msgspec.structs.replace(self._config.current, permissions=permissions)

    async def set_titles(self, titles: Titles, by: str) -> None:
        """Have a model title new threads from now on, their first words, or what is cheap. Raises InvalidInput."""
        async with self._changing(f"titles {titles}", by):
            config = await self._write({"threads.titles": titles}, {})
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
        async with self._changing(what, by):
            await try_out(self._loaded(values))
            config = await self._write(values, {})
            changed = {section: getattr(config, section)}
            self._config.current = msgspec.structs.replace(self._config.current, **changed)

    async def set_price(self, model: str, input_usd: float, output_usd: float, by: str) -> None:
        """Count so many US dollars a million tokens for a model from its next call on. Raises InvalidInput."""
        name, _, at_provider = model.partition("/")
        row = self._config.current.providers.get(name)
        if row is None or not at_provider:
            known = ", ".join(sorted(self._config.current.providers)) or "none yet"
            raise InvalidInput(
                f"{model[:80]!r} names no provider that is set up. Write PROVIDER/MODEL; there are: {known}."
            )
        async with self._changing(f"price of {model}", by):
            prices: dict[str, Value] = {
                one: {**price} if isinstance(price, dict) else price for one, price in row.prices.items()
            }
            prices[at_provider] = {"input": input_usd, "output": output_usd}
            config = await self._write({f"providers.{name}.prices": prices}, {})
            self._config.current = msgspec.structs.replace(self._config.current, providers=config.providers)
            if isinstance(self._models, Catalog):
                self._models.replace(name, config.providers[name])
                await self._models.refresh()

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

    # ---- trying and writing ----

    @asynccontextmanager
    async def _changing(self, what: str, by: str) -> AsyncGenerator[None]:
        """One change, whose failure is one sentence; audited once it is done."""
        if not self._backend.recovers:
            raise Conflict(
                "Several processes may run on this PostgreSQL, each with its own shoal.toml. Change those, and "
                "restart them."
            )
        async with self._lock:
            with self._in_a_sentence():
                yield
            await self._store.audit.record(CHAIN, [AuditEntry("setup", what, "done", user=by)])

    @contextmanager
    def _in_a_sentence(self) -> Generator[None]:
        """What went wrong in the block becomes an answer to the person, without secrets."""
        try:
            yield
        except OSError as error:
            raise InvalidInput(f"It could not be written: {error.strerror}.") from error
        except ShoalError as error:
            if type(error) is ShoalError or isinstance(error, PlatformError | ConfigError | ProviderError | ToolError):
                raise InvalidInput(self._redactor.redact(trying.plain(error))) from error
            raise

    def _loaded(self, values: Mapping[str, Value]) -> Config:
        """The configuration as it is, or would be with these values. Raises ConfigError."""
        return load_config(self._home.root, os.environ, values)

    async def _write(self, values: Mapping[str, Value], secrets: Mapping[str, str]) -> Config:
        later = [key for key in (*values, *secrets) if not is_live(tuple(key.split(".")))]
        assert not later, f"{', '.join(later)} would take effect at the next start only"
        await asyncio.to_thread(write_with_secrets, self._home, values, secrets)
        return self._loaded({})


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


def _table(name: str) -> str:
    """What the provider is called that a choice leads to."""
    return OWN_SERVER if name == "server" else name


def _missing(choice: str) -> str:
    """How to install what a choice needs; empty where it is there."""
    package = PACKAGES.get(choice, "")
    return how_to_add(choice) if package and find_spec(package) is None else ""


def _is_gguf(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(4) == b"GGUF"
    except OSError:
        return False
