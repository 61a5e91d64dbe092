"""A feature leaves no trace once its folder is deleted and its line is removed from the list of features."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import shoal

SOURCE = Path(shoal.__file__).parent
RUN = "from shoal.surfaces.cli.main import main; main()"
PROBE = """
import asyncio, json, sys
from pathlib import Path
from shoal.agents.registry import AgentRegistry
from shoal.app import open_app
from shoal.config import load_config
from shoal.kernel.ids import ThreadId
from shoal.kernel.live_config import LiveConfig
from shoal.surfaces.http.table import api
from shoal.threads.commands import CommandRouter
from shoal.tools.prompt_files import PromptFiles
from shoal.tools.registry import Registry
from shoal.turn.context import ContextBuilder

async def look() -> None:
    async with open_app(load_config(Path(sys.argv[1]), {}, {"sandbox.kind": "host"})) as app:
        agent, context = app[AgentRegistry].spec("main"), app[ContextBuilder]
        prompt = await context.instructions(ThreadId("web:lobby:1"), agent, context.tools_of(agent))
        print(json.dumps({
            "tools": app[Registry].names(),
            "commands": [spec.name for spec in app[CommandRouter].table],
            "routes": [endpoint.path for endpoint in api()],
            "sections": app[LiveConfig].current.__struct_fields__,
            "headings": [line for line in prompt.text.splitlines() if line.startswith("#")],
            "keeps": [*app[PromptFiles].keeps],
        }))

asyncio.run(look())
"""

RECORDING = """
import asyncio, json, sys
from pathlib import Path
from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.kernel.clock import Clock
from shoal.kernel.events import UserSaid
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Attachment, Author, Prompt
from shoal.store.store import Store
from shoal.testing.model.speech import recording
from shoal.threads.attachments import Attachments
from shoal.threads.orchestrator import Orchestrator

async def look() -> None:
    finished, home = asyncio.Event(), Path(sys.argv[1])
    thread, note = ThreadId("web:lobby:one"), home / "note.ogg"
    note.write_bytes(recording("What is the tide?"))

    async def completed(thread: str, turn: str, reply: str) -> None:
        finished.set()

    overrides = Overrides(on_complete=completed)
    async with open_app(load_config(home, {}, {"sandbox.kind": "host"}), overrides) as app:
        files = (Attachment("note.ogg", "audio/ogg", note.stat().st_size, path=str(note)),)
        author = Author("owner", trusted=True)
        await app[Orchestrator].send(Prompt(thread, "1", "", author, app[Clock].now(), attachments=files))
        await finished.wait()
        (said,) = [one.data for one in await app[Store].journal.events(thread) if isinstance(one.data, UserSaid)]
        (file,) = said.attachments
        print(json.dumps({
            "text": said.text,
            "words": file.words,
            "is_kept": Path(file.path).read_bytes() == note.read_bytes(),
            "is_heard": app[Attachments].transcribe is not None,
        }))

asyncio.run(look())
"""

IMPORT = """
import json, sys
from pathlib import Path
from shoal.importing import Found, FoundAgent, bring_into
from shoal.importing.found import FoundSchedule
from shoal.surfaces.cli.context import CommandContext

