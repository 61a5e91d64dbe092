"""Agent registry, channel bindings, and the choices for channels, servers and accounts.

Agents are directories under `agents/`, each with an `agent.toml` that is read again when it changes.

Bindings and choices are cached, so a message usually needs no query. Changes in this process take effect
immediately. Changes by other machines take effect within SECONDS.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from shoal.agents.folder import FILE, NAME, SHARED, AgentFile, read_agent, read_shared
from shoal.kernel.agents import UNBOUND, AgentBudget, AgentSpec, Binding, Listen
from shoal.kernel.clock import Clock
from shoal.kernel.errors import InvalidInput
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, thread_address
from shoal.kernel.phrases import counted
from shoal.kernel.regular_files import ensure_folder, unusable
from shoal.kernel.settings import Config
from shoal.kernel.untrusted import UNREADABLE
from shoal.kernel.zones import zone_named
from shoal.store.agents import AgentStore
from shoal.text.order import natural

log = logging.getLogger(__name__)

SECONDS = 2.0


class ChannelChoices(msgspec.Struct, frozen=True, omit_defaults=True):
    """Model and profile chosen for a channel, server or account. Empty means no choice."""

    model: str = ""
    profile: str = ""


NO_CHOICES = ChannelChoices()
_choices = msgspec.json.Decoder(ChannelChoices)


class ChannelBindings:
    """Channel bindings, and the choices for channels, servers and accounts.

    `accounts` maps each account to the agent that its configuration names.
    """

    def __init__(self, registry: AgentStore, clock: Clock, accounts: Mapping[str, str]) -> None:
        self._registry = registry
        self._clock = clock
        self.accounts = accounts
        self._bound: dict[str, Binding] = {}
        self._chosen: dict[str, ChannelChoices] = {}
        self._read_at: float | None = None
        self._changes = 0

    async def agent_for(self, thread: ThreadId, asked: str) -> str:
        """Return the agent that answers a message addressed to `asked`, or an empty string for the default agent.

        If `asked` is the account's agent or empty, the channel's binding overrides it. Any other agent in `asked` takes
        precedence. Raises StoreError.
        """
        account = self.accounts.get(thread_address(thread).platform, "")
        if asked and asked != account:
            return asked
        await self._fresh()
        bound = self._bound.get(place_of(thread))
        return bound.agent if bound is not None else account

    async def listens(self, thread: ThreadId) -> Listen:
        await self._fresh()
        bound = self._bound.get(place_of(thread))
        return bound.listen if bound is not None else UNBOUND

    async def chosen(self, thread: ThreadId) -> tuple[ChannelChoices, ChannelChoices]:
        """Return the choices for the thread's server and account, and the choices for its channel.

        A server's choices override those of its account. Raises StoreError.
        """
        await self._fresh()
        platform = thread_address(thread).platform
        wide = self._chosen.get(platform, NO_CHOICES)
        if any(place.startswith(f"{platform}@") for place in self._chosen):
            server = self._chosen.get(await self.widest(thread), NO_CHOICES)
            wide = ChannelChoices(server.model or wide.model, server.profile or wide.profile)
        return wide, self._chosen.get(place_of(thread), NO_CHOICES)

    async def chosen_for(self, place: str) -> ChannelChoices:
        await self._fresh()
        return self._chosen.get(place, NO_CHOICES)

    async def widest(self, thread: ThreadId) -> str:
        """Return PLATFORM@SERVER for the thread's channel, or PLATFORM if it has no server.

        Raises StoreError.
        """
        address = thread_address(thread)
        server = await self._registry.server_of(address.platform, address.channel)
        return f"{address.platform}@{server}" if server else address.platform

    async def choose(self, place: str, choices: ChannelChoices) -> None:
        """Set the choices for PLATFORM, PLATFORM@SERVER or PLATFORM:CHANNEL. Raises StoreError."""
        await self._registry.choose(place, "" if choices == NO_CHOICES else msgspec.json.encode(choices).decode())
        self.changed()

    async def bind(self, binding: Binding) -> None:
        await self._registry.bind(binding)
        self.changed()

    async def unbind(self, thread: ThreadId) -> bool:
        """Remove the binding of the thread's channel. Returns False if the channel has no binding. Raises
        StoreError.
        """
        address = thread_address(thread)
        row = await self._registry.unbind(address.platform, address.channel)
        self.changed()
        return row

    def changed(self) -> None:
        """Invalidate the cache."""
        self._read_at = None
        self._changes += 1

    async def _fresh(self) -> None:
        now, changes = self._clock.monotonic(), self._changes
        if self._read_at is not None and now - self._read_at < SECONDS:
            return
        bound = {binding.place: binding for binding in await self._registry.bindings()}
        chosen: dict[str, ChannelChoices] = {}
        for place, value in (await self._registry.choices()).items():
            try:
                chosen[place] = _choices.decode(value)
            except UNREADABLE:
                log.warning("ignoring unreadable channel settings", extra={"place": place})
                chosen[place] = NO_CHOICES
        self._bound, self._chosen = bound, chosen
        self._read_at = now if changes == self._changes else None


def place_of(thread: ThreadId) -> str:
    """Return a thread's PLATFORM:CHANNEL."""
    address = thread_address(thread)
    return f"{address.platform}:{address.channel}"


