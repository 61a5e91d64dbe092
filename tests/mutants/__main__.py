"""Makes small changes to the core and reports those that no test detects: `python -m tests.mutants [OPTION…] [PLACE…]`.

Results are cached in build/mutants. A change is tried again when its file changes. A change that survived is also
tried again when the tests that run its lines change. Coverage is recorded only once: use `--tests` to record new
tests, and remove build/mutants/lines after larger changes.
"""

import argparse
import hashlib
import json
import math
import os
import random
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.mutants.changes import PLACES, Change, changes
from tests.mutants.cover import TESTS, Covered, cover
from tests.mutants.trial import QUIET, Result, Trial, Trials

TRIED = Path("build/mutants/tried.jsonl")
ACCEPTED = Path(__file__).with_name("accepted.toml")
SECONDS = 60.0
WORKERS = int(os.environ.get("TEST_WORKERS", "2"))
Z = 1.96
COLUMNS = ("killed", "timed out", "survived", "not covered", "accepted")


class Tried:
    """Cached results of trials. The keys are digests of the inputs of a trial."""

    def __init__(self) -> None:
        lines = TRIED.read_text(encoding="utf-8").splitlines() if TRIED.exists() else []
        self._results = {key: Result(outcome, test) for key, outcome, test in map(json.loads, lines)}

    def get(self, trial: Trial) -> Result | None:
        return self._results.get(_key(trial)) or self._results.get(_key_with_tests(trial))

    def note(self, trial: Trial, result: Result) -> None:
        key = _key_with_tests(trial) if result.outcome == "survived" else _key(trial)
        with TRIED.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, *result]) + "\n")


def _key(trial: Trial) -> str:
    change = trial.change
    return hashlib.sha256(f"{change.function}\n{change.what}\n".encode() + change.file.read_bytes()).hexdigest()


def _key_with_tests(trial: Trial) -> str:
    files = sorted({test.partition("::")[0] for test in trial.tests})
    read = b"".join(Path(file).read_bytes() for file in files)
    return hashlib.sha256("\n".join([_key(trial), *trial.tests]).encode() + read).hexdigest()


def accepted() -> dict[tuple[str, str, str], str]:
    entries = tomllib.loads(ACCEPTED.read_text(encoding="utf-8")).get("accepted", [])
    return {(entry["file"], entry["function"], entry["change"]): entry["reason"] for entry in entries}


def _sampled(place: Path, count: int | None, seed: int) -> list[Change]:
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    all_changes = [change for file in files for change in changes(file)]
    return all_changes if count is None or count >= len(all_changes) else random.Random(seed).sample(all_changes, count)


def _try(trials: Sequence[Trial], tell: Callable[[Trial, Result], None]) -> None:
    files = sorted({test.partition("::")[0] for trial in trials for test in trial.tests})
    pytest.main([*QUIET, "--capture=no", "-pno:cacheprovider", *files], plugins=[Trials(trials, WORKERS, tell)])


def _interval(part: int, whole: int) -> str:
    """Return Wilson's 95% confidence interval for a proportion."""
    share, width = part / whole, Z * Z / whole
    middle, half = share + width / 2, Z * math.sqrt(share * (1 - share) / whole + width / whole / 4)
    return f"{(middle - half) / (1 + width):.1%} to {(middle + half) / (1 + width):.1%}"


def _row(name: str, count: Counter[str]) -> str:
    killed, whole = count["killed"] + count["timed out"], count.total() - count["accepted"]
    cells = "".join(f"{count[column]:13}" for column in COLUMNS)
    return f"{name:28}{cells}   {killed / whole:.1%} ({_interval(killed, whole)})" if whole else f"{name:28}{cells}"


def main() -> int:
    """Try a sample of changes from each place. Return 1 if an unaccepted change survives or is not covered."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--sample", type=int, help="so many changes of each place; all of them otherwise")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for the tests of one change; {SECONDS:.0f}")
    parser.add_argument("--tests", nargs="+", default=[], help=f"see again what these run; at first {' '.join(TESTS)}")
    parser.add_argument("places", nargs="*", type=Path, default=PLACES, metavar="PLACE")
    chosen = parser.parse_args()
    cover(chosen.tests)
    covered, tried, reasons = Covered(), Tried(), accepted()
    counts: dict[str, Counter[str]] = {}
    unnoticed: list[str] = []

    def tell(trial: Trial, result: Result) -> None:
        print(f"{result.outcome}: {trial.change} {f'[{result.test}]' if result.test else ''}", flush=True)
        tried.note(trial, result)
        count(trial.change, result)

    def count(change: Change, result: Result) -> None:
        place = next(str(place) for place in chosen.places if change.file.is_relative_to(place))
        outcome = result.outcome
        if outcome in ("survived", "not covered"):
            if (str(change.file), change.function, change.what) in reasons:
                outcome = "accepted"
            else:
                unnoticed.append(f"{outcome}: {change}")
        counts.setdefault(place, Counter())[outcome] += 1

    waiting: list[Trial] = []
    for change in (change for place in chosen.places for change in _sampled(place, chosen.sample, chosen.seed)):
        trial = covered.trial(change, chosen.seconds)
        if not trial.tests:
            count(change, Result("not covered"))
        elif (before := tried.get(trial)) is not None:
            count(change, before)
        else:
            waiting.append(trial)
    if waiting:
        _try(waiting, tell)
    print("", *sorted(unnoticed), sep="\n")
    print(f"\n{'':28}" + "".join(f"{column:>13}" for column in COLUMNS) + "   killed (95 %)")
    for name, number in counts.items():
        print(_row(name, number))
    print(_row("all", sum(counts.values(), Counter())))
    return bool(unnoticed)


if __name__ == "__main__":
    sys.exit(main())
