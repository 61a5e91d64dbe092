"""Rows G1 to G9: messages, threads and their turns, files, and the history of a conversation."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from shoal.testing.model import Gate, Reply, Seen
from shoal.testing.platforms.slack_methods import BOT
from tests.rows.running import ADA, SLACK_CHANNEL, Running, call, calls, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rows-guppy")]

PLATFORMS = ("telegram", "slack")
SETTINGS = """
[model]
name = "fake/fake-1"
context_tokens_max = 48000
[permissions]
default_profile = "open"
[context]
reserve_tokens = 8000
keep_recent_tokens = 4000
[mailbox]
idle_seconds = 0.01
"""
WAITS = "until [ -e go ]; do sleep 0.05; done; rm go"


def lets_go(shoal: Running) -> None:
    """Create the file for which a command in the workspace waits."""
    (shoal.workspace / "go").touch()


class TestG1:
    """A message may name a thread that does not exist yet. A post to a channel opens a thread."""

    def test_a_message_to_an_unknown_thread_is_answered(self, shoal: Running) -> None:
        taken = shoal.says("web:anywhere:g1", "words=2 id=g1", "g1-first")
        assert (taken.status, taken.json["accepted"], taken.json["duplicate"]) == (202, True, False)
        assert shoal.says("web:anywhere:g1", "words=2 id=g1", "g1-first").json["duplicate"] is True
        assert shoal.ends("web:anywhere:g1")[0].data["reply"] == "DONE 0 g1 tide reef"

    def test_a_channel_message_is_posted_and_answered_in_its_thread(self, shoal: Running) -> None:
        slack = shoal.platforms.slack
        sent = shoal.api(f"/api/channels/slack/{SLACK_CHANNEL}/messages", {"text": "weekly report words=1 id=g1c"})
        assert sent.status == 202
        root = shoal.loop.do(slack.sees(SLACK_CHANNEL, "weekly report"))
        answer = shoal.loop.do(slack.sees(SLACK_CHANNEL, "DONE 0 g1c tide"))
        assert answer.thread_ts == root.ts
        assert sent.json["thread"] in ("", f"slack:{SLACK_CHANNEL}:{root.ts}")


class TestG2:
    """A thread processes one message at a time. Steers and stops skip the queue. An idle thread is removed from
    memory and later restored completely.
    """

    def test_prompts_wait_their_turn(self, shoal: Running) -> None:
        gate = Gate()
        shoal.plays("g2-first", Reply("the first", gate=gate))
        shoal.plays("g2-second", "the second")
        shoal.says("web:lobby:g2", "g2-first")
        until(gate.reached.is_set)
        shoal.says("web:lobby:g2", "g2-second")
        assert not shoal.requests("g2-second")
        shoal.open(gate)
        assert [end.data["reply"] for end in shoal.ends("web:lobby:g2", 2)] == ["the first", "the second"]

    def test_stop_ends_the_running_turn_and_the_queue_continues(self, shoal: Running) -> None:
        gate = Gate()
        shoal.plays("g2-long", Reply("never said", gate=gate))
        shoal.plays("g2-next", "next")
        shoal.says("web:lobby:g2stop", "g2-long")
        until(gate.reached.is_set)
        shoal.says("web:lobby:g2stop", "g2-next")
        assert shoal.api("/api/threads/web:lobby:g2stop/abort", {}).json["delivered"] is True
        ends = shoal.ends("web:lobby:g2stop", 2)
        assert [end.data["outcome"] for end in ends] == ["aborted", "done"]
        assert ends[1].data["reply"] == "next"

    def test_a_steer_reaches_only_the_running_turn(self, shoal: Running) -> None:
        gate = Gate()
        shoal.plays("g2-walk", Reply("left", gate=gate), "right then")
        shoal.says("web:lobby:g2steer", "g2-walk")
        until(gate.reached.is_set)
        steer = "/api/threads/web:lobby:g2steer/steer"
        assert shoal.api(steer, {"text": "go right"}).json["delivered"] is True
        shoal.open(gate)
        assert shoal.ends("web:lobby:g2steer")[0].data["reply"] == "right then"
        assert shoal.api(steer, {"text": "too late"}).json["delivered"] is False

    def test_an_idle_thread_is_unloaded_and_reloaded_from_its_journal(self, shoal: Running) -> None:
        thread = "web:lobby:g2idle"
        shoal.plays("g2-who", lambda _: "noted")
        shoal.asks(thread, "g2-who: I am Ada")
        with closing(sqlite3.connect(shoal.home / "shoal.db")) as database:
            said = "thread = ? and type = 'user_message'"
            database.execute(f"update events set data = replace(data, 'I am Ada', 'I am Eve') where {said}", [thread])
            database.commit()

        def is_read_anew() -> bool:
            shoal.asks(thread, "g2-who am I?")
            return "I am Eve" in shoal.requests("g2-who am I?")[-1].messages[0].text

        until(is_read_anew)
        roles = [message.role for message in shoal.requests("g2-who am I?")[-1].messages]
        assert roles[:3] == ["user", "assistant", "user"]


class TestG3:
    """Five messages may wait in a thread. Further messages get a busy notice. Stops and steers are always accepted."""

    def test_the_sixth_waiting_message_is_refused(self, shoal: Running) -> None:
        gate = Gate()
        shoal.plays("g3", Reply("at last", gate=gate), *["done"] * 5)
        shoal.says("web:lobby:g3", "g3 runs")
        until(gate.reached.is_set)
        assert [shoal.says("web:lobby:g3", f"g3 {number}").status for number in range(6)] == [202] * 5 + [429]
        assert shoal.api("/api/threads/web:lobby:g3/steer", {"text": "still taken"}).json["delivered"] is True
        assert shoal.api("/api/threads/web:lobby:g3/abort", {}).json["delivered"] is True
        assert len(shoal.ends("web:lobby:g3", 6)) == 6

    def test_lines_of_one_person_are_answered_together(self, shoal: Running) -> None:
        gate, telegram, thread = Gate(), shoal.platforms.telegram, f"telegram:{ADA}:0"
        shoal.plays("g3-chat", Reply("at last", gate=gate), "all of it")
        before = len(shoal.events(thread, "turn_finished"))
        shoal.loop.do(telegram.says(ADA, "g3-chat runs"))
        until(gate.reached.is_set)
        for number in range(8):
            shoal.loop.do(telegram.says(ADA, f"g3-chat line {number}"))
        shoal.open(gate)
        shoal.ends(thread, before + 2)
        (asked,) = [one.messages[-1].text for one in shoal.requests("g3-chat line")]
        assert [number for number in range(8) if f"g3-chat line {number}" in asked] == [*range(8)]
        assert not [one for one in telegram.said(ADA) if "busy" in one.text]


class TestG4:
    """The agent loop alternates between the model and tools. A steer skips the rest of a step, and a stop kills
    every process that a command started.
    """

    def test_a_steer_between_tools_skips_the_rest_and_each_call_has_a_result(self, shoal: Running) -> None:
        both = calls(call("bash", command=f"touch g4-at; {WAITS}"), call("bash", command="touch g4-never"))
        shoal.plays("g4-skip", both, "as you wish")
        shoal.says("web:lobby:g4", "g4-skip")
        until((shoal.workspace / "g4-at").exists)
        shoal.api("/api/threads/web:lobby:g4/steer", {"text": "leave the second"})
        lets_go(shoal)
        assert shoal.ends("web:lobby:g4")[0].data["reply"] == "as you wish"
        first, second = shoal.results("web:lobby:g4")
        assert "exit code 0" in first
        assert second == "Skipped: a new message arrived."
        assert not (shoal.workspace / "g4-never").exists()
        assert [message.role for message in shoal.requests("g4-skip")[-1].messages][-3:] == ["tool", "tool", "user"]

    def test_a_message_after_the_last_tool_gets_another_model_call(self, shoal: Running) -> None:
        gate = Gate()
        shoal.plays("g4-round", call("time", timezone="UTC"), Reply("the first answer", gate=gate), "and the second")
        shoal.says("web:lobby:g4round", "g4-round")
        until(gate.reached.is_set)
        shoal.api("/api/threads/web:lobby:g4round/steer", {"text": "one more thing"})
        shoal.open(gate)
        assert "and the second" in str(shoal.ends("web:lobby:g4round")[0].data["reply"])
        assert "one more thing" in shoal.requests("g4-round")[-1].messages[-1].text

    def test_stop_kills_the_process_tree_and_keeps_finished_work(self, shoal: Running) -> None:
        tree = call("bash", command="echo half > g4-half; sleep 98765.4 & sleep 98765.5")
        shoal.plays("g4-tree", tree)
        shoal.says("web:lobby:g4tree", "g4-tree")
        until(lambda: len(_processes("sleep\x0098765.")) >= 2)
        shoal.api("/api/threads/web:lobby:g4tree/abort", {})
        assert shoal.ends("web:lobby:g4tree")[0].data["outcome"] == "aborted"
        until(lambda: not _processes("sleep\x0098765."))
        assert (shoal.workspace / "g4-half").read_text() == "half\n"
        assert shoal.events("web:lobby:g4tree", "assistant_message")[0].data["tool_calls"]
        assert shoal.asks("web:lobby:g4tree", "words=0 id=after") == "DONE 0 after"


def _processes(part: str) -> list[str]:
    """Return the running commands that start with this text."""
    found: list[str] = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = place.read_text()
        except OSError:
            continue
        found += [command] if command.startswith(part) else []
    return found


class TestG5:
    """Live events contain the text while it is written, the name of the running tool, and the end of every step."""

    def test_a_stream_reports_each_step(self, shoal: Running) -> None:
        shoal.plays("g5", call("bash", command="echo hi"), "one two three four")
        shoal.asks("web:lobby:g5", "words=0 id=before")
        before = shoal.listed("/api/threads/web:lobby:g5/events")[-1]["seq"]
        told: list[dict[str, object]] = []
        with shoal.stream(f"/api/threads/web:lobby:g5/events?after={before}") as events:
            shoal.says("web:lobby:g5", "g5")
            for event in events:
                told.append(event)
                if event["type"] == "turn_finished":
                    break
        kept = [event["type"] for event in told if event["type"] not in ("text_delta", "status")]
        assert kept == [
            "turn_started", "user_message", "assistant_message", "tool_started", "tool_result", "assistant_message",
            "turn_finished",
        ]  # fmt: skip
        written = [event["data"] for event in told if event["type"] == "text_delta"]
        assert "".join(str(data["text"]) for data in written if isinstance(data, dict)) == "one two three four"
        assert any("bash" in json.dumps(event["data"]) for event in told if event["type"] == "status")

    def test_people_see_activity_and_the_growing_text(self, shoal: Running) -> None:
        gate, slack = Gate(), shoal.platforms.slack
        shoal.plays("g5-slow", Reply("Let me count: one, two, three", gate=gate, gate_at=3))
        shoal.loop.do(slack.says(SLACK_CHANNEL, f"<@{BOT}> g5-slow"))
        status = shoal.loop.do(slack.called("assistant.threads.setStatus"))
        assert status["status"]
        shoal.loop.do(slack.called("chat.startStream"))
        shoal.open(gate)
        assert shoal.loop.do(slack.sees(SLACK_CHANNEL, "two, three"))


class TestG6:
    """Each thread has two files: a log of all messages for people, and the model's context with calls and results."""

    def test_the_log_has_all_messages_and_the_context_has_the_tools(self, shoal: Running) -> None:
        slack = shoal.platforms.slack
        root = shoal.loop.do(slack.says(SLACK_CHANNEL, "the pier is closed"))
        shoal.loop.do(slack.says(SLACK_CHANNEL, "until Monday", user="UBEA", thread_ts=root))
        shoal.plays("g6", call("bash", command="echo from-a-tool"), "Understood.")
        shoal.loop.do(slack.says(SLACK_CHANNEL, f"<@{BOT}> g6", thread_ts=root))
        shoal.loop.do(slack.sees(SLACK_CHANNEL, "Understood."))
        folder = shoal.folder(f"slack:{SLACK_CHANNEL}:{root}")
        until(lambda: "Understood." in (folder / "log.jsonl").read_text())
        log = (folder / "log.jsonl").read_text()
        for line in ("the pier is closed", "until Monday", "g6", "Understood."):
            assert line in log
        assert "from-a-tool" not in log
        said = [entry for entry in map(json.loads, log.splitlines()) if entry.get("text")]
        assert [entry["user"] for entry in said[:3]] == ["UADA", "UBEA", "UADA"]
        assert [bool(entry.get("is_bot")) for entry in said] == [False, False, False, True]
        until(lambda: "from-a-tool" in (folder / "context.jsonl").read_text())
        before = log
        shoal.loop.do(slack.says(SLACK_CHANNEL, "words=0 id=g6more", thread_ts=root))
        shoal.loop.do(slack.sees(SLACK_CHANNEL, "DONE 0 g6more"))
        until(lambda: "g6more" in (folder / "log.jsonl").read_text())
        assert (folder / "log.jsonl").read_text().startswith(before)

    def test_the_agent_reads_its_log_and_its_context_with_the_instructions(self, shoal: Running) -> None:
        own = [call("read_artifact", artifact=name, limit=15_000) for name in ("log.jsonl", "context.jsonl")]
        shoal.plays("g6-own", "noted", *own, "read")
        shoal.asks("web:lobby:g6own", "g6-own: the pier is open")
        shoal.asks("web:lobby:g6own", "g6-own: what was said?")
        log, context = shoal.results("web:lobby:g6own")
        said = json.loads(log.splitlines()[1])
        assert (said["text"], said["user"], said["is_bot"]) == ("g6-own: the pier is open", "owner", False)
        system = shoal.requests("g6-own")[0].system
        assert json.dumps(system, ensure_ascii=False)[1:200] in context.splitlines()[0]


