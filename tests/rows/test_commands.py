"""Commands in channels where each conversation is a thread, thread numbers, and the information in commands."""

import json
import re
from pathlib import Path
from typing import Literal

import pytest

from shoal.testing.model import Gate, Reply
from shoal.testing.platforms.discord_world import BOT
from shoal.testing.platforms.google_chat_wire import ChatMessage
from shoal.testing.platforms.teams import FakeTeams, TeamsPosted
from tests.rows.running import Running, call, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rows-commands")]

PLATFORMS = ("discord", "google_chat", "teams")
SECRET = "a-secret-of-the-hooks"
SETTINGS = f"""
[[permissions.overrides]]
agents = ["main"]
ask = ["tool:bash:rm -rf /workspace/(ask-me|audited)"]
[triggers.webhooks.harbour]
secret = "{SECRET}"
thread = "web:harbour:hook"
template = "{{{{ body }}}}"
"""


def slash(shoal: Running, name: str, text: str = "", channel: str = "") -> str:
    """Return the response to a slash command on Discord, as its sender sees it."""
    discord = shoal.platforms.discord
    heard = shoal.loop.do(discord.commands(channel or shoal.platforms.discord_channel, name, text))
    return shoal.loop.do(discord.hears(heard))


def fresh(shoal: Running) -> str:
    """Create a Discord channel and return its id."""
    return shoal.loop.call(lambda: shoal.platforms.discord.add_channel(shoal.platforms.guild))


def asks(shoal: Running, channel: str, word: str) -> None:
    """Start a conversation in a channel and wait for the reply."""
    shoal.loop.do(shoal.platforms.discord.says(channel, f"<@{BOT}> words=1 id={word}"))
    shoal.loop.do(shoal.platforms.discord.sees(channel, f"DONE 0 {word}"))


def works(shoal: Running, channel: str, word: str) -> Gate:
    """Start a conversation whose reply blocks at a gate, and return the gate."""
    gate = Gate()
    shoal.plays(word, Reply(f"done {word}", gate=gate), f"done {word}")
    shoal.loop.do(shoal.platforms.discord.says(channel, f"<@{BOT}> {word}"))
    until(gate.reached.is_set)
    return gate


class TestChannelCommands:
    """A command in a channel applies to the running thread there. If none is running, it applies to the sender's
    last thread.
    """

    def test_stop_ends_the_only_running_thread(self, shoal: Running) -> None:
        channel = fresh(shoal)
        works(shoal, channel, "stop-one")
        assert slash(shoal, "stop", channel=channel) == "Stopping."
        until(lambda: slash(shoal, "stop", channel=channel) == "Nothing is running here.")

    def test_stop_offers_running_threads_by_number(self, shoal: Running) -> None:
        channel = fresh(shoal)
        works(shoal, channel, "several-first")
        second = works(shoal, channel, "several-second")
        listed = slash(shoal, "stop", channel=channel)
        numbers = dict(re.findall(r"(several-\w+).*/stop (#\d+)", listed))
        assert set(numbers) == {"several-first", "several-second"}, listed
        steers = slash(shoal, "steer", "be brief", channel=channel)
        assert f"/steer {numbers['several-second']} TEXT" in steers
        assert slash(shoal, "steer", f"{numbers['several-second']} be brief", channel=channel) == (
            "Sent to the running turn."
        )
        assert slash(shoal, "stop", numbers["several-first"], channel=channel) == "Stopping."
        until(lambda: "/stop" not in slash(shoal, "status", channel=channel))
        shoal.open(second)
        shoal.loop.do(shoal.platforms.discord.sees(channel, "done several-second"))

    def test_stop_all_ends_every_thread(self, shoal: Running) -> None:
        channel = fresh(shoal)
        works(shoal, channel, "all-first")
        works(shoal, channel, "all-second")
        assert slash(shoal, "stop", "all", channel=channel) == "Stopping 2 conversations."
        until(lambda: "none at work" in slash(shoal, "status", channel=channel))

    def test_status_sums_up_the_channel(self, shoal: Running) -> None:
        channel = fresh(shoal)
        assert "This channel has no messages" in slash(shoal, "status", channel=channel)
        asks(shoal, channel, "status-old")
        gate = works(shoal, channel, "status-new")
        told = slash(shoal, "status", channel=channel)
        assert "2 conversations in this channel: 1 at work." in told
        assert "status-new" in told
        shoal.open(gate)
        shoal.loop.do(shoal.platforms.discord.sees(channel, "done status-new"))

    def test_context_and_new_apply_to_the_last_conversation(self, shoal: Running) -> None:
        channel = fresh(shoal)
        assert slash(shoal, "context", "history", channel=channel) == "This channel has no saved conversations."
        assert "not written to me" in slash(shoal, "context", "clear", channel=channel)
        assert "begins a new conversation" in slash(shoal, "new", channel=channel)
        asks(shoal, channel, "ctx-one")
        saved = slash(shoal, "context", "save the moorings", channel=channel)
        assert "the moorings" in saved
        assert "ctx-one" in saved.splitlines()[-1], "it says of which conversation"
        assert "the moorings" in slash(shoal, "context", "history", channel=channel)
        assert "I cleared the context." in slash(shoal, "context", "clear", channel=channel)
        assert "Restored" in slash(shoal, "context", "restore 1", channel=channel)
        told = slash(shoal, "new", channel=channel)
        assert "/context restore" in told
        assert "ctx-one" in told

    def test_an_approval_of_a_thread_is_answered_from_the_channel(self, shoal: Running) -> None:
        channel = fresh(shoal)
        shoal.plays("ask-me", call("bash", command="rm -rf /workspace/ask-me"), "asked")
        shoal.loop.do(shoal.platforms.discord.says(channel, f"<@{BOT}> ask-me"))
        until(lambda: bool(shoal.listed("/api/approvals")))
        assert slash(shoal, "deny", channel=channel) == "Denied."
        shoal.loop.do(shoal.platforms.discord.sees(channel, "asked"))


