"""Kept conversations, of earlier versions too: their requests are built as they were, or others knowingly."""

import tomllib
from pathlib import Path

import pytest
from tests.journals import FOLDER, KeptThread, read_events, read_threads

from shoal.domain.events import AssistantSaid, Event, ToolFinished, UserSaid
from shoal.turn.budget import ESTIMATES
from shoal.turn.prompt import assemble
from shoal.turn.replay import ReplayReport, replay

FILES = sorted(FOLDER.glob("*/*.jsonl"))
KNOWN: dict[str, dict[str, str]] = tomllib.loads((FOLDER / "known.toml").read_text())


def built_again(kept: KeptThread) -> ReplayReport:
    """The requests of a kept thread, as they are built today."""
    return replay(
        read_events(kept), {digest: assemble(sections) for digest, sections in kept.prompts.items()}, ESTIMATES
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_requests_of_kept_conversations_change_only_as_known(file: Path) -> None:
    """What a release builds in another way on purpose is named in known.toml, with the reason."""
    found: dict[str, str] = {}
    calls = 0
    for kept in read_threads(file):
        report = built_again(kept)
        assert not report.unmarked
        calls += report.calls
        found |= {f"{kept.thread} {one.seq}": one.detail for one in report.differences}
    assert calls
    known = KNOWN.get(f"{file.parent.name}/{file.stem}", {})
    assert found.keys() == known.keys(), found


def test_what_is_known_to_change_is_of_kept_conversations() -> None:
    assert KNOWN.keys() <= {f"{file.parent.name}/{file.stem}" for file in FILES}
    assert all(reason.strip() for reasons in KNOWN.values() for reason in reasons.values())


def test_every_way_in_which_a_conversation_goes_on_is_among_them() -> None:
    events: list[Event] = [event for file in FILES for kept in read_threads(file) for event in read_events(kept)]
    types = {event.type for event in events}
    assert types >= {
        "approval_requested", "approval_decided", "branched", "checkpointed", "cleared", "compacted", "error",
        "files_restored", "forked", "limit_reached", "retry_requested", "revised", "steered", "tool_result",
    }  # fmt: skip
    said = [event.data for event in events if isinstance(event.data, UserSaid)]
    assert {one.origin for one in said} >= {"person", "agent", "system"}
    assert any(one.joined for one in said)
    assert any(one.attachments for one in said)
    assert not all(one.author.trusted for one in said)
    results = [event.data for event in events if isinstance(event.data, ToolFinished)]
    assert any(one.found for one in results), "tools that were looked up"
    assert any(one.name.startswith("mcp_") and one.tainted_by for one in results)
    assert {"recall", "remember"} <= {one.name for one in results}
    marks = [event.data.asked for event in events if isinstance(event.data, AssistantSaid) and event.data.asked]
    assert any(mark.room is not None for mark in marks), "a conversation that did not fit"
    assert any(mark.window_tokens for mark in marks), "a window that was learnt"