class AgentDefaults(msgspec.Struct, frozen=True):
    """Settings for agents that do not set their own."""

    agent: str = "main"
    model: str = "demo"
    profile: str = "standard"
    fallback: tuple[str, ...] = ()
    max_output_tokens: int = 4096
    temperature: float | None = None
    timezone: str = "UTC"

    @classmethod
    def of(cls, config: Config, model: str) -> Self:
        return cls(
            agent=config.agents.default_agent,
            model=model,
            profile=config.permissions.default_profile,
            fallback=config.model.fallback,
            max_output_tokens=config.model.max_output_tokens,
            temperature=None if config.model.temperature == 1.0 else config.model.temperature,
            timezone=config.zone,
        )


class _LoadedAgent(NamedTuple):
    """A loaded agent. `file` contains its own settings, and `spec` the effective settings."""

    path: Path
    stamp: tuple[int, ...]
    file: AgentFile
    spec: AgentSpec


class AgentRegistry:
    """Loads agents by name. Without `bindings`, no channel is bound."""

    def __init__(self, home: Home, defaults: AgentDefaults, bindings: ChannelBindings | None = None) -> None:
        self._home = home
        self._shared = home.data / SHARED
        self.bindings = bindings
        self._read: dict[str, _LoadedAgent] = {}
        self.defaults = defaults

    def answer_with(self, model: str) -> None:
        """Set the model for agents that do not set their own. Takes effect on their next turns."""
        self.defaults = msgspec.structs.replace(self.defaults, model=model)
        self._read.clear()

    def names(self) -> list[str]:
        """Return the names of all agents with a directory, and of the default agent."""
        folder, names = self._home.root / "agents", set[str]()
        with suppress(OSError):
            names = {entry.name for entry in folder.iterdir() if entry.is_dir()}
        return sorted({name for name in names if NAME.fullmatch(name)} | {self.defaults.agent}, key=natural)

    def exists(self, name: str) -> bool:
        return name == self.defaults.agent or bool(NAME.fullmatch(name) and self._home.agent(name).is_dir())

    async def agent_name_for(self, thread: ThreadId, name: str) -> str:
        """Return the agent that answers a message addressed to `name` (see `ChannelBindings.agent_for`).

        Raises StoreError.
        """
        return name if self.bindings is None else await self.bindings.agent_for(thread, name)

    async def resolve(self, name: str, thread: ThreadId) -> AgentSpec:
        """Return the named agent, or the agent bound to the thread's channel, or the default agent.

        Applies the choices for the channel, server and account. Raises InvalidInput if the agent's file is broken,
        and StoreError.
        """
        name = name or await self.agent_name_for(thread, "")
        loaded = self._ready(name if name and self.exists(name) else self.defaults.agent)
        if self.bindings is None:
            return loaded.spec
        wide, narrow = await self.bindings.chosen(thread)
        model = narrow.model or (loaded.spec.model if loaded.file.model else wide.model or loaded.spec.model)
        profile = narrow.profile or (
            loaded.spec.profile if loaded.file.profile else wide.profile or loaded.spec.profile
        )
        if (model, profile) == (loaded.spec.model, loaded.spec.profile):
            return loaded.spec
        return msgspec.structs.replace(loaded.spec, model=model, profile=profile)

    async def zone_of(self, name: str, place: ThreadId | None) -> str:
        """Return the time zone of the named agent, or of the agent that answers in `place`.

        If the agent's file is broken, return the shared time zone. Raises StoreError.
        """
        if not name and place is not None:
            name = await self.agent_name_for(place, "")
        try:
            return self.spec(name if name and self.exists(name) else self.defaults.agent).timezone
        except InvalidInput:
            return self.defaults.timezone

    def spec(self, name: str) -> AgentSpec:
        """Load the agent from its current file. Returns the same object until the file changes.

        Raises InvalidInput if the file or the directory cannot be used.
        """
        return self._ready(name).spec

    def known(self, name: str) -> AgentSpec | None:
        """Return the agent, or None if it does not exist. Raises InvalidInput if its file is broken."""
        return self.spec(name) if self.exists(name) else None

    def default(self) -> AgentSpec | None:
        """Return the default agent, or None if its file is broken."""
        try:
            return self.spec(self.defaults.agent)
        except InvalidInput:
            return None

    def budget(self, name: str) -> AgentBudget:
        """Return an agent's own budget limits. A missing or broken agent has none."""
        try:
            return self._current(name).spec.budget if self.exists(name) else AgentBudget()
        except InvalidInput:
            return AgentBudget()

    def _ready(self, name: str) -> _LoadedAgent:
        loaded = self._current(name)
        ensure_folder(loaded.spec.workspace)
        return loaded

    def _current(self, name: str) -> _LoadedAgent:
        cached = self._read.get(name)
        path = cached.path if cached is not None else self._home.agent(name) / FILE
        stamp: tuple[int, ...] = ()
        for file in (path, self._shared):
            try:
                status = file.stat()
                stamp += (status.st_mtime_ns, status.st_size)
            except FileNotFoundError:
                stamp += (0, 0)
            except OSError as error:
                raise unusable(file, error) from error
        if cached is None or cached.stamp != stamp:
            own = read_agent(path.parent)
            file = read_agent(path.parent, read_shared(self._home))
            defaults = self.defaults
            spec = AgentSpec(
                name=name,
                home=path.parent,
                workspace=path.parent / "workspace",
                model=file.model or defaults.model,
                profile=file.profile or defaults.profile,
                system_prompt=file.system_prompt,
                tools=file.tools,
                fallback=defaults.fallback if file.fallback is None else file.fallback,
                max_output_tokens=file.max_output_tokens or defaults.max_output_tokens,
                temperature=defaults.temperature if file.temperature is None else file.temperature,
                restrict_to_workspace=file.restrict_to_workspace,
                taint=file.taint,
                idle_minutes=file.idle_minutes,
                budget=file.budget,
                timezone=zone_named(file.timezone).key if file.timezone else defaults.timezone,
            )
            cached = _LoadedAgent(path, stamp, own, spec)
            self._read[name] = cached
        return cached


