"""The readable files match the journal byte for byte, regardless of how they were written."""

import gc
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.kernel.events import (
    ApprovalRequested,
    AssistantSaid,
    Cleared,
    Compacted,
    Event,
    Failed,
    Steered,
    ToolFinished,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.kernel.home import Home
from shoal.kernel.ids import ApprovalId, CallId, TurnId
from shoal.kernel.messages import Attachment, Author, Reference, ToolCall
from shoal.kernel.transcript import Transcript
from shoal.store.projections import CONTEXT, LOG, TAIL_BYTES, Projections
from tests.unit.kernel.journals import messages_of
from tests.unit.store.journals import THREAD, Piece, journals, number_events

SYSTEMS = {"aa": "You are A.", "bb": "You are B."}
ANN = Author("u1", "Reader", trusted=True)


class Files:
    """A thread's two files in a fresh home."""

    def __init__(self, root: str | Path) -> None:
        home = Home(Path(root))
        self.projections = Projections(home)
        self.folder = home.thread(THREAD)

    def read(self) -> tuple[bytes, bytes]:
        return self._read(LOG), self._read(CONTEXT)

    def write(self, log: bytes, context: bytes) -> None:
        (self.folder / LOG).write_bytes(log)
        (self.folder / CONTEXT).write_bytes(context)

    def log(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self._read(LOG).splitlines()]

    def context(self) -> list[dict[str, object]]:
        return [json.loads(line)["message"] for line in self._read(CONTEXT).splitlines()]

    def _read(self, name: str) -> bytes:
        path = self.folder / name
        return path.read_bytes() if path.exists() else b""


def rebuilt(events: Sequence[Event]) -> tuple[bytes, bytes]:
    with tempfile.TemporaryDirectory() as root:
        files = Files(root)
        files.projections.rebuild(THREAD, events, SYSTEMS)
        return files.read()


def one_turn(number: int = 1, text: str = "list the files") -> tuple[Piece, ...]:
    call = ToolCall(CallId(f"c{number}"), "bash", '{"command":"ls"}')
    return (
        Piece(f"T{number}", (TurnStarted("main", "demo", "It is Monday."), UserSaid(text, ANN, f"m{number}"))),
        Piece(f"T{number}", (AssistantSaid("I look.", (call,)), ToolFinished(call.id, "bash", "a.txt"))),
        Piece(f"T{number}", (AssistantSaid("There is a.txt."), TurnFinished("done", "There is a.txt."))),
    )


def test_the_log_lists_messages_by_author_without_tool_results(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.projections.append(THREAD, number_events(one_turn()), SYSTEMS)
    assert [line["type"] for line in files.log()] == [
        "turn_started", "user_message", "assistant_message", "assistant_message", "turn_finished",
    ]  # fmt: skip
    assert files.log()[1] == {
        "seq": 2, "at": "2026-01-05T09:00:02.000Z", "type": "user_message", "turn": "T1", "author": "Reader",
        "user": "u1", "is_bot": False, "message_id": "m1", "text": "list the files", "trusted": True,
    }  # fmt: skip
    assert files.log()[2] == {
        "seq": 3, "at": "2026-01-05T09:00:03.000Z", "type": "assistant_message", "turn": "T1", "author": "main",
        "user": "main", "is_bot": True, "text": "I look.", "trusted": True, "tools": ["bash"],
    }  # fmt: skip
    assert b"a.txt." in files.read()[0]
    assert b'"a.txt"' not in files.read()[0]


def test_the_log_has_each_files_name_and_path_below_the_thread(tmp_path: Path) -> None:
    files = Files(tmp_path)
    kept = Attachment("tide table.txt", path=f"{files.folder}/attachments/0f-tide%20table.txt", inside="/attachments/x")
    said = UserSaid("look", ANN, "m1", attachments=(kept, Attachment("lost.txt", error="gone")))
    files.projections.append(THREAD, number_events([Piece("", (said,))]), SYSTEMS)
    assert files.log()[0]["attachments"] == [
        {"original": "tide table.txt", "local": "attachments/0f-tide%20table.txt"},
        {"original": "lost.txt"},
    ]


def test_the_log_has_the_referenced_message_first(tmp_path: Path) -> None:
    files = Files(tmp_path)
    bea, bot = Author("u2", "Bea", trusted=False), Author("b1", "CI", is_bot=True, trusted=False)
    before = (Reference("before", "it leaks", bea, "m1"), Reference("before", "build 7 failed", bot, "m2"))
    own = Reference("reply", "an answer", ANN, "m0", own=True)
    said = UserSaid("look\nat it", ANN, "m4", joined=("m3",), refers_to=(*before, own))
    turn = Piece("T1", (TurnStarted("main", "demo"), said, AssistantSaid("I see."), TurnFinished("done")))
    restored = Piece("", (UserSaid("look", ANN, backfill=True, refers_to=before),))
    files.projections.append(THREAD, number_events([turn, restored]), {})
    told = [
        [line.get(key) for key in ("type", "user", "author", "is_bot", "message_id", "text", "trusted")]
        for line in files.log()
        if "text" in line
    ]
    assert told == [
        ["referred_message", "u2", "Bea", False, "m1", "it leaks", None],
        ["referred_message", "b1", "CI", True, "m2", "build 7 failed", None],
        ["user_message", "u1", "Reader", False, "m4", "look\nat it", True],
        ["assistant_message", "main", "main", True, None, "I see.", True],
        ["user_message", "u1", "Reader", False, None, "look", True],
    ]
    assert [line["joined"] for line in files.log() if "joined" in line] == [["m3"]]


def test_only_lines_without_untrusted_influence_are_trusted_in_the_log(tmp_path: Path) -> None:
    """Lines from older versions do not record their sources, so they are not trusted."""
    files = Files(tmp_path)
    eve = Author("u2", "Eve", trusted=False)
    asks = ApprovalRequested(
        ApprovalId("a"), CallId("c"), "bash", ("tool:bash:x",), "x", number_events(one_turn())[0].at
    )
    pieces = [
        Piece("T1", (TurnStarted("main", "demo"), UserSaid("a", ANN), AssistantSaid("b"), asks)),
        Piece(
            "T1", (UserSaid("c", eve, backfill=True), UserSaid("d", ANN, tainted_by="a page"), Steered("e", eve, "m"))
        ),
        Piece(
            "T1", (AssistantSaid("f", tainted_by="a page"), asks, Failed("provider", "g"), TurnFinished("done", "f"))
        ),
        Piece("", (Compacted(3, "h", tainted_by="a page"), Compacted(3, "i"))),
    ]
    files.projections.append(THREAD, number_events(pieces), SYSTEMS)
    trusted = [line["text"] for line in files.log() if "text" in line and line.get("trusted")]
    assert trusted == ["a", "b", "x", "g", "i"]
    assert [line["text"] for line in files.log() if "text" in line] == list("abxcdefxghi")


def test_the_context_starts_with_the_current_system_text(tmp_path: Path) -> None:
    files = Files(tmp_path)

    def turn(number: int, system: str) -> Piece:
        said = UserSaid(f"ask {number}", ANN, f"m{number}")
        return Piece(f"T{number}", (TurnStarted("main", "demo", system=system), said, TurnFinished("done", "")))

    events = number_events([turn(1, "aa"), turn(2, "aa"), turn(3, "bb"), turn(4, "unknown")])
    shown: list[list[str]] = []
    for end in (3, 6, 9, 12):
        files.projections.append(THREAD, events[:end], SYSTEMS)
        shown.append([str(message["text"]) for message in files.context()])
    assert shown == [
        ["You are A.", "[Reader] ask 1"],
        ["You are A.", "[Reader] ask 1", "[Reader] ask 2"],
        ["You are B.", "[Reader] ask 1", "[Reader] ask 2", "[Reader] ask 3"],
        ["[Reader] ask 1", "[Reader] ask 2", "[Reader] ask 3", "[Reader] ask 4"],
    ]
    assert files.read() == rebuilt(events)


def test_writing_keeps_nothing_in_memory(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.projections.rebuild(THREAD, number_events(one_turn()), SYSTEMS)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(200):
        files.projections.rebuild(THREAD, number_events(one_turn()), SYSTEMS)
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_the_context_has_the_models_view_with_calls_and_results(tmp_path: Path) -> None:
    files = Files(tmp_path)
    events = number_events(one_turn())
    files.projections.append(THREAD, events, SYSTEMS)
    assert [message["role"] for message in files.context()] == ["user", "assistant", "tool", "assistant"]
    assert files.context()[0]["text"] == "[Reader] list the files\n\nIt is Monday."
    assert files.context()[2]["text"] == "a.txt"


def test_clears_and_compactions_shorten_the_context_but_not_the_log(tmp_path: Path) -> None:
    files = Files(tmp_path)
    events = number_events([*one_turn(1), *one_turn(2), Piece("", (Compacted(6, "They listed files."),))])
    files.projections.append(THREAD, events, SYSTEMS)
    assert files.context()[0]["text"] == "[Summary of the conversation so far]\nThey listed files."
    assert len(files.context()) == 5
    cleared = [*events, Event(14, THREAD, TurnId(""), events[-1].at, Cleared("u1"))]
    assert files.projections.append(THREAD, cleared, SYSTEMS) == 14
    assert files.context() == []
    assert len(files.log()) == 12


def test_a_later_summary_replaces_the_earlier_one(tmp_path: Path) -> None:
    files = Files(tmp_path)
    pieces = [
        *one_turn(1),
        *one_turn(2),
        Piece("", (Compacted(6, "first"),)),
        *one_turn(3),
        Piece("", (Compacted(8, "second"),)),
    ]
    files.projections.append(THREAD, number_events(pieces), SYSTEMS)
    texts = [str(message["text"]) for message in files.context()]
    assert [text for text in texts if "Summary" in text] == ["[Summary of the conversation so far]\nsecond"]


def test_an_open_turn_is_left_for_later(tmp_path: Path) -> None:
    files = Files(tmp_path)
    events = number_events([*one_turn(1), *one_turn(2)[:-1]])
    assert files.projections.append(THREAD, events, SYSTEMS) == 6
    assert files.projections.last_seq(THREAD) == 6
    assert len(files.log()) == 5


def test_events_restored_before_any_turn_can_be_continued(tmp_path: Path) -> None:
    events = number_events([Piece("", (UserSaid("earlier", ANN, backfill=True),)), *one_turn()])
    Files(tmp_path).projections.append(THREAD, events[:1], SYSTEMS)
    files = Files(tmp_path)
    assert files.projections.append(THREAD, events[1:], SYSTEMS) == events[-1].seq
    assert files.read() == rebuilt(events)


def test_out_of_order_events_are_not_written(tmp_path: Path) -> None:
    files = Files(tmp_path)
    events = number_events([*one_turn(1), *one_turn(2)])
    assert files.projections.append(THREAD, events[6:], SYSTEMS) == 0
    assert files.projections.append(THREAD, events, SYSTEMS) == 12
    assert files.read() == rebuilt(events)


def test_a_lost_context_is_rewritten(tmp_path: Path) -> None:
    files = Files(tmp_path)
    events = number_events([*one_turn(1), *one_turn(2)])
    files.projections.append(THREAD, events, SYSTEMS)
    (files.folder / CONTEXT).unlink()
    assert files.projections.last_seq(THREAD) == 0
    files.projections.append(THREAD, events, SYSTEMS)
    assert files.read() == rebuilt(events)


def test_a_line_longer_than_the_first_read_is_found(tmp_path: Path) -> None:
    files = Files(tmp_path)
    events = number_events(
        [*one_turn(1), *one_turn(2, "x" * TAIL_BYTES * 3), Piece("", (UserSaid("y" * TAIL_BYTES * 5, ANN),))]
    )
    for count in range(len(events) + 1):
        files.projections.append(THREAD, events[:count], SYSTEMS)
    assert files.projections.last_seq(THREAD) == 13
    assert files.read() == rebuilt(events)


def test_a_crash_within_long_lines_is_repaired(tmp_path: Path) -> None:
    files = Files(tmp_path)
    long = Piece("", (UserSaid("z" * TAIL_BYTES * 2, ANN),))
    one, two, end = one_turn(2)
    events = number_events([*one_turn(1), one, long, two, long, end])
    files.projections.append(THREAD, events[:6], SYSTEMS)
    log, _ = files.read()
    files.projections.append(THREAD, events, SYSTEMS)
    log_after, context_after = files.read()
    for torn in (log, b"".join(log_after.splitlines(keepends=True)[:-2]), log_after[:-1]):
        files.write(torn, context_after)
        assert files.projections.last_seq(THREAD) == 6
        files.projections.append(THREAD, events, SYSTEMS)
        assert files.read() == (log_after, context_after) == rebuilt(events)


@given(journals(), st.data())
@settings(max_examples=60, deadline=None)
def test_incremental_writing_equals_rebuilding(events: list[Event], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        files = Files(root)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=6)))
        for cut in (*cuts, len(events)):
            files.projections.append(THREAD, events[files.projections.last_seq(THREAD) : cut], SYSTEMS)
        assert files.read() == rebuilt(events)


@given(journals())
@settings(max_examples=60, deadline=None)
def test_the_context_is_the_transcript(events: list[Event]) -> None:
    with tempfile.TemporaryDirectory() as root:
        files = Files(root)
        written = files.projections.append(THREAD, events, SYSTEMS)
        expected = Transcript()
        turn_is_open = False
        for event in events[:written]:
            turn_is_open = event.type == "turn_started" or (turn_is_open and event.type != "turn_finished")
            expected.add(event)
            if not turn_is_open:
                expected.close_open_calls()
        shown = files.context()
        if shown and shown[0]["role"] == "system":
            assert shown.pop(0)["text"] in SYSTEMS.values()
        assert [message["role"] for message in shown] == [
            type(message).__struct_config__.tag for message in messages_of(expected)
        ]
        assert [message["text"] for message in shown] == [message.text for message in messages_of(expected)]


@given(journals(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_crash_at_any_byte_is_repaired(events: list[Event], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        files = Files(root)
        files.projections.append(THREAD, events[: data.draw(st.integers(0, len(events)))], SYSTEMS)
        log, context = files.read()
        files.projections.append(THREAD, events, SYSTEMS)
        log_after, context_after = files.read()
        files.write(*data.draw(crashes((log, context), (log_after, context_after))))
        files.projections.append(THREAD, events, SYSTEMS)
        assert files.read() == rebuilt(events)


@st.composite
def crashes(draw: st.DrawFn, before: tuple[bytes, bytes], after: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """Draw the files after a crash between two states. The context is written before the log."""
    if draw(st.booleans()):
        return after[0][: draw(st.integers(len(before[0]), len(after[0])))], after[1]
    if after[1].startswith(before[1]):
        return before[0], after[1][: draw(st.integers(len(before[1]), len(after[1])))]
    return before[0], draw(st.sampled_from([before[1], after[1]]))
