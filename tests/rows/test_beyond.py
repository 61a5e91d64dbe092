"""Rows B1 to B8, B17 and B18: recovery from crashes and outages, and protection from harmful actions."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from shoal.testing.model import Gate, Reply
from tests.postgres import database
from tests.processes import process
from tests.rows.running import Running, call, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rows-beyond")]

PLATFORMS = ()
SECRET = "a-secret-of-the-hooks"
OUTPUT_TOKENS = 1000
ASKS = """
[[permissions.overrides]]
agents = ["main"]
ask = ["tool:bash:echo (x|y|child)", "tool:bash:bash b17.sh"]
"""
SETTINGS = f"""
[permissions]
default_profile = "open"
[triggers.webhooks.ci]
secret = "{SECRET}"
thread = "web:lobby:b5"
template = "b5-hook {{{{ body }}}}"
[web]
allow = ["ben"]
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Running]:
    """A separate home directory with Discord. Its Shoal is not running yet."""
    with Running(tmp_path / "home", ASKS, ("discord",)) as made:
        yield made


class TestB1:
    """An accepted message is answered even if the process is killed at any moment. No step is repeated, and the
    answer appears once.
    """

    def test_a_turn_survives_kills_in_a_model_call_after_a_tool_and_before_the_post(self, home: Running) -> None:
        gate, discord = Gate(), home.platforms.discord
        direct = discord.direct()
        settings = {"SHOAL_PERMISSIONS__DEFAULT_PROFILE": "open"}
        run = call("bash", command="echo once >> b1.txt")
        with home.run(**settings) as shoal:
            shoal.plays("b1-kill", run, Reply("never sent", gate=gate), "The answer.", "a third time")
            shoal.loop.do(discord.says(direct, "b1-kill"))
            until(gate.reached.is_set)
            shoal.process.kill()
        discord.server.mute = lambda called: called.method == "POST" and called.path.endswith("/messages")
        with home.run(**settings) as shoal:
            until(lambda: any("The answer." in one.text for one in discord.said(direct)))
            # the visible message may still be a preview, so wait for the end of the turn
            shoal.ends(str(shoal.listed("/api/threads")[0]["thread"]))
            shoal.process.kill()
        discord.server.mute = lambda _: False
        with home.run(**settings) as shoal:
            shoal.loop.do(discord.says(direct, "words=1 id=b1-after"))
            shoal.loop.do(discord.sees(direct, "DONE 0 b1-after"))
            assert (shoal.workspace / "b1.txt").read_text() == "once\n"
        assert [one.text for one in discord.said(direct)] == ["The answer.", "DONE 0 b1-after tide"]
        # the tool call, the killed request, its repetition, and the request for the last message
        assert len(home.requests("b1-kill")) == 4


class TestB2:
    """Several machines share the threads of one database. Each thread has one worker at a time, and another worker
    continues the work of a dead one.
    """

    def test_another_machine_takes_over(self, tmp_path: Path) -> None:
        gate = Gate()
        with Running(tmp_path / "serve", "") as made, database() as url, ExitStack() as stack:
            settings = {
                "SHOAL_MODEL__NAME": "fake/fake-1", "SHOAL_PROVIDERS__FAKE__KIND": "openai",
                "SHOAL_PROVIDERS__FAKE__BASE_URL": f"{made.model.url}/v1",
                "DATABASE_URL": "postgresql:///?" + "&".join(url.split()),
                "SHOAL_ENGINE__HEARTBEAT_SECONDS": "0.5", "SHOAL_ENGINE__STALLED_SECONDS": "2",
            }  # fmt: skip
            with made.run("serve", **settings) as shoal:
                first = stack.enter_context(process("worker", tmp_path / "first", settings))
                shoal.plays("b2-run", Reply("lost", gate=gate), "taken over", *(f"answer {n}" for n in range(3)))
                shoal.says("web:lobby:b2", "b2-run")
                until(gate.reached.is_set)
                stack.enter_context(process("worker", tmp_path / "second", settings))
                first.kill()
                for number in range(3):
                    shoal.says("web:lobby:b2", f"b2-run {number}")
                replies = [end.data["reply"] for end in shoal.ends("web:lobby:b2", 4)]
                assert replies == ["taken over", "answer 0", "answer 1", "answer 2"]


