"""Rows W1 to W9: turns as events, requests that fit the window, Telegram, configuration, and stopping the program."""

import json
import re
import signal
from pathlib import Path

import pytest

from shoal.testing.model import Gate, Refusal, Reply, Seen
from shoal.testing.model.tokens import BYTES_PER_TOKEN
from tests.rows.internet import asked
from tests.rows.running import ADA, Running, call, change, command_line, until
from tests.rows.test_picoclaw import HOST_PROGRAM, host_program, host_run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rows-gopherclaw")]

PLATFORMS = ("telegram",)
SETTINGS = """
[permissions]
default_profile = "open"
[turns]
steps_max = 3
[engine]
concurrency = 2
"""
WINDOW = 30_000


class TestW1:
    """A turn is a sequence of stored events: the prompt, each call with its result, and the answer or the failure."""

    def test_events_are_journaled_in_order(self, shoal: Running) -> None:
        shoal.plays("w1", call("bash", command="echo one"), call("bash", command="echo two"), "Done.")
        shoal.asks("web:lobby:w1", "w1")
        events = shoal.events("web:lobby:w1")
        step = ["assistant_message", "tool_started", "tool_result"]
        assert sorted(event.type for event in events[:2]) == ["turn_started", "user_message"]
        assert [event.type for event in events[2:]] == [*step, *step, "assistant_message", "turn_finished"]
        assert "echo one" in json.dumps(events[2].data["tool_calls"])
        assert "one" in str(events[4].data["text"])

    def test_a_failure_is_an_event_and_a_sentence(self, shoal: Running) -> None:
        shoal.plays("w1-bad", Refusal(400, "no such thing"))
        reply = shoal.asks("web:lobby:w1bad", "w1-bad")
        assert shoal.events("web:lobby:w1bad", "error")
        assert shoal.ends("web:lobby:w1bad")[0].data["outcome"] == "failed"
        assert reply


class TestW2:
    """A result of more than 2,000 characters is stored completely. The model receives its beginning and its end."""

    @pytest.mark.parametrize(("chars", "stored"), [(1900, 0), (2500, 1)])
    def test_results_above_the_bound_are_stored(self, shoal: Running, chars: int, stored: int) -> None:
        thread = f"web:lobby:w2{chars}"
        shoal.asks(thread, f'tools=1 tool=bash words=0 args={{"command":"printf \'%0{chars}d\' 7"}}')
        assert len(json.loads(shoal.cli("threads", "artifacts", thread, "--json"))) == stored
        assert ("0" * chars in shoal.results(thread)[0]) is False if stored else True


