"""The output of `shoal threads`, `usage`, `memory` and `skills`."""

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Shoal

THREAD = "terminal:ask:mine"


@pytest.fixture
def asked(shoal: Shoal) -> None:
    assert shoal("ask", "--thread", THREAD, "what time is it?").code == 0


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("words", ["threads show", "threads log", "threads export", "threads rebuild", "replay"])
def test_a_journal_of_a_newer_version_is_reported_and_unchanged(shoal: Shoal, home: Path, words: str) -> None:
    with contextlib.closing(sqlite3.connect(home / "shoal.db", isolation_level=None)) as database:
        database.execute("update events set type = 'dreamed' where seq = 3")
        before = database.execute("select * from events").fetchall()
        ran = shoal(*words.split(), THREAD)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == (
            "shoal: A newer version of Shoal wrote the journal (dreamed). Install that version to open the journal.\n"
        )
        assert database.execute("select * from events").fetchall() == before


def test_a_home_without_a_database_lists_nothing(shoal: Shoal, home: Path) -> None:
    shoal("init")
    assert shoal("threads", "list").out == "No threads yet.\n"
    for words in ("threads list", "approvals list", "triggers list", "triggers next", "audit tail", "usage"):
        assert json.loads(shoal(*words.split(), "--json").out) == []
    assert not (home / "shoal.db").exists()


@pytest.mark.usefixtures("asked")
def test_a_thread_is_listed_and_shown(shoal: Shoal) -> None:
    (info,) = json.loads(shoal("threads", "list", "--json").out)
    assert (info["thread"], info["title"]) == (THREAD, "what time is it?")
    assert THREAD in shoal("threads", "list").out
    shown = shoal("threads", "show", THREAD).out
    assert shown.index("what time is it?") < shown.index("→ time") < shown.index("✓ time") < shown.index("agent:")


@pytest.mark.usefixtures("asked")
def test_the_journal_is_printed_and_exported_in_full(shoal: Shoal, tmp_path: Path) -> None:
    found = json.loads(shoal("threads", "show", THREAD, "--json").out)
    events = found["events"]
    assert [event["seq"] for event in events] == list(range(1, found["thread"]["last_seq"] + 1))
    assert set(events[0]) == {"seq", "thread", "turn", "type", "at", "data"}
    assert json.loads(shoal("threads", "log", THREAD, "--json").out) == events
    assert json.loads(shoal("threads", "log", THREAD, "--json", "--after", "3").out) == events[3:]
    assert len(shoal("threads", "log", THREAD).out.splitlines()) == len(events)
    file = tmp_path / "out.jsonl"
    assert shoal("threads", "export", THREAD, "-o", str(file)).code == 0
    assert [json.loads(line) for line in file.read_text().splitlines()] == events


@pytest.mark.usefixtures("asked")
def test_rebuild_creates_the_same_files(shoal: Shoal, home: Path) -> None:
    folder = home / "data/terminal/ask/mine"
    before = (folder / "log.jsonl").read_bytes(), (folder / "context.jsonl").read_bytes()
    assert before[0]
    (folder / "log.jsonl").write_text("damaged\n")
    (folder / "context.jsonl").unlink()
    assert shoal("threads", "rebuild", THREAD).code == 0
    assert ((folder / "log.jsonl").read_bytes(), (folder / "context.jsonl").read_bytes()) == before


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("words", ["show", "log", "export", "rebuild"])
def test_an_unknown_thread_is_reported(shoal: Shoal, words: str) -> None:
    ran = shoal("threads", words, "terminal:ask:other")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == ("shoal: Thread terminal:ask:other does not exist. 'shoal threads list' shows all threads.\n")


def test_message_text_cannot_control_the_terminal(shoal: Shoal) -> None:
    shoal("ask", "--thread", THREAD, "\x1b[2Jhello \u202eevil")
    for words in (("list",), ("show", THREAD), ("log", THREAD)):
        out = shoal("threads", *words).out
        assert "\x1b" not in out
        assert "\u202e" not in out


def test_memory_shows_files_and_notes(shoal: Shoal, home: Path) -> None:
    shoal("init")
    assert "(no memory yet)" in shoal("memory", "show").out
    (home / "data/MEMORY.md").write_text("- likes tea\n")
    (home / "data/memory/202601").mkdir(parents=True)
    (home / "data/memory/202601/20260102.md").write_text("- rained\n")
    (home / "data/terminal/local").mkdir(parents=True)
    (home / "data/terminal/local/MEMORY.md").write_text("- quiet here\n")
    found = json.loads(shoal("memory", "show", "--json", "--thread", "terminal:local:main").out)
    assert [(view["scope"], view["text"]) for view in found] == [
        ("global", "- likes tea\n"),
        ("platform", ""),
        ("channel", "- quiet here\n"),
        ("note", "- rained\n"),
    ]
    assert "# notes for 2026-01-02" in shoal("memory", "show").out


