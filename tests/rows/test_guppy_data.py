"""Rows G10 to G19: the home directory, the agent's tools, automatic turns, and platforms."""

import base64
import io
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from PIL import Image

from shoal.testing.model import Gate, Reply, Seen
from shoal.testing.platforms import discord_world
from shoal.testing.platforms.slack_methods import BOT
from tests.rows.running import ADA, SLACK_CHANNEL, SPACE, TEAMS_DIRECT, Running, call, change, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rows-guppy-data")]

PLATFORMS = ("telegram", "discord", "slack", "teams", "google_chat", "matrix")
SETTINGS = """
[permissions]
default_profile = "open"
"""
LOBBY = "web:lobby"


def uses(shoal: Running, thread: str, tool: str, **arguments: object) -> str:
    """Make the model call a tool in a thread, and return the result."""
    before = len(shoal.results(thread))
    shoal.asks(thread, f"tools=1 tool={tool} words=0 args={json.dumps(arguments)}")
    return shoal.results(thread)[before]


class TestG10:
    """The home directory is organized by platform, channel and thread. Encoded names prevent path escapes."""

    def test_every_path_matches_the_documented_layout(self, shoal: Running) -> None:
        note = base64.b64encode(b"high at noon").decode()
        file = {"name": "notes.txt", "media_type": "text/plain", "data": note, "mine": True}
        made = 'tools=1 tool=bash words=0 args={"command":"echo kept > /scratch/made"}'
        shoal.asks("web:lobby:a%2Fb", made, attachments=[file])
        data = shoal.home / "data"
        for name in ("IDENTITY.md", "MEMORY.md", "SYSTEM.md", "settings.json"):
            assert (data / name).is_file(), name
        assert (data / "events").is_dir()
        assert (data / "skills").is_dir()
        thread = data / "web" / "lobby" / "a%2Fb"
        assert (thread / "scratch" / "made").read_text() == "kept\n"
        assert [path.read_text() for path in (thread / "attachments").iterdir()] == ["high at noon"]
        until((thread / "log.jsonl").is_file)
        until((thread / "context.jsonl").is_file)
        assert shoal.says("web:lobby:..", "out").status == 400
        assert shoal.says("web:lobby:a/../../b", "out").status in (400, 404)


class TestG11:
    """Attachments are stored with the thread. The model sees pictures directly and other files as paths."""

    def test_a_text_and_a_picture_reach_the_model(self, shoal: Running) -> None:
        telegram, thread = shoal.platforms.telegram, f"telegram:{ADA}:0"
        picture = io.BytesIO()
        Image.new("RGB", (8, 8)).save(picture, "PNG")
        shoal.plays("g11-text", "read it")
        shoal.plays("g11-picture", "saw it")
        shoal.loop.do(telegram.sends_file(ADA, "tides.txt", b"high at noon\n", caption="g11-text"))
        shoal.loop.do(telegram.sees(ADA, "read it"))
        shoal.loop.do(telegram.sends_file(ADA, "pier.png", picture.getvalue(), caption="g11-picture"))
        shoal.loop.do(telegram.sees(ADA, "saw it"))
        folder = shoal.folder(thread) / "attachments"
        kept = {path.suffix: path.read_bytes() for path in folder.iterdir()}
        assert kept == {".txt": b"high at noon\n", ".png": picture.getvalue()}
        assert "tides.txt" in shoal.requests("g11-text")[0].messages[-1].text
        assert shoal.requests("g11-text")[0].messages[-1].images == 0
        assert shoal.requests("g11-picture")[0].messages[-1].images == 1
        log = shoal.folder(thread) / "log.jsonl"
        until(lambda: "pier.png" in log.read_text())
        named = [
            entry["attachments"][0] for entry in map(json.loads, log.read_text().splitlines()) if "attachments" in entry
        ]
        assert [(log.parent / one["local"]).read_bytes() for one in named] == [b"high at noon\n", picture.getvalue()]
        assert [one["original"] for one in named] == ["tides.txt", "pier.png"]

    @pytest.mark.parametrize("platform", ["telegram", "discord", "page"])
    def test_tools_open_the_announced_path(self, shoal: Running, platform: str) -> None:
        told, given = f"g11-path-{platform}", f"high on {platform}\n".encode()

        def read_it(seen: Seen) -> Reply:
            found = re.findall(r"/attachments/[\w.-]+", seen.messages[-1].text)
            return call("read", path=found[-1])

        shoal.plays(told, read_it, f"opened on {platform}")
        match platform:
            case "telegram":
                shoal.loop.do(shoal.platforms.telegram.sends_file(ADA, "log.txt", given, caption=told))
                shoal.loop.do(shoal.platforms.telegram.sees(ADA, "opened on telegram"))
            case "discord":
                discord, channel = shoal.platforms.discord, shoal.platforms.discord_channel
                shoal.loop.do(discord.says(channel, f"<@{discord_world.BOT}> {told}", file=("log.txt", given)))
                shoal.loop.do(discord.sees(channel, "opened on discord"))
            case _:
                file = {"name": "log.txt", "media_type": "text/plain", "data": base64.b64encode(given).decode()}
                shoal.asks("web:lobby:g11path", told, attachments=[file])
        assert str(shoal.home) not in shoal.requests(told)[0].messages[-1].text
        assert given.decode().strip() in shoal.requests(told)[-1].messages[-1].text


