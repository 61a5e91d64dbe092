"""The number of approvals that `standard` requests on an ordinary day.

`tests/everyday_calls.txt` lists the commands and file calls. Each runs in its own conversation, and every approval
is denied.
"""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from tests.unit.permissions.test_effects_everyday import CALLS

from shoal.agents.registry import AgentRegistry
from shoal.permissions.access import AccessRules
from shoal.testing.model import Call, FakeModel, Reply, Seen, Step
from shoal.testing.scenario import World, scenario

pytestmark = pytest.mark.slow

ASKED_MAX = {"bubblewrap": 2, "host": 40}
BESIDE_PATH = {
    "read": {},
    "list": {},
    "write": {"content": "x\n"},
    "edit": {"old_string": "x", "new_string": "y"},
}
"""Arguments of the file tools other than the path."""


def call_of(line: str) -> Call | None:
    """Return the call for a line of the list. Returns None for tools that need more than a path."""
    if not line.startswith("tool:"):
        return Call("bash", json.dumps({"command": line}))
    _, name, detail = line.split(":", 2)
    return Call(name, json.dumps({"path": detail, **BESIDE_PATH[name]})) if name in BESIDE_PATH else None


LINES = {f"call {number}": call for number, line in enumerate(CALLS) if (call := call_of(line)) is not None}


def script(seen: Seen) -> Step | str:
    return "done" if seen.rounds else Reply(calls=(LINES[seen.user_text.splitlines()[0].removeprefix("[ada] ")],))


def project(folder: Path) -> None:
    (folder / "src").mkdir(parents=True, exist_ok=True)
    for name in ("README.md", "src/app.py", "data.csv", "old.txt", "new.txt", "run.sh", "server.log", "draft.md"):
        (folder / name).write_text("x\n")
    subprocess.run(["git", "init", "-q", folder], check=True)


async def is_asked(world: World, name: str) -> bool:
    """Return True if the call needs approval. Denies that approval."""
    ada = world.person("ada", name)
    await ada.says(name)
    kinds = ("approval_requested", "turn_finished")
    waiting = [asyncio.ensure_future(world.happens(ada.thread, kind)) for kind in kinds]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    waiting[0].cancel()
    asked = "approval_requested" in await world.types(ada.thread)
    if asked:
        await ada.decides((await ada.is_asked()).id, allow=False)
    await waiting[1]
    assert "tool_result" in await world.types(ada.thread)
    return asked


@pytest.mark.parametrize("sandbox", list(ASKED_MAX))
async def test_an_ordinary_day_needs_few_approvals(tmp_path: Path, sandbox: str) -> None:
    assert len(LINES) > 80
    settings = {"sandbox": {"kind": sandbox}}
    people = AccessRules(owners=("ada",))
    model = FakeModel(script=script)
    async with scenario(tmp_path, model, profile="standard", access=people, settings=settings, replays=False) as world:
        project(world.app[AgentRegistry].spec("main").workspace)
        asked = [name for name in LINES if await is_asked(world, name)]
        assert len(asked) <= ASKED_MAX[sandbox], [LINES[name].arguments for name in asked]
        if sandbox == "host":
            assert any("git push" in LINES[name].arguments for name in asked)
