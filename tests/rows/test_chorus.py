"""Rows C1 to C18: channels with their own agents, permissions, and concurrent conversations."""

import fcntl
import json
import re
import sqlite3
from pathlib import Path

import pytest

from shoal.testing.model import Gate, Reply
from shoal.testing.platforms.discord_world import BOT
from tests import processes
from tests.rows.running import Running, call, calls, change, command_line, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rows-chorus")]

PLATFORMS = ("discord",)
SETTINGS = """
[permissions.profiles.trial]
allow = ["tool:bash:echo .*", "tool:time:.*"]
ask = ["tool:bash:make .*"]
deny = ["tool:bash:echo secret.*"]

[[permissions.overrides]]
agents = ["main"]
ask = ["tool:bash:echo (approved|never|yes|c13).*"]
"""


def slash(shoal: Running, name: str, text: str = "", channel: str = "") -> str:
    """Return the response to a slash command on Discord, as its sender sees it."""
    discord = shoal.platforms.discord
    heard = shoal.loop.do(discord.commands(channel or shoal.platforms.discord_channel, name, text))
    answer = shoal.loop.do(discord.hears(heard))
    assert heard.state == "answered"
    return answer


def deletes(shoal: Running, what: str) -> None:
    """Delete an agent and confirm the deletion."""
    found = re.search(r"/agent (delete .*\w{6})", slash(shoal, "agent", f"delete {what}"))
    assert found
    slash(shoal, "agent", found[1])


def asks(shoal: Running, channel: str, text: str, part: str, reply_to: str = "") -> str:
    """Name the bot in a channel, wait for a message that contains `part`, and return the id of that message."""
    discord = shoal.platforms.discord
    shoal.loop.do(discord.says(channel, text if reply_to else f"<@{BOT}> {text}", reply_to=reply_to))
    return shoal.loop.do(discord.sees(channel, part)).id


def threads(shoal: Running, channel: str) -> dict[str, str]:
    """Return the threads of a Discord channel by title."""
    found = shoal.listed("/api/threads?limit=200")
    return {str(one["title"]): str(one["thread"]) for one in found if f"discord:{channel}:" in str(one["thread"])}


def thread_of(shoal: Running, channel: str, word: str) -> str:
    """Return the thread that a message with this word opened in a channel."""
    until(lambda: any(word in title for title in threads(shoal, channel)))
    return next(thread for title, thread in threads(shoal, channel).items() if word in title)


@pytest.fixture(scope="module")
def painter(shoal: Running) -> str:
    """The channel of the agent `painter`."""
    answer = slash(shoal, "agent", "create painter You paint boats.")
    slash(shoal, "agent", "config painter profile open")
    found = re.search(r"new channel discord:(\d+)", answer)
    assert found, answer
    return found[1]


class TestC1:
    """A channel can have its own agent with instructions, documents, a model, permissions and a git workspace."""

    def test_the_channel_is_answered_by_its_agent(self, shoal: Running, painter: str) -> None:
        folder = shoal.home / "agents/painter"
        (folder / "docs/colours.md").write_text("Hulls are red.\n")
        asks(shoal, painter, "words=1 id=c1-hello", "DONE 0 c1-hello")
        system = shoal.requests("c1-hello")[-1].system
        assert "You paint boats." in system
        assert "Hulls are red." in system
        assert (folder / "workspace/.git").is_dir()
        asks(shoal, painter, 'tools=1 tool=bash words=0 id=c1-made args={"command":"echo hull > hull.txt"}', "c1-made")
        assert (folder / "workspace/hull.txt").read_text() == "hull\n"
        asks(shoal, shoal.platforms.discord_channel, "words=1 id=c1-other", "DONE 0 c1-other")
        assert "You paint boats." not in shoal.requests("c1-other")[-1].system
        assert "answers here" in slash(shoal, "agent", channel=painter)