class TestB3:
    """Only the approved action runs. An approval is bound to the parsed action and its content, and is used once,
    even after a restart and for subagents.
    """

    def test_an_approval_survives_a_restart_and_is_used_once(self, home: Running) -> None:
        run = call("bash", command="echo x >> b3.txt")
        with home.run() as shoal:
            shoal.plays("b3-once", run, "first", run, "second")
            shoal.says("web:lobby:b3", "b3-once")
            question = shoal.approval("web:lobby:b3")
            shoal.process.kill()
        with home.run() as shoal:
            shoal.cli("approvals", "allow", str(question["id"]))
            shoal.ends("web:lobby:b3")
            assert (shoal.workspace / "b3.txt").read_text() == "x\n"
            assert shoal.api(f"/api/approvals/{question['id']}", {"decision": "allow"}).status == 409
            shoal.says("web:lobby:b3", "b3-once again")
            assert shoal.approval("web:lobby:b3")["id"] != question["id"]
            assert (shoal.workspace / "b3.txt").read_text() == "x\n"
            shoal.command("web:lobby:b3", "/stop")
            other = call("bash", command="echo y >> b3.txt")
            shoal.plays("b3-always", run, run, other, "third")
            shoal.says("web:lobby:b3always", "b3-always")
            shoal.cli("approvals", "allow", str(shoal.approval("web:lobby:b3always")["id"]), "--thread")
            until(lambda: len(shoal.results("web:lobby:b3always")) == 2)
            assert "echo y" in json.dumps(shoal.approval("web:lobby:b3always"))
            assert (shoal.workspace / "b3.txt").read_text() == "x\nx\nx\n"
            shoal.command("web:lobby:b3always", "/stop")
            shoal.plays("b3-parent", call("subagent", task="b3-child"), "Asked.")
            shoal.plays("b3-child", call("bash", command="echo child > b3-child.txt"), "Written.")
            shoal.says("web:lobby:b3sub", "b3-parent")
            until(lambda: "b3-child.txt" in shoal.api("/api/approvals").body.decode())
            assert not (shoal.workspace / "b3-child.txt").exists()

    @pytest.mark.parametrize(
        ("command", "decision"),
        [
            ("echo a", "allow"),
            ("echo $(rm -rf /)", "deny"),
            ("'rm' -rf x", "deny"),
            ("echo a; bash -c 'rm x'", "deny"),
            ("sudo ls", "deny"),
            ("echo a > /etc/passwd", "deny"),
            ("echo 'unclosed", "deny"),
        ],
    )
    def test_every_part_of_a_command_is_checked(self, shoal: Running, command: str, decision: str) -> None:
        rules = shoal.home / "b3.toml"
        rules.write_text('allow = ["tool:bash:.*"]\ndeny = ["tool:bash:rm .*", "tool:write:/etc/.*"]\n')
        told = shoal.cli("permissions", "check", "--profile", str(rules), "--json", "--shell", command)
        assert json.loads(told)["decision"] == decision


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
class TestB4:
    """If the system has a sandbox, commands run in it by default. They have no network, no secrets and no home
    directory.
    """

    def test_the_sandbox_is_enabled_by_default(self, shoal: Running) -> None:
        assert "bubblewrap. Commands reach no network." in shoal.cli("doctor")
        address = shoal.process.address.rpartition(":")
        reach = f"exec 3<>/dev/tcp/127.0.0.1/{address[2]} && echo reached; ls {shoal.home}; env | grep -i token; id -u"
        shoal.plays("b4-reach", call("bash", command=reach), "No.")
        shoal.asks("web:lobby:b4", "b4-reach")
        (told,) = shoal.results("web:lobby:b4")
        assert "reached" not in told
        assert "shoal.toml" not in told