class TestG7:
    """Before a turn, the agent reads the messages that did not address it. It reads each one once and skips its own."""

    def test_missed_messages_are_included_first_and_once(self, shoal: Running) -> None:
        slack = shoal.platforms.slack
        root = shoal.loop.do(slack.says(SLACK_CHANNEL, "low tide at  noon\r\n", user="UBEA"))
        shoal.plays("g7-one", "Noon, then.")
        shoal.plays("g7-two", "Still noon.")
        shoal.loop.do(slack.says(SLACK_CHANNEL, f"<@{BOT}> g7-one", thread_ts=root))
        shoal.loop.do(slack.sees(SLACK_CHANNEL, "Noon, then."))
        shoal.loop.do(slack.says(SLACK_CHANNEL, "g7-two", thread_ts=root))
        shoal.loop.do(slack.redeliver())
        shoal.loop.do(slack.sees(SLACK_CHANNEL, "Still noon."))
        thread = f"slack:{SLACK_CHANNEL}:{root}"
        until(lambda: len(shoal.events(thread, "turn_finished")) == 2)
        people = [str(event.data["text"]) for event in shoal.events(thread, "user_message")]
        assert [sum(part in text for text in people) for part in ("low tide", "g7-one", "g7-two", "Noon, then")] == [
            1, 1, 1, 0,
        ]  # fmt: skip
        request = shoal.requests("g7-one")[0]
        assert "Bea" in request.messages[0].text
        assert "low tide at" in request.messages[0].text