class TestC2:
    """Agents can be created from a template together with a channel, listed, configured and deleted. They survive
    a restart.
    """

    def test_an_agent_is_created_configured_and_deleted_by_command(self, shoal: Running) -> None:
        template = shoal.home / "template/SOUL.md"
        template.write_text("You are patient.\n")
        rooms = len(shoal.platforms.discord.world.rooms)
        slash(shoal, "agent", "create diver Look below.")
        template.write_text("")
        assert len(shoal.platforms.discord.world.rooms) == rooms + 1
        assert (shoal.home / "agents/diver/SOUL.md").read_text() == "You are patient.\n"
        assert "diver" in slash(shoal, "agent", "list")
        slash(shoal, "agent", "config diver idle_minutes 5")
        assert "idle_minutes = 5" in (shoal.home / "agents/diver/agent.toml").read_text()
        assert "No permission profile is named" in slash(shoal, "agent", "config diver profile no-such-one")
        deletes(shoal, "diver keep")
        assert not (shoal.home / "agents/diver").exists()
        assert list((shoal.home / "removed").glob("diver*/SOUL.md"))
        slash(shoal, "agent", "create diver")
        deletes(shoal, "diver")
        assert "diver" not in slash(shoal, "agent", "list")
        assert len(list((shoal.home / "removed").glob("diver*"))) == 1

    def test_bindings_survive_a_restart(self, tmp_path: Path) -> None:
        with Running(tmp_path / "home", "") as made:
            with made.run() as shoal:
                shoal.cli("agents", "create", "diver")
                shoal.cli("agents", "bind", "diver", "web:deep")
                shoal.process.kill()
            with made.run() as shoal:
                shoal.asks("web:deep:c2", "words=0 id=c2")
                assert shoal.events("web:deep:c2", "turn_started")[0].data["agent"] == "diver"


class TestC3:
    """Slash commands never wait for a turn. They are answered within Discord's three seconds, or deferred if they
    take longer.
    """

    def test_commands_are_answered_while_a_turn_runs(self, shoal: Running) -> None:
        gate, channel = Gate(), shoal.platforms.discord_channel
        shoal.plays("c3-long", Reply("at last", gate=gate))
        shoal.loop.do(shoal.platforms.discord.says(channel, f"<@{BOT}> c3-long"))
        until(gate.reached.is_set)
        assert "c3-long" in slash(shoal, "tasks")
        assert "c3-long" in slash(shoal, "thread", "list")
        assert "main" in slash(shoal, "agent", "list")
        assert "fake/fake-1" in slash(shoal, "settings", "show")
        assert slash(shoal, "status")
        assert slash(shoal, "context")
        shoal.open(gate)
        shoal.loop.do(shoal.platforms.discord.sees(channel, "at last"))

    def test_a_slow_command_is_deferred(self, shoal: Running) -> None:
        gate, discord = Gate(), shoal.platforms.discord
        direct = discord.direct()
        shoal.plays("c3-save", lambda seen: "said" if seen.tools else Reply("A talk about boats", gate=gate))
        shoal.loop.do(discord.says(direct, "c3-save"))
        shoal.loop.do(discord.sees(direct, "said"))
        heard = shoal.loop.do(discord.commands(direct, "context", "save"))
        until(lambda: heard.state == "deferred")
        shoal.open(gate)
        assert "A talk about boats" in shoal.loop.do(discord.hears(heard))


class TestC4:
    """Every call is an action that patterns allow, deny, or send for approval. The model is informed of denials,
    and tools that are never allowed are hidden.
    """

    def test_a_profile_decides_which_calls_run(self, shoal: Running) -> None:
        shoal.cli("agents", "create", "guard")
        shoal.cli("agents", "config", "guard", "profile", "trial")
        both = calls(call("bash", command="echo fine"), call("bash", command="echo secret word"))
        shoal.plays("c4", both, call("bash", command="ls"), "I may not.")
        assert shoal.asks("web:lobby:c4", "c4", agent="guard") == "I may not."
        fine, denied, unnamed = shoal.results("web:lobby:c4")
        assert "fine" in fine
        assert "denied" in denied.lower()
        assert "denied" in unnamed.lower()
        assert set(shoal.requests("c4")[-1].tools) == {"bash", "time"}

    @pytest.mark.parametrize(
        ("profile", "decisions"),
        [("open", "allow allow"), ("standard", "allow ask"), ("guarded", "allow deny"), ("locked", "allow deny")],
    )
    def test_built_in_profiles_decide_as_documented(self, shoal: Running, profile: str, decisions: str) -> None:
        actions = ("tool:read:/workspace/notes.txt", "tool:message:slack:C1")
        told = json.loads(shoal.cli("permissions", "check", "--profile", profile, "--json", *actions))
        assert " ".join(one["decision"] for one in told) == decisions

    def test_a_command_is_split_into_its_parts(self, shoal: Running) -> None:
        line = "echo a && $(make all); echo secret"
        told = json.loads(shoal.cli("permissions", "check", "--profile", "trial", "--json", "--shell", line))
        assert told["decision"] == "deny"
        assert {"echo secret", "make all"} <= {part["action"].partition("bash:")[2] for part in told["parts"]}

    def test_an_invalid_pattern_is_refused_at_startup(self, tmp_path: Path) -> None:
        (tmp_path / "shoal.toml").write_text('[permissions.profiles.bad]\nallow = ["tool:(bash"]\n')
        done = command_line(tmp_path, "ask", "hello")
        assert done.returncode == 1
        assert "tool:(bash" in done.stderr