class RuntimeInfo(msgspec.Struct, frozen=True):
    """A summary of a running Shoal. Contains no paths and no secrets."""

    agents: tuple[str, ...]
    tools: tuple[str, ...]
    skills: tuple[str, ...]
    model: str
    providers: tuple[str, ...]
    models: int
    """Number of known models."""
    platforms: tuple[str, ...]
    sandbox: str
    isolated: bool
    notes: tuple[str, ...]
    """Notes for the operator."""
    mcp: tuple[str, ...] = ()
    """State of each MCP server, one line per server."""
    asks: str = ""
    """Actions that need approval in the profile `standard`."""


def info_lines(info: RuntimeInfo) -> list[str]:
    sandbox = info.sandbox if info.isolated else f"{info.sandbox} (not isolated)"
    known = counted(info.models, "model")
    return [
        f"agents    {_counted(info.agents)}",
        f"tools     {_counted(info.tools)}",
        f"skills    {_counted(info.skills)}",
        f"model     {info.model}; providers: {', '.join(info.providers) or 'none set up'}; {known} known",
        f"platforms {_counted(info.platforms)}",
        f"sandbox   {sandbox}",
        *([f"asks      {info.asks}"] if info.asks else []),
        *(f"mcp       {server}" for server in info.mcp),
        *(f"note      {note}" for note in info.notes),
    ]


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)}: {', '.join(names)}" if names else "none"
