"""Who answers where, and with what: the channels' bindings and what was chosen for channels, servers and accounts.

Both are read from the database again when they are SECONDS old, or were changed here; so that another machine's change
counts a moment later, and a message costs no query for them.

Who answers: agents as directories under `agents/`, each with an `agent.toml`, read again when it changes.

What is up, in one line each, as the start, `shoal doctor`, the page and the API tell it.
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
    """What was chosen for a place; an empty value is no choice."""

    model: str = ""
    profile: str = ""


NO_CHOICES = ChannelChoices()
_choices = msgspec.json.Decoder(ChannelChoices)


class ChannelBindings:
    """The bindings and choices of all places. `accounts` has the agent of each account that names one."""

    def __init__(self, registry: AgentStore, clock: Clock, accounts: Mapping[str, str]) -> None:
        self._registry = registry
        self._clock = clock
        self.accounts = accounts
        self._bound: dict[str, Binding] = {}
        self._chosen: dict[str, ChannelChoices] = {}
        self._read_at: float | None = None
        self._changes = 0

    async def agent_for(self, thread: ThreadId, asked: str) -> str:
        """Who is meant by a message for `asked`: that agent, unless it is merely its account's; then the one that the
        channel is bound to, else the account's; empty where the default one answers. Raises StoreError."""
        account = self.accounts.get(thread_address(thread).platform, "")
        if asked and asked != account:
            return asked
        await self._fresh()
        bound = self._bound.get(place_of(thread))
        return bound.agent if bound is not None else account

    async def listens(self, thread: ThreadId) -> Listen:
        """What is answered in the thread's channel. Raises StoreError."""
        await self._fresh()
        bound = self._bound.get(place_of(thread))
        return bound.listen if bound is not None else UNBOUND

    async def chosen(self, thread: ThreadId) -> tuple[ChannelChoices, ChannelChoices]:
        """What was chosen for the thread's server, else for its account, and for its channel. Raises StoreError."""
        await self._fresh()
        platform = thread_address(thread).platform
        wide = self._chosen.get(platform, NO_CHOICES)
        if any(place.startswith(f"{platform}@") for place in self._chosen):
            server = self._chosen.get(await self.widest(thread), NO_CHOICES)
            wide = ChannelChoices(server.model or wide.model, server.profile or wide.profile)
        return wide, self._chosen.get(place_of(thread), NO_CHOICES)

    async def chosen_for(self, place: str) -> ChannelChoices:
        """What was chosen for just this place. Raises StoreError."""
        await self._fresh()
        return self._chosen.get(place, NO_CHOICES)

    async def widest(self, thread: ThreadId) -> str:
        """The place around a thread's channel: PLATFORM@SERVER where it is in one, else PLATFORM. Raises StoreError."""
        address = thread_address(thread)
        server = await self._registry.server_of(address.platform, address.channel)
        return f"{address.platform}@{server}" if server else address.platform

    async def choose(self, place: str, choices: ChannelChoices) -> None:
        """Set what was chosen for PLATFORM, PLATFORM@SERVER or PLATFORM:CHANNEL. Raises StoreError."""
        await self._registry.choose(place, "" if choices == NO_CHOICES else msgspec.json.encode(choices).decode())
        self.changed()

    async def bind(self, binding: Binding) -> None:
        """Bind a channel. Raises StoreError."""
        await self._registry.bind(binding)
        self.changed()

    async def unbind(self, thread: ThreadId) -> bool:
        """Take the binding of the thread's channel away; False when there is none. Raises StoreError."""
        address = thread_address(thread)
        found = await self._registry.unbind(address.platform, address.channel)
        self.changed()
        return found

    def changed(self) -> None:
        """Read them again at the next question."""
        self._read_at = None
        self._changes += 1

    async def _fresh(self) -> None:
        now, changes = self._clock.monotonic(), self._changes
        if self._read_at is not None and now - self._read_at < SECONDS:
            return
        bound = {one.place: one for one in await self._registry.bindings()}
        chosen: dict[str, ChannelChoices] = {}
        for place, value in (await self._registry.choices()).items():
            try:
                chosen[place] = _choices.decode(value)
            except UNREADABLE:
                log.warning("what was chosen for a place cannot be read and does not count", extra={"place": place})
                chosen[place] = NO_CHOICES
        self._bound, self._chosen = bound, chosen
        self._read_at = now if changes == self._changes else None


def place_of(thread: ThreadId) -> str:
    """PLATFORM:CHANNEL of a thread."""
    address = thread_address(thread)
    return f"{address.platform}:{address.channel}"


class AgentDefaults(msgspec.Struct, frozen=True):
    """What an agent has that says nothing itself."""

    agent: str = "main"
    model: str = "demo"
    profile: str = "standard"
    fallback: tuple[str, ...] = ()
    max_output_tokens: int = 4096
    temperature: float | None = None
    timezone: str = "UTC"

    @classmethod
    def of(cls, config: Config, model: str) -> Self:
        """The defaults that a configuration gives."""
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
    """`file` is what the agent says itself; `spec` what it has."""

    path: Path
    stamp: tuple[int, ...]
    file: AgentFile
    spec: AgentSpec