class TestC5:
    """An action that needs approval waits for a decision in the chat and blocks nothing else."""

    def test_a_click_allows_the_call(self, shoal: Running) -> None:
        discord, channel = shoal.platforms.discord, shoal.platforms.discord_channel
        shoal.plays("c5-ask", call("bash", command="echo approved > c5.txt"), "It is written.")
        shoal.loop.do(discord.says(channel, f"<@{BOT}> c5-ask"))
        card = shoal.loop.do(discord.sees(channel, "echo approved > c5.txt"))
        asks(shoal, channel, "words=1 id=c5-meanwhile", "DONE 0 c5-meanwhile")
        assert not (shoal.workspace / "c5.txt").exists()
        shoal.loop.do(discord.clicks(card.id, "Allow once"))
        shoal.loop.do(discord.sees(channel, "It is written."))
        assert (shoal.workspace / "c5.txt").read_text() == "approved\n"

    @pytest.mark.parametrize(("emoji", "is_written"), [("👍", True), ("👎", False)])
    def test_a_thumbs_up_on_the_card_decides_it(self, shoal: Running, emoji: str, is_written: bool) -> None:
        discord, direct = shoal.platforms.discord, shoal.platforms.discord.direct()
        file = f"c5-{is_written}.txt"
        shoal.plays(f"c5-thumb-{is_written}", call("bash", command=f"echo yes > {file}"), f"decided {is_written}")
        shoal.loop.do(discord.says(direct, f"c5-thumb-{is_written}"))
        card = shoal.loop.do(discord.sees(direct, f"echo yes > {file}"))
        assert "👍 on this message" in card.text
        shoal.loop.do(discord.reacts(card.id, emoji))
        shoal.loop.do(discord.sees(direct, f"decided {is_written}"))
        assert (shoal.workspace / file).exists() is is_written

    def test_a_denial_is_reported_to_the_model(self, shoal: Running) -> None:
        shoal.plays("c5-no", call("bash", command="echo never > c5-no.txt"), "Then not.")
        shoal.says("web:lobby:c5", "c5-no")
        shoal.cli("approvals", "deny", str(shoal.approval("web:lobby:c5")["id"]))
        assert shoal.ends("web:lobby:c5")[0].data["reply"] == "Then not."
        assert not (shoal.workspace / "c5-no.txt").exists()