class _Elsewhere:
    """A Teams channel or Google Chat space. Each message that names the bot opens a thread."""

    def __init__(self, shoal: Running, platform: Literal["teams", "google_chat"], name: str) -> None:
        self.shoal = shoal
        teams, google_chat = shoal.platforms.teams, shoal.platforms.google_chat
        self.fake = {"teams": teams, "google_chat": google_chat}[platform]
        self.channel = f"19:{name}@thread.tacv2" if platform == "teams" else f"Space{name}"
        if platform == "teams":
            shoal.loop.call(lambda: teams.add(self.channel, "channel"))
            self.user = "ada"
        else:
            shoal.loop.call(lambda: google_chat.add(self.channel, "SPACE"))
            self.user = "1001"

    def says(self, text: str) -> None:
        self.shoal.loop.do(self.fake.says(self.channel, text, user=self.user, named=True))

    def sees(self, part: str) -> str:
        return self.shoal.loop.do(self.fake.sees(self.channel, part)).text

    def command(self, text: str) -> str:
        """Send a command, which opens its own thread, and return the response. Teams sends the response to the
        person's own chat.
        """
        count = len(self._posted())
        self.says(text)
        until(lambda: len(self._posted()) > count)
        return self._posted()[count].text

    def _posted(self) -> list[TeamsPosted] | list[ChatMessage]:
        if isinstance(self.fake, FakeTeams):
            return self.fake.messages
        return self.fake.said(self.channel)


@pytest.mark.parametrize("platform", ["teams", "google_chat"])
class TestChannelCommandsElsewhere:
    """Channel commands on Teams and Google Chat, where a command itself opens a thread."""

    def test_a_command_applies_to_the_running_or_the_last_thread(
        self, shoal: Running, platform: Literal["teams", "google_chat"]
    ) -> None:
        there, word = _Elsewhere(shoal, platform, "harbour"), f"{platform[:5]}-one"
        assert there.command("/stop") == "Nothing is running here."
        assert "This channel has no messages" in there.command("/status")
        assert "This channel has no saved conversations" in there.command("/context history")
        assert "not written to me" in there.command("/context clear")
        gate = Gate()
        shoal.plays(word, Reply(f"done {word}", gate=gate), f"done {word}")
        there.says(word)
        until(gate.reached.is_set)
        told = there.command("/status")
        assert "1 conversation in this channel: 1 at work." in told
        assert word in told
        assert there.command("/stop") == "Stopping."
        until(lambda: "none at work" in there.command("/status"))
        there.says(f"words=1 id={platform[:5]}-two")
        there.sees(f"DONE 0 {platform[:5]}-two")
        assert "the moorings" in there.command("/context save the moorings")
        assert "the moorings" in there.command("/context history")
        assert "/context restore" in there.command("/new")
        assert "I cleared the context." in there.command("/context clear")


