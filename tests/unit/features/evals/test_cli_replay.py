"""`shoal replay`, `threads fork|branch` and `permissions replay|suggest` in a home without a running server."""

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Shoal

THREAD = "terminal:ask:mine"


@pytest.fixture
def asked(shoal: Shoal) -> None:
    assert shoal("ask", "--thread", THREAD, "what time is it?").code == 0


@pytest.mark.usefixtures("asked")
def test_a_past_conversation_and_its_copy_replay_identically(shoal: Shoal) -> None:
    ran = shoal("replay", THREAD)
    assert (ran.code, ran.out.splitlines()[0]) == (0, "2 requests: 2 identical.")
    assert "the comparison does not include" in ran.out
    copy = shoal("threads", "fork", THREAD).out.strip()
    assert copy.startswith("terminal:ask:")
    assert shoal("replay", "--all").out.splitlines()[0] == "4 requests in 2 threads: 4 identical."
    assert json.loads(shoal("replay", THREAD, "--json").out)["replay"]["identical"] == 2


@pytest.mark.usefixtures("asked")
def test_every_thread_is_visited_including_pinned_archived_and_newer_ones(
    shoal: Shoal, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = [shoal("threads", "fork", THREAD).out.strip() for _ in range(5)]
    old, archived, newer = copies[:3]
    with contextlib.closing(sqlite3.connect(home / "shoal.db")) as database, database:
        database.execute("update threads set pinned = 1, updated_at = 0 where thread = ?", (old,))
        database.execute("update threads set archived = 1 where thread = ?", (archived,))
        database.execute("update events set type = 'sung' where type = 'forked' and thread = ?", (newer,))
        (last,) = database.execute("select max(updated_at) from threads").fetchone()
        for number, thread in enumerate((THREAD, *copies[1:])):  # all within one millisecond
            database.execute(
                "update threads set updated_at = ? where thread = ?", (last // 1000 * 1000 + number, thread)
            )
    monkeypatch.setattr("shoal.features.evals.cli.PAGE", 2)
    ran = shoal("replay", "--all")
    assert (ran.code, ran.err) == (2, "")
    first, summary, left_out, _ = ran.out.splitlines()
    assert first == (
        f"{newer}: A newer version of Shoal wrote the journal (sung). Install that version to open the journal."
    )
    assert summary == "8 requests in 4 threads: 8 identical."
    assert left_out == "Skipped threads that a newer version wrote: 1."
    assert shoal("replay", "--all", "--since", "9000w").out.splitlines()[1] == "10 requests in 5 threads: 10 identical."
    told = {line["thread"]: line for line in map(json.loads, shoal("replay", "--all", "--json").out.splitlines())}
    assert set(told) == {THREAD, *copies} - {old}
    assert "newer version of Shoal" in told[newer]["error"]
    assert shoal("replay", newer).code == 2


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    "words",
    [
        "replay",
        "replay terminal:ask:none",
        "replay no-thread",
        f"replay {THREAD} --all",
        f"replay {THREAD} --turn x",
        f"replay {THREAD} --since 2d",
    ],
)
def test_a_missing_turn_cannot_be_replayed(shoal: Shoal, words: str) -> None:
    assert shoal(*words.split()).code == 2


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    "words",
    [
        "threads fork no-thread", "threads fork terminal:ask:none", f"threads fork {THREAD} --after 99",
        f"threads branch {THREAD} 99", f"threads changes {THREAD} t", f"threads undo {THREAD} --yes",
        f"compare --model demo --thread {THREAD} --runs 0", "compare --model demo --thread terminal:ask:none",
        f"compare --model nobody/none --thread {THREAD}", "check --agent nobody", "check none", "cases list --agent x",
    ],
)  # fmt: skip
def test_an_unknown_target_prints_one_line_and_exits_with_2(shoal: Shoal, home: Path, words: str) -> None:
    def journal() -> list[object]:
        with contextlib.closing(sqlite3.connect(home / "shoal.db")) as database:
            return database.execute("select thread, seq, type, data from events order by thread, seq").fetchall()

    before = journal()
    ran = shoal(*words.split())
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith("shoal: ")
    assert journal() == before