class TestC6:
    """A message opens a conversation, and a reply to the agent continues it. Conversations run concurrently."""

    def test_threads_get_their_messages_and_can_be_ended(self, shoal: Running, painter: str) -> None:
        first, second, discord = Gate(), Gate(), shoal.platforms.discord
        shoal.plays("c6-first", Reply("first is done", gate=first), "first goes on")
        shoal.plays("c6-second", Reply("never said", gate=second))
        shoal.loop.do(discord.says(painter, "c6-first"))
        until(first.reached.is_set)
        # a message that names the bot does not continue the first one
        shoal.loop.do(discord.says(painter, f"<@{BOT}> c6-second"))
        until(second.reached.is_set)
        killed = thread_of(shoal, painter, "c6-second")
        listed = slash(shoal, "thread", "list", channel=painter)
        assert "c6-first" in listed
        assert "c6-second" in listed
        assert "Stopping" in slash(shoal, "thread", f"kill {killed.rpartition(':')[2]}", channel=painter)
        assert shoal.ends(killed)[0].data["outcome"] == "aborted"
        shoal.open(first)
        written = shoal.loop.do(discord.sees(painter, "first is done"))
        until(lambda: "shoal_outbox_depth 0" in shoal.api("/metrics").body.decode())
        asks(shoal, painter, "c6-first, and more", "first goes on", reply_to=written.id)
        assert len(shoal.ends(thread_of(shoal, painter, "c6-first"))) == 2
        assert "step" in slash(shoal, "thread", f"history {killed.rpartition(':')[2]}", channel=painter)

    def test_a_channel_can_require_a_mention(self, shoal: Running, painter: str) -> None:
        discord = shoal.platforms.discord
        quiet = discord.add_channel(shoal.platforms.guild, name="quiet")
        slash(shoal, "agent", "bind painter listen=named", channel=quiet)
        shoal.plays("c6-plain", "never")
        shoal.loop.do(discord.says(quiet, "c6-plain"))
        asks(shoal, quiet, "words=1 id=c6-named", "DONE 0 c6-named")
        assert not any("c6-plain" in title for title in threads(shoal, quiet))

    @pytest.mark.parametrize(("listen", "answered"), [("all", "plain named"), ("named", "named"), ("threads", "named")])
    def test_a_new_channel_announces_its_response_mode(self, shoal: Running, listen: str, answered: str) -> None:
        answer = slash(shoal, "agent", f"create hears-{listen} listen={listen}")
        channel = answer.partition("discord:")[2].rstrip(".")
        (made,) = [one for one in shoal.listed("/api/agents") if one["name"] == f"hears-{listen}"]
        assert made["listen"] == {f"discord:{channel}": listen}
        shoal.loop.do(shoal.platforms.discord.says(channel, f"words=1 id=c6-{listen}-plain"))
        asks(shoal, channel, f"words=1 id=c6-{listen}-named", f"DONE 0 c6-{listen}-named")
        if "plain" in answered:
            shoal.loop.do(shoal.platforms.discord.sees(channel, f"DONE 0 c6-{listen}-plain"))
        heard = [part for part in ("plain", "named") if shoal.requests(f"id=c6-{listen}-{part}")]
        assert " ".join(heard) == answered


class TestC7:
    """Conversations in one workspace do not overwrite each other's edits. Each is informed of the others' changes."""

    def test_concurrent_edits_of_one_file_are_all_kept(self, shoal: Running, painter: str) -> None:
        names = [f"hull{number}" for number in range(6)]
        file = shoal.home / "agents/painter/workspace/c7.txt"
        page = "\n." * 10
        file.write_text("\n".join(f"{name} open{page}" for name in names))
        for name in names:
            edit = call("edit", path="c7.txt", old_string=f"{name} open", new_string=f"{name} done")
            shoal.plays(f"c7-{name}", edit, "painted")
            shoal.says(f"web:dock:c7{name}", f"c7-{name}", agent="painter")
        for name in names:
            shoal.ends(f"web:dock:c7{name}")
            assert "Edited" in shoal.results(f"web:dock:c7{name}")[0]
        assert file.read_text() == "\n".join(f"{name} done{page}" for name in names)

    @pytest.mark.xdist_group("rows-lock")
    def test_a_locked_file_is_given_up_after_half_a_minute(self, tmp_path: Path) -> None:
        with Running(tmp_path / "home", "") as made, made.run() as shoal:
            file = shoal.workspace / "c7-held.txt"
            file.write_text("open\n")
            with file.open() as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                shoal.says("web:lobby:c7", 'tools=1 tool=write words=0 args={"path":"c7-held.txt","content":"mine"}')
                processes.until(lambda: bool(shoal.events("web:lobby:c7", "turn_finished")), 60)
            (told,) = shoal.results("web:lobby:c7")
            assert "for 30 seconds" in told
            assert file.read_text() == "open\n"

    def test_each_thread_knows_of_the_others(self, shoal: Running, painter: str) -> None:
        gate = Gate()
        shoal.plays("c7-busy", Reply("later", gate=gate))
        shoal.says("web:dock:c7busy", "c7-busy with the keel", agent="painter")
        until(gate.reached.is_set)
        shoal.asks("web:dock:c7look", "words=0 id=c7-look", agent="painter")
        assert "c7-busy with the keel" in shoal.requests("c7-look")[-1].messages[-1].text
        shoal.open(gate)
        shoal.ends("web:dock:c7busy")