def test_memory_is_forgotten_and_restored(shoal: Shoal, home: Path) -> None:
    shoal("init")
    file = home / "data/MEMORY.md"
    file.write_text("- likes tea\n- has a boat\n")
    assert shoal("memory", "forget", "Likes tea.").code == 0
    assert file.read_text() == "- has a boat\n"
    assert "-- likes tea" in shoal("memory", "changes").out
    assert "Undid the change in data/MEMORY.md" in shoal("memory", "undo").out
    assert file.read_text() == "- likes tea\n- has a boat\n"
    assert "Nothing is left" in shoal("memory", "undo").out
    assert shoal("memory", "forget", "likes coffee").code == 1
    assert shoal("memory", "amend", "Likes tea.", "likes green tea").code == 0
    assert "likes green tea" in shoal("memory", "show").out
    empty = shoal("memory", "amend", "likes green tea", " ")
    assert (empty.code, "TEXT is empty" in empty.err) == (2, True)
    missing = shoal("memory", "amend", "likes coffee", "likes water")
    assert (missing.code, "has no entry 'likes coffee'" in missing.err) == (1, True)


def test_skills_are_listed_and_broken_ones_reported(shoal: Shoal, home: Path) -> None:
    shoal("init")
    built_in = [skill["name"] for skill in json.loads(shoal("skills", "list", "--json").out)]
    assert built_in
    for name, text in (
        ("good", "---\nname: good\ndescription: Does good.\n---\nDo it."),
        ("bad", "---\nname: x\n---\n"),
    ):
        (home / "data/skills" / name).mkdir()
        (home / "data/skills" / name / "SKILL.md").write_text(text)
    found = {skill["name"]: skill["scope"] for skill in json.loads(shoal("skills", "list", "--json").out)}
    assert found == {**dict.fromkeys(built_in, "builtin"), "good": "global"}
    checked = shoal("skills", "check")
    (problem,) = json.loads(shoal("skills", "check", "--json").out)
    assert problem["problem"].replace("`", "'") in checked.out
    assert problem["path"].endswith("SKILL.md")
    assert checked.code == 1
    assert "fail: Skill 'bad' is skipped" in checked.out
    (home / "data/skills/bad/SKILL.md").unlink()
    assert shoal("skills", "check").code == 0


SKILL = "---\nname: {name}\ndescription: Does good.\n---\nDo it."


def test_skills_are_installed_from_folders_archives_and_files(shoal: Shoal, home: Path, tmp_path: Path) -> None:
    shoal("init")
    for name in ("tides", "boats", "reefs"):
        (tmp_path / "pack" / name / ".git").mkdir(parents=True)
        (tmp_path / "pack" / name / ".git" / "config").write_text("x")
        (tmp_path / "pack" / name / "SKILL.md").write_text(SKILL.format(name=name))
    (tmp_path / "pack" / "tides" / "read.py").write_text("print(1)")
    shutil.make_archive(str(tmp_path / "boats"), "zip", tmp_path / "pack", "boats")
    for source, name in (("pack/tides", "tides"), ("boats.zip", "boats"), ("pack/reefs/SKILL.md", "reefs")):
        ran = shoal("skills", "install", str(tmp_path / source))
        assert (ran.code, ran.out) == (0, f"Installed {name}. This takes effect on the next turn.\n")
    assert (home / "data/skills/tides/read.py").exists()
    assert not list((home / "data/skills").rglob(".git"))
    assert shoal("skills", "install", str(tmp_path / "pack"), "--scope", "agent").code == 0
    assert (home / "agents/main/skills/tides/read.py").exists()
    again = shoal("skills", "install", str(tmp_path / "boats.zip"))
    assert (again.code, again.err) == (1, "shoal: The skill boats already exists. Remove it first.\n")
    assert shoal("skills", "remove", "boats").code == 0
    assert not (home / "data/skills/boats").exists()


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("nowhere", "nowhere: No such file or directory."),
        ("http://example.org/x.zip", "Only https:// is allowed here."),
        ("https://127.0.0.1/x.zip", "it is not a public address."),
        ("empty", "The archive contains no SKILL.md."),
        ("linked", "is a link. Replace it with the file itself."),
    ],
)
def test_a_source_without_a_skill_is_reported_and_installs_nothing(
    shoal: Shoal, home: Path, tmp_path: Path, source: str, why: str
) -> None:
    shoal("init")
    for name in ("empty", "linked"):
        (tmp_path / name).mkdir()
    (tmp_path / "linked" / "SKILL.md").symlink_to("/etc/passwd")
    ran = shoal("skills", "install", source if "://" in source else str(tmp_path / source))
    assert ran.code == 2
    assert why in ran.err
    assert not any((home / "data/skills").iterdir())


