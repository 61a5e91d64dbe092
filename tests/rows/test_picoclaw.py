"""Rows P1 to P10: one core path for every entry point, the contents of the prompt, and automatic work."""

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest

from shoal.testing.model import Reply, Seen
from tests.rows.internet import asked
from tests.rows.running import ADA, Running, call, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rows-picoclaw")]

PLATFORMS = ("telegram",)
SETTINGS = """
[model]
context_tokens_max = 48000
[context]
reserve_tokens = 8000
keep_recent_tokens = 4000
[permissions]
default_profile = "open"
[turns]
steps_max = 4
default_response = "Nothing came to mind."
[tools]
hardware = true
[triggers]
heartbeat_minutes = 0.02
"""
CHAT = f"telegram:{ADA}:0"
HOST_PROGRAM = '''
import asyncio, sys
from pathlib import Path
from shoal import Traits, open_app, tool
from shoal.app import Overrides
from shoal.config import load_config
from shoal.kernel.clock import Clock
from shoal.kernel.ids import make_thread_id
from shoal.kernel.messages import Author, Prompt
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.registry import Registry

@tool(Traits(origin="own"))
async def boats(harbour: str) -> str:
    """Count the boats of a harbour."""
    return f"7 boats in {harbour}"

async def main() -> None:
    told = asyncio.Queue()
    async def completed(thread, turn, reply):
        await told.put((thread, reply))
    async with open_app(load_config(Path(sys.argv[1]), {}, {}), Overrides(on_complete=completed)) as app:
        app[Registry].add(boats)
        thread, owner = make_thread_id("web", "lobby", "host"), Author("owner", trusted=True)
        await app[Orchestrator].send(Prompt(thread, "1", sys.argv[2], owner, app[Clock].now()))
        print(*await told.get())

asyncio.run(main())
'''


def host_run(home: Path, text: str, program: str = HOST_PROGRAM) -> subprocess.CompletedProcess[str]:
    """Run a program that embeds Shoal. Fails if the program exits with an error."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(home), text], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done


def host_program(home: Path, text: str) -> str:
    """Return the output of the host program: the thread and the reply that Shoal passes to its callback."""
    return host_run(home, text).stdout.strip()


class TestP1:
    """Each message leads to one turn and one answer. If a tool has already messaged the person, the turn posts no
    other answer.
    """

    def test_an_answer_by_the_message_tool_replaces_the_reply(self, shoal: Running) -> None:
        telegram = shoal.platforms.telegram
        shoal.plays("p1-tool", call("message", text="Said by the tool."), "Not to be posted.")
        shoal.loop.do(telegram.says(ADA, "p1-tool"))
        shoal.loop.do(telegram.sees(ADA, "Said by the tool."))
        shoal.loop.do(telegram.says(ADA, "words=1 id=p1-next"))
        shoal.loop.do(telegram.sees(ADA, "DONE 0 p1-next"))
        assert not [one for one in telegram.said(ADA) if "Not to be posted" in one.text]


class TestP2:
    """The end of a background subagent is recorded in the conversation that started it, without a model call there."""

    def test_a_spawned_task_reports_without_a_turn(self, shoal: Running) -> None:
        shoal.plays("p2-parent", call("spawn", task="p2-child: count"), "It has begun.", "So there are three.")
        shoal.plays("p2-child", "Three boats.")
        assert shoal.asks("web:lobby:p2", "p2-parent") == "It has begun."
        until(lambda: "Three boats." in json.dumps([event.data for event in shoal.events("web:lobby:p2")]))
        assert len(shoal.events("web:lobby:p2", "turn_finished")) == 1
        assert len([seen for seen in shoal.requests("p2-parent")]) == 2
        assert shoal.asks("web:lobby:p2", "p2-parent: and?") == "So there are three."
        assert any("Three boats." in message.text for message in shoal.requests("p2-parent: and?")[-1].messages)


class TestP3:
    """The page, the shell, piped chat and the heartbeat run the same kind of turn. The heartbeat remembers nothing."""

    def test_every_entry_point_writes_the_same_kind_of_journal(self, shoal: Running) -> None:
        shoal.asks("web:lobby:p3", "words=0 id=p3-api")
        assert shoal.cli("ask", "--thread", "terminal:local:p3", "words=0 id=p3-ask") == "DONE 0 p3-ask\n"
        assert "DONE 0 p3-chat" in shoal.cli("chat", "--thread", "terminal:local:p3", stdin="words=0 id=p3-chat\n")
        kinds = [event.type for event in shoal.events("web:lobby:p3")]
        assert [event.type for event in shoal.events("terminal:local:p3")] == kinds * 2

    def test_the_heartbeat_runs_its_file_without_history(self, shoal: Running) -> None:
        file = shoal.home / "data/HEARTBEAT.md"
        empty = file.read_text()
        shoal.plays("p3-beat", lambda _: "[SILENT]")
        file.write_text("- p3-beat: look at the tide\n")
        until(lambda: len(shoal.requests("p3-beat")) >= 2)
        file.write_text(empty)
        assert [message.role for message in shoal.requests("p3-beat")[-1].messages] == ["user"]


class TestP4:
    """The prompt contains the agent's own files, its tools and skills, its workspace and the time."""

    def test_every_prompt_part_is_included(self, shoal: Running) -> None:
        folder = shoal.home / "agents/main"
        kept = {name: (folder / f"{name}.md").read_text() for name in ("AGENTS", "SOUL", "USER", "IDENTITY")}
        for name in kept:
            (folder / f"{name}.md").write_text(f"P4 says {name}.\n")
        shoal.asks("web:lobby:p4", "words=0 id=p4-look")
        for name, text in kept.items():
            (folder / f"{name}.md").write_text(text)
        seen = shoal.requests("p4-look")[-1]
        for part in (*(f"P4 says {name}." for name in kept), "schedule-reminder", "/workspace"):
            assert part in seen.system, part
        assert re.search(r"# Runtime\nShoal .* on .*\nCommands run in a sandbox \(\w+\).* and reach ", seen.system)
        assert {"bash", "remember", "more_tools"} <= set(seen.tools)
        assert datetime.now(UTC).strftime("%Y-%m-%d") in seen.messages[-1].text


