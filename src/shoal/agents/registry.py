"""Who answers: agents as directories under `agents/`, each with an `agent.toml`, read again when it changes."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.agents.folder import FILE, NAME, AgentFile, read_agent
from shoal.agents.places import Places
from shoal.domain.agents import AgentBudget, AgentSpec
from shoal.domain.errors import InvalidInput
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId


class AgentDefaults(msgspec.Struct, frozen=True):
    """What an agent has that says nothing itself."""

    agent: str = "main"
    model: str = "demo"
    profile: str = "standard"
    fallback: tuple[str, ...] = ()
    max_output_tokens: int = 4096
    temperature: float | None = None


class _Read(NamedTuple):
    path: Path
    stamp: tuple[int, int]
    file: AgentFile
    spec: AgentSpec


class Agents:
    """Finds agents by name; implements `actors.parts.AgentSource`. Without `places`, no channel is bound."""

    def __init__(self, home: Home, defaults: AgentDefaults, places: Places | None = None) -> None:
        self._home = home
        self.places = places
        self._read: dict[str, _Read] = {}
        self.defaults = defaults

    def names(self) -> list[str]:
        """Every agent that has a directory, the default one always among them."""
        folder = self._home.root / "agents"
        found = {entry.name for entry in folder.iterdir() if entry.is_dir()} if folder.is_dir() else set[str]()
        return sorted({name for name in found if NAME.fullmatch(name)} | {self.defaults.agent})

    def exists(self, name: str) -> bool:
        """Whether there is such an agent."""
        return name == self.defaults.agent or bool(NAME.fullmatch(name) and self._home.agent(name).is_dir())

    async def meant(self, thread: ThreadId, name: str) -> str:
        """Whom a message is for that names this agent, or none. Raises StoreError."""
        return name if self.places is None else await self.places.agent_for(thread, name)

    async def resolve(self, name: str, thread: ThreadId) -> AgentSpec:
        """The named agent, or the one that the thread's channel is bound to, or the default one, with what was chosen
        for the channel. Raises InvalidInput for a broken file, StoreError."""
        name = name or await self.meant(thread, "")
        kept = self._ready(name if name and self.exists(name) else self.defaults.agent)
        if self.places is None:
            return kept.spec
        wide, narrow = await self.places.chosen(thread)
        model = narrow.model or (kept.spec.model if kept.file.model else wide.model or kept.spec.model)
        profile = narrow.profile or (kept.spec.profile if kept.file.profile else wide.profile or kept.spec.profile)
        if (model, profile) == (kept.spec.model, kept.spec.profile):
            return kept.spec
        return msgspec.structs.replace(kept.spec, model=model, profile=profile)

    def with_model(self, agent: AgentSpec, model: str) -> AgentSpec:
        """The agent with another model for one turn; the same object when nothing differs."""
        return agent if not model or model == agent.model else msgspec.structs.replace(agent, model=model)

    def spec(self, name: str) -> AgentSpec:
        """The agent as its file is now; the same object while it does not change. Raises InvalidInput."""
        return self._ready(name).spec

    def budget(self, name: str) -> AgentBudget:
        """An agent's own ceilings; none for one that is gone or broken."""
        try:
            return self._current(name).spec.budget if self.exists(name) else AgentBudget()
        except InvalidInput:
            return AgentBudget()

    def _ready(self, name: str) -> _Read:
        """As its file is now, with a directory to work in."""
        found = self._current(name)
        if not found.spec.workspace.is_dir():
            found.spec.workspace.mkdir(parents=True, exist_ok=True)
        return found

    def _current(self, name: str) -> _Read:
        kept = self._read.get(name)
        path = kept.path if kept is not None else self._home.agent(name) / FILE
        stamp = _stamp(path)
        if kept is None or kept.stamp != stamp:
            file = read_agent(path.parent)
            kept = _Read(path, stamp, file, self._build(name, path.parent, file))
            self._read[name] = kept
        return kept

    def _build(self, name: str, home: Path, file: AgentFile) -> AgentSpec:
        defaults = self.defaults
        return AgentSpec(
            name=name,
            home=home,
            workspace=home / "workspace",
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
        )


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)
