"""Invalid input in files, calls and commands: error messages are Shoal's own, not those of a library."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shoal_import import hermes, nanobot, openclaw
from tests.e2e.test_http_app import site

from shoal.agents.folder import KEYS, AgentFile, read_agent, read_shared, set_key
from shoal.config import load_config
from shoal.features.evals.cases import Case, parse_case
from shoal.features.triggers.event_files import EventFiles
from shoal.features.triggers.store import TriggerStore
from shoal.kernel.clock import Clock
from shoal.kernel.errors import ShoalError
from shoal.kernel.home import Home
from shoal.kernel.settings import Config
from shoal.testing.model import FakeModel
from shoal.testing.scenario import scenario
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.prompt_files import PromptFiles
from shoal.turn.skills import SkillProblem, parse_skill

RAW = re.compile(
    r"Expected `|Object (contains|missing)|Invalid (enum|value|datetime|base64|UUID)|JSON is malformed|truncated"
    r"|codec can't|msgspec|ValidationError|Traceback|\$\.\w|Expecting |line \d+ column \d+"
)
"""Error texts of JSON, TOML and UTF-8 decoders, and their way to name a location."""

NAMES = sorted({*AgentFile.__struct_fields__, *Config.__struct_fields__, *Case.__struct_fields__, "name", "colour"})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab:"\n\\]', max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
    max_leaves=4,
)
TABLES = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3)
TORN = st.sampled_from(["", "{", "[", "=", "a = ", "a = [", "[a", "a 1", '{"a" 1}', "\0", "---", "--- \nname: [", "'"])


def as_toml(table: Mapping[str, object]) -> str:
    return "".join(f"{key} = {_toml(value)}\n" for key, value in table.items() if value is not None)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items() if one is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(one) for one in value if one is not None) + "]"
    return json.dumps(value)


TEXTS = TABLES.map(as_toml) | TABLES.map(json.dumps) | TORN


def _write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder


def _skill(text: str, folder: Path) -> str:
    found = parse_skill(_write(folder, "SKILL.md", text) / "SKILL.md", text, "global")
    return found.text if isinstance(found, SkillProblem) else ""


def _home(folder: Path, text: str) -> Home:
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data/settings.json").write_text(text)
    return Home(folder)


def _set(text: str, folder: Path) -> None:
    for key in KEYS:
        set_key(folder, key, text)


ENTRANCES: dict[str, Callable[[str, Path], object]] = {
    "shoal.toml": lambda text, folder: load_config(_write(folder, "shoal.toml", text), {}),
    "agent.toml": lambda text, folder: read_agent(_write(folder, "agent.toml", text)),
    "settings.json": lambda text, folder: read_shared(_home(folder, text)),
    "agent config": _set,
    "a case": lambda text, _: parse_case(text, "a.toml"),
    "a skill": _skill,
    "OpenClaw's home": lambda text, folder: _report(openclaw.read(_write(folder, "openclaw.json", text))),
    "nanobot's home": lambda text, folder: _report(nanobot.read(_write(folder, "config.json", text))),
    "Hermes' home": lambda text, folder: _report(hermes.read(_write(folder, "config.yaml", text))),
}


def _report(found: openclaw.Found) -> str:
    return "\n".join(f"{one.what}: {one.why}" for one in found.left)


@pytest.mark.parametrize("name", ENTRANCES)
def test_errors_in_files_are_in_plain_words(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    @given(TEXTS)
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def holds(text: str) -> None:
        try:
            said = ENTRANCES[name](text, tmp_path_factory.mktemp("bad"))
        except ShoalError as error:
            said = str(error)
        assert not RAW.search(said if isinstance(said, str) else ""), said

    holds()


CALLS = [
    ("/api/memory", "PUT"), ("/api/brief", "POST"), ("/api/triggers", "POST"), ("/api/agents", "POST"),
    ("/api/threads/web:lobby:one/messages", "POST"), ("/api/threads/web:lobby:one/fork", "POST"),
    ("/api/cases", "POST"), ("/v1/chat/completions", "POST"), ("/v1/responses", "POST"), ("/api/tokens", "POST"),
]  # fmt: skip
BODIES = (
    "",
    "{",
    "[]",
    "5",
    '"x"',
    '{"text": 5}',
    '{"colour": 1}',
    '{"at": null}',
    '{"scope": "x", "text": []}',
    "\x00",
)
COMMANDS = (
    "/agent config temperature hot", "/agent config budget.usd_per_day much", "/agent config tools [", "/agent create",
    "/agent config taint 5", "/remind never x", "/context restore 9", "/memory amend a", "/settings model",
    "/voice loud",
)  # fmt: skip


async def test_errors_in_calls_and_commands_are_in_plain_words(tmp_path: Path) -> None:
    async with site(tmp_path, FakeModel(*["Aye."] * 50)) as found:
        for path, method in CALLS:
            for body in BODIES:
                answer = await found.client.request(method, path, content=body.encode())
                assert answer.status_code < 500, (path, body, answer.text)
                assert not RAW.search(answer.text), (path, body, answer.text)
        for command in COMMANDS:
            said = await found.world.ada.asks(command)
            assert said, command
            assert not RAW.search(said), (command, said)


async def test_errors_in_event_files_are_in_plain_words(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel()) as world:
        app = world.app
        events = EventFiles(
            app[Home].events,
            app[TriggerStore],
            app[Orchestrator],
            app[Clock],
            lambda: None,
            app[PromptFiles].source_of,
        )
        folder = app[Home].events
        for name in ("done", "failed"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for number, body in enumerate((*BODIES, '{"type": "often", "text": "x"}', '{"type": "immediate", "text": 5}')):
            (folder / f"{number}.json").write_text(body)
        await events.scan()
        reasons = {path.name: path.read_text() for path in (folder / "failed").glob("*.reason.txt")}
        assert len(reasons) == len(BODIES) + 2
        assert [said for said in reasons.values() if RAW.search(said)] == []
