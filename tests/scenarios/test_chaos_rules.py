"""The chaos test with one SQLite process and two platforms breaks no rule. Each rule detects its violation."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.chaos.chat_server import GOING_BACK, KINDS, Kind, People
from tests.chaos.node import TURN_TOKENS
from tests.chaos.rules import (
    Fact,
    Platform,
    Record,
    a_copy_knows_what_was_said_and_keeps_what_it_hears,
    a_retry_answers_once_more,
    an_undo_restores_all_of_a_turn,
    answers_stand_in_order,
    broken,
    broken_chains,
    nobody_waits_long_without_cause,
)
from tests.chaos.soak import growth, is_flat

from shoal.kernel.crash_log import ENDED_TWICE

ROOT = Path(__file__).resolve().parents[2]
RUN_SECONDS_MAX = 60
TURNS = 60
PEOPLE = People(threads=1, turns=TURNS, seed=1, mixed=True)


def play(options: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.chaos", *options, "--seconds", str(RUN_SECONDS_MAX)]
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)


@pytest.mark.slow
def test_messages_that_a_turn_combines_survive_kills_and_a_freeze(tmp_path: Path) -> None:
    load = ["--alone", "--mixed", "--lines", "--threads", "12", "--turns", "24", "--acts", "3", "--pause", "1.5"]
    harm = [part for act in ("kill all", "freeze all", "kill all") for part in ("--first", act)]
    result = play([*load, *harm], tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 × freeze all, 2 × kill all" in result.stdout
    assert "violations: 0" in result.stdout


@pytest.mark.slow
def test_one_process_survives_a_kill_a_freeze_a_full_disk_and_clock_changes(tmp_path: Path) -> None:
    acts = ("fill disk", "kill all", "set clock", "freeze all")
    harm = [part for act in acts for part in ("--first", act)]
    load = ["--alone", "--mixed", "--threads", "12", "--turns", "6", "--acts", "4", "--pause", "1.5"]
    result = play([*load, *harm], tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 × fill disk, 1 × freeze all, 1 × kill all, 1 × set clock" in result.stdout
    assert "violations: 0" in result.stdout


def name_of(kind: Kind) -> str:
    return next(name for name in (f"0.{number}" for number in range(1, TURNS)) if PEOPLE.kind(name) == kind)


def ack(id: str, do: str = "say", *, at: float, status: str = "accepted", target: str = "") -> Fact:
    return {"kind": "ack", "at": str(at), "id": id, "status": status, "do": do, "target": target}


def post(id: str, text: str, *, at: float, key: str = "") -> Fact:
    return {"kind": "post", "at": str(at), "id": f"m{id}", "key": key or f"T{id}:reply:0", "thread": "p", "text": text}


def sound() -> list[Fact]:
    facts: list[Fact] = []
    for number in range(TURNS):
        name, at = f"0.{number}", 10.0 * number
        facts.append(ack(name, at=at))
        match PEOPLE.kind(name):
            case "guarded":
                facts.append(post(f"a{number}", f"leave the mark {name}", at=at + 1, key=f"approval:A{number}:0"))
                facts.append(ack(f"A{number}/0", "press", at=at + 2, status="Allowed.", target=f"allow:A{number}"))
            case "steer":
                facts.append(ack(f"{name}/steer", "steer", at=at + 2, status="delivered", target=name))
            case "remind" | "process" as kind:
                facts.append(post(f"r{number}", f"DONE 0 {kind[0].replace('r', 't')}{name} reef", at=at + 4))
            case _:
                pass
        spends = PEOPLE.kind(name) == "spend"
        text = "I stopped: the budget does not allow it." if spends else f"DONE 1 {name} reef"
        facts.append({**post(str(number), text, at=at + 3), "to": name})
    return facts


def model() -> list[dict[str, object]]:
    steers = [name for name in PEOPLE_NAMES if PEOPLE.kind(name) == "steer"]
    ends = [f"c{name}" for name in PEOPLE_NAMES if PEOPLE.kind(name) in ("spawn", "subagent")]
    files = [name for name in PEOPLE_NAMES if PEOPLE.kind(name) == "file"]
    results: dict[str, str] = {"remind": "Reminder 1 is set", "process": "Started process 1"}
    rounds: list[dict[str, object]] = [
        {"id": name, "round": 1, "at": 1.0, "result": results.get(PEOPLE.kind(name), "noted")} for name in PEOPLE_NAMES
    ]
    return [*rounds, *({"id": end, "round": 1, "at": 2.0} for end in ends), {
        "id": PEOPLE_NAMES[-1], "round": 1, "at": 1900.0, "steers": steers, "ends": ends,
        "attached": files, "files": files,
    }]  # fmt: skip


def tools() -> list[Fact]:
    asked = [name for name in PEOPLE_NAMES if PEOPLE.kind(name) == "guarded"]
    return [{"call": f"T{name}/c", "tool": "guarded", "text": name, "at": "3"} for name in asked]


PEOPLE_NAMES = [f"0.{number}" for number in range(TURNS)]


def record(facts: list[Fact], *, keyless: bool = False) -> Record:
    return Record([Platform("keyless" if keyless else "fake", facts, PEOPLE)], model(), tools())


def without(id: str) -> Record:
    return record([fact for fact in sound() if fact["id"] != id])


def with_more(*facts: Fact) -> Record:
    return record([*sound(), *facts])


def changed(id: str, **fields: str) -> Record:
    return record([{**fact, **fields} if fact["id"] == id else fact for fact in sound()])


def heard(**marks: list[str]) -> Record:
    return record(sound())._replace(model=[*model()[:-1], {**model()[-1], **marks}])


def given_up(*kills: float, harm: str = "kill all", answered: bool = False) -> Record:
    """Return a run in which the turn of a message from AT_PLAIN is given up. Each `kills` value is the start of a
    harm, in seconds after AT_PLAIN.
    """
    number = number_of("plain")
    notice = {
        "text": f"{ENDED_TWICE}\n\nTo get a new answer to your message, write `/retry`.",
        "key": f"T{number}:reply:0",
    }
    facts = [{**fact, **notice} if fact["id"] == f"m{number}" else fact for fact in sound()]
    refused: Fact = {"kind": "refused", "at": "0", "key": f"T{number}:reply:0"}
    more = [post("x", f"DONE 1 {PLAIN} reef", at=1999)] * answered
    harms = [(AT_PLAIN + at, AT_PLAIN + at + 0.5, harm) for at in kills]
    return record([refused, *facts, *more])._replace(harms=harms, turns={f"T{number}": [PLAIN]})


def reminder_given_up(thread: str, *kills: float) -> Record:
    number = int(number_of("remind"))
    at, notice = 10.0 * number, {"text": ENDED_TWICE, "key": "Tr:reply:0", "thread": thread}
    facts = [{**fact, **notice} if fact["id"] == f"mr{number}" else fact for fact in sound()]
    harms = [(at + since, at + since + 0.5, "kill all") for since in kills]
    return record(facts)._replace(harms=harms, turns={"Tr": ["an occurrence"]})


def spent(*tokens: int) -> Record:
    calls = [{"id": "0.0", "round": n, "at": 1.0, "how": "answered", "tokens": many} for n, many in enumerate(tokens)]
    return record(sound())._replace(model=[*calls, *model()])


def took(*turns: list[str]) -> Record:
    return record(sound())._replace(turns={f"T{number}": names for number, names in enumerate(turns)})


def stopped(*lines: Fact) -> Record:
    name = name_of("stop")
    number = int(name.partition(".")[2])
    facts = [fact for fact in sound() if fact["id"] != f"m{number}"]
    stop = ack(f"{name}/stop", "stop", at=10.0 * number + 2, status="delivered", target=name)
    facts.insert(facts.index(ack(name, at=10.0 * number)) + 1, stop)
    return record(facts)._replace(tools=[*tools(), *lines])


def ran(name: str, at: float) -> Fact:
    return {"call": "Tstop/c", "tool": "note", "text": name, "at": str(at)}


def number_of(kind: Kind) -> str:
    return name_of(kind).partition(".")[2]


PLAIN, GUARDED, STEER, SPAWN, STOP, FILE = map(name_of, ("plain", "guarded", "steer", "spawn", "stop", "file"))
G = number_of("guarded")
AT_PLAIN = 10.0 * int(number_of("plain"))
AT_STOP = 10.0 * int(number_of("stop"))

VIOLATIONS: list[tuple[Record, str]] = [
    (without(PLAIN), f"message {PLAIN} was never accepted"),
    (without(f"m{number_of('plain')}"), f"{PLAIN} was accepted and never answered"),
    (without(f"m{number_of('plain')}"), "1 messages of person 0 were not answered, after 0 stops"),
    (without(f"mr{number_of('remind')}"), f"t{name_of('remind')} was accepted and never answered"),
    (without(f"mr{number_of('process')}"), f"p{name_of('process')} was accepted and never answered"),
    (with_more(post("x", f"DONE 1 {PLAIN} reef", at=1999)), f"{PLAIN} was answered 2 times"),
    (with_more(post("x", f"(possible duplicate)\nDONE 1 {PLAIN} reef", at=1999)), f"{PLAIN} stands 2 times"),
    (with_more(post("x", f"DONE 1 t{name_of('remind')} reef", at=1999)), f"t{name_of('remind')} was answered 2 times"),
    (took(["0.1"], ["0.0"]), "the turn T0 took ['0.1'] and answered ['0.0']"),
    (took(["0.0"], ["0.0"]), "0.0 is in 2 turns"),
    (record([sound()[0], *sound()[2:], sound()[1]]), "out of order in fake p"),
    (changed("m0", text="Sorry."), "nobody asked for this message in fake: 'Sorry.'"),
    *(
        (seen, said)
        for seen in (given_up(), given_up(1), given_up(-5, 1), given_up(1, 5), given_up(1, 2, harm="freeze all"))
        for said in (
            "nobody asked for this message in fake: 'Shoal",
            f"{PLAIN} was accepted and never answered",
        )
    ),
    (reminder_given_up("person-1", 1, 2), f"t{name_of('remind')} was accepted and never answered"),
    (reminder_given_up("person-0", 1), f"t{name_of('remind')} was accepted and never answered"),
    (given_up(1, 2, answered=True), f"{PLAIN} was answered 2 times"),
    (with_more(post("x", "DONE 1 …", at=1999)), "1 previews stand unfinished"),
    (with_more(post("x", "DONE 1 0.0 reef", at=1999, key="T0:reply:0")), "T0:reply:0 was posted 2 times"),
    (record(sound())._replace(tools=[*tools(), tools()[0]]), "ran 2 times"),
    (without(f"A{G}/0"), f"{GUARDED} ran, and nobody allowed it"),
    (changed(f"A{G}/0", status="Denied."), f"{GUARDED} ran although it was denied"),
    (
        with_more(ack(f"A{G}/1", "press", at=1999, status="Denied.", target=f"deny:A{G}")),
        f"the question of {GUARDED} was decided 2 times",
    ),
    (stopped(ran(STOP, AT_STOP + 4)), f"{STOP} was stopped at"),
    (heard(steers=[]), f"the steer of {STEER} was delivered and never heard"),
    (heard(steers=[STEER, STEER]), f"the steer of {STEER} was heard 2 times"),
    (heard(ends=[]), f"the end of c{SPAWN} was never heard"),
    (heard(ends=[f"c{SPAWN}"] * 2), f"the end of c{SPAWN} was heard 2 times"),
    (heard(attached=[FILE] * 2), f"the file of {FILE} came 2 times"),
    (heard(files=[FILE] * 2), f"the file of {FILE} came 1 times, 2 of them with its content"),
    (heard(attached=[]), f"the file of {FILE} came 0 times"),
    (heard(files=[]), f"the file of {FILE} came without its content"),
    (without(f"m{number_of('spend')}"), f"{name_of('spend')} met its budget, and nobody was told"),
    (
        with_more({**post("x", "I stopped: the budget", at=1999), "to": name_of("spend")}),
        f"{name_of('spend')} was told of its budget 2 times",
    ),
    (spent(TURN_TOKENS, 1, 1), f"0.0 took {TURN_TOKENS + 2} tokens in 3 calls"),
    (record(sound())._replace(memories=["Fact 1 is kept. Fact 1 is kept."]), "'Fact 1 is kept' stands 2 times"),
    (changed(f"m{number_of('plain')}", at="9999"), f"{PLAIN} waited"),
]


def test_a_correct_run_breaks_no_rule() -> None:
    assert {PEOPLE.kind(name) for name in PEOPLE_NAMES} == {*KINDS} - {*GOING_BACK}, "people with odd numbers go back"
    assert broken(record(sound())) == []
    assert broken(took(["0.0"], ["0.1"])) == []
    assert broken(spent(TURN_TOKENS, 1)) == []
    assert broken(given_up(1, 2)) == []
    assert broken(reminder_given_up("person-0", 1, 2)) == []
    assert broken(stopped(ran(STOP, AT_STOP + 1))) == []


@pytest.mark.parametrize(("seen", "said"), VIOLATIONS, ids=[said for _, said in VIOLATIONS])
def test_each_violation_is_detected(seen: Record, said: str) -> None:
    assert any(said in sentence for sentence in broken(seen)), broken(seen)


LINES = [ack("0.0", at=0), ack("0.1", at=0), ack("0.2", at=0)]
JOINED: list[tuple[list[Fact], list[str]]] = [
    ([post("2", "DONE 0 0.0+0.1+0.2 reef", at=1)], []),
    ([post("2", "DONE 0 0.0+0.2 reef", at=1)], [
        "0.1 was accepted and never answered",
        "the turn T2 took ['0.0', '0.1', '0.2'] and answered ['0.0', '0.2']",
        "1 messages of person 0 were not answered, after 0 stops",
    ]),
    ([post("2", "DONE 0 0.0+0.1+0.2 reef", at=1), post("1", "DONE 0 0.1 reef", at=2)], [
        "0.1 was answered 2 times: ['T2:reply:0', 'T1:reply:0']",
        "0.1 stands 2 times, although only 0 posts had an unknown outcome",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("posts", "sentences"), JOINED, ids=["whole", "a line is left out", "a line is answered again"]
)
def test_joined_lines_are_answered_once_by_their_turn(posts: list[Fact], sentences: list[str]) -> None:
    platform = Platform("fake", [*LINES, *posts], People(threads=1, turns=3))
    assert broken(Record([platform], [], [], turns={"T2": ["0.0", "0.1", "0.2"]})) == sentences


@pytest.mark.parametrize(("late", "sentences"), [("", []), ("(possible duplicate)\n", ["out of order in keyless p"])])
def test_only_a_frozen_processs_post_may_follow_its_repeat(late: str, sentences: list[str]) -> None:
    texts = ("(possible duplicate)\nDONE 0 0.0 reef", "DONE 0 0.1 reef", f"{late}DONE 0 0.0 reef")
    posts = [post(str(number), text, at=number) for number, text in enumerate(texts)]
    platform = Platform("keyless", [*LINES[:2], *posts], People(threads=1, turns=2))
    told = list(answers_stand_in_order(Record([platform], [], [], kills=1)))
    assert [said.partition(":")[0] for said in told] == sentences


def test_a_message_waits_only_for_the_previous_answer() -> None:
    said = [ack("0.0", at=0), ack("0.1", at=0), post("1", "DONE 0 0.0 reef", at=15)]
    people = People(threads=1, turns=2)
    for at, sentences in ((30, []), (40, ["0.1 waited 25.0 s for no known cause"])):
        seen = Platform("fake", [*said, post("2", "DONE 0 0.1 reef", at=at)], people)
        assert list(nobody_waits_long_without_cause(Record([seen], [], []))) == sentences


def wrote(before: str, after: str, name: str = "1.3", *, at: float = 1) -> Fact:
    return {"kind": "wrote", "at": str(at), "id": name, "turn": f"T{name}", "before": before, "after": after}


def command(step: str, answer: str, files: str = "", name: str = "1.3", *, at: float = 2) -> Fact:
    return {**ack(f"{name}/{at:g}", "command", at=at, target=name), "step": step, "said": f"/{step}", "answer": answer,
            "files": files}  # fmt: skip


SAID = [ack("1.3", at=0), ack("1.4", at=3)]
RESTORED = "Restored 3 files. `/undo U` reverses this."
KEPT = "Restored 1 file.\n- `drafts/1/a` was not restored. It was changed since."
GONE_BACK: list[tuple[list[Fact], list[str]]] = [
    ([wrote("old", "new"), command("last", RESTORED, "old")], []),
    ([wrote("old", "new"), command("last", RESTORED, "old"), command("back", RESTORED, "new", at=3)], []),
    ([wrote("old", "new"), command("last", RESTORED, "half")], ["1.3/2 (/last: 'Restored", "left half, not old"]),
    ([wrote("old", "new"), command("last", KEPT, "half")], []),
    ([wrote("old", "new"), command("last", RESTORED, "older")], ["left older, not old"]),
    ([wrote("old", "new"), command("last", "", "half"), command("turn", RESTORED, "old", at=3)], []),
    ([wrote("old", "new"), command("last", ""),
      command("turn", "These changes have already been undone.", "half", at=3)], ["left half, not old"]),
    ([wrote("old", "new"), command("last", "1 file differs. Keep or overwrite it?", "half")], ["left half, not new"]),
    ([wrote("old", "new"), command("last", "It failed.", "new")], ["was refused"]),
    ([wrote("old", "new"), wrote("half", "newer", "1.4", at=3)], ["before 1.4 the files were half, not ['new']"]),
    ([wrote("old", "new"), command("last", RESTORED, "old"), wrote("new", "newer", "1.4", at=3)],
     ["before 1.4 the files were new, not ['old']"]),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "said"), GONE_BACK)
def test_an_incomplete_undo_is_detected(facts: list[Fact], said: list[str]) -> None:
    platform = Platform("fake", [*SAID, *facts], People(threads=1, turns=5, first=1))
    (found,) = [*an_undo_restores_all_of_a_turn(Record([platform], [], []))] or [""]
    assert all(part in found for part in said), found
    assert bool(found) == bool(said), found


ANSWERS = [post("1", "DONE 0 1.3 reef", at=1), post("2", "DONE 0 1.3 reef", at=3), post("3", "DONE 0 1.3 reef", at=4)]


@pytest.mark.parametrize(("answer", "counts"), [("Trying again.", {2}), ("", {1, 2}), ("1.3 is still running.", {1})])
def test_a_message_is_answered_once_per_request(answer: str, counts: set[int]) -> None:
    for count in (1, 2, 3):
        facts = [*SAID[:1], command("retry", answer), *ANSWERS[:count]]
        platform = Platform("fake", facts, People(threads=1, turns=5, first=1))
        found = [*a_retry_answers_once_more(Record([platform], [], []))]
        assert (found == []) == (count in counts or "still running" in answer), (count, found)
        once = any("was answered" in said for said in broken(Record([platform], [], [])))
        assert once == (count > max(counts))


COPY = "fork:1.3/2"
TOLD = {**ack("f1.3", "tell", at=3, target="1.3"), "thread": COPY}
COPIES: list[tuple[list[Fact], list[dict[str, object]], str]] = [
    ([{**post("9", "DONE 0 f1.3 reef", at=4), "thread": COPY}], [{"id": "f1.3", "named": ["1.3", "f1.3"]}], ""),
    ([post("9", "DONE 0 f1.3 reef", at=4)], [], "f1.3 was answered in p, not in fork:1.3/2"),
    ([{**post("9", "DONE 0 1.4 reef", at=4), "thread": COPY}], [], "1.4 was answered in the copy fork:1.3/2"),
    ([], [{"id": "1.4", "named": ["1.3", "f1.3", "1.4"]}], "1.4 was told of f1.3"),
    ([], [{"id": "f1.3", "named": ["f1.3"]}], "1 copies do not know what was said before, after 0 kills"),
    ([], [{"id": "f1.3", "named": ["1.3", "1.4", "f1.3"]}], "knows what was said later"),
]


@pytest.mark.parametrize(("facts", "model_log", "said"), COPIES, ids=[said or "sound" for *_, said in COPIES])
def test_a_leaking_or_incomplete_copy_is_detected(
    facts: list[Fact], model_log: list[dict[str, object]], said: str
) -> None:
    platform = Platform("fake", [*SAID, TOLD, *facts], People(threads=1, turns=5, first=1))
    found = [*a_copy_knows_what_was_said_and_keeps_what_it_hears(Record([platform], model_log, []))]
    assert found == [] if not said else said in found[0]


def test_a_changed_audit_chain_is_detected() -> None:
    previous, rows = "0" * 64, list[tuple[object, ...]]()
    for number in (1, 2, 3):
        entry = json.dumps({"action": f"tool:note:{number}", "kind": "call"}, separators=(",", ":"))
        digest = hashlib.sha256(f"{previous}\nfake:p\n{number}\n{number}\n{entry}".encode()).hexdigest()
        rows.append(("fake:p", number, number, entry, previous, digest))
        previous = digest
    heads = [("fake:p", 3, previous)]
    assert list(broken_chains(rows, heads)) == []
    assert list(broken_chains(rows[:2], heads)) == ["the audit chain fake:p does not end where it should"]
    assert "breaks at 3" in next(iter(broken_chains([rows[0], rows[2]], heads)))
    edited = (*rows[1][:3], rows[1][3] and '{"action":"tool:note:9","kind":"call"}', *rows[1][4:])
    assert "breaks at 2" in next(iter(broken_chains([rows[0], edited, rows[2]], heads)))


def test_a_leak_is_distinguished_from_oscillation_and_plateaus() -> None:
    swings = [(float(second), 100.0 + (5.0 if second % 7 == 0 else 0.0)) for second in range(100)]
    leaks = [(now, value + 0.05 * now) for now, value in swings]
    assert is_flat(swings)
    assert not is_flat(leaks)
    assert round(growth(leaks), 1) == 5.0
