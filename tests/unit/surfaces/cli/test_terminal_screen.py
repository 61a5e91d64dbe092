"""The terminal chat's display: Markdown without broken words, and current activity above the prompt."""

import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from tests.unit.surfaces.cli.test_chat_conversation import THREAD, Lines, QuickLink

from shoal.kernel.commands import BUILT_IN
from shoal.kernel.events import ApprovalRequested, StatusChanged, ToolFinished
from shoal.kernel.home import Home
from shoal.kernel.ids import ApprovalId, CallId
from shoal.kernel.messages import ToolCall
from shoal.kernel.permissions import Coverage
from shoal.surfaces.cli.chat import RunningCall, StreamedAnswer, TerminalChat
from shoal.surfaces.cli.output import call_line, limit_words, result_lines, span, status_words
from shoal.surfaces.cli.terminal_markdown import rows, whole_blocks
from shoal.surfaces.cli.terminal_screen import (
    HISTORY_BYTES_MAX,
    OUTPUT_LINES,
    THINKING_LINES,
    ChatCompleter,
    TerminalScreen,
    chat_history,
)
from shoal.surfaces.cli.thread_client import ThreadClient
from shoal.tools.executor import DENIED, VERDICTS

NOW = 1_800_000_000.0
CODE = re.compile(r"\x1b\[(\d+)m")
WORDS = st.text("abcxyz,.鱈🐟", min_size=1, max_size=12)
TEXTS = st.lists(st.one_of(WORDS, WORDS.map("**{}**".format), WORDS.map("`{}`".format), st.just("\n\n- ")), max_size=40)


def plain(row: str) -> str:
    return CODE.sub("", row)


@given(TEXTS.map(" ".join), st.integers(12, 60))
def test_no_word_is_broken_or_lost(text: str, width: int) -> None:
    wide, narrow = rows(text, 100_000, colour=True), rows(text, width, colour=True)
    assert " ".join(map(plain, narrow)).split() == " ".join(map(plain, wide)).split()


@given(TEXTS.map(" ".join), st.integers(12, 60))
def test_each_row_opens_and_closes_its_own_styles(text: str, width: int) -> None:
    for row in rows(text, width, colour=True):
        begun = [number for number in CODE.findall(row) if number not in ("22", "23", "24", "29", "39")]
        ended = [number for number in CODE.findall(row) if number in ("22", "23", "24", "29", "39")]
        assert len(begun) == len(ended)


def test_markdown_is_rendered() -> None:
    text = "# Head\n\nSome **bold** words to go on\n\n- one item that is long\n\n> quoted words\n\n```\nls -l | wc\n```"
    assert [plain(row) for row in rows(text, 16, colour=True)] == [
        "Head", "", "Some bold words", "to go on", "", "• one item that", "  is long", "", "│ quoted words",
        "", "  ls -l | wc",
    ]  # fmt: skip
    assert "\x1b[1mbold\x1b[22m" in rows(text, 80, colour=False)[2]


@pytest.mark.parametrize(
    "formula", [r"so \(a^2\) it is", r"$e^{-x^2}\,dx$", r"$$a_1 * b_1 * c$$", "\\[\na_1\n- b_1 * c * d\n\\]"]
)
def test_formulas_are_shown_as_they_are_written(formula: str) -> None:
    assert [plain(row) for row in rows(f"So:\n\n{formula}\n\nit costs $5 or *$6*", 60, colour=True)] == [
        "So:", "", *formula.split("\n"), "", "it costs $5 or $6",
    ]  # fmt: skip


def test_task_lists_and_footnotes_are_readable() -> None:
    text = "- [x] done\n- [ ] to do, and more of it\n- [a] no box\n\nSaid[^1], [^2] and [^a-z].\n\n[^1]: By whom."
    assert [plain(row) for row in rows(text, 20, colour=True)] == [
        "☑ done", "☐ to do, and more of", "  it", "• [a] no box", "", "Said[1], [2] and", "[^a-z].", "",
        "[1]: By whom.",
    ]  # fmt: skip


