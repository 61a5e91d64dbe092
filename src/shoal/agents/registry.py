"""Who answers: agents as directories under `agents/`, each with an `agent.toml`, read again when it changes."""

import tomllib
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.domain.agents import AgentSpec
from shoal.domain.errors import InvalidInput
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId

FILE_BYTES_MAX = 65_536


class AgentFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of `agent.toml`; what is left out is taken from the configuration."""

    model: str = ""
    profile: str = ""
    system_prompt: str = ""
    tools: tuple[str, ...] = ()
    fallback: tuple[str, ...] | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    restrict_to_workspace: bool = True
    taint: bool = True
    idle_minutes: float = 0.0


class AgentDefaults(msgspec.Struct, frozen=True):
    """What an agent has that says nothing itself."""

    agent: str = "main"
    model: str = "demo"
    profile: str = "standard"
    fallback: tuple[str, ...] = ()
    max_output_tokens: int = 4096
    temperature: float | None = None


class _Read(NamedTuple):
    stamp: tuple[int, int]
    spec: AgentSpec


class Agents:
    """Finds agents by name; implements `actors.parts.AgentSource`."""

    def __init__(self, home: Home, defaults: AgentDefaults) -> None:
        self._home = home
        self._defaults = defaults
        self._read: dict[str, _Read] = {}

    def names(self) -> list[str]:
        """Every agent that has a directory, the default one always among them."""
        folder = self._home.root / "agents"
        found = {entry.name for entry in folder.iterdir() if entry.is_dir()} if folder.is_dir() else set[str]()
        return sorted(found | {self._defaults.agent})

    def exists(self, name: str) -> bool:
        """Whether there is such an agent."""
        return name == self._defaults.agent or (name in self.names())

    async def resolve(self, name: str, thread: ThreadId) -> AgentSpec:
        """The named agent; the default one for no name or one that is gone. Raises InvalidInput for a broken file."""
        return self.spec(name if name and self.exists(name) else self._defaults.agent)

    def with_model(self, agent: AgentSpec, model: str) -> AgentSpec:
        """The agent with another model for one turn; the same object when nothing differs."""
        return agent if not model or model == agent.model else msgspec.structs.replace(agent, model=model)

    def spec(self, name: str) -> AgentSpec:
        """The agent as its file is now; the same object while it does not change. Raises InvalidInput."""
        home = self._home.agent(name)
        stamp = _stamp(home / "agent.toml")
        kept = self._read.get(name)
        if kept is None or kept.stamp != stamp:
            kept = _Read(stamp, self._build(name, home, _load(home / "agent.toml")))
            kept.spec.workspace.mkdir(parents=True, exist_ok=True)
            self._read[name] = kept
        return kept.spec

    def _build(self, name: str, home: Path, file: AgentFile) -> AgentSpec:
        defaults = self._defaults
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
        )


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def _load(path: Path) -> AgentFile:
    try:
        text = path.read_text("utf-8")[:FILE_BYTES_MAX]
        return msgspec.convert(tomllib.loads(text), AgentFile)
    except FileNotFoundError:
        return AgentFile()
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path.parent.name}/agent.toml: {error}. Correct the file; it counts at once.") from error