class TestNumbers:
    """Threads have short, stable numbers in the lists of a channel."""

    def test_a_thread_keeps_its_number(self, shoal: Running) -> None:
        channel = fresh(shoal)
        asks(shoal, channel, "number-one")
        asks(shoal, channel, "number-two")
        listed = slash(shoal, "thread", "list", channel=channel)
        assert re.search(r"#1 \S+ .*number-one", listed)
        assert re.search(r"#2 \S+ .*number-two", listed)
        asks(shoal, channel, "number-three")
        again = slash(shoal, "thread", "list", channel=channel)
        assert re.search(r"#1 \S+ .*number-one", again)
        assert re.search(r"#3 \S+ .*number-three", again)
        gate = works(shoal, channel, "number-four")
        assert re.search(r"#4 .*number-four", slash(shoal, "tasks", channel=channel))
        assert slash(shoal, "thread", "kill 4", channel=channel).startswith("Stopping discord:")
        assert "step" in slash(shoal, "thread", "history #1", channel=channel)
        assert "Thread #9 does not exist" in slash(shoal, "thread", "kill #9", channel=channel)
        shoal.open(gate)


class TestThreadId:
    """The agent and its users can see the id of the thread."""

    def test_the_thread_id_is_in_the_instructions_and_in_status(self, shoal: Running) -> None:
        shoal.asks("web:lobby:known", "words=1 id=known-id")
        shoal.asks("web:lobby:known", "words=1 id=known-again")
        first, second = (shoal.requests(word)[-1].system for word in ("known-id", "known-again"))
        assert "`web:lobby:known`" in first
        assert first == second
        assert "`web:lobby:known`" in shoal.command("web:lobby:known", "/status")


class TestAgentCommands:
    """The information in /agent, /help, /start and the audit log."""

    def test_configure_is_an_alias_and_show_includes_the_idle_timer(self, shoal: Running) -> None:
        shoal.command("web:lobby:idle", "/agent create rower")
        assert "idle_minutes is now `30`" in shoal.command("web:lobby:idle", "/agent configure rower idle_minutes 30")
        assert "after 30 min of inactivity" in shoal.command("web:lobby:idle", "/agent show rower")
        assert "idle_minutes" in shoal.command("web:lobby:idle", "/agent show main")
        assert "idle_minutes" in shoal.command("web:lobby:idle", "/help")
        assert "# idle_minutes" in (shoal.home / "template/agent.toml").read_text()

    def test_delete_asks_for_confirmation_of_the_current_state(self, shoal: Running) -> None:
        shoal.command("web:lobby:del", "/agent create doomed")
        folder = shoal.home / "agents/doomed"
        asked = shoal.command("web:lobby:del", "/agent delete doomed")
        code = re.findall(r"/agent delete doomed (\w{6})`", asked)[0]
        (folder / "workspace/new.txt").write_text("written since\n")
        assert "is invalid or has expired" in shoal.command("web:lobby:del", f"/agent delete doomed {code}")
        asked = shoal.command("web:lobby:del", "/agent delete doomed")
        code = re.findall(r"/agent delete doomed (\w{6})`", asked)[0]
        assert "is invalid or has expired" in shoal.command("web:lobby:del", f"/agent delete doomed keep {code}")
        assert folder.exists()
        assert "Deleted the agent" in shoal.command("web:lobby:del", f"/agent delete doomed {code}")
        assert not folder.exists()
        assert "default agent" in shoal.command("web:lobby:del", "/agent delete main")

    def test_list_shows_running_agents(self, shoal: Running) -> None:
        gate = Gate()
        shoal.plays("list-work", Reply("done", gate=gate))
        shoal.says("web:lobby:work", "list-work")
        until(gate.reached.is_set)
        assert re.search(r"\*\*main\*\* .*[1-9] at work", shoal.command("web:lobby:other", "/agent list"))
        shoal.open(gate)
        shoal.ends("web:lobby:work")

    def test_the_audit_row_of_an_approved_call_names_action_and_approver(self, shoal: Running) -> None:
        shoal.plays("audited", call("bash", command="rm -rf /workspace/audited"), "ran")
        shoal.says("web:lobby:audited", "audited")
        asked = shoal.approval("web:lobby:audited")
        shoal.api(f"/api/approvals/{asked['id']}", {"decision": "allow"})
        shoal.ends("web:lobby:audited")
        rows = [line for line in shoal.cli("audit", "tail").splitlines() if "rm -rf /workspace/audited" in line]
        assert any("allow" in line and "owner" in line and "approv" in line for line in rows), rows

    def test_start_shows_a_welcome_of_three_lines(self, shoal: Running) -> None:
        told = shoal.command("web:lobby:start", "/start")
        assert len(told.splitlines()) == 3
        assert "/help" in told