class TestG12:
    """Memory has one file for everything, one per platform and one per channel. Each turn reads them again, and
    the agent writes them.
    """

    def test_three_scopes_are_read_before_each_turn(self, shoal: Running) -> None:
        data = shoal.home / "data"
        shoal.asks(f"{LOBBY}:g12", "words=0 id=first")
        facts = {
            "MEMORY.md": "the sea is salt",
            "web/MEMORY.md": "the page is blue",
            "web/lobby/MEMORY.md": "speak Irish here",
        }
        for name, fact in facts.items():
            (data / name).write_text(f"- {fact}\n")
        (data / "web/other").mkdir(exist_ok=True)
        (data / "web/other/MEMORY.md").write_text("- not for the lobby\n")
        shoal.asks(f"{LOBBY}:g12new", "words=0 id=g12-fresh")
        seen = shoal.requests("g12-fresh")[-1]
        assert all(fact in seen.system for fact in facts.values())
        assert "not for the lobby" not in seen.system
        (data / "web/lobby/MEMORY.md").write_text("- speak Irish here\n- and kindly\n")
        shoal.asks(f"{LOBBY}:g12new", "words=0 id=g12-later")
        later = shoal.requests("g12-later")[-1]
        assert "and kindly" in later.system + later.messages[-1].text

    def test_the_agent_writes_to_the_named_scope(self, shoal: Running) -> None:
        uses(shoal, f"{LOBBY}:g12write", "remember", text="the harbour opens at six", scope="channel")
        assert "the harbour opens at six" in (shoal.home / "data/web/lobby/MEMORY.md").read_text()
        assert "opens at six" not in (shoal.home / "data/MEMORY.md").read_text()


class TestG13:
    """Skills are folders at three scopes, and the narrowest scope wins. Their scripts run at the paths that the
    sandbox uses.
    """

    def test_the_channels_skill_hides_the_others(self, shoal: Running) -> None:
        data = shoal.home / "data"
        for scope, folder in {"global": "skills", "platform": "web/skills", "channel": "web/lobby/skills"}.items():
            _skill(data / folder / "tide-table", f"From the {scope}.")
        _skill(data / "skills" / "only-global", "For everybody.")
        shoal.asks(f"{LOBBY}:g13", "words=0 id=g13")
        system = shoal.requests("g13")[-1].system
        assert "From the channel." in system
        assert "For everybody." in system
        assert "From the platform." not in system
        assert "/skills/channel/tide-table" in system
        assert "fetched by From the channel." in uses(
            shoal, f"{LOBBY}:g13", "bash", command="sh /skills/channel/tide-table/fetch.sh"
        )
        shoal.asks("web:pier:g13", "words=0 id=g13-pier")
        assert "From the platform." in shoal.requests("g13-pier")[-1].system


def _skill(folder: Path, description: str) -> None:
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: {folder.name}\ndescription: {description}\n---\nRun fetch.sh.\n")
    (folder / "fetch.sh").write_text(f"echo 'fetched by {description}'\n")