class AgentRegistry:
    """Finds agents by name. Without `bindings`, no channel is bound."""

    def __init__(self, home: Home, defaults: AgentDefaults, bindings: ChannelBindings | None = None) -> None:
        self._home = home
        self._shared = home.data / SHARED
        self.bindings = bindings
        self._read: dict[str, _LoadedAgent] = {}
        self.defaults = defaults

    def answer_with(self, model: str) -> None:
        """Have agents that name no model answer with this one, from their next turns on."""
        self.defaults = msgspec.structs.replace(self.defaults, model=model)
        self._read.clear()

    def names(self) -> list[str]:
        """Every agent that has a directory, the default one always among them."""
        folder, found = self._home.root / "agents", set[str]()
        with suppress(OSError):
            found = {entry.name for entry in folder.iterdir() if entry.is_dir()}
        return sorted({name for name in found if NAME.fullmatch(name)} | {self.defaults.agent}, key=natural)

    def exists(self, name: str) -> bool:
        return name == self.defaults.agent or bool(NAME.fullmatch(name) and self._home.agent(name).is_dir())

    async def meant(self, thread: ThreadId, name: str) -> str:
        """Whom a message is for that names this agent, or none. Raises StoreError."""
        return name if self.bindings is None else await self.bindings.agent_for(thread, name)

    async def resolve(self, name: str, thread: ThreadId) -> AgentSpec:
        """The named agent, or the one that the thread's channel is bound to, or the default one, with what was chosen
        for the channel. Raises InvalidInput for a broken file, StoreError."""
        name = name or await self.meant(thread, "")
        kept = self._ready(name if name and self.exists(name) else self.defaults.agent)
        if self.bindings is None:
            return kept.spec
        wide, narrow = await self.bindings.chosen(thread)
        model = narrow.model or (kept.spec.model if kept.file.model else wide.model or kept.spec.model)
        profile = narrow.profile or (kept.spec.profile if kept.file.profile else wide.profile or kept.spec.profile)
        if (model, profile) == (kept.spec.model, kept.spec.profile):
            return kept.spec
        return msgspec.structs.replace(kept.spec, model=model, profile=profile)

    async def zone_of(self, name: str, place: ThreadId | None) -> str:
        """The time zone of the named agent, or of the one that answers in a place; the common one
        where its file is broken. Raises StoreError."""
        if not name and place is not None:
            name = await self.meant(place, "")
        try:
            return self.spec(name if name and self.exists(name) else self.defaults.agent).timezone
        except InvalidInput:
            return self.defaults.timezone

    def spec(self, name: str) -> AgentSpec:
        """The agent as its file is now; the same object while it does not change. Raises InvalidInput where
        that, or its directory, cannot be used."""
        return self._ready(name).spec

    def known(self, name: str) -> AgentSpec | None:
        """The same; None for one that there is not."""
        return self.spec(name) if self.exists(name) else None

    def default(self) -> AgentSpec | None:
        """The default agent; None where its file is broken."""
        try:
            return self.spec(self.defaults.agent)
        except InvalidInput:
            return None

    def budget(self, name: str) -> AgentBudget:
        """An agent's own ceilings; none for one that is gone or broken."""
        try:
            return self._current(name).spec.budget if self.exists(name) else AgentBudget()
        except InvalidInput:
            return AgentBudget()

    def _ready(self, name: str) -> _LoadedAgent:
        """As its file is now, with a directory to work in."""
        found = self._current(name)
        ensure_folder(found.spec.workspace)
        return found

    def _current(self, name: str) -> _LoadedAgent:
        kept = self._read.get(name)
        path = kept.path if kept is not None else self._home.agent(name) / FILE
        stamp: tuple[int, ...] = ()
        for file in (path, self._shared):
            try:
                found = file.stat()
                stamp += (found.st_mtime_ns, found.st_size)
            except FileNotFoundError:
                stamp += (0, 0)
            except OSError as error:
                raise unusable(file, error) from error
        if kept is None or kept.stamp != stamp:
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
            kept = _LoadedAgent(path, stamp, own, spec)
            self._read[name] = kept
        return kept


class RuntimeInfo(msgspec.Struct, frozen=True):
    """A running Shoal: names only, no paths and no secrets. `models` counts the known ones; `notes` are what the
    operator should know, `mcp` tells how each MCP server stands, `asks` what the profile `standard` asks about here."""

    agents: tuple[str, ...]
    tools: tuple[str, ...]
    skills: tuple[str, ...]
    model: str
    providers: tuple[str, ...]
    models: int
    platforms: tuple[str, ...]
    sandbox: str
    isolated: bool
    notes: tuple[str, ...]
    mcp: tuple[str, ...] = ()
    asks: str = ""


def info_lines(info: RuntimeInfo) -> list[str]:
    """The lines for a person."""
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