TABLE = "| Name | What it does |\n|---|---|\n| alpha | says what it does in some words |\n| 鱈 | x |"


def test_a_table_fits_the_screen() -> None:
    assert rows(TABLE, 30, colour=False) == [
        "  Name  | What it does",
        "  ------+---------------------",
        "  alpha | says what it does in",
        "        | some words",
        "  ------+---------------------",
        "  鱈    | x",
    ]
    assert rows(TABLE, 20, colour=False)[:4] == [
        "  Name  | What it",
        "        | does",
        "  ------+-----------",
        "  alpha | says what",
    ]
    assert rows(TABLE, 15, colour=False) == [
        "  Name: alpha", "  What it", "    does: says", "    what it", "    does in", "    some words", "",
        "  Name: 鱈", "  What it", "    does: x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["\x1b[31mred", "`\x1b]0;title\x07`", "```\n\x1b[2J\n```", "[x](http://a\x1b[1m)", "a\0b"]
)
def test_no_escape_sequence_of_an_agent_reaches_the_terminal(text: str) -> None:
    shown = "".join(rows(text, 80, colour=True))
    assert set(re.findall(r"\x1b.{0,3}", CODE.sub("", shown))) == set()
    assert "\0" not in shown


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("one line\nand more", ""),
        ("one\n\ntwo", "one\n\n"),
        ("one\n\n```\ncode\n\nmore", "one\n\n"),
        ("- a\n\n- b", ""),
        ("- a\n\nb", "- a\n\n"),
    ],
)
def test_only_complete_blocks_are_printed_permanently(text: str, whole: str) -> None:
    assert text[: whole_blocks(text)] == whole


def test_a_retried_answer_is_shown_once() -> None:
    screen = Lines()
    answer = StreamedAnswer(screen)
    answer.stream("The first tr", 1)
    answer.stream("The second try", 2)
    answer.end("The second try")
    assert screen.lines == ["The second try"]


class Stand:
    """A terminal chat whose screen has no terminal."""

    def __init__(self, home: Path) -> None:
        self.screen = TerminalScreen(Home(home), BUILT_IN)
        self.chat = TerminalChat(cast(ThreadClient, QuickLink(0)), THREAD, "", self.screen)

    def going_on(self) -> list[str]:
        return [plain(row) for row in self.screen.live_lines(self.chat) if row]


@pytest.fixture
async def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stand]:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(time, "time", lambda: NOW)
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        stand = Stand(tmp_path)
        await stand.chat.type("go on")
        yield stand


async def test_a_running_call_shows_its_seconds_and_the_end_of_its_output(stand: Stand) -> None:
    written = "".join(f"step {number} \x1b[31m\n" for number in range(50))
    stand.chat.running[CallId("c1")] = RunningCall("bash make", NOW - 12.4, written)
    line, *output = stand.going_on()
    assert line[1:] == " bash make  12 s"
    assert output == [f"  step {number} �[31m" for number in range(50 - OUTPUT_LINES, 50)]
    assert stand.chat.doing == "running bash, 12 s"


async def test_the_models_text_of_a_denied_call_is_not_shown_to_people(
    stand: Stand, capsys: pytest.CaptureFixture[str]
) -> None:
    result = ToolFinished(CallId("c1"), "bash", VERDICTS["deny"], is_error=True)
    stand.screen.ended(result, "bash make", 0)
    assert capsys.readouterr().out.splitlines() == ["", "✗ bash make", "  A person denied this call."]
    refused = msgspec.structs.replace(result, text=DENIED.format(action="tool:bash:make", rule=""))
    assert refused.for_people == "Permission denied: tool:bash:make is not allowed here."