class TestG14:
    """Commands run in a sandbox in the workspace, with limits on time and output. Processes that they leave behind
    are ended.
    """

    def test_a_command_is_confined_to_its_folders(self, shoal: Running) -> None:
        secret = shoal.home / "secret.txt"
        secret.write_text("not for commands")
        told = uses(shoal, f"{LOBBY}:g14", "bash", command=f"pwd; echo made > made.txt; cat {secret}")
        assert told.startswith("/workspace")
        assert "not for commands" not in told
        assert (shoal.workspace / "made.txt").read_text() == "made\n"

    def test_a_timeout_ends_the_process_tree(self, shoal: Running) -> None:
        told = uses(
            shoal, f"{LOBBY}:g14time", "bash", command="(sleep 3; touch g14-late) & sleep 60", timeout_seconds=0.5
        )
        assert "killed with all its processes" in told
        assert not (shoal.workspace / "g14-late").exists()

    def test_large_output_is_stored_whole_and_shown_in_part(self, shoal: Running) -> None:
        thread = f"{LOBBY}:g14out"
        told = uses(shoal, thread, "bash", command="seq 20000")
        assert len(told) < 4000
        (artifact,) = json.loads(shoal.cli("threads", "artifacts", thread, "--json"))
        name = artifact["artifact"]
        assert str(name) in told
        whole = shoal.api(f"/api/threads/{thread}/artifacts/{name}").body.decode()
        assert "\n19999\n20000\n" in whole
        assert "19876" in uses(shoal, thread, "read_artifact", artifact=name, grep="19876")
        told = uses(shoal, thread, "bash", command="head -c 11000000 /dev/zero | tr '\\0' x")
        (large,) = [one for one in json.loads(shoal.cli("threads", "artifacts", thread, "--json")) if one != artifact]
        assert 10_400_000 < large["size_bytes"] < 10_600_000
        assert "was truncated to its first" in told

    def test_commands_read_stored_results_of_their_own_conversation_only(self, shoal: Running) -> None:
        thread, other = f"{LOBBY}:g14files", f"{LOBBY}:g14other"
        told = uses(shoal, thread, "bash", command="seq 20000")
        name = told.partition("/artifacts/")[2][:32]
        assert "10321" not in told
        read = uses(
            shoal, thread, "bash", command="grep -rhx 10321 /artifacts; rm -f /artifacts/*; ls /artifacts | wc -l"
        )
        assert read.split()[0] == "10321"
        assert "Read-only file system" in read
        assert name in uses(shoal, thread, "list", path="/artifacts")
        assert "10321" not in uses(shoal, other, "bash", command="grep -rhx 10321 /artifacts; echo searched")

    def test_the_host_sandbox_can_be_chosen(self, shoal: Running) -> None:
        assert "run on this host without isolation" in shoal.cli("doctor", settings={"SHOAL_SANDBOX__KIND": "host"})
        docker = {"SHOAL_SANDBOX__KIND": "docker", "DOCKER_HOST": "unix:///nowhere.sock"}
        broken = shoal.cli("doctor", exit_code=1, settings=docker)
        assert "docker" in broken.lower()


class TestG15:
    """Every agent has a shell, tools to read, write, edit and send files, and a search in the channel's history."""

    def test_file_tools_write_read_and_edit_a_file(self, shoal: Running) -> None:
        thread = f"{LOBBY}:g15"
        uses(shoal, thread, "write", path="deep/er/notes.txt", content="one\ntwo\ntwo\n")
        shown = uses(shoal, thread, "read", path="deep/er/notes.txt", offset=2, limit=1)
        assert "2" in shown
        assert "two" in shown
        assert "one" not in shown
        refused = uses(shoal, thread, "edit", path="deep/er/notes.txt", old_string="two", new_string="2")
        assert "occurs 2 times" in refused
        uses(shoal, thread, "edit", path="deep/er/notes.txt", old_string="two", new_string="2", replace_all=True)
        assert (shoal.workspace / "deep/er/notes.txt").read_text() == "one\n2\n2\n"

    def test_a_file_is_sent_with_a_comment(self, shoal: Running) -> None:
        telegram = shoal.platforms.telegram
        (shoal.workspace / "report.txt").write_text("all is well")
        shoal.plays("g15-report", call("upload", path="report.txt", comment="Here it is."), "Sent.")
        shoal.loop.do(telegram.says(ADA, "g15-report"))
        posted = shoal.loop.do(telegram.sees(ADA, "Here it is."))
        assert posted.file is not None
        assert posted.file[1] == b"all is well"

    def test_a_commands_exit_code_is_reported(self, shoal: Running) -> None:
        told = uses(shoal, f"{LOBBY}:g15sh", "bash", command="echo out; echo err >&2; exit 3")
        assert "out" in told
        assert "err" in told
        assert "[exit code 3]" in told