@pytest.mark.usefixtures("asked")
def test_models_are_compared_and_cases_checked_without_a_running_server(shoal: Shoal, home: Path) -> None:
    compared = shoal("compare", "--model", "demo", "--thread", THREAD, "--usd-max", "0", "--json")
    assert compared.code == 0
    state = json.loads(compared.out)["state"]
    assert (state["calls"], state["done"]) == (2, 2)
    assert shoal("cases", "save", THREAD, "--name", "clock", "--calls", "time").code == 0
    checked = shoal("check", "--usd-max", "0")
    assert (checked.code, checked.out.splitlines()[0].split()[:2]) == (0, ["pass", "clock"])
    case = home / "agents/main/cases/clock.toml"
    case.write_text(case.read_text().replace("calls", "cals"))
    ran = shoal("check")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "cases/clock.toml" in ran.err
    assert "cals" in ran.err


@pytest.mark.usefixtures("asked")
def test_a_conversation_branches_from_an_earlier_event(shoal: Shoal) -> None:
    assert shoal("threads", "branch", THREAD, "0").code == 0
    shown = shoal("threads", "show", THREAD).out
    assert "continues after event 0" in shown
    assert shoal("threads", "branch", THREAD, "2").code == 2
    assert shoal("threads", "again", THREAD).code == 1


@pytest.mark.usefixtures("asked")
def test_other_rules_are_tried_on_past_calls(shoal: Shoal, home: Path) -> None:
    rules = home.with_name("rules.toml")
    rules.write_text('extends = "open"\ndeny = ["tool:time.*"]\n')
    ran = shoal("permissions", "replay", "--profile", str(rules))
    assert ran.code == 0
    assert "newly denied: 1" in ran.out
    assert (
        "These rules would have decided every action the same way."
        in shoal("permissions", "replay", "--profile", "open").out
    )
    assert shoal("permissions", "replay", "--profile", "nope").code == 2
    ran = shoal("permissions", "replay", "--profile", "/nope.toml")
    assert (ran.code, ran.err) == (2, "shoal: Shoal cannot read /nope.toml: No such file or directory.\n")
    rules.write_text('extends = "nope"\n')
    ran = shoal("permissions", "replay", "--profile", str(rules))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("shoal: permission profile 'rules.toml' extends 'nope', which does not exist.")
    assert shoal("permissions", "replay", "--profile", "open", "--since", "soon").code == 2
    assert shoal("permissions", "suggest").out == "No suggestions yet.\n"
    assert shoal("permissions", "suggest", "--accept", "1").code == 2


def test_files_of_a_turn_are_restored_without_a_running_server(shoal: Shoal, home: Path, model: str) -> None:
    home.mkdir()
    (home / "shoal.toml").write_text(
        f"[model]\nname = 'openai/fake-1'\n[providers.openai]\nbase_url = '{model}/v1'\napi_key = 'right'\n"
        "[permissions]\ndefault_profile = 'open'\n"
    )
    says = 'tools=1 tool=write args={"path":"a.txt","content":"one"} words=1'
    assert shoal("ask", "--thread", THREAD, says).code == 0
    file = home / "agents/main/workspace/a.txt"
    assert "+one" in shoal("threads", "changes", THREAD).out
    done = shoal("threads", "undo", THREAD, "--yes")
    assert (done.code, done.out.splitlines()[0], file.exists()) == (0, "Restored 1 file.", False)
    assert shoal("threads", "undo", THREAD, "back", "--yes").code == 0
    assert file.read_text() == "one"
    file.write_text("mine")
    ran = shoal("threads", "undo", THREAD, "--yes")
    differs = "1 file has other changes too: a.txt. Add --keep or --overwrite."
    assert (ran.code, ran.err, file.read_text()) == (2, f"shoal: {differs}\n", "mine")
    assert shoal("threads", "undo", THREAD, "--yes", "--overwrite").code == 0
    assert not file.exists()