class TestC8:
    """The model sees the messages of the last hours. A conversation can be saved, cleared and restored, and its
    events are never deleted.
    """

    def test_a_conversation_is_saved_cleared_and_restored_by_command(self, shoal: Running) -> None:
        thread = "web:lobby:c8"
        shoal.plays("c8-talk", lambda seen: "it is red" if seen.tools else "About the colour of the hull")
        shoal.asks(thread, "c8-talk: the hull")
        assert "About the colour of the hull" in shoal.command(thread, "/context save")
        shoal.command(thread, "/context clear")
        shoal.asks(thread, "words=0 id=c8-cleared")
        assert len(shoal.requests("c8-cleared")[-1].messages) == 1
        history = shoal.command(thread, "/context history")
        saved = re.search(r"`(\w+)`.*About the colour", history)
        assert saved, history
        shoal.command(thread, f"/context restore {saved[1]}")
        shoal.asks(thread, "words=0 id=c8-back")
        assert any("it is red" in message.text for message in shoal.requests("c8-back")[-1].messages)
        assert list((shoal.home / "agents/main/sessions").glob(f"*{saved[1]}.json"))
        assert any("c8-talk" in str(event.data.get("text")) for event in shoal.events(thread, "user_message"))

    def test_messages_older_than_the_window_are_ignored(self, shoal: Running) -> None:
        shoal.cli("ask", "--thread", "terminal:local:c8", "words=0 id=c8-old")
        shoal.cli("ask", "--thread", "terminal:local:c8", "words=0 id=c8-day")
        assert len(shoal.requests("c8-day")[-1].messages) == 3
        narrow = {"SHOAL_CONTEXT__WINDOW_HOURS": "0.0000001"}
        with Running(shoal.home.parent / "c8", "") as made:
            for name in ("c8-one", "c8-two"):
                made.cli("ask", "--thread", "terminal:local:c8", f"words=0 id={name}", settings=narrow)
            assert len(made.requests("c8-two")[-1].messages) == 1


class TestC9:
    """The conversations of a quiet channel are saved and cleared, and a message in the channel says so."""

    def test_an_idle_conversation_is_saved(self, tmp_path: Path) -> None:
        with Running(tmp_path / "home", "", ("discord",)) as made:
            discord = made.platforms.discord
            direct = discord.direct()
            with made.run() as shoal:
                shoal.plays("c9-talk", lambda seen: "yes" if seen.tools else "A short talk")
                shoal.loop.do(discord.says(direct, "c9-talk"))
                shoal.loop.do(discord.sees(direct, "yes"))
                shoal.cli("agents", "config", "main", "idle_minutes", "0.001")
                assert shoal.process.stop() == 0
            with made.run() as shoal:
                told = shoal.loop.do(discord.sees(direct, "saved and cleared our conversation")).text
                assert "A short talk" in told
                assert list((shoal.home / "agents/main/sessions").glob("*.json"))
                assert shoal.events(f"discord:{direct}:0", "cleared")

    def test_a_heartbeat_neither_delays_idleness_nor_is_saved(self, tmp_path: Path) -> None:
        beats = "[triggers]\nheartbeat_minutes = 0.01\n"
        with Running(tmp_path / "home", beats) as made:
            made.plays("c9-beat", lambda _: "[SILENT]")
            made.plays("c9-talk", lambda seen: "yes" if seen.tools else "A short talk")
            with made.run() as shoal:
                shoal.asks("web:lobby:c9", "c9-talk")
                (shoal.home / "data/HEARTBEAT.md").write_text("- c9-beat: look around\n")
                shoal.cli("agents", "config", "main", "idle_minutes", "0.02")
                until(lambda: len(shoal.requests("c9-beat")) >= 3)
                assert shoal.process.stop() == 0
            with made.run() as shoal:
                beaten = len(shoal.requests("c9-beat"))
                until(lambda: bool(shoal.events("web:lobby:c9", "cleared")))
                until(lambda: len(shoal.requests("c9-beat")) > beaten)
                (saved,) = (shoal.home / "agents/main/sessions").glob("*.json")
                assert "c9-talk" in saved.read_text()
                assert "A short talk" in shoal.command("web:lobby:c9", "/context history")


