"""Rows B9 to B16 and B19 to B24: setup, running costs, and interfaces for programs and people."""

import http.server
import json
import os
import re
import resource
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Coroutine
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest

from shoal.testing.model import Seen
from shoal.testing.model.speech import recording, words_in
from shoal.testing.platforms.wire import Json
from shoal.testing.push import FakePush
from tests.processes import PROGRAM
from tests.rows.internet import SPACES, can_be_made
from tests.rows.running import ADA, Running, call, command_line, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rows-beyond-use")]

ODD = Path(__file__).parents[1] / "contracts" / "mcp_odd_server.py"
SETTINGS = """
[permissions]
default_profile = "open"
"""
MCP = f"""
[permissions]
default_profile = "open"
[mcp.odd]
command = "{sys.executable}"
args = ["{ODD}"]
"""
CAREFUL = """
[permissions]
default_profile = "careful"
[permissions.profiles.careful]
extends = "standard"
ask = ["tool:bash:ls -l"]
"""
ASKS = """
[[permissions.overrides]]
agents = ["main"]
ask = ["tool:bash:touch b22"]
"""
EVENTS = 200_000
EXTENSION = '''
import pytest
from shoal import Traits, tool
from shoal.testing.contracts.tool import ToolContract

@tool(Traits(effect="read", origin="own"))
def weigh(name: str, grams: int = 1) -> str:
    """Weigh a thing.

    Args:
        name: What is weighed.
        grams: Its weight.
    """
    return f"{name}: {grams} g"

class TestWeigh(ToolContract):
    @pytest.fixture
    def tool(self):
        return weigh

    @pytest.fixture
    def good(self):
        return '{"name": "apple"}'
'''


def offered(shoal: Running) -> str:
    """Return the API's paths, the tools, the commands and the command-line help as one text."""
    tools = shoal.listed_in("/api/info", "tools")
    commands = [str(one["name"]) for one in shoal.listed("/api/commands")]
    paths = json.loads(shoal.api("/openapi.json").body)["paths"]
    return "\n".join([*paths, *map(str, tools), *commands, shoal.cli("--help"), shoal.cli("threads", "--help")])


class TestB9:
    """The first answer needs no key, no network and no settings."""

    def test_a_fresh_home_answers_a_question(self, tmp_path: Path) -> None:
        alone = SPACES if can_be_made() else ()
        done = subprocess.run(
            [*alone, PROGRAM, "--home", str(tmp_path / "home"), "ask", "hello"],
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.split()) > 3


class TestB10:
    """Each request of a conversation starts with the bytes of the previous one, so providers can use their caches."""

    def test_requests_keep_their_prefix(self, shoal: Running) -> None:
        thread = "web:lobby:b10"
        for number in range(3):
            text = f'tools=1 tool=remember words=1 id=b10-{number} args={{"text":"fact {number}","scope":"global"}}'
            shoal.asks(thread, text)
        requests = shoal.requests("id=b10-")
        assert len(requests) == 6
        bodies = [_stable(seen) for seen in requests]
        for before, after in pairwise(bodies):
            assert after.startswith(before)


def _stable(seen: Seen) -> str:
    """Return a request's tools and messages without the closing bracket, to compare it with the start of the next
    request.
    """
    body = json.loads(seen.body)
    return json.dumps([body["tools"], *body["messages"]], sort_keys=True)[:-1]


class TestB11:
    """Shoal starts within a second and uses little memory. The command line shows its help immediately."""

    def test_a_start_takes_little_time_and_memory(self, tmp_path: Path) -> None:
        with Running(tmp_path / "home", "") as made:
            made.cli("init")
            with made.run() as shoal:
                stat = Path(f"/proc/{shoal.process.popen.pid}/stat").read_text().rpartition(") ")[2].split()
                status = Path(f"/proc/{shoal.process.popen.pid}/status").read_text()
        cpu_seconds = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        resident = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert resident is not None
        assert cpu_seconds < 1.0
        assert int(resident[1]) < 100_000

    def test_help_is_quick(self, tmp_path: Path) -> None:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert "doctor" in command_line(tmp_path, "--help").stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