class TestP5:
    """Long-term memory and daily notes are written without losing a line. The prompt contains the notes of the
    last days.
    """

    def test_notes_of_the_last_days_are_read(self, shoal: Running) -> None:
        notes, today = shoal.home / "data/memory", datetime.now(UTC).date()
        for days in (1, 2, 40):
            day = today - timedelta(days=days)
            path = notes / f"{day:%Y%m}" / f"{day:%Y%m%d}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"- {days} days ago\n")
        written = "tools=1 tool=note_today words=0 args=" + json.dumps({"text": "the crane was repaired"})
        shoal.asks("web:lobby:p5", written)
        assert "the crane was repaired" in (notes / f"{today:%Y%m}" / f"{today:%Y%m%d}.md").read_text()
        shoal.asks("web:lobby:p5new", "words=0 id=p5-read")
        system = shoal.requests("p5-read")[-1].system
        assert "1 days ago" in system
        assert "2 days ago" in system
        assert "40 days ago" not in system
        assert "the crane was repaired" in system


class TestP6:
    """A long conversation is summarized in the background, and the summary is updated later."""

    def test_a_summary_is_made_automatically_and_updated(self, shoal: Running) -> None:
        summaries: list[str] = []

        def script(seen: Seen) -> str:
            if "keep the record" in seen.system:
                summaries.append("\n".join(message.text for message in seen.messages))
                return f"ACCOUNT NUMBER {len(summaries)}"
            return "ok"

        shoal.plays("p6-talk", script)
        thread = "web:lobby:p6"
        for number in range(4):
            shoal.asks(thread, f"p6-talk {number} " + "word " * 4200)
        until(lambda: len(shoal.events(thread, "compacted")) == 1)
        for number in range(4, 8):
            shoal.asks(thread, f"p6-talk {number} " + "word " * 4200)
        until(lambda: len(shoal.events(thread, "compacted")) >= 2)
        assert "ACCOUNT NUMBER 1" in summaries[1]
        assert "p6-talk 0 " not in summaries[1]


class TestP7:
    """The number of model calls in a turn is limited. At the limit the turn answers with the results so far. A
    standard phrase replaces an empty answer.
    """

    def test_a_turn_at_the_step_limit_ends_with_an_answer(self, shoal: Running) -> None:
        def script(seen: Seen) -> Reply | str:
            return call("time", timezone="UTC") if seen.tools else "As far as I got."

        shoal.plays("p7-on", script)
        assert shoal.asks("web:lobby:p7", "p7-on") == "As far as I got."
        assert shoal.ends("web:lobby:p7")[0].data["outcome"] == "limit"
        assert len(shoal.results("web:lobby:p7")) == 4

    def test_an_empty_answer_gets_the_default_reply(self, shoal: Running) -> None:
        shoal.plays("p7-empty", Reply(""), Reply(""), Reply(""), Reply(""))
        assert shoal.asks("web:lobby:p7empty", "p7-empty") == "Nothing came to mind."