class TestC10:
    """An agent changes its instructions, documents, model and permissions with approval. Every change is recorded."""

    def test_an_allowed_self_edit_applies_and_can_be_reverted(self, shoal: Running) -> None:
        shoal.plays("c10-change", call("set_system_prompt", text="You watch the tide."), "Changed.")
        shoal.says("web:lobby:c10", "c10-change")
        question = shoal.approval("web:lobby:c10")
        assert "You watch the tide." in json.dumps(question)
        shoal.cli("approvals", "allow", str(question["id"]))
        shoal.ends("web:lobby:c10")
        shoal.asks("web:lobby:c10", "words=0 id=c10-after")
        assert "You watch the tide." in shoal.requests("c10-after")[-1].system
        audit = shoal.cli("audit", "tail", "--limit", "50", "--json")
        assert "set_system_prompt" in audit
        shoal.command("web:lobby:c10", "/agent undo main")
        assert "You watch the tide." not in (shoal.home / "agents/main/agent.toml").read_text()

    @pytest.mark.parametrize(
        ("tool", "given", "place"),
        [
            ("set_persona", {"file": "SYSTEM.md", "text": "jq is new here.\n"}, "data/SYSTEM.md"),
            ("set_persona", {"file": "SOUL.md", "text": "You hum.\n"}, "agents/main/SOUL.md"),
            ("set_tools", {"tools": ["bash", "time", "my_settings"]}, "agents/main/agent.toml"),
        ],
        ids=["system", "soul", "tools"],
    )
    def test_self_edits_of_files_and_tools_show_a_diff(
        self, shoal: Running, tool: str, given: dict[str, object], place: str
    ) -> None:
        discord, file, told = shoal.platforms.discord, shoal.home / place, f"c10-{Path(place).stem}"
        direct, before = discord.direct(), file.read_text()
        shoal.plays(told, call("more_tools", call=tool, arguments=given), f"{told} is done")
        shoal.loop.do(discord.says(direct, told))
        card = shoal.loop.do(discord.sees(direct, f"+++ b/{place}" if "data" in place else f"+++ b/{file.name}"))
        added = [line[1:] for line in card.text.splitlines() if line.startswith("+") and not line.startswith("+++")]
        assert added
        assert file.read_text() == before
        shoal.loop.do(discord.clicks(card.id, "Allow once"))
        shoal.loop.do(discord.sees(direct, f"{told} is done"))
        assert set(added) <= {*file.read_text().splitlines()}
        assert "Undone" in slash(shoal, "agent", "undo main", direct)
        assert file.read_text() == before

    def test_an_agent_can_read_its_own_settings(self, shoal: Running) -> None:
        shoal.plays("c10-mine", call("more_tools", call="my_settings", arguments={}), "So I am.")
        shoal.asks("web:lobby:c10mine", "c10-mine")
        (told,) = shoal.results("web:lobby:c10mine")
        assert "agent: main" in told
        assert "profile: standard" in told
        assert "fake/fake-1" in told

    def test_only_permitted_people_widen_permissions(self, shoal: Running) -> None:
        token = shoal.cli("token", "create", "c10", "--scope", "chat", "--as", "web:ben").strip()
        shoal.plays("c10-wider", call("set_permissions", profile="open"), "I asked.")
        owner, shoal.process = shoal.process, shoal.process._replace(token=token)
        shoal.says("web:@ben:c10", "c10-wider")
        shoal.process = owner
        until(lambda: bool(shoal.events("web:@ben:c10", "turn_finished")) or bool(_questions(shoal)))
        for question in _questions(shoal):
            shoal.cli("approvals", "allow", str(question["id"]))
        shoal.ends("web:@ben:c10")
        assert "cannot grant that" in shoal.results("web:@ben:c10")[0]
        assert not re.search(r"^profile", (shoal.home / "agents/main/agent.toml").read_text(), re.MULTILINE)


def _questions(shoal: Running) -> list[dict[str, object]]:
    return [one for one in shoal.listed("/api/approvals") if "@ben" in str(one["thread"])]


