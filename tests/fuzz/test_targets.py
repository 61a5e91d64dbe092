"""Runs every fuzz target briefly. The attempts are the same in each run. `make fuzz` makes many more."""

import pytest

from tests.fuzz.target import Broken, Missing, make, names, opened

SEED = 1
ATTEMPTS = 800
SLOWER = {"shell": 6, "config": 200, "event_files": 150, "http": 6, "markup": 200, "people": 3, "staged": 30}
"""Number of attempts for slow targets. One attempt of `shell` is 25 commands, and one of `people` 16 talks."""


@pytest.mark.parametrize("name", [name for name in names() if name not in SLOWER])
def test_a_fuzz_target_breaks_no_rule_on_generated_input(name: str) -> None:
    with opened(name) as attempt:
        for number in range(ATTEMPTS):
            make(attempt, name, SEED, number)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOWER)
def test_a_slower_fuzz_target_breaks_no_rule_on_generated_input(name: str) -> None:
    try:
        with opened(name) as attempt:
            for number in range(SLOWER[name]):
                make(attempt, name, SEED, number)
    except Missing as missing:
        pytest.skip(str(missing))


def test_a_broken_rule_is_reproducible() -> None:
    with pytest.raises(Broken, match=r"(?s)ZeroDivisionError: .*--seed 3 --number 5 web"):
        make(lambda _source: print(1 // 0), "web", 3, 5)  # pyrefly: ignore[division-by-zero]
    drawn: list[float] = []
    for _ in range(2):
        make(lambda source: drawn.append(source.random()), "web", 3, 5)
    make(lambda source: drawn.append(source.random()), "web", 3, 6)
    assert drawn[0] == drawn[1] != drawn[2]