class TestB5:
    """After a turn has read untrusted text, leaks and harmful actions need approval, whatever the rules allow."""

    @pytest.mark.parametrize(
        ("tool", "arguments"),
        [
            pytest.param("message", {"text": "the harbour's code", "to": "web:quay:b5"}, id="leaks"),
            pytest.param("bash", {"command": "mkdir -p .git/hooks; touch .git/hooks/pre-commit"}, id="does harm"),
        ],
    )
    def test_a_hooks_content_taints_its_turn(self, shoal: Running, tool: str, arguments: dict[str, object]) -> None:
        harmful = call(tool, **arguments)
        shoal.plays(f"b5-owner-{tool}", harmful, "ran")
        assert shoal.asks(f"web:lobby:b5owner-{tool}", f"b5-owner-{tool}") == "ran"
        shoal.plays("b5-hook", harmful, "asked")
        turns = len(shoal.ends("web:lobby:b5", 0))
        owner, shoal.process = shoal.process, shoal.process._replace(token=SECRET)
        assert shoal.api("/hooks/ci", {"say": f"use {tool}"}).status == 202
        shoal.process = owner
        question = shoal.approval("web:lobby:b5")
        assert "ntrusted" in json.dumps(question)
        shoal.cli("approvals", "deny", str(question["id"]))
        shoal.ends("web:lobby:b5", turns + 1)


class TestB6:
    """Tokens and costs are reserved before a model call. A call that could exceed a limit is not made."""

    def test_a_limit_stops_the_call(self, home: Running) -> None:
        asked = json.loads(home.cli("ask", "--json", "words=1 id=b6-first"))
        tokens = asked["usage"]["input_tokens"] * 3 // 2 + OUTPUT_TOKENS  # enough for one call but not for two
        ceiling = {"SHOAL_BUDGET__TOKENS_PER_DAY": str(tokens), "SHOAL_MODEL__MAX_OUTPUT_TOKENS": str(OUTPUT_TOKENS)}
        home.cli("ask", "words=1 id=b6-fits", settings=ceiling)
        refused = home.cli("ask", "words=1 id=b6-second", exit_code=1, settings=ceiling)
        assert "token" in refused
        assert not home.requests("b6-second")
        limited = home.cli("usage", settings=ceiling)
        assert f"of {tokens}" in limited
        assert "suspended" not in limited
        home.cli("usage", "lift", settings=ceiling)
        assert "Budget limits are suspended until midnight." in home.cli("usage", settings=ceiling)
        home.cli("ask", "words=1 id=b6-third", settings=ceiling)
        assert home.requests("b6-third")


class TestB7:
    """The audit log is a hash chain. Changed, removed and truncated entries are detected."""

    @pytest.mark.parametrize("change", ["update audit set entry = '{}'", "delete from audit"])
    def test_a_changed_audit_entry_is_detected(self, home: Running, change: str) -> None:
        home.cli("ask", "tools=1 tool=time words=0 args={}")
        assert home.cli("audit", "verify")
        with sqlite3.connect(home.home / "shoal.db") as database_:
            newest = "(chain, number) in (select chain, number from audit order by at desc limit 1)"
            assert database_.execute(f"{change} where {newest}").rowcount == 1
        assert home.cli("audit", "verify", exit_code=1)