class TestG16:
    """A file in the events folder starts a turn: immediately, at a set time, or repeatedly, in an existing or a new
    thread."""

    def test_an_immediate_event_starts_a_turn_in_a_thread(self, shoal: Running) -> None:
        _event(shoal, "now", type="immediate", threadId=f"{LOBBY}:g16", text="words=0 id=g16now")
        assert shoal.ends(f"{LOBBY}:g16")[0].data["reply"] == "DONE 0 g16now"
        until((shoal.home / "data/events/done/now.json").is_file)

    def test_a_one_time_event_opens_a_channel_thread_at_its_time(self, shoal: Running) -> None:
        at = (datetime.now(UTC) + timedelta(seconds=1)).replace(tzinfo=None).isoformat(timespec="milliseconds")
        where = {"adapterId": "slack", "channelId": SLACK_CHANNEL}
        _event(shoal, "once", type="one-shot", schedule=at, timezone="UTC", text="g16once words=1 id=g16once", **where)
        slack = shoal.platforms.slack
        root = shoal.loop.do(slack.sees(SLACK_CHANNEL, "g16once words"))
        assert shoal.loop.do(slack.sees(SLACK_CHANNEL, "DONE 0 g16once")).thread_ts == root.ts

    def test_a_periodic_event_is_scheduled_until_its_file_is_deleted(self, shoal: Running) -> None:
        event = {"type": "periodic", "threadId": f"{LOBBY}:g16", "text": "look", "schedule": "0 9 * * 1-5"}
        _event(shoal, "weekdays", **event, timezone="America/New_York")
        until(lambda: bool(_trigger(shoal, "look")))
        following = datetime.fromisoformat(str(_trigger(shoal, "look")[0]["next_at"]).replace("Z", "+00:00"))
        assert following.hour in (13, 14)
        assert following.weekday() < 5
        (shoal.home / "data/events/weekdays.json").unlink()
        until(lambda: not _trigger(shoal, "look"))

    def test_half_a_file_is_read_again(self, shoal: Running) -> None:
        path = shoal.home / "data/events/half.json"
        whole = json.dumps({"type": "immediate", "threadId": f"{LOBBY}:g16half", "text": "words=0 id=g16half"})
        path.write_text(whole[:20])
        path.write_text(whole)
        assert shoal.ends(f"{LOBBY}:g16half")[0].data["reply"] == "DONE 0 g16half"
        path.with_name("broken.json").write_text("{")
        until((shoal.home / "data/events/failed/broken.json").is_file)


def _event(shoal: Running, name: str, **content: str) -> None:
    (shoal.home / "data/events" / f"{name}.json").write_text(json.dumps(content))


def _trigger(shoal: Running, text: str) -> list[dict[str, object]]:
    return [one for one in shoal.listed("/api/triggers") if one["text"] == text]