@pytest.mark.usefixtures("asked")
def test_the_budget_is_suspended_for_the_day(shoal: Shoal) -> None:
    assert "until the end of 2" in shoal("usage", "lift").out
    entries = json.loads(shoal("audit", "tail", "--json").out)
    assert [entry["entry"]["action"] for entry in entries if entry["entry"]["kind"] == "budget"] == ["lift"]


@pytest.mark.usefixtures("asked")
def test_a_conversation_is_saved_and_restored(shoal: Shoal, home: Path) -> None:
    assert shoal("threads", "snapshot", "list", THREAD).out == "This channel has no saved conversations.\n"
    assert "Saved as" in shoal("threads", "snapshot", "save", THREAD).out
    (saved,) = json.loads(shoal("threads", "snapshot", "list", THREAD, "--json").out)
    assert saved["description"].endswith("beginning: what time is it?")
    assert (home / "agents" / saved["agent"] / "sessions" / f"{saved['id']}.json").exists()
    assert "Restored:" in shoal("threads", "snapshot", "restore", THREAD, saved["id"]).out
    types = [event["type"] for event in json.loads(shoal("threads", "log", THREAD, "--json").out)]
    assert types[types.index("cleared") + 1 :] == [
        "user_message", "assistant_message", "tool_result", "assistant_message"
    ]  # fmt: skip
    assert shoal("threads", "snapshot", "restore", THREAD, "nothing").code == 1


@pytest.mark.usefixtures("asked")
def test_a_thread_without_artifacts_says_so(shoal: Shoal) -> None:
    assert shoal("threads", "artifacts", THREAD).out == "This thread has no artifacts.\n"
    assert json.loads(shoal("threads", "artifacts", THREAD, "--json").out) == []


def test_a_number_too_large_for_the_database_is_refused(shoal: Shoal) -> None:
    shoal("ask", "--thread", "terminal:local:x", "hello")
    ran = shoal("threads", "log", "terminal:local:x", "--after", "9" * 20)
    assert ran.code == 1
    assert "'after' must be a whole number from 0 to 4.61169e+18" in ran.err


@pytest.mark.usefixtures("asked")
def test_a_thread_is_renamed_pinned_and_archived_by_command(shoal: Shoal) -> None:
    assert shoal("threads", "rename", THREAD, "The  time").code == 0
    assert shoal("threads", "pin", THREAD).code == 0
    (info,) = json.loads(shoal("threads", "list", "--json").out)
    assert (info["title"], info["pinned"], info["archived"]) == ("The time", True, False)
    assert shoal("threads", "archive", THREAD).code == 0
    assert json.loads(shoal("threads", "list", "--json").out) == []
    assert [one["thread"] for one in json.loads(shoal("threads", "list", "--archived", "--json").out)] == [THREAD]
    assert shoal("threads", "archive", "--off", THREAD).code == shoal("threads", "pin", "--off", THREAD).code == 0
    assert "pinned" not in shoal("threads", "list").out


@pytest.mark.usefixtures("asked")
def test_a_thread_is_deleted_after_confirmation(shoal: Shoal, home: Path) -> None:
    for answer in ("n\n", ""):
        ran = shoal("threads", "delete", THREAD, stdin=answer)
        assert (ran.code, ran.err.strip()) == (130, "shoal: Nothing was changed. Use '--yes' to skip the question.")
    assert shoal("threads", "show", THREAD).code == 0
    gone = shoal("threads", "delete", THREAD, "--yes")
    assert gone.code == 0
    digest = gone.out.split()[-1].rstrip(".")
    assert shoal("threads", "show", THREAD).code == 1
    assert not (home / "data/terminal/ask/mine").exists()
    assert f"sha256 {digest}" in shoal("audit", "tail", "--json").out
    assert shoal("threads", "delete", THREAD, "--yes").code == 1


@pytest.mark.usefixtures("asked")
def test_a_conversation_is_exported_in_readable_form(shoal: Shoal) -> None:
    text = shoal("threads", "export", THREAD, "--format", "markdown").out
    assert text.startswith("# what time is it?\n")
    assert text.index("what time is it?\n\n**time**") < text.index("## main")
    page = shoal("threads", "export", THREAD, "--format", "html").out
    assert page.startswith("<!doctype html>")
    assert "<summary>time</summary>" in page
    assert set(json.loads(shoal("threads", "export", THREAD, "--format", "json").out)) == {"thread", "events"}