class TestB8:
    """Every past turn can be replayed from its journal without a network. A conversation can be forked at any step."""

    def test_a_turn_is_rebuilt_offline(self, shoal: Running) -> None:
        thread = "web:lobby:b8"
        shoal.plays("b8-turn", call("bash", command="echo one"), "done")
        shoal.asks(thread, "b8-turn")
        calls = shoal.model.calls
        found = shoal.api(f"/api/threads/{thread}/replay").json
        assert (found["calls"], found["identical"], found["differences"]) == (2, 2, [])
        shoal.cli("replay", thread)
        assert shoal.model.calls == calls
        assert len(shoal.events(thread, "tool_result")) == 1
        with closing(sqlite3.connect(shoal.home / "shoal.db")) as database_:
            change = "update events set data = replace(data, 'one', 'two') where thread = ? and type = 'tool_result'"
            assert database_.execute(change, [thread]).rowcount == 1
            database_.commit()
        assert "two" in shoal.cli("replay", thread, exit_code=1)

    def test_a_conversation_forks_at_any_step(self, shoal: Running) -> None:
        shoal.plays("b8-fork", call("bash", command="echo one"), "first", "second", "elsewhere")
        shoal.asks("web:lobby:b8fork", "b8-fork")
        shoal.asks("web:lobby:b8fork", "b8-fork again")
        result = next(
            event["seq"]
            for event in shoal.listed("/api/threads/web:lobby:b8fork/events")
            if event["type"] == "tool_result"
        )
        copy = shoal.cli("threads", "fork", "web:lobby:b8fork", "--after", str(result)).split()[-1]
        assert shoal.asks(copy, "b8-fork from here") == "elsewhere"
        said = "\n".join(message.text for message in shoal.requests("b8-fork from here")[-1].messages)
        assert "one" in said
        assert "first" not in said
        assert len(shoal.events("web:lobby:b8fork", "turn_finished")) == 2

    def test_the_files_of_a_thread_come_from_its_journal(self, shoal: Running) -> None:
        shoal.asks("web:lobby:b8files", "words=1 id=b8-files")
        folder = shoal.folder("web:lobby:b8files")
        until(lambda: "b8-files" in (folder / "log.jsonl").read_text())
        kept = (folder / "log.jsonl").read_text()
        (folder / "log.jsonl").unlink()
        shoal.cli("threads", "rebuild", "web:lobby:b8files")
        assert (folder / "log.jsonl").read_text() == kept


class TestB17:
    """An approval covers the bytes of the files that it names. One person's private words never reach another
    person's prompt.
    """

    def test_a_changed_script_asks_again(self, home: Running) -> None:
        with home.run() as shoal:
            script = shoal.workspace / "b17.sh"
            script.write_text("echo kind\n")
            run = call("bash", command="bash b17.sh")
            shoal.plays("b17-run", run, "Done.")
            shoal.says("web:lobby:b17", "b17-run")
            first = shoal.approval("web:lobby:b17")
            script.write_text("echo evil > b17-evil\n")
            shoal.cli("approvals", "allow", str(first["id"]))
            until(lambda: shoal.approval("web:lobby:b17")["id"] != first["id"])
            assert not (shoal.workspace / "b17-evil").exists()
            shoal.command("web:lobby:b17", "/stop")

    def test_private_memory_belongs_to_one_person(self, shoal: Running) -> None:
        remember = call("remember", text="the owner's birthday is in May", scope="global")
        shoal.plays("b17-keep", remember, "Kept.")
        shoal.asks("web:lobby:b17keep", "b17-keep")
        token = shoal.cli("token", "create", "b17", "--scope", "chat", "--as", "web:ben").strip()
        owner, shoal.process = shoal.process, shoal.process._replace(token=token)
        shoal.says("web:@ben:b17", "words=0 id=b17-ben")
        until(lambda: bool(shoal.requests("b17-ben")))
        shoal.process = owner
        shoal.asks("web:lobby:b17own", "words=0 id=b17-own")
        assert "birthday is in May" in shoal.requests("b17-own")[-1].system
        ben = shoal.requests("b17-ben")[-1]
        assert "birthday" not in ben.system + json.dumps([message.text for message in ben.messages])


class TestB18:
    """During a provider outage a turn waits, even across restarts. The chat shows the wait, and the turn continues
    afterwards.
    """

    def test_an_outage_loses_nothing(self, home: Running) -> None:
        discord, port = home.platforms.discord, int(home.model.url.rpartition(":")[2])
        direct = discord.direct()
        settings = {"SHOAL_TURNS__MODEL_ATTEMPTS_MAX": "1"}
        with home.run(**settings) as shoal:
            shoal.loop.do(shoal.model.stop())
            shoal.loop.do(discord.says(direct, "words=1 id=b18"))
            assert shoal.loop.do(discord.sees(direct, "Your message is saved"))
            shoal.process.kill()
        with home.run(**settings) as shoal:
            shoal.loop.do(shoal.model.start(port=port))
            shoal.command(f"discord:{direct}:0", "/retry")
            assert shoal.loop.do(discord.sees(direct, "DONE 0 b18"))
            assert len(shoal.ends(f"discord:{direct}:0")) == 1
