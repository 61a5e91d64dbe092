"""`shoal ask`: one turn, its reply on standard output, and failures."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.surfaces.cli.conftest import Shoal

from shoal.markdown.tables import width_of
from shoal.surfaces.cli.ask import INPUT_CHARS_MAX, WholeWords


def test_the_reply_is_printed_and_nothing_else(shoal: Shoal) -> None:
    ran = shoal("ask", "hello")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("Hello! I am the demo model")


def test_json_output_matches_the_contract(shoal: Shoal) -> None:
    answer = json.loads(shoal("ask", "--json", "hello", "there").out)
    assert list(answer) == ["thread", "turn", "reply", "steps", "usage", "outcome"]
    assert answer["thread"].startswith("terminal:ask:")
    assert (answer["steps"], answer["outcome"]) == (1, "done")
    assert set(answer["usage"]) >= {"input_tokens", "output_tokens", "cached_tokens"}


def test_a_thread_is_continued(shoal: Shoal) -> None:
    for _ in range(2):
        answer = json.loads(shoal("ask", "--json", "--thread", "terminal:ask:mine", "hello").out)
        assert answer["thread"] == "terminal:ask:mine"
    found = json.loads(shoal("threads", "show", "terminal:ask:mine", "--json").out)
    assert [event["type"] for event in found["events"]].count("turn_finished") == 2


@pytest.mark.parametrize("named", [(), ("-",)])
def test_the_question_may_come_from_standard_input(shoal: Shoal, named: tuple[str, ...]) -> None:
    assert shoal("ask", *named, stdin="hello").out.startswith("Hello!")
    empty = shoal("ask", *named, stdin="  \n")
    assert (empty.code, empty.err) == (1, "shoal: The message is empty. Pass TEXT, or pipe it in.\n")
    not_text = shoal("ask", *named, stdin="\udcff\udcfe")
    told = "shoal: Standard input is not UTF-8 text. Include the file's path in the message instead.\n"
    assert (not_text.code, not_text.err) == (1, told)


def test_piped_input_follows_the_question(shoal: Shoal) -> None:
    where = "terminal:ask:mine"
    assert shoal("ask", "--thread", where, "say", "hello", stdin="one\ntwo\n").code == 0
    events = json.loads(shoal("threads", "log", "--json", where).out)
    assert [event["data"]["text"] for event in events if event["type"] == "user_message"] == ["say hello\n\none\ntwo\n"]


def test_too_much_input_is_reported(shoal: Shoal) -> None:
    ran = shoal("ask", "what is this?", stdin="x" * (INPUT_CHARS_MAX + 1))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("shoal: Standard input is longer than 1,000,000 characters.")


def test_an_unknown_agent_is_reported_with_the_known_ones(shoal: Shoal) -> None:
    ran = shoal("ask", "--agent", "nobody", "hello")
    assert (ran.code, ran.out, ran.err) == (1, "", "shoal: No agent named 'nobody'. Agents: main.\n")


def test_a_wrong_thread_id_is_reported(shoal: Shoal) -> None:
    ran = shoal("ask", "--thread", "mine", "hello")
    assert ran.code == 1
    assert "must have three parts" in ran.err


def test_without_a_terminal_the_turn_waits_and_says_how_to_continue(shoal: Shoal) -> None:
    ran = shoal("ask", "run touch .git")
    assert (ran.code, ran.out) == (1, "")
    (approval,) = json.loads(shoal("approvals", "list", "--json").out)
    assert (approval["state"], approval["shown"]) == ("pending", "touch .git")
    assert ran.err.splitlines()[:2] == ["shoal: the agent asks to run:", "touch .git"]
    assert "\nWhy it asks: " in ran.err
    assert f"shoal: to allow it, run 'shoal approvals allow {approval['id']}'." in ran.err


def test_json_of_a_waiting_turn_names_the_approval(shoal: Shoal) -> None:
    ran = shoal("ask", "--json", "run touch .git")
    answer = json.loads(ran.out)
    assert (ran.code, answer["outcome"], answer["reply"]) == (1, "waiting", "")
    assert [(question["tool"], question["shown"]) for question in answer["approvals"]] == [("bash", "touch .git")]


def test_an_approved_turn_continues_when_its_thread_is_opened(shoal: Shoal) -> None:
    answer = json.loads(shoal("ask", "--json", "run touch .git").out)
    allowed = shoal("approvals", "allow", answer["approvals"][0]["id"])
    assert allowed.code == 0
    assert f"'shoal chat --thread {answer['thread']}'" in allowed.out
    assert "✓ bash" in shoal("chat", "--thread", answer["thread"]).out
    again = shoal("approvals", "deny", answer["approvals"][0]["id"])
    decided = "shoal: This approval was already decided: it was allowed. To change the decision, ask the agent again.\n"
    assert (again.code, again.err) == (1, decided)
    gone = shoal("approvals", "allow", "01NOSUCHID")
    assert (gone.code, "shoal approvals list" in gone.err.replace("'", "`")) == (1, True)


@pytest.mark.parametrize("as_json", [True, False])
def test_a_turn_stopped_by_a_limit_is_not_done(shoal: Shoal, home: Path, *, as_json: bool) -> None:
    home.mkdir()
    (home / "shoal.toml").write_text(
        "[turns]\nsteps_max = 1\n[sandbox]\nkind = 'host'\n[permissions]\ndefault_profile = 'open'\n"
    )
    where = "terminal:ask:mine"
    ran = shoal("ask", "--thread", where, *(["--json"] if as_json else []), "run echo hi")
    assert ran.code == 1
    assert ran.err == f"shoal: A limit was reached: 1 step. Continue with --thread {where}.\n"
    reply = json.loads(ran.out)["reply"] if as_json else ran.out
    assert "hi" in reply, "what it had to say is said all the same"
    assert not as_json or json.loads(ran.out)["outcome"] == "limit"


def test_a_real_provider_answers_and_its_usage_is_counted(shoal: Shoal, home: Path, model: str) -> None:
    home.mkdir()
    (home / "shoal.toml").write_text(
        f"[model]\nname = 'openai/fake-1'\n[providers.openai]\nbase_url = '{model}/v1'\napi_key = 'right'\n"
    )
    answer = json.loads(shoal("ask", "--json", "hello").out)
    assert answer["outcome"] == "done"
    assert answer["reply"]
    assert answer["usage"]["output_tokens"] > 0
    (row,) = json.loads(shoal("usage", "--json").out)
    assert (row["model"], row["calls"]) == ("openai/fake-1", 1)
    assert row["usage"]["output_tokens"] == answer["usage"]["output_tokens"]


def test_a_broken_agent_file_is_reported_without_a_traceback(shoal: Shoal, home: Path) -> None:
    shoal("init")
    (home / "agents" / "main" / "agent.toml").write_text("model = [\n")
    ran = shoal("ask", "hi")
    assert ran.code == 1
    assert "Correct the file. The change takes effect immediately." in ran.err
    assert "Traceback" not in ran.err


@given(st.text("abc 鱈\n", max_size=200), st.integers(1, 7), st.integers(10, 40))
def test_lines_wrap_between_words(text: str, size: int, columns: int) -> None:
    words = WholeWords(columns)
    shown = "".join(words.take(text[at : at + size]) for at in range(0, len(text), size)) + words.take("\n")
    assert shown.split() == text.split()
    wide = [line for line in shown.split("\n") if width_of(line.rstrip()) > columns]
    assert all(len(line.split()) == 1 for line in wide)
    assert shown.count("\n") > text.count("\n")


def test_code_is_not_wrapped_and_a_pipe_gets_the_raw_text() -> None:
    code = "```\ncp one/long/path another/long/path\n```\n"
    assert WholeWords(20).take(code) == code
    assert WholeWords(0).take("as it ") == "as it "