class _Collector(http.server.BaseHTTPRequestHandler):
    """Accepts the data of a telemetry exporter."""

    paths: ClassVar[set[str]] = set()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.paths.add(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


class TestB12:
    """Shoal has a web page, a terminal chat and an OpenAI-compatible endpoint. It uses MCP tools and exports to
    Prometheus and OpenTelemetry.
    """

    def test_the_page_requires_the_token(self, shoal: Running) -> None:
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(f"{shoal.process.address}/?token={shoal.process.token}") as page:
            assert b"<script" in page.read()
        assert shoal.process.token not in page.url
        _, _, key = page.url.partition("/?key=")
        threads, keyed = f"{shoal.process.address}/api/threads", {"X-Shoal": key}
        with pytest.raises(urllib.error.HTTPError, match="401"):  # the cookie alone does not grant access
            browser.open(threads)
        with pytest.raises(urllib.error.HTTPError, match="401"):  # the key alone does not grant access either
            urllib.request.urlopen(urllib.request.Request(threads, headers=keyed))
        with browser.open(urllib.request.Request(threads, headers=keyed)) as answer:
            assert answer.status == 200
        owner, shoal.process = shoal.process, shoal.process._replace(token="wrong")
        assert shoal.api("/api/threads").status == 401
        shoal.process = owner
        assert b"shoal_turns_total" in shoal.api("/metrics").body

    def test_the_terminal_chats_and_answers_commands(self, shoal: Running) -> None:
        said = shoal.cli("chat", "--thread", "terminal:local:b12", stdin="words=1 id=b12-chat\n/status\n")
        assert "DONE 0 b12-chat tide" in said
        assert "state    " in said  # commands are answered immediately, even during a turn

    def test_openai_clients_are_served(self, shoal: Running) -> None:
        asked = {"model": "main", "messages": [{"role": "user", "content": "words=1 id=b12-v1"}]}
        answer = shoal.api("/v1/chat/completions", asked).json
        assert "DONE 0 b12-v1 tide" in json.dumps(answer)
        assert b'"main"' in shoal.api("/v1/models").body

    def test_an_mcp_tool_is_used(self, tmp_path: Path) -> None:
        pytest.importorskip("mcp", reason="the extra mcp is not installed")
        with Running(tmp_path / "home", MCP) as made, made.run() as shoal:
            until(lambda: b"odd: up" in shoal.api("/api/info").body)  # a slow server connects later
            shoal.asks("web:lobby:b12", 'tools=1 tool=mcp_odd_echo words=0 args={"text":"over MCP"}')
            assert "over MCP" in shoal.results("web:lobby:b12")[0]

    def test_a_collector_gets_traces(self, tmp_path: Path) -> None:
        pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Running(tmp_path / "home", "") as made, closing(server.socket):
            address = f"http://127.0.0.1:{server.server_port}"
            made.cli("ask", "words=1", settings={"OTEL_EXPORTER_OTLP_ENDPOINT": address})
            server.shutdown()
        assert "/v1/traces" in _Collector.paths


class TestB13:
    """Authors of extensions use the same test suites that Shoal's own tools, platforms, providers and sandboxes
    must pass.
    """

    def test_an_extensions_tool_is_tested_by_the_contract(self, tmp_path: Path) -> None:
        (tmp_path / "test_weigh.py").write_text(EXTENSION)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--asyncio-mode=auto", "--rootdir=."]
        done = subprocess.run([*command, "test_weigh.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        assert re.search(r"\d+ passed", done.stdout)
        (tmp_path / "test_weigh.py").write_text(EXTENSION.replace('{"name": "apple"}', '{"nobody": 1}'))
        done = subprocess.run([*command, "test_weigh.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stdout


class TestB14:
    """A conversation can be forked at any step, a message can be edited and sent again, and a turn's file changes
    can be undone.
    """

    def test_an_answer_is_retried_and_a_question_replaced(self, shoal: Running) -> None:
        thread = "web:lobby:b14"
        shoal.plays("b14-say", "first", "second")
        shoal.plays("b14-other", "third")
        shoal.asks(thread, "b14-say")
        assert shoal.api(f"/api/threads/{thread}/again", {}).status == 202
        assert shoal.ends(thread, 2)[-1].data["reply"] == "second"
        assert len(shoal.requests("b14-say")[-1].messages) == 1
        assert shoal.api(f"/api/threads/{thread}/edit", {"text": "b14-other"}).status == 202
        shoal.ends(thread, 3)
        assert len(shoal.requests("b14-other")[-1].messages) == 1
        first = next(one for one in shoal.listed(f"/api/threads/{thread}/events") if one["type"] == "turn_finished")
        assert shoal.api(f"/api/threads/{thread}/branch", {"after": first["seq"]}).status == 200
        shoal.asks(thread, "words=0 id=b14-back")
        seen = [message.text for message in shoal.requests("b14-back")[-1].messages]
        assert seen[1] == "first"
        assert len(seen) == 3

    def test_a_turns_file_changes_are_undone(self, shoal: Running) -> None:
        thread = "web:lobby:b14-files"
        for name, content in (("b14-one", "first\n"), ("b14-two", "second\n")):
            shoal.plays(name, call("write", path="b14.txt", content=content), "written")
            shoal.asks(thread, name)
        file = shoal.workspace / "b14.txt"
        shown = json.loads(shoal.api(f"/api/threads/{thread}/turns/last/changes").body)
        assert [(one["path"], one["since"]) for one in shown["files"]] == [("b14.txt", "")]
        assert "-first\n+second" in shown["files"][0]["diff"]
        done = shoal.api(f"/api/threads/{thread}/turns/{shown['turn']}/undo", {})
        assert (done.status, file.read_text()) == (200, "first\n")
        file.write_text("mine\n")
        assert shoal.api(f"/api/threads/{thread}/turns/{done.json['id']}/undo", {}).status == 409
        again = shoal.command(thread, f"/undo {done.json['id']} overwrite")
        assert "Restored 1 file" in again
        assert file.read_text() == "second\n"


class TestB15:
    """Another model or prompt can be tried on recorded turns without running a tool. Turns are saved as test cases."""

    def test_a_model_is_compared_on_past_turns(self, shoal: Running) -> None:
        thread = "web:lobby:b15"
        shoal.plays("b15-do", call("time"), "It is noon.", call("list", path="."), "It is noon.")
        shoal.asks(thread, "b15-do")
        asked = ("compare", "--model", "fake/fake-1", "--thread", thread, "--usd-max", "0")
        assert "1 the same, 1 with different calls" in shoal.cli(*asked)
        calls = shoal.model.calls
        assert "2 of 2 answered" in shoal.cli(*asked)
        assert shoal.model.calls == calls
        assert len(shoal.results(thread)) == 1

    def test_a_turn_is_saved_as_a_case(self, shoal: Running) -> None:
        thread = "web:lobby:b15-case"
        shoal.plays("b15-kept", call("time"), "It is noon.", call("time"), "At noon.", "I do not know.")
        shoal.asks(thread, "b15-kept")
        shoal.cli("cases", "save", thread, "--name", "b15", "--calls", "time", "--contains", "noon")
        assert "1 passed" in shoal.cli("check", "b15", "--usd-max", "0")
        failed = shoal.cli("check", "b15", "--usd-max", "0", exit_code=1)
        assert "- calls time" in failed
        assert len(shoal.results(thread)) == 1


class TestB16:
    """Past actions can be decided again under other rules. If past decisions agree, Shoal suggests a narrow rule."""

    def test_other_rules_are_replayed_and_narrow_ones_suggested(self, tmp_path: Path) -> None:
        with Running(tmp_path / "home", CAREFUL) as made, made.run() as shoal:
            run = call("bash", command="ls -l")
            shoal.plays("b16-make", run, "one", run, "two", run, "three")
            for turns in range(1, 4):
                shoal.says("web:lobby:b16", "b16-make")
                shoal.cli("approvals", "allow", str(shoal.approval("web:lobby:b16")["id"]))
                shoal.ends("web:lobby:b16", turns)
            replayed = shoal.cli("permissions", "replay", "--profile", "locked", "--since", "1d")
            assert "tool:bash:ls -l" in replayed
            assert "deny" in replayed
            assert "ls -l" in shoal.cli("permissions", "suggest").replace("\\", "")
            assert "tool:read" not in shoal.cli("permissions", "suggest")
            assert shoal.model.calls == 6


class TestB19:
    """A first request with all tools has at most 14,000 bytes. The model finds further tools on demand."""

    def test_the_first_request_is_small(self, tmp_path: Path) -> None:
        with Running(tmp_path / "home", "") as made:
            made.cli("ask", "words=0 id=b19")
            assert len(made.requests("b19")[0].body) <= 14_000

    def test_a_tool_is_found_and_called(self, shoal: Running) -> None:
        shoal.plays("b19-find", call("more_tools", find="what time is it in Berlin"), call("time"), "Found.")
        shoal.asks("web:lobby:b19", "b19-find")
        first, *_, last = shoal.requests("b19-find")
        assert "time" not in first.tools
        found, told = shoal.results("web:lobby:b19")
        assert "time" in found
        assert "UTC" in told
        assert last.tools == first.tools


class TestB20:
    """The costs of startup, messages, lists and use do not grow with the journal."""

    def test_a_long_history_does_not_slow_down_everyday_commands(self, tmp_path: Path) -> None:
        with Running(tmp_path / "home", "") as made:
            made.cli("ask", "--thread", "terminal:local:b20", "words=3 id=b20")
            small = self._cost(made)
            self._grow(made.home / "shoal.db")
            made.cli("ask", "words=0")
            large = self._cost(made)
        assert large < 2 * small + 0.2

    def _cost(self, made: Running) -> float:
        """Return the CPU seconds that everyday commands use."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        for line in ("threads list", "usage", "audit tail", "ask words=0", "threads show terminal:local:b20"):
            made.cli(*line.split())
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def _grow(self, database: Path) -> None:
        """Insert copies of the existing conversation until the journal has EVENTS events."""
        numbers = f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {EVENTS // 4})"
        with closing(sqlite3.connect(database)) as connection:
            for table in ("threads", "events"):
                columns = [str(row[1]) for row in connection.execute(f"pragma table_info({table})")]
                values = ", ".join("thread || '-' || i" if name == "thread" else name for name in columns)
                where = "thread = 'terminal:local:b20'"
                connection.execute(f"insert into {table} {numbers} select {values} from {table}, n where {where}")
            connection.commit()
            held = connection.execute("select count(*) from events").fetchone()[0]
        assert held >= EVENTS


class TestB21:
    """On a new machine, setup, an import and a daily brief in one's own chat take minutes."""

    def test_a_model_is_set_up_and_answers_the_next_question(self, tmp_path: Path) -> None:
        with Running(tmp_path / "model", "") as made:
            given = ("--provider", "server", "--address", f"{made.model.url}/v1", "--model", "fake-1", "--no-login")
            done = command_line(tmp_path / "home", "setup", *given, stdin="")
            assert "fake-1" in (tmp_path / "home/shoal.toml").read_text(), done.stdout + done.stderr
            asked = command_line(tmp_path / "home", "ask", "words=0 id=b21")
        assert asked.stdout == "DONE 0 b21\n", asked.stderr

    def test_an_import_brings_in_the_persona_and_the_memory(self, tmp_path: Path) -> None:
        there = tmp_path / "nanobot"
        (there / "workspace" / "memory").mkdir(parents=True)
        (there / "config.json").write_text(
            json.dumps({"agents": {"defaults": {"workspace": str(there / "workspace")}}})
        )
        (there / "workspace" / "SOUL.md").write_text("You are fond of herons.\n")
        (there / "workspace" / "memory" / "MEMORY.md").write_text("- The slip is number seven.\n")
        with Running(tmp_path / "home", "") as made:
            assert "came" in made.cli("import", "nanobot", str(there))
            assert "fond of herons" in (made.home / "agents/nanobot/SOUL.md").read_text()
            made.cli("ask", "words=0 id=b21-seven")
            assert "number seven" in made.requests("b21-seven")[-1].system

    def test_a_brief_is_scheduled_and_switched_off(self, shoal: Running) -> None:
        shoal.cli("brief", "8:00", "--timezone", "Europe/Berlin", "--thread", "web:lobby:b21")
        assert "Europe/Berlin" in shoal.cli("triggers", "list")
        shoal.cli("brief", "off")
        assert "Europe/Berlin" not in shoal.cli("triggers", "list")


class TestB22:
    """The web page and the terminal offer live output, charts, search, push notifications and complete setup."""

    def test_output_is_shown_while_a_command_runs(self, shoal: Running) -> None:
        told: list[str] = []
        shoal.asks("web:lobby:b22", "words=0")
        with shoal.stream("/api/threads/web:lobby:b22/events") as events:
            command = "echo early; until [ -e b22 ]; do sleep 0.05; done; rm b22"
            shoal.says("web:lobby:b22", f'tools=1 tool=bash words=0 args={{"command":"{command}"}}')
            for event in events:
                if event["type"] == "tool_output":
                    told.append(json.dumps(event["data"]))
                    (shoal.workspace / "b22").touch()
                if event["type"] == "tool_result":
                    break
        assert "early" in told[0]

    def test_an_approval_is_pushed_to_a_browser(self, tmp_path: Path) -> None:
        pytest.importorskip("http_ece", reason="needs the extra `push`")
        service = FakePush()
        with Running(tmp_path / "home", ASKS) as made:
            made.loop.do(service.start())
            with made.run(SHOAL_WEB__PUSH_SERVICES=json.dumps([service.server.address])) as shoal:
                service.application_key = json.loads(shoal.api("/api/push").body)["key"]
                shoal.api("/api/push", made.loop.call(lambda: service.browser("phone")), method="PUT")
                shoal.says("web:lobby:b22", 'tools=1 tool=bash words=2 args={"command":"touch b22"}')
                until(lambda: bool(service.received))
                told = service.received[0].content
                assert (told["kind"], told["text"]) == ("approval", "touch b22")
                shoal.api(f"/api/approvals/{told['approval']}", {"decision": "allow", "scope": "once"})
                until(lambda: len(service.received) > 1)
                assert service.received[1].content["kind"] == "answer"
            made.loop.do(service.stop())


class TestB23:
    """Voice input and output, quotations, forwards and albums: everything that people send gets an answer."""

    def test_voice_messages_are_transcribed_and_answered_aloud(self, tmp_path: Path) -> None:
        speech = '[speech]\nrecognition = "fake/whisper-1"\nspeaking = "fake/tts-1"\n'
        with Running(tmp_path / "home", speech, ("telegram",)) as made, made.run():
            telegram = made.platforms.telegram
            made.plays("b23-tide", "High at six.")
            made.loop.do(telegram.sends_voice(ADA, recording("b23-tide")))
            made.loop.do(telegram.sees(ADA, "High at six."))
            made.loop.do(telegram.until(lambda: any(sent.file for sent in telegram.said(ADA))))
            (spoken,) = [sent.file for sent in telegram.said(ADA) if sent.file]
            assert words_in(spoken[1]) == "High at six."

    def test_quotes_albums_and_stickers_are_read(self, tmp_path: Path) -> None:
        with Running(tmp_path / "home", "", ("telegram",)) as made, made.run():
            telegram = made.platforms.telegram

            def sent(*steps: Coroutine[object, object, object]) -> str:
                before = len(made.model.log)
                for step in steps:
                    made.loop.do(step)
                until(lambda: len(made.model.log) > before)
                return made.model.log[-1].messages[-1].text

            quoted = made.loop.call(lambda: telegram.quietly(ADA, "Berth nine is free.", user=ADA))
            assert "Berth nine is free." in sent(telegram.says(ADA, "words=1 id=b23-quote", reply_to=quoted))
            album = sent(telegram.sends_album(ADA, ["bow.txt", "stern.txt"], "words=1 id=b23-album"))
            assert all(name in album for name in ("bow.txt", "stern.txt"))
            sticker: dict[str, Json] = {
                "sticker": {"file_id": "s", "file_unique_id": "s", "type": "regular", "emoji": "\U0001f6a2"}
            }
            assert "sticker" in sent(telegram.sends(ADA, sticker))


class TestB24:
    """Memories can be corrected, forgotten, and found by meaning. Documents are cited by name."""

    def test_the_agent_corrects_and_forgets_memory(self, shoal: Running) -> None:
        thread, memory = "web:lobby:b24", shoal.home / "data/MEMORY.md"
        for arguments in (
            {"text": "the ferry leaves at six", "scope": "global"},
            {"text": "the ferry leaves at seven", "scope": "global", "replaces": "the ferry leaves at six"},
        ):
            shoal.asks(thread, f"tools=1 tool=remember words=0 args={json.dumps(arguments)}")
        assert "at seven" in memory.read_text()
        assert "at six" not in memory.read_text()
        shoal.asks(thread, "words=0 id=b24-after")
        assert "at six" not in shoal.requests("b24-after")[-1].system
        assert "at seven" in json.dumps([message.text for message in shoal.requests("b24-after")[-1].messages])
        assert "ferry" in shoal.cli("memory", "changes")

    def test_people_forget_memory_by_command(self, shoal: Running) -> None:
        thread, memory = "web:lobby:b24", shoal.home / "data/MEMORY.md"
        shoal.asks(thread, 'tools=1 tool=remember words=0 args={"text":"the crane is broken","scope":"global"}')
        assert "the crane is broken" in shoal.command(thread, "/memory crane")
        assert "Forgotten" in shoal.command(thread, "/memory forget the crane is broken")
        assert "crane" not in memory.read_text()
        assert "Restored text: the crane is broken" in shoal.command(thread, "/memory undo")

    def test_a_document_is_recalled_and_an_unrelated_query_finds_nothing(self, tmp_path: Path) -> None:
        with Running(tmp_path / "home", '[recall]\nmodel = "fake/embed"\n') as made, made.run():
            thread, docs = "web:lobby:b24", made.home / "agents/main/docs"
            made.asks(thread, "words=0")
            docs.mkdir(parents=True, exist_ok=True)
            (docs / "berths.md").write_text("A berth costs ten crowns.\n")

            def recalled() -> str:
                made.asks(thread, 'tools=1 tool=recall words=0 args={"query":"berths"}')
                return made.results(thread)[-1]

            until(lambda: "docs/berths.md, line 1: A berth costs ten crowns." in recalled())
            made.asks(thread, 'tools=1 tool=recall words=0 args={"query":"volcanoes erupting"}')
            assert made.results(thread)[-1] == "Nothing found for 'volcanoes erupting'."
