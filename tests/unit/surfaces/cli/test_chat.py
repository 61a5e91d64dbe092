"""`shoal chat`, over a pipe and in a real terminal."""

import re
from pathlib import Path

from tests.unit.surfaces.cli.conftest import Shoal


def test_each_line_of_a_pipe_is_answered(shoal: Shoal) -> None:
    ran = shoal("chat", stdin="hello\nwhat time is it?\n")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("Hello! I am the demo model")
    assert '→ time {"timezone":"UTC"}' in ran.out or "→ time" in ran.out
    assert ran.out.index("Hello!") < ran.out.index("→ time")


def test_a_line_that_cannot_be_sent_is_reported_and_the_next_is_answered(shoal: Shoal) -> None:
    ran = shoal("chat", stdin="\udcff\nhello\n")
    assert ran.code == 0
    assert ran.out.startswith("! Shoal cannot store this text")
    assert "Hello! I am the demo model" in ran.out


def test_an_approval_is_answered_by_a_letter(shoal: Shoal) -> None:
    allowed = shoal("chat", stdin="run touch .git\ny\n")
    assert allowed.code == 0
    assert "allowed by owner" in allowed.out
    assert "✓ bash" in allowed.out
    denied = shoal("chat", "--thread", "terminal:local:other", stdin="run touch .git\nn\n")
    assert "denied by owner" in denied.out
    assert "✓ bash" not in denied.out


def test_staged_calls_are_decided_in_words_and_their_outcomes_shown(shoal: Shoal, home: Path) -> None:
    home.mkdir()
    (home / "shoal.toml").write_text("[model]\nname = 'demo'\n[sandbox]\nkind = 'host'\n")
    done = shoal("chat", stdin="run git push nowhere\ndo all\n")
    assert "? Not done yet, 1 of 1: bash" in done.out
    assert "Accepted." in done.out
    at = done.out.index("Accepted.")
    assert "→ bash git push nowhere" in done.out[at:]
    assert "✗ bash" in done.out[at:], "the chat does not end before its outcome"
    assert "chose to say nothing" not in done.out
    assert (done.code, done.err) == (0, "")
    kept = shoal("chat", "--thread", "terminal:local:other", stdin="run git push nowhere\ndiscard\n")
    assert "Discarded." in kept.out
    assert "✗ bash" not in kept.out
    assert (kept.code, kept.err) == (0, "")


def test_a_rule_is_made_by_a_letter_or_in_words_and_reverted(shoal: Shoal, home: Path) -> None:
    command, rules = "run curl -s http://127.0.0.1:9/tide", home / "shoal.toml"
    home.mkdir()
    rules.write_text('[model]\nname = "demo"\n[sandbox]\nkind = "host"\n')
    allowed = shoal("chat", stdin=f"{command}\na\n")
    assert "Always allow: exactly the command curl -s http://127.0.0.1:9/tide" in allowed.out
    assert "a for always" in allowed.out
    assert 'users = ["terminal:owner", "web:owner"]' in rules.read_text()
    take_back = re.search(r"take back \w{8}", allowed.out)
    assert take_back is not None
    taken = shoal("chat", stdin=f"{take_back[0]}\n{take_back[0]}\n")
    assert "Removed the rule." in taken.out
    assert "This card has no active rule." in taken.out
    assert "overrides" not in rules.read_text()
    shoal("chat", "--thread", "terminal:local:other", stdin=f"{command}\n")
    assert "Always allowed: exactly" in shoal("chat", "--thread", "terminal:local:other", stdin="/allow always\n").out
    assert "overrides" in rules.read_text()


def test_an_unanswered_approval_is_left_open_and_reported(shoal: Shoal) -> None:
    ran = shoal("chat", stdin="run touch .git\n")
    assert ran.code == 1
    assert re.search(r"shoal: waiting for approval\. Decide with 'shoal approvals allow \w{26}' or 'deny'\.", ran.err)


def test_commands_run_and_failures_are_shown(shoal: Shoal) -> None:
    ran = shoal("chat", stdin="/help\n/new\n/stop\n/steer\n/steer x\n/allow\n/status\n/nonsense\n/quit\nhello\n")
    assert ran.code == 0
    for words in (
        "/steer TEXT", "This conversation is empty.", "Nothing is running.", "Add the text to send: /steer TEXT",
        "No turn is running.", "Nothing is waiting for approval.", "thread   terminal:local:main",
        "No command named /nonsense.",
    ):  # fmt: skip
        assert words in ran.out
    assert "Hello!" not in ran.out


def test_over_a_pipe_no_history_is_printed(shoal: Shoal) -> None:
    shoal("chat", stdin="hello\n")
    shoal("chat", stdin="run echo hi\ny\n")
    assert shoal("chat").out == ""


def test_a_pending_approval_is_asked_again(shoal: Shoal) -> None:
    shoal("chat", stdin="run touch .git\ny\n")
    shoal("chat", stdin="run touch .git/again\n")
    assert " ".join(shoal("chat").out.split()).startswith("? The agent asks to run bash: │ touch .git/again")


def test_changed_files_are_reported_without_ids(shoal: Shoal) -> None:
    ran = shoal("chat", stdin="write hello to notes.txt\ny\n/undo\n")
    assert "[1 file changed. /undo shows the changes, /undo last reverts them.]" in ran.out