class TestP8:
    """Agents have tools for files, commands, the web, messages, subagents in the foreground and background, and
    devices on buses.
    """

    def test_all_tools_are_offered(self, shoal: Running) -> None:
        names = set(map(str, shoal.listed_in("/api/info", "tools")))
        wanted = "read write edit list bash web_search read_url message spawn subagent i2c_scan i2c_read spi_transfer"
        assert set(wanted.split()) <= names

    def test_the_caller_waits_for_its_subagent(self, shoal: Running) -> None:
        shoal.plays("p8-parent", call("subagent", task="p8-child: count"), "There are three.")
        shoal.plays("p8-child", "Three boats.")
        assert shoal.asks("web:lobby:p8", "p8-parent") == "There are three."
        assert "Three boats." in shoal.results("web:lobby:p8")[0]

    def test_a_missing_bus_is_reported(self, shoal: Running) -> None:
        shoal.asks("web:lobby:p8bus", 'tools=1 tool=i2c_scan words=0 args={"bus":250}')
        (told,) = shoal.results("web:lobby:p8bus")
        assert ("/dev/i2c-250" if find_spec("smbus2") else "The smbus2 package is missing") in told

    def test_the_web_is_searched(self, tmp_path: Path) -> None:
        (found,) = asked(tmp_path / "home", 'tools=1 tool=web_search words=0 args={"query":"tides","count":2}')
        assert "Result 0" in found
        assert "https://example.org/1" in found
        assert "Result 2" not in found


class TestP9:
    """Automatic messages are sent to the person's most recent conversation."""

    def test_a_heartbeat_posts_in_the_last_channel(self, shoal: Running) -> None:
        telegram, file = shoal.platforms.telegram, shoal.home / "data/HEARTBEAT.md"
        empty = file.read_text()
        shoal.loop.do(telegram.says(ADA, "words=1 id=p9-here"))
        shoal.loop.do(telegram.sees(ADA, "DONE 0 p9-here"))

        def script(seen: Seen) -> Reply | str:
            return "[SILENT]" if seen.rounds else call("message", text="The tide is high.")

        shoal.plays("p9-beat", script)
        file.write_text("- p9-beat\n")
        shoal.loop.do(telegram.sees(ADA, "The tide is high."))
        file.write_text(empty)


class TestP10:
    """File tools can be limited to the workspace. Services are reported with their figures, and a host program can
    add its own tools.
    """

    def test_restrict_to_workspace_switches_file_access(self, shoal: Running) -> None:
        outside = shoal.home / "outside.txt"
        outside.write_text("beyond the workspace")
        read = f'tools=1 tool=read words=0 args={{"path":"{outside}"}}'
        shoal.asks("web:lobby:p10", read)
        assert "beyond the workspace" not in shoal.results("web:lobby:p10")[0]
        shoal.cli("agents", "config", "main", "restrict_to_workspace", "false")
        shoal.asks("web:lobby:p10", read)
        shoal.cli("agents", "config", "main", "restrict_to_workspace", "true")
        assert "beyond the workspace" in shoal.results("web:lobby:p10")[1]

    def test_the_startup_log_lists_tools_and_skills(self, shoal: Running) -> None:
        started = (shoal.home / "stderr.log").read_text()
        assert "tools" in started
        assert "skills" in started

    def test_a_host_program_adds_a_tool(self, shoal: Running, tmp_path: Path) -> None:
        text = 'tools=1 tool=boats words=0 id=p10-host args={"harbour":"Cork"}'
        (tmp_path / "home").mkdir()
        toml = (shoal.home / "shoal.toml").read_text().partition("[platforms")[0]
        settings = '[model]\nname = "fake/fake-1"\n[permissions]\ndefault_profile = "open"\n'
        (tmp_path / "home/shoal.toml").write_text(toml + settings)
        assert host_program(tmp_path / "home", text) == "web:lobby:host DONE 1 p10-host"
        assert shoal.requests("p10-host")[-1].results == ("7 boats in Cork",)