class TestW3:
    """A request is measured and fitted to the window. It contains the newest messages that fit, in their original
    order.
    """

    @pytest.mark.parametrize("tokenizer", ["estimate", "exact"])
    def test_no_request_exceeds_the_configured_window(self, tmp_path: Path, tokenizer: str) -> None:
        def script(seen: Seen) -> Refusal | str:
            return Refusal(400, "no summaries") if "keep the record" in seen.system else "ok"

        settings = f"[context]\nreserve_tokens = 4000\ntokenizer = '{tokenizer}'\nkeep_recent_tokens = 2000\n"
        with Running(tmp_path / "home", settings) as made:
            change(made.model, context_tokens=WINDOW)
            with made.run(SHOAL_MODEL__CONTEXT_TOKENS_MAX=str(WINDOW)) as shoal:
                shoal.plays("w3-said", script)
                for number in range(12):
                    assert shoal.asks("web:lobby:w3", f"w3-said number-{number:02} " + "tide " * 3000) == "ok"
                last = shoal.requests("number-11")[-1]
                numbers = re.findall(r"number-(\d\d) ", " ".join(message.text for message in last.messages))
                assert numbers == sorted(numbers)
                assert numbers[-1] == "11"
                assert "00" not in numbers
                assert len(numbers) >= 2
                sizes = [len(seen.prompt) // BYTES_PER_TOKEN for seen in shoal.requests("w3-said")]
                assert max(sizes) <= WINDOW - 4000

    def test_an_unknown_window_is_assumed_to_be_128_000_and_reported_once(self, tmp_path: Path) -> None:
        with Running(tmp_path / "home", "") as made:
            for name in ("w3-one", "w3-two"):
                with made.run() as shoal:
                    shoal.asks("web:lobby:w3", f"words=0 id={name}")
                    assert shoal.process.stop() == 0
        assert (tmp_path / "home/stderr.log").read_text().count("I assume 128,000 tokens") == 1


class TestW4:
    """Tools run shell commands with a time limit per call, search with Brave, and return web pages as Markdown."""

    def test_a_command_stops_at_its_timeout(self, shoal: Running) -> None:
        shoal.asks("web:lobby:w4", 'tools=1 tool=bash words=0 args={"command":"sleep 30","timeout_seconds":0.3}')
        assert "time limit of 0.3 seconds" in shoal.results("web:lobby:w4")[0]

    def test_pages_are_read_and_searches_bounded(self, tmp_path: Path) -> None:
        page, few, most, inside = asked(
            tmp_path / "home",
            'tools=1 tool=read_url words=0 args={"url":"http://93.184.215.14/tides"}',
            'tools=1 tool=web_search words=0 args={"query":"tides"}',
            'tools=1 tool=web_search words=0 args={"query":"tides","count":20}',
            'tools=1 tool=read_url words=0 args={"url":"http://93.184.215.14/inside"}',
        )
        assert "# Tides of May" in page
        assert "**noon**" in page
        assert "evil()" not in page
        assert 50_000 <= len(page) < 51_000
        assert few.count("https://example.org/") == 5
        assert most.count("https://example.org/") == 20
        assert "is blocked" in inside


class TestW5:
    """A turn has a step limit. Reaching it is recorded, and the person still gets an answer."""

    def test_a_reached_step_limit_is_recorded_as_an_event(self, shoal: Running) -> None:
        shoal.plays("w5", lambda seen: call("time", timezone="UTC") if seen.tools else "So far.")
        assert shoal.asks("web:lobby:w5", "w5") == "So far."
        (limit,) = shoal.events("web:lobby:w5", "limit_reached")
        assert limit.data["limit"] == "steps"
        assert len(shoal.results("web:lobby:w5")) == 3


class TestW6:
    """On Telegram, Shoal uses long polling and Markdown, splits long answers without loss, and offers the three
    usual commands.
    """

    def test_a_long_answer_is_posted_in_pieces(self, shoal: Running) -> None:
        telegram = shoal.platforms.telegram
        words = [f"w6-{number}" for number in range(1500)]
        shoal.plays("w6-long", " ".join(words))
        shoal.loop.do(telegram.says(ADA, "w6-long"))
        shoal.loop.do(telegram.sees(ADA, "w6-1499"))
        pieces = [one.text for one in telegram.said(ADA) if "w6-" in one.text]
        assert len(pieces) > 1
        assert all(len(piece) <= 4096 for piece in pieces)
        assert " ".join(pieces).split() == words

    def test_markdown_is_sent_to_telegram_as_formatting_entities(self, shoal: Running) -> None:
        telegram = shoal.platforms.telegram
        shoal.plays("w6-bold", "It is **high** tide.")
        shoal.loop.do(telegram.says(ADA, "w6-bold"))
        posted = shoal.loop.do(telegram.sees(ADA, "It is high tide."))
        assert posted.raw == "It is high tide."
        formats = [given["entities"] for _, given in telegram.calls if given.get("text") == posted.raw]
        assert formats[-1] == [{"type": "bold", "offset": 6, "length": 4}]

    def test_branches_are_controlled_by_commands(self, shoal: Running) -> None:
        telegram = shoal.platforms.telegram
        shoal.loop.do(telegram.says(ADA, "/start"))
        shoal.loop.do(telegram.sees(ADA, "Write to me"))
        shoal.loop.do(telegram.says(ADA, "words=1 id=w6-before"))
        shoal.loop.do(telegram.sees(ADA, "DONE 0 w6-before"))
        shoal.loop.do(telegram.says(ADA, "/status"))
        status = shoal.loop.do(telegram.sees(ADA, "Idle")).text
        assert "messages in this conversation" in status
        assert "ast active" in status
        shoal.loop.do(telegram.says(ADA, "/new"))
        shoal.loop.do(telegram.sees(ADA, "fresh"))
        shoal.loop.do(telegram.says(ADA, "words=1 id=w6-after"))
        shoal.loop.do(telegram.sees(ADA, "DONE 0 w6-after"))
        assert not shoal.requests("w6-after")[-1].messages[0].text.startswith("words=1 id=w6-before")

    def test_a_conversation_saved_by_new_can_be_restored(self, shoal: Running) -> None:
        telegram = shoal.platforms.telegram
        shoal.loop.do(telegram.says(ADA, "words=1 id=w6-kept"))
        shoal.loop.do(telegram.sees(ADA, "DONE 0 w6-kept"))
        shoal.loop.do(telegram.says(ADA, "/new"))
        kept = re.compile(r"restore (\w+) restores it")
        shoal.loop.do(telegram.until(lambda: kept.search(telegram.said(ADA)[-1].text)))
        (id,) = kept.findall(telegram.said(ADA)[-1].text)
        shoal.loop.do(telegram.says(ADA, "/context history"))
        shoal.loop.do(telegram.sees(ADA, f"{id} "))
        shoal.loop.do(telegram.says(ADA, f"/context restore {id}"))
        shoal.loop.do(telegram.sees(ADA, "Restored"))
        shoal.loop.do(telegram.says(ADA, "words=1 id=w6-again"))
        shoal.loop.do(telegram.sees(ADA, "DONE 0 w6-again"))
        assert any("id=w6-kept" in message.text for message in shoal.requests("w6-again")[-1].messages)

    def test_an_edit_starts_no_turn(self, shoal: Running) -> None:
        telegram = shoal.platforms.telegram
        ends = len(shoal.events(f"telegram:{ADA}:0", "turn_finished"))
        message = shoal.loop.do(telegram.says(ADA, "words=1 id=w6-edited"))
        shoal.loop.do(telegram.sees(ADA, "DONE 0 w6-edited"))
        shoal.loop.do(telegram.changes(message, "it was not meant so"))
        shoal.loop.do(telegram.says(ADA, "words=1 id=w6-last"))
        shoal.loop.do(telegram.sees(ADA, "DONE 0 w6-last"))
        assert len(shoal.ends(f"telegram:{ADA}:0", ends + 2)) == ends + 2


class TestW7:
    """A host program is notified of the end of each turn. The number of concurrent turns is limited, and running
    turns finish before the program stops.
    """

    def test_a_host_program_receives_the_reply_of_a_turn(self, shoal: Running, tmp_path: Path) -> None:
        (tmp_path / "home").mkdir()
        provider = (shoal.home / "shoal.toml").read_text().partition("[platforms")[0]
        (tmp_path / "home/shoal.toml").write_text(f'{provider}\n[model]\nname = "fake/fake-1"\n')
        assert host_program(tmp_path / "home", "words=2 id=w7") == "web:lobby:host DONE 0 w7 tide reef"

    def test_a_failing_host_callback_affects_nothing_else(self, shoal: Running, tmp_path: Path) -> None:
        (tmp_path / "home").mkdir()
        provider = (shoal.home / "shoal.toml").read_text().partition("[platforms")[0]
        (tmp_path / "home/shoal.toml").write_text(f'{provider}\n[model]\nname = "fake/fake-1"\n')
        failing = 'await told.put((thread, reply)); raise RuntimeError("not my day")'
        done = host_run(
            tmp_path / "home", "words=2 id=w7f", HOST_PROGRAM.replace("await told.put((thread, reply))", failing)
        )
        assert done.stdout.strip() == "web:lobby:host DONE 0 w7f tide reef"
        assert "not my day" in done.stderr

    def test_concurrent_turns_are_bounded(self, shoal: Running) -> None:
        gates = [Gate() for _ in range(3)]
        for number, gate in enumerate(gates):
            shoal.plays(f"w7-many-{number}", Reply("done", gate=gate))
            shoal.says(f"web:lobby:w7{number}", f"w7-many-{number}")
        until(lambda: sum(gate.reached.is_set() for gate in gates) == 2)
        assert sum(bool(shoal.requests(f"w7-many-{number}")) for number in range(3)) == 2
        for gate in sorted(gates, key=lambda one: not one.reached.is_set()):
            shoal.open(gate)
        for number in range(3):
            shoal.ends(f"web:lobby:w7{number}")

    def test_a_stop_waits_for_the_running_turn(self, tmp_path: Path) -> None:
        gate = Gate()
        with Running(tmp_path / "home", "") as made:
            with made.run() as shoal:
                shoal.plays("w7-late", lambda _: "late")
                shoal.plays("w7-last", Reply("finished in time", gate=gate))
                shoal.says("web:lobby:w7", "w7-last")
                until(gate.reached.is_set)
                shoal.process.popen.send_signal(signal.SIGTERM)
                until(
                    lambda: (
                        shoal.process.ask("/api/threads/web:lobby:w7late/messages", {"text": "w7-late"}).status != 202
                    )
                )
                shoal.open(gate)
                assert shoal.process.popen.wait(30) == 0
            shown = command_line(tmp_path / "home", "threads", "show", "web:lobby:w7").stdout
            assert "finished in time" in shown


class TestW8:
    """Environment variables are enough to set the provider, address, key and model of any OpenAI-compatible service."""

    def test_variables_replace_the_configuration_file(self, shoal: Running, tmp_path: Path) -> None:
        given = {"OPENAI_BASE_URL": f"{shoal.model.url}/v1", "OPENAI_API_KEY": "sk-w8", "SHOAL_MODEL__NAME": "fake-1"}
        home = tmp_path / "home"
        models = command_line(home, "models", "refresh", settings=given)
        assert models.returncode == 0, models.stderr
        limits = {"SHOAL_MODEL__MAX_OUTPUT_TOKENS": "77", "SHOAL_MODEL__TEMPERATURE": "0.5"}
        done = command_line(home, "ask", "words=0 id=w8", settings=given | limits)
        assert done.stdout == "DONE 0 w8\n", done.stderr
        seen = shoal.requests("id=w8")[-1]
        assert seen.headers["authorization"] == "Bearer sk-w8"
        body = json.loads(seen.body)
        assert 77 in (body.get("max_tokens"), body.get("max_completion_tokens"))
        assert body["temperature"] == 0.5

    def test_configuration_errors_name_every_key(self, shoal: Running, tmp_path: Path) -> None:
        (tmp_path / "shoal.toml").write_text("[modle]\nname = 'x'\n[turns]\nsteps_max = 0\n")
        done = command_line(tmp_path, "ask", "hello")
        assert done.returncode == 1
        assert "modle" in done.stderr
        assert "steps_max" in done.stderr
        assert "model" in done.stderr


class TestW9:
    """Conversations continue after a restart."""

    def test_a_conversation_continues_after_a_restart(self, tmp_path: Path) -> None:
        with Running(tmp_path / "home", "") as made:
            with made.run() as shoal:
                shoal.asks("web:lobby:w9", "words=0 id=w9-before")
                assert shoal.process.stop() == 0
            with made.run() as shoal:
                shoal.asks("web:lobby:w9", "words=0 id=w9-after")
                (request,) = shoal.requests("w9-after")
                assert [message.role for message in request.messages] == ["user", "assistant", "user"]
                assert request.messages[1].text == "DONE 0 w9-before"
