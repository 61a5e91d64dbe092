"""`shoal compare`, `cases` and `check` in a home without a running server."""

import json
import shlex
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.unit.surfaces.cli.conftest import Shoal

THREAD = "terminal:ask:mine"
SAVE = f"cases save {THREAD} --name tells-the-time"
WRONG = (
    ("compare --model demo", "Specify exactly one of these: a thread, a number of recent turns, or a tag."),
    ("compare --model nope --last 1", "No provider has the model 'nope'."),
    ("compare --model demo --thread terminal:ask:none", "Thread terminal:ask:none does not exist."),
    ("compare --model demo --tag none", "No thread has #none in its title."),
    ("compare --model demo --last 1 --profile none", "No permission profile is named 'none'."),
    ("compare --model demo --last 1 --system none.md", "Shoal cannot read none.md: No such file or directory."),
    ("threads undo terminal:ask:none", "Thread terminal:ask:none does not exist."),
    (f"threads undo {THREAD} none", f"Turn none of {THREAD} has changed no files"),
    (f"threads again {THREAD} --model nope", "No provider has the model 'nope'."),
    (f"threads fork {THREAD} --after 9999", "event 9999 does not exist."),
    ("cases save terminal:ask:none --name a --contains x", "Thread terminal:ask:none does not exist."),
    (f"cases save {THREAD} --name 'A b' --contains x", "'A b' is not a valid case name"),
    (SAVE, "Add an expectation"),
    (f"{SAVE} --matches '(' ", "it is not a regular expression"),
    (f"{SAVE} --calls time --arguments '[1]'", "is not a JSON object"),
    (f"{SAVE} --contains x --turn none", f"{THREAD} has no turn none"),
    ("check none", "main has no case 'none'."),
    ("check --agent nobody", "No agent named 'nobody'."),
    ("check --junit /none/report.xml", "Shoal cannot write /none/report.xml."),
    ("permissions replay --profile none", "No permission profile is named 'none'."),
    ("permissions replay --profile locked --agent nobody", "Agent 'nobody' does not exist"),
    ("permissions suggest --accept 9", "Suggestion 9 does not exist."),
)
"""Commands and the error that each prints."""


@pytest.fixture
def asked(shoal: Shoal) -> None:
    assert shoal("ask", "--thread", THREAD, "what time is it?").code == 0


@pytest.mark.usefixtures("asked")
def test_a_comparison_prints_its_estimate_first_and_its_result_last(shoal: Shoal) -> None:
    ran = shoal("compare", "--model", "demo", "--thread", THREAD)
    assert ran.code == 0
    plan = ran.err.splitlines()
    assert plan[0] == f"1 turn with 2 model calls of {THREAD}."
    assert plan[1].startswith("Remaining calls: about ")
    assert plan[1].endswith("about $0.0000, cost limit $1.0000.")
    assert plan[-1] == "2 of 2 answered, $0.0000"
    assert ran.out.splitlines()[-1].startswith("2 of 2 answered by demo for $0.0000: ")
    again = shoal("compare", "--model", "demo", "--thread", THREAD)
    assert again.err.splitlines() == [plan[0], "Already answered: 2 of 2."]
    view = json.loads(shoal("compare", "--model", "demo", "--thread", THREAD, "--json").out)
    assert (view["state"]["done"], len(view["steps"])) == (2, 2)


@pytest.mark.slow
@pytest.mark.usefixtures("asked")
def test_errors_take_one_line_and_change_nothing(shoal: Shoal, home: Path) -> None:
    for words, said in WRONG:
        ran = shoal(*shlex.split(words))
        assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1), (words, ran)
        assert said in ran.err, words
    assert not (home / "agents" / "main" / "cases").exists()
    assert "already answered" not in shoal("compare", "--model", "demo", "--thread", THREAD).err


@pytest.mark.usefixtures("asked")
def test_check_reports_results_as_text_and_as_junit(shoal: Shoal, home: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    saved = shoal(*SAVE.split(), "--calls", "time", "--lacks", "quarter to nine")
    assert saved.out == "Saved the case as agents/main/cases/tells-the-time.toml. 'shoal check --agent main' runs it.\n"
    assert shoal("cases", "save", THREAD, "--name", "sings", "--contains", "la la la").code == 0
    ran = shoal("check", "--junit", str(report))
    assert ran.code == 1
    assert "\npass   tells-the-time" in f"\n{ran.out}"
    assert "FAIL   sings" in ran.out
    assert "       - answer contains 'la la la'" in ran.out
    assert "2 cases: 1 passed, 1 failed, 0 not run, for $0.0000." in ran.out
    suite = ET.fromstring(report.read_text())
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    assert [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None] == ["sings"]

    report.unlink()
    wrong = home / "agents" / "main" / "cases" / "sings.toml"
    wrong.write_text(wrong.read_text().replace("contains", "contians"))
    ran = shoal("check", "--junit", str(report))
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1)
    assert "cases/sings.toml, line " in ran.err
    assert "contians" in ran.err
    assert not report.exists()
