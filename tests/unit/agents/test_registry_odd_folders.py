"""Agent folders with unexpected files. Each problem is reported to the operator and never blocks or crashes Shoal."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.agents.folder import digest_of, read_agent, read_shared
from shoal.agents.registry import AgentDefaults, AgentRegistry
from shoal.kernel.errors import InvalidInput
from shoal.kernel.home import Home

ODD: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link in a circle": lambda path: path.symlink_to(path.name),
    "a link to a name too long": lambda path: path.symlink_to("n" * 300),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\xe9"),
    "nested without end": lambda path: path.write_bytes(b"a=" + b"[" * 60_000),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["agents/main/agent.toml", "data/settings.json"])
@pytest.mark.timeout(60)
def test_unreadable_settings_are_reported(tmp_path: Path, name: str, odd: str) -> None:
    home, file = Home(tmp_path), tmp_path / name
    home.agent("main").mkdir(parents=True)
    home.data.mkdir()
    ODD[odd](file)
    with pytest.raises(InvalidInput, match=file.name):
        read_agent(home.agent("main"), read_shared(home))
    with pytest.raises(InvalidInput, match=file.name):
        AgentRegistry(home, AgentDefaults()).spec("main")
    assert isinstance(digest_of(home.agent("main")), str)


@pytest.mark.parametrize("odd", ["a pipe", "a link in a circle", "no text"])
@pytest.mark.parametrize("name", ["agents/main/workspace", "agents/main", "agents"])
def test_an_agent_without_a_usable_workspace_is_reported(tmp_path: Path, name: str, odd: str) -> None:
    place = tmp_path / name
    place.parent.mkdir(parents=True, exist_ok=True)
    ODD[odd](place)
    registry = AgentRegistry(Home(tmp_path), AgentDefaults())
    assert registry.names() == ["main"]
    with pytest.raises(InvalidInput, match="Shoal cannot use"):
        registry.spec("main")