class TestC11:
    """`create_file`, `str_replace` and `view` work only in the workspace. Commands start there, too."""

    def test_file_tools_work_inside_the_workspace_only(self, shoal: Running) -> None:
        shoal.cli("agents", "create", "clerk")
        shoal.cli("agents", "config", "clerk", "tools", "create_file,str_replace,view,bash")
        shoal.cli("agents", "config", "clerk", "profile", "guarded")
        thread = "web:lobby:c11"
        shoal.plays(
            "c11",
            call("create_file", path="a/b.txt", content="one two"),
            call("str_replace", path="a/b.txt", old_str="two", new_str="three"),
            call("view", path="a/b.txt"),
            call("create_file", path=str(shoal.home / "escaped.txt"), content="x"),
            call("view", path="../../../.." + str(shoal.home / "shoal.toml")),
            call("bash", command="pwd; cat a/b.txt; ls missing"),
            "Done.",
        )
        shoal.asks(thread, "c11", agent="clerk")
        *_, viewed, _, unseen, ran = shoal.results(thread)
        assert "one three" in viewed
        assert not (shoal.home / "escaped.txt").exists()
        assert "providers" not in unseen
        assert ran.startswith("/workspace\none three\n")
        assert "No such file" in ran
        assert "[exit code" in ran


class TestC12:
    """All kinds of providers share one interface. Keys are tested, model lists are fetched and stored, and the
    name of a model is enough to find its provider.
    """

    @pytest.mark.parametrize("kind", ["openai", "anthropic", "openai-responses", "gemini"])
    def test_a_name_selects_its_provider(self, shoal: Running, tmp_path: Path, kind: str) -> None:
        suffix = {"gemini": "/v1beta", "anthropic": ""}.get(kind, "/v1")
        (tmp_path / "shoal.toml").write_text(
            f'[model]\nname = "fake-1"\n[providers.harbour]\nkind = "{kind}"\n'
            f'base_url = "{shoal.model.url}{suffix}"\napi_key = "a-key"\n'
        )
        known = command_line(tmp_path, "models", "refresh")
        assert known.returncode == 0, known.stderr
        kept = json.loads((tmp_path / "available_models.json").read_text())
        assert kept["harbour"]["valid"] is True
        assert kept["harbour"]["models"] == ["fake-1"]
        text = f"tools=1 tool=time words=0 id=c12-{kind} args={{}}"
        done = command_line(tmp_path, "ask", text)
        assert done.stdout == f"DONE 1 c12-{kind}\n", done.stderr

    def test_a_wrong_key_is_reported(self, tmp_path: Path) -> None:
        with Running(tmp_path / "home", 'api_key = "wrong"\n') as made:
            change(made.model, api_key="right")
            assert "key" in made.cli("doctor", exit_code=1)
            kept = json.loads((made.home / "available_models.json").read_text())
            assert kept["fake"]["valid"] is False


class TestC13:
    """The audit log contains every check, decision and self-edit, with the action, the decision and the person."""

    def test_every_permission_check_is_audited(self, shoal: Running) -> None:
        shoal.plays("c13", calls(call("time", timezone="UTC"), call("bash", command="echo c13")), "Asked.")
        shoal.says("web:lobby:c13", "c13")
        shoal.cli("approvals", "deny", str(shoal.approval("web:lobby:c13")["id"]))
        shoal.ends("web:lobby:c13")
        shoal.cli("agents", "create", "auditor")
        shoal.cli("agents", "config", "auditor", "profile", "trial")
        shoal.plays("c13-never", call("bash", command="echo secret c13"), "No.")
        shoal.asks("web:lobby:c13never", "c13-never", agent="auditor")
        tail = json.loads(shoal.cli("audit", "tail", "--limit", "30", "--json"))
        entries = [json.dumps(one["entry"]) for one in tail]
        allowed, asked = ("tool:time:UTC", "allow", "owner"), ("tool:bash:echo c13", "ask")
        refused = ("tool:bash:echo secret c13", '"decision": "deny"', "echo secret.*")
        for parts in (allowed, asked, ("deny", "owner"), refused):
            assert any(all(part in entry for part in parts) for entry in entries), parts
        shoal.cli("audit", "verify")


class TestC14:
    """One SQLite file contains agents, saved conversations, the audit log, messages, steps with their times, and
    settings.
    """

    def test_each_table_is_filled(self, shoal: Running, painter: str) -> None:
        shoal.asks("web:lobby:c14", "words=0")
        shoal.command("web:lobby:c14", "/context save for the record")
        shoal.command("web:lobby:c14", "/settings here model fake/fake-1")
        with sqlite3.connect(f"file:{shoal.home / 'shoal.db'}?mode=ro", uri=True) as database:
            for table in ("agents", "bindings", "snapshots", "audit", "events", "inbox", "thread_steps", "settings"):
                assert database.execute(f"select count(*) from {table}").fetchone()[0], table
        shoal.command("web:lobby:c14", "/settings here model default")