diary = Found("diary", Path(sys.argv[1]), title="Diary")
diary.add_agent(FoundAgent("diary", files={"SOUL.md": "You keep a diary."}, memory=["Ada likes tea"]), "diary")
diary.schedules.append(FoundSchedule("water", "periodic", "0 8 * * *", "Water the plants."))
print(json.dumps([[line.became, line.what] for line in bring_into(CommandContext(Path(sys.argv[1])), diary)]))
"""


class Parts(NamedTuple):
    """The name of a feature and some of the parts that it adds."""

    name: str
    tools: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    cli: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    headings: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()


MEMORY = Parts(
    "memory",
    ("remember", "note_today"),
    ("memory",),
    ("/api/memory",),
    ("memory",),
    headings=("# Memory",),
    keeps=("memory", "note"),
)
OPENAI_API = Parts("openai_api", routes=("/v1/",))
PUSH = Parts("push", routes=("/api/push",))
PROCESSES = Parts("processes", ("process_start", "process_list"), routes=("/api/processes",), cli=("processes",))
TELEMETRY = Parts("telemetry", sections=("telemetry",))
EVALS = Parts(
    "evals",
    routes=("/api/comparisons", "/api/agents/{name}/cases", "/api/agents/{name}/check", "/api/threads/{thread}/replay"),
    cli=("replay", "compare", "cases", "check"),
)
RECALL = Parts("recall", ("recall", "search_history"), sections=("recall",))
MCP = Parts("mcp", commands=("mcp",), routes=("/api/mcp",), cli=("mcp",), sections=("mcp",))
UNDO = Parts(
    "undo",
    commands=("undo",),
    routes=("/api/threads/{thread}/turns/{turn}/changes", "/api/threads/{thread}/turns/{turn}/undo"),
)
TRIGGERS = Parts(
    "triggers",
    ("remind", "schedule"),
    ("remind",),
    ("/api/triggers", "/api/brief", "/hooks"),
    ("triggers", "brief"),
    ("triggers",),
)
SELF_EDIT = Parts("self_edit", ("set_model", "write_doc", "my_settings"), keeps=("document", "settings"))
SNAPSHOTS = Parts("snapshots", routes=("/api/threads/{thread}/snapshots", "/api/threads/{thread}/new"))
SUBAGENTS = Parts("subagents", ("subagent", "spawn", "ask_agent"), sections=("subagents",))
VOICE = Parts("voice", commands=("voice",), routes=("/api/threads/{thread}/turns/{turn}/speech",), sections=("speech",))
BACKUPS = Parts("backups", routes=("/api/backups",), cli=("backup", "restore"), sections=("backup",))


class Without:
    """A copy of Shoal's source without one feature, and a home directory."""

    def __init__(self, folder: Path, name: str) -> None:
        self.home = folder / "home"
        package = folder / "src/shoal"
        shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.rmtree(package / "features" / name)
        listing = package / "feature.py"
        text = listing.read_text(encoding="utf-8")
        shortened = re.sub(rf'^ *"{name}",\n', "", text, flags=re.MULTILINE)
        assert shortened != text, "the feature has its own line in the list"
        listing.write_text(shortened, encoding="utf-8")
        self._environment = {**os.environ, "PYTHONPATH": str(package.parent), "SHOAL_HOME": str(self.home)}

    def python(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, check=False, env=self._environment, capture_output=True, text=True, timeout=120)

    def shoal(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.python(RUN, *arguments)


@pytest.mark.parametrize(
    "parts",
    [
        SUBAGENTS,
        MEMORY,
        OPENAI_API,
        PUSH,
        PROCESSES,
        TELEMETRY,
        EVALS,
        RECALL,
        UNDO,
        MCP,
        BACKUPS,
        TRIGGERS,
        SELF_EDIT,
        SNAPSHOTS,
        VOICE,
    ],
    ids=lambda parts: parts.name,
)
def test_without_its_folder_a_feature_is_missing_and_everything_else_works(tmp_path: Path, parts: Parts) -> None:
    assert (SOURCE / "features" / parts.name).is_dir()
    without = Without(tmp_path, parts.name)
    assert without.shoal("init").returncode == 0
    asked = without.shoal("ask", "Say hello.")
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout.strip()
    looked = without.python(PROBE, str(without.home))
    assert looked.returncode == 0, looked.stderr
    left: dict[str, list[str]] = json.loads(looked.stdout)
    assert not {*parts.tools} & {*left["tools"]}
    assert not {*parts.commands} & {*left["commands"]}
    assert not [path for path in left["routes"] if path.startswith(parts.routes or "-")]
    assert not {*parts.sections} & {*left["sections"]}
    assert not {*parts.headings} & {*left["headings"]}
    assert not {*parts.keeps} & {*left["keeps"]}
    assert "read" in left["tools"], "everything else is there"
    assert "status" in left["commands"]
    assert "/api/threads" in left["routes"]
    assert "# Rules" in left["headings"]
    for name in parts.cli:
        refused = without.shoal(name)
        assert (refused.returncode, f"No command named '{name}'" in refused.stderr) == (2, True)
    status = without.shoal("threads", "list", "--json")
    assert (status.returncode, len(json.loads(status.stdout))) == (0, 1)


def test_without_voice_a_recording_stays_a_file(tmp_path: Path) -> None:
    without = Without(tmp_path, "voice")
    assert without.shoal("init").returncode == 0
    sent = without.python(RECORDING, str(without.home))
    assert sent.returncode == 0, sent.stderr
    assert json.loads(sent.stdout) == {"text": "", "words": "", "is_kept": True, "is_heard": False}


@pytest.mark.parametrize(("name", "left"), [("memory", "diary: memory"), ("triggers", "schedule water")])
def test_an_import_skips_the_parts_of_a_missing_feature(tmp_path: Path, name: str, left: str) -> None:
    without = Without(tmp_path, name)
    imported = without.python(IMPORT, str(without.home))
    assert imported.returncode == 0, imported.stderr
    lines: list[list[str]] = json.loads(imported.stdout)
    assert [what for became, what in lines if became == "left"] == [left]
    assert ["came", "agent diary"] in lines