async def test_a_narrow_screen_shows_the_waiting_time(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    stand.chat.show_status(StatusChanged("retrying", "the model has reached its rate limit", 20), NOW - 1)
    assert " ".join(stand.going_on()).endswith("trying again in 19 s")


async def test_the_reason_for_a_wait_is_shown(stand: Stand) -> None:
    stand.chat.show_status(StatusChanged("thinking"), NOW - 12.4)
    assert [line[1:] for line in stand.going_on()] == [" waiting for the model, 12 s"]
    stand.chat.show_status(StatusChanged("retrying", "the model is overloaded", 20), NOW - 1)
    assert [line[1:] for line in stand.going_on()] == [" the model is overloaded, trying again in 19 s"]


async def test_thinking_is_shown_live_and_folded_when_the_answer_starts(
    stand: Stand, capsys: pytest.CaptureFixture[str]
) -> None:
    stand.chat.thinking.stream("\n".join(f"thought {number}" for number in range(50)), 1)
    status, *thoughts = stand.going_on()
    assert (status[1:], len(thoughts), thoughts[-1]) == (" thinking", THINKING_LINES, "  thought 49")
    stand.chat.thinking.stream(" and \x1b[2Jmore", 1)
    assert stand.going_on()[-1] == "  thought 49 and �[2Jmore"
    stand.chat.thinking.fold()
    assert capsys.readouterr().out.strip() == "Thought. /thinking shows it."
    assert [line[1:] for line in stand.going_on()] == [" waiting for the model"]
    stand.chat.thinking.fold()
    assert capsys.readouterr().out == ""


async def test_each_call_starts_its_own_thinking(stand: Stand) -> None:
    stand.chat.thinking.stream("the first try", 1)
    stand.chat.thinking.stream("the second", 2)
    assert stand.going_on()[1:] == ["  the second"]
    stand.chat.thinking.end("the second, whole")
    await stand.chat.type("/thinking")
    assert stand.chat.thinking.last == "the second, whole"


async def test_the_waiting_time_starts_when_the_message_is_sent(stand: Stand, tmp_path: Path) -> None:
    chat = Stand(tmp_path).chat
    chat.show_status(StatusChanged("thinking"), NOW - 3600)
    await chat.type("hello")
    assert chat.doing == "waiting for the model"


async def test_an_approvals_text_is_shown_character_for_character(
    stand: Stand, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"echo  'two  spaces' {'x' * stand.screen.width}   &&\n  rm -r  it "
    request = ApprovalRequested(
        ApprovalId("a1"), CallId("c1"), "bash", (), command, datetime.now(UTC), reason="It is not known."
    )
    stand.screen.wants(request)
    _, asked, *rows, reason = capsys.readouterr().out.rstrip("\n").split("\n")
    assert (asked.strip(), reason.strip()) == ("? The agent asks to run bash:", "Why it asks: It is not known.")
    assert max(map(len, rows)) <= stand.screen.width
    shown = "".join(row.replace("    │ ", "\n").removeprefix("    ↪ ") for row in rows)
    assert shown == f"\n{command}"


@pytest.mark.parametrize("uncovered", ["", "it runs make"])
async def test_only_valid_answer_keys_are_offered(stand: Stand, uncovered: str) -> None:
    covers = Coverage(uncovered=uncovered)
    request = ApprovalRequested(
        ApprovalId("a1"), CallId("c1"), "bash", ("tool:bash:make",), "make", datetime.now(UTC), covers=covers
    )
    stand.chat.questions[request.approval_id] = request
    keys = "[y] once  [n] no" if uncovered else "[y] once  [t] in this thread  [n] no"
    assert stand.going_on() == [f"Allow bash?  {keys}"]
    assert stand.chat.doing == "waiting for your decision"


async def test_a_finished_call_is_one_line_and_a_failed_one_says_why(
    stand: Stand, capsys: pytest.CaptureFixture[str]
) -> None:
    done = ToolFinished(CallId("c1"), "bash", "a\nb\nc", duration_ms=400)
    stand.screen.ended(done, "bash make", 0.4)
    stand.screen.ended(msgspec.structs.replace(done, is_error=True), "bash make", 0.4)
    stand.screen.ended(msgspec.structs.replace(done, is_error=True, stopped=True), "bash make", 12.0)
    assert capsys.readouterr().out.splitlines() == [
        "", "✓ bash make  400 ms", "✗ bash make  400 ms", "  a", "  b", "  c", "■ bash make  stopped after 12 s",
    ]  # fmt: skip
    ended = msgspec.structs.replace(done, text="\n".join([*"abcdef", "[exit code 2]"]), exit_code=2)
    stand.screen.ended(ended, "bash make", 0.4)
    assert capsys.readouterr().out.splitlines() == ["✗ bash make  exit code 2, 400 ms", "  c", "  d", "  e", "  f"]
    assert next(result_lines(ended)) == "  ✗ bash, 400 ms, exit code 2"
    staged = ToolFinished(CallId("c1"), "send", "Staged, not done: send", counts=False, staged=True)
    stand.screen.ended(staged, "send bob", 0)
    assert capsys.readouterr().out.splitlines() == ["○ send bob  staged, not done"]
    assert next(result_lines(staged)) == "  ○ send, staged, not done"


def test_commands_agents_and_files_are_completed(tmp_path: Path) -> None:
    workspace = tmp_path / "agents" / "main" / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "harbour.md").touch()
    completer = ChatCompleter(Home(tmp_path), BUILT_IN)

    def offered(text: str) -> list[str]:
        found = completer.get_completions(Document(text), CompleteEvent())
        return [text[: len(text) + one.start_position] + one.text for one in found]

    assert offered("/st") == ["/status", "/stop", "/steer"]
    assert offered("/agent bi") == ["/agent bind"]
    assert offered("/agent bind ma") == ["/agent bind main"]
    assert offered("ask mai") == ["ask main"]
    assert offered("hey @ma") == ["hey @main"]
    assert offered("look at harb") == ["look at harbour.md"]
    assert "look at harbour.md" in offered("look at ")
    assert offered("/model ") == [], "no file is meant where nothing is begun"
    assert offered("/steer read harb") == ["/steer read harbour.md"]


async def test_input_lines_wrap_between_words(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    words = "word " * 100
    stand.screen.line(f"    {words}")
    first, second, *_ = capsys.readouterr().out.strip("\n").splitlines()
    assert max(len(first), len(second)) <= stand.screen.width
    assert first.startswith("    word word")
    assert second.startswith("    word word")


def test_the_older_half_of_a_long_history_is_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "chat_history"
    file.write_text("".join(f"\n# then\n+entry {number}\n" for number in range(20_000)))
    assert file.stat().st_size > HISTORY_BYTES_MAX
    entries = list(chat_history(file).load_history_strings())
    assert (entries[0], len(set(entries)) == len(entries)) == ("entry 19999", True)
    assert HISTORY_BYTES_MAX // 4 < file.stat().st_size < HISTORY_BYTES_MAX


def test_texts_for_people_contain_no_enum_names() -> None:
    assert limit_words("tool_errors", "5 tool errors in a row") == "A limit was reached: 5 tool errors in a row."
    assert limit_words("output_tokens", "") == "A limit was reached: output tokens."
    assert limit_words("budget", "The day's budget is spent.") == "A limit was reached: The day's budget is spent."
    assert status_words(StatusChanged("tool", "bash"), 0.5) == "running bash"
    assert [span(seconds) for seconds in (0.0423, 1.44, 2, 12.4, 185, 7800)] == [
        "42 ms", "1.4 s", "2 s", "12 s", "3 min 5 s", "2 h 10 min",
    ]  # fmt: skip
    assert call_line(ToolCall(CallId("c"), "bash", '{"timeout_seconds":3,"command":"ls\\n -l"}')) == "bash ls -l"
    assert call_line(ToolCall(CallId("c"), "time", "{}")) == "time"
    assert call_line(ToolCall(CallId("c"), "odd", '{"a":1')) == 'odd {"a":1'