class TestC15:
    """On Discord, posts are paced and split to fit its limits, and no text is lost."""

    def test_many_answers_stay_within_the_limit(self, shoal: Running) -> None:
        discord = shoal.platforms.discord
        channel, refused = discord.add_channel(shoal.platforms.guild, name="busy"), discord.exceeded
        for number in range(7):
            shoal.loop.do(discord.says(channel, f"<@{BOT}> words=1 id=c15-{number}"))
        for number in range(7):
            shoal.loop.do(discord.sees(channel, f"DONE 0 c15-{number}"))
        assert discord.exceeded == refused
        times = sorted(at for at, where in discord.posted if where == channel)
        assert all(later - earlier >= 4.9 for earlier, later in zip(times, times[5:], strict=False))

    def test_a_long_answer_is_split(self, shoal: Running) -> None:
        discord, direct = shoal.platforms.discord, shoal.platforms.discord.direct()
        words = [f"c15w{number}" for number in range(700)]
        shoal.plays("c15-long", " ".join(words))
        shoal.loop.do(discord.says(direct, "c15-long"))
        shoal.loop.do(discord.sees(direct, "c15w699"))
        pieces = [one.text for one in discord.said(direct) if "c15w" in one.text]
        assert len(pieces) >= 3
        assert " ".join(pieces).split() == words


class TestC16:
    """A reply that reaches the model's output limit is kept and continued."""

    def test_a_cut_off_answer_is_continued(self, shoal: Running) -> None:
        shoal.plays("c16", Reply("The hull is ", stop="max_tokens"), "red and the mast is white.")
        reply = shoal.asks("web:lobby:c16", "c16")
        assert "The hull is" in reply
        assert "the mast is white." in reply


class TestC17:
    """Commands that outlive their turn are tracked, together with their output, and can start a turn."""

    def test_hooks_start_turns(self, shoal: Running, painter: str) -> None:
        hooks = [
            {"on": "output", "pattern": "ready", "note": "c17-ready"},
            {"on": "exit", "note": "c17-exit"},
            {"on": "timeout", "after_seconds": 1, "note": "c17-late"},
        ]
        command = "echo ready; until [ -e c17-go ]; do sleep 0.05; done; exit 3"
        shoal.plays("c17-start", call("process_start", command=command, name="pump", hooks=hooks), "Started.")
        for word in ("c17-ready", "c17-exit", "c17-late"):
            shoal.plays(word, "I see.")
        shoal.asks("web:dock:c17", "c17-start", agent="painter")
        until(lambda: bool(shoal.requests("c17-ready")) and bool(shoal.requests("c17-late")))
        (process,) = [one for one in shoal.listed("/api/processes") if one["name"] == "pump"]
        assert process["state"] == "running"
        assert "ready" in shoal.cli("processes", "logs", str(process["id"]))
        (shoal.home / "agents/painter/workspace/c17-go").touch()
        until(lambda: bool(shoal.requests("c17-exit")))
        assert "3" in shoal.requests("c17-exit")[-1].messages[-1].text
        shoal.ends("web:dock:c17", 4)


class TestC18:
    """An agent's documents are always in its prompt. Settings for a server apply only in that server."""

    def test_settings_apply_to_one_server(self, shoal: Running) -> None:
        discord, here = shoal.platforms.discord, shoal.platforms.discord_channel
        _, far = discord.add_server()
        assert "locked" in slash(shoal, "settings", "permissions locked")
        assert "the permissions locked" in slash(shoal, "settings")
        assert "the permissions standard" in slash(shoal, "settings", channel=far)
        write = 'tools=1 tool=write words=0 id=c18-locked args={"path":"c18.txt","content":"x"}'
        asks(shoal, here, write, "c18-locked")
        assert not (shoal.workspace / "c18.txt").exists()
        slash(shoal, "settings", "permissions default", channel=here)

    def test_documents_are_in_every_prompt(self, shoal: Running) -> None:
        (shoal.home / "agents/main/docs/rules.md").write_text("Ring twice.\n")
        shoal.asks("web:lobby:c18", "words=0 id=c18-a")
        shoal.asks("web:lobby:c18b", "words=0 id=c18-b")
        assert all("Ring twice." in shoal.requests(word)[-1].system for word in ("c18-a", "c18-b"))