class TestG8:
    """When a conversation outgrows the window, the model summarizes the old part. The new part stays verbatim."""

    def test_old_messages_are_summarized_and_new_ones_kept(self, shoal: Running) -> None:
        def script(seen: Seen) -> str:
            return "A SHORT ACCOUNT" if "keep the record" in seen.system else "ok"

        shoal.plays("g8-talk", script)
        for number in range(5):
            shoal.asks("web:lobby:g8", f"g8-talk message-{number} " + "word " * 5000)
        until(lambda: bool(shoal.events("web:lobby:g8", "compacted")))
        assert shoal.asks("web:lobby:g8", "g8-talk and now?") == "ok"
        seen = "\n".join(message.text for message in shoal.requests("g8-talk and now?")[-1].messages)
        assert "A SHORT ACCOUNT" in seen
        assert "message-0 word" not in seen
        assert "g8-talk message-4 " + "word " * 4999 in seen
        log = (shoal.folder("web:lobby:g8") / "log.jsonl").read_text()
        assert "message-0" in log
        assert "A SHORT ACCOUNT" in (shoal.folder("web:lobby:g8") / "context.jsonl").read_text()


class TestG9:
    """The agent can search the history that the platform has of its channel, beyond its own thread."""

    def test_messages_elsewhere_in_the_channel_are_found(self, shoal: Running) -> None:
        slack = shoal.platforms.slack
        shoal.loop.do(slack.says(SLACK_CHANNEL, "the lighthouse keeper is called Orla", user="UBEA"))
        shoal.plays("g9", call("search_channel", query="keeper", limit=5), "Orla.")
        shoal.loop.do(slack.says(SLACK_CHANNEL, f"<@{BOT}> g9"))
        shoal.loop.do(slack.sees(SLACK_CHANNEL, "Orla."))
        found = shoal.requests("g9")[-1].results[0]
        assert "the lighthouse keeper is called Orla" in found
        assert "Bea" in found