class TestMemoryAsFiles:
    """Memory is also a file. The file tools read and change it with the same effect as `remember`."""

    def test_headings_and_lists_are_written_read_and_reverted(self, shoal: Running) -> None:
        thread, file = "web:pages:one", "/memory/channel/MEMORY.md"
        boats = "# Boats\n\n- Kelp\n  - hull red\n- Gull\n"
        shoal.plays("page-write", call("write", path=file, content=boats), "wrote")
        shoal.asks(thread, "page-write")
        kept = shoal.home / "data/web/pages/MEMORY.md"
        assert kept.read_text() == boats
        shoal.plays("page-edit", call("edit", path=file, old_string="hull red", new_string="hull blue"), "edited")
        shoal.asks(thread, "page-edit")
        assert "  - hull blue\n" in kept.read_text()
        shoal.plays("page-read", call("read", path=file), "read it")
        shoal.asks(thread, "page-read")
        assert "# Boats" in shoal.results(thread)[-1]
        shoal.asks(thread, "words=0 id=page-prompt")
        assert "hull blue" in shoal.requests("page-prompt")[-1].system
        assert "Undone" in shoal.command(thread, "/memory undo")
        assert "  - hull red\n" in kept.read_text()

    def test_memory_from_a_private_chat_applies_to_the_person_everywhere(self, shoal: Running) -> None:
        shoal.plays("tell-private", call("remember", text="My boat is called\nKelp of Harbour"), "kept")
        direct = shoal.loop.call(shoal.platforms.discord.direct)
        shoal.loop.do(shoal.platforms.discord.says(direct, "tell-private"))
        shoal.loop.do(shoal.platforms.discord.sees(direct, "kept"))
        shoal.asks("web:elsewhere:one", "words=0 id=asks-elsewhere")
        system = shoal.requests("asks-elsewhere")[-1].system
        assert "- My boat is called\n  Kelp of Harbour" in system
        channel = fresh(shoal)
        asks(shoal, channel, "asks-in-group")
        assert "Kelp of Harbour" not in shoal.requests("asks-in-group")[-1].system

    @pytest.mark.parametrize("tool", ["remember", "write", "edit"])
    def test_memory_changes_ask_after_untrusted_content(self, shoal: Running, tool: str) -> None:
        file, word = "/memory/channel/MEMORY.md", f"hook-{tool}"
        (shoal.home / "data/web/harbour").mkdir(parents=True, exist_ok=True)
        (shoal.home / "data/web/harbour/MEMORY.md").write_text("- The pier is safe.\n")
        arguments = {
            "remember": {"text": "The pier is gone.", "scope": "channel"},
            "write": {"path": file, "content": "- The pier is gone.\n"},
            "edit": {"path": file, "old_string": "safe", "new_string": "gone"},
        }[tool]
        shoal.plays(word, call(tool, **arguments), "asked")
        turns = len(shoal.events("web:harbour:hook", "turn_finished"))
        owner, shoal.process = shoal.process, shoal.process._replace(token=SECRET)
        assert shoal.api("/hooks/harbour", {"say": word}).status == 202
        shoal.process = owner
        question = shoal.approval("web:harbour:hook")
        assert "ntrusted" in json.dumps(question)
        shoal.api(f"/api/approvals/{question['id']}", {"decision": "deny"})
        shoal.ends("web:harbour:hook", turns + 1)
        assert (shoal.home / "data/web/harbour/MEMORY.md").read_text() == "- The pier is safe.\n"


class TestNewHome:
    """A new home directory: names of models, and the idle timer."""

    def test_a_new_home_offers_models_and_announces_the_idle_save_once(self, tmp_path: Path) -> None:
        with Running(tmp_path / "home", "", ("discord",)) as shoal:
            with shoal.run(ANTHROPIC_API_KEY="sk-ant-a-key"):
                until(lambda: bool(re.search(r"anthropic/claude-\w+", slash(shoal, "model"))))
                channel = fresh(shoal)
                asks(shoal, channel, "quiet-one")
                asks(shoal, channel, "quiet-two")
            (shoal.home / "agents/main/agent.toml").write_text("idle_minutes = 0.0001\n")
            with shoal.run():  # the idle timer runs at startup and then every minute
                told = shoal.loop.do(shoal.platforms.discord.sees(channel, "saved and cleared"))
                assert "saved and cleared 2 conversations" in told.text
                listed = slash(shoal, "context", "history", channel=channel)
                assert len(listed.splitlines()) == 2, listed
            said = [one.text for one in shoal.platforms.discord.said(channel)]
            assert ["saved and cleared" in text for text in said].count(True) == 1
