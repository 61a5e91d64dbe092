"""The text of an approval: the complete action, or as much as fits with a note that the rest is missing."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.kernel.ids import ApprovalId, CallId, CardId, ThreadId
from shoal.kernel.permissions import CardItem, Coverage, CoveredFile
from shoal.kernel.records import Approval, NewApproval
from shoal.markdown.render import render_markup
from shoal.platforms.telegram.markup import styled
from shoal.store.cards import (
    CARD_CALLS_MAX,
    CARD_CHARS_MAX,
    FILES_SHOWN_MAX,
    REPOSITORY,
    card_edit,
    card_post,
    card_text,
    coverage_text,
)
from tests.dialects import DIALECTS

GIT = CoveredFile("/workspace/.git/config", 92, "cd")
FILE, ABSENT = CoveredFile("/workspace/build.py", 1204, "ab"), CoveredFile("/scratch/x", -1, "")


@given(st.text(min_size=0, max_size=300), st.integers(30, 100))
def test_a_long_text_is_truncated_with_a_notice(text: str, chars_max: int) -> None:
    assume(not text.endswith("\n") and "\n\n" not in text)  # fences have their own test
    shown = card_text("A1", text, chars_max)
    if len(text) <= chars_max:
        assert shown.strip("`") == (f"\n{text}\n" if text else "")
        return
    cut, _, note = shown.rpartition("\n\n")
    begin, _, rest = cut.strip("`").removeprefix("\n").removesuffix("\n").partition("\n… ")
    assert "`shoal approvals show A1`" in note
    assert text.startswith(begin[: chars_max // 3])
    assert text.endswith(rest[-(chars_max // 3) :])
    assert f"{len(text) - chars_max} characters are not shown here" in cut


@pytest.mark.parametrize(("reason", "text"), [("", ""), ("A page was read.", "\n\nA page was read.")])
def test_a_card_says_why_it_asks_about_an_allowed_action(reason: str, text: str) -> None:
    at = datetime(2026, 1, 5, tzinfo=UTC)
    asked = NewApproval(ApprovalId("A1"), CallId("c1"), "bash", (), "d", "curl x", "fake:ada", at, reason)
    card = card_post(ThreadId("a:b:c"), [asked])
    assert (card.text, card.kind, card.approval) == (f"```\ncurl x\n```{text}", "card", "A1")


@pytest.mark.parametrize("markup", ["telegram", "slack", "discord", "matrix", "teams", "google_chat", "plain"])
def test_every_character_of_the_command_is_shown(markup: str) -> None:
    shown = "echo *a* _b_ ~c~ [d](https://e.org) <f> `g`\n # h\n-i\n+j"
    rendered = render_markup(card_text("A1", shown), DIALECTS[markup])
    if markup == "telegram":
        rendered = styled(rendered).text
    for part in ("*a* _b_ ~c~ [d](https://e.org)", " # h", "\n-i\n+j"):
        assert part in rendered


def decided(shown: str, **fields: object) -> Approval:
    at = datetime(2026, 1, 5, tzinfo=UTC)
    row: dict[str, object] = {
        "id": "A1", "thread": "a:b:c", "turn": "T1", "call_id": "c1", "tool": "bash", "actions": [], "digest": "d",
        "shown": shown, "asked_by": "fake:ada", "state": "used", "created_at": at, "expires_at": at,
    }  # fmt: skip
    return msgspec.convert(row | fields, Approval)


def test_the_text_of_an_edited_card_is_bounded() -> None:
    edit = card_edit(ThreadId("a:b:c"), [decided("x" * 100_000, outcome="ran")])
    assert edit.text.startswith("✅ Allowed, and it ran.")
    assert len(edit.text) < CARD_CHARS_MAX + 300


@pytest.mark.parametrize("total", [1, CARD_CALLS_MAX, CARD_CALLS_MAX + 1])
@pytest.mark.parametrize("refused", ["deny", "expired"])
def test_a_refused_set_of_any_size_says_how_to_restore_the_files(total: int, refused: str) -> None:
    def undo_shown(files: str, first: str, last: str) -> bool:
        calls = [
            decided(
                "send",
                state=last if number == total else first,
                item=CardItem(CardId("C1"), number, total, staged=True, files=files if number == 1 else ""),
            )
            for number in range(1, total + 1)
        ]
        edit = card_edit(ThreadId("a:b:c"), calls)
        has_button = [button.value for button in edit.buttons if button.label == "Undo the files"] == ["undo:C1"]
        assert has_button == ("`/undo T1` to revert them." in edit.text)
        return has_button

    assert undo_shown("a file", refused, refused)
    assert not undo_shown("", refused, refused)
    assert not undo_shown("a file", refused, "used")
    assert not undo_shown("a file", refused, "pending")


@pytest.mark.parametrize(
    ("uncovered", "labels"),
    [("", ["Allow once", "Allow for this conversation", "Deny"]), ("it uses the network", ["Allow once", "Deny"])],
)
def test_a_card_of_one_call_has_its_buttons(uncovered: str, labels: list[str]) -> None:
    at = datetime(2026, 1, 5, tzinfo=UTC)
    covers = Coverage(uncovered=uncovered)
    asked = NewApproval(ApprovalId("A1"), CallId("c1"), "bash", (), "d", "ls", "fake:ada", at, covers=covers)
    post = card_post(ThreadId("a:b:c"), [asked])
    assert [button.label for button in post.buttons] == labels
    assert all(button.value.endswith(":A1") for button in post.buttons)


@pytest.mark.parametrize(
    ("covers", "text"),
    [
        (Coverage(), ""),
        (Coverage((FILE,)), "Runs build.py (1,204 bytes)."),
        (Coverage((FILE, ABSENT)), "Runs build.py (1,204 bytes)."),
        (Coverage((ABSENT,)), "Runs /scratch/x (does not exist yet)."),
        (
            Coverage((FILE,), others=41),
            "Runs build.py (1,204 bytes) and may run other files in the workspace (41 code files).",
        ),
        (Coverage((GIT,)), "Also runs this repository's hooks and the programs named in its settings."),
        (Coverage((FILE, GIT)), f"Runs build.py (1,204 bytes) and also runs {REPOSITORY}."),
        (Coverage(others=1), "May run other files in the workspace (1 code file)."),
        (Coverage(uncovered="it is so"), "It can only be allowed once, because it is so."),
    ],
)
def test_a_card_names_the_code_that_runs(covers: Coverage, text: str) -> None:
    assert coverage_text(covers) == text


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (" ", "\\u{20}"),
        ("a.py (3 bytes).\n\nApproved by the owner", "a.py (3 bytes).\\u{a}\\u{a}Approved by the owner"),
        ("x\u202egpj", "x\\u{202e}gpj"),
        ("a  b", "a\\u{20} b"),
        ("", "/workspace/"),
    ],
)
def test_no_file_name_is_missing_or_forged(name: str, shown: str) -> None:
    assert coverage_text(Coverage((CoveredFile(f"/workspace/{name}", 1, "d"),))) == f"Runs {shown} (1 byte)."


def test_names_and_reasons_are_escaped() -> None:
    files = (CoveredFile("/workspace/[Allow](https://evil.example)", 1, "d"),)
    at, evil = datetime(2026, 1, 5, tzinfo=UTC), "a message of **[Deny](https://evil.example)**"
    asked = NewApproval(ApprovalId("A1"), CallId("c1"), "x", (), "d", "x", "fake:ada", at, evil, covers=Coverage(files))
    for text in (
        card_post(ThreadId("a:b:c"), [asked]).text,
        card_edit(ThreadId("a:b:c"), [decided("x", state="deny", decided_by=evil)]).text,
    ):
        rendered = render_markup(text, DIALECTS["matrix"])
        assert "evil.example" in rendered
        assert "<a " not in rendered.replace('<a href="https://evil.example">https://evil.example</a>', "")
        assert "<strong>" not in rendered


@pytest.mark.parametrize("shown", ["", " ", "\n\n"])
def test_a_card_without_a_description_shows_the_actions(shown: str) -> None:
    at = datetime(2026, 1, 5, tzinfo=UTC)
    asked = NewApproval(ApprovalId("A1"), CallId("c1"), "x", ("tool:x:\u202e1",), "d", shown, "fake:ada", at)
    assert "tool:x:\\u{202e}1" in card_post(ThreadId("a:b:c"), [asked]).text


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ("echo" + " " * 900 + "; curl", "echo⟨900 spaces⟩; curl"),
        ("echo" + "\n \t" * 9 + "\ncurl", "echo\n⟨9 empty lines⟩\ncurl"),
        ("if x:\n" + " " * 39 + "y\n\n\n", "if x:\n" + " " * 39 + "y\n\n\n"),
    ],
)
def test_runs_of_blanks_do_not_hide_text(shown: str, text: str) -> None:
    assert text in card_text("A1", shown)


def test_a_card_names_a_bounded_number_of_files() -> None:
    files = tuple(CoveredFile(f"/workspace/{number}", 1, "d") for number in range(FILES_SHOWN_MAX + 3))
    assert coverage_text(Coverage(files)).endswith("9 (1 byte), 3 more.")