class TestG17:
    """A message that names the bot opens a thread, and the bot follows that thread. Responses to commands are
    visible only to the sender.
    """

    def test_a_thread_is_followed_after_a_mention(self, shoal: Running) -> None:
        slack = shoal.platforms.slack
        shoal.plays("g17-unasked", "never")
        ignored = shoal.loop.do(slack.says(SLACK_CHANNEL, "g17-unasked"))
        root = shoal.loop.do(slack.says(SLACK_CHANNEL, f"<@{BOT}> words=1 id=g17-named"))
        assert shoal.loop.do(slack.sees(SLACK_CHANNEL, "DONE 0 g17-named")).thread_ts == root
        shoal.loop.do(slack.says(SLACK_CHANNEL, "words=1 id=g17-followed", thread_ts=root))
        assert shoal.loop.do(slack.sees(SLACK_CHANNEL, "DONE 0 g17-followed")).thread_ts == root
        assert not shoal.events(f"slack:{SLACK_CHANNEL}:{ignored}")

    def test_the_answer_to_a_slash_command_is_not_posted_in_the_channel(self, shoal: Running) -> None:
        slack = shoal.platforms.slack
        posts = len(slack.messages)
        shoal.loop.do(slack.slashes(SLACK_CHANNEL, "/shoal", "tasks"))
        shoal.loop.do(slack.until(lambda: any("is idle" in str(one["text"]) for one in slack.answers)))
        assert len(slack.messages) == posts

    def test_the_answer_to_a_steer_or_stop_is_shown_only_to_its_author(self, shoal: Running) -> None:
        slack, gate = shoal.platforms.slack, Gate()
        shoal.plays("g17-walk", Reply("never said", gate=gate))
        root = shoal.loop.do(slack.says(SLACK_CHANNEL, f"<@{BOT}> g17-walk"))
        until(gate.reached.is_set)
        for command, answer in (
            ("steer to the left", "Sent to the running"),
            ("stop", "Stopping"),
            ("steer again", "Nothing is"),
        ):
            shoal.loop.do(slack.slashes(SLACK_CHANNEL, "/shoal", command))
            shoal.loop.do(slack.until(lambda part=answer: any(part in str(one["text"]) for one in slack.answers)))
            if command == "stop":
                assert shoal.ends(f"slack:{SLACK_CHANNEL}:{root}")[0].data["outcome"] == "aborted"


class TestG18:
    """One agent works on many platforms. It answers each allowed person with the features of the platform."""

    @pytest.mark.parametrize("platform", PLATFORMS)
    def test_an_allowed_person_is_answered(self, shoal: Running, platform: str) -> None:
        all_, text = shoal.platforms, f"words=1 id=g18-{platform}"
        match platform:
            case "telegram":
                shoal.loop.do(all_.telegram.says(ADA, text))
                seen = all_.telegram.sees(ADA, "DONE 0 g18")
            case "discord":
                direct = all_.discord.direct()
                shoal.loop.do(all_.discord.says(direct, text))
                seen = all_.discord.sees(direct, "DONE 0 g18")
            case "slack":
                shoal.loop.do(all_.slack.says(SLACK_CHANNEL, f"<@{BOT}> {text}"))
                seen = all_.slack.sees(SLACK_CHANNEL, "DONE 0 g18")
            case "teams":
                shoal.loop.do(all_.teams.says(TEAMS_DIRECT, text))
                seen = all_.teams.sees(TEAMS_DIRECT, "DONE 0 g18")
            case "google_chat":
                shoal.loop.do(all_.google_chat.says(SPACE, text))
                seen = all_.google_chat.sees(SPACE, "DONE 0 g18")
            case _:
                shoal.loop.do(all_.matrix.says(all_.room, text))
                seen = all_.matrix.sees(all_.room, "DONE 0 g18")
        assert shoal.loop.do(seen)

    def test_an_unknown_person_is_not_answered(self, shoal: Running) -> None:
        telegram = shoal.platforms.telegram
        shoal.loop.call(lambda: telegram.add_chat(666))
        shoal.plays("g18-stranger", "never")
        shoal.loop.do(telegram.says(666, "g18-stranger", user=666))
        assert "code" in shoal.loop.do(telegram.sees(666, "pair")).text
        assert not shoal.requests("g18-stranger")


class TestG19:
    """A provider's key is read when it is needed, so an expired key can be renewed without a restart."""

    def test_a_new_key_is_used_when_the_old_one_is_refused(self, tmp_path: Path) -> None:
        key = tmp_path / "key"
        key.write_text("key-before")
        with Running(tmp_path / "home", "", ()) as made:
            toml = made.home / "shoal.toml"
            toml.write_text(toml.read_text() + f'api_key = {{ command = ["cat", "{key}"] }}\n')
            change(made.model, api_key="key-before")
            with made.run() as shoal:
                assert shoal.asks("web:lobby:g19", "words=0 id=one") == "DONE 0 one"
                key.write_text("key-after")
                change(made.model, api_key="key-after")
                assert shoal.asks("web:lobby:g19", "words=0 id=two") == "DONE 0 two"
                log = (shoal.home / "stderr.log").read_text()
                assert "key-before" not in log
                assert "key-after" not in log
