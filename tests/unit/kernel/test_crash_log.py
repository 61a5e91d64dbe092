"""The crash log, which lists the work in progress when a process died."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.crash_log import DIED_IN, STARTS_MAX, CrashLog
from shoal.kernel.errors import EndedTwice
from shoal.testing.contracts.chat_peer import MemorySettings


def opened(file: Path) -> CrashLog:
    crash_log = CrashLog(file)
    crash_log.open()
    return crash_log


def die_in(file: Path, *keys: str) -> None:
    crash_log = opened(file)
    for key in keys:
        crash_log.begin(key)


def test_an_event_that_crashed_twice_ends_at_the_third_start(tmp_path: Path) -> None:
    for _ in range(STARTS_MAX):
        die_in(tmp_path / "begun", "poison")
    crash_log = opened(tmp_path / "begun")
    with crash_log.during("hello"):
        pass
    with pytest.raises(EndedTwice), crash_log.during("poison"):
        raise AssertionError
    with crash_log.during("poison"):  # the platform sends it again
        pass


def test_a_clean_exit_is_not_counted(tmp_path: Path) -> None:
    for _ in range(STARTS_MAX + 1):
        with opened(tmp_path / "begun").during("slow"):
            pass


def test_a_second_process_uses_its_own_file(tmp_path: Path) -> None:
    first, second = opened(tmp_path / "begun"), opened(tmp_path / "begun")
    assert first.begin("one")
    assert second.begin("two")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun", "begun.1"]
    del first, second
    die_in(tmp_path / "begun", "one")
    assert not opened(tmp_path / "begun").begin("one")


@pytest.mark.parametrize(
    "content", [b"", b"\xff\0", b"x" * 35, b"9" * 4000, b'{"ada":1}', b"\n" * 70, b" " * 34 + b"\n"]
)
def test_a_damaged_file_blocks_no_event(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "begun").write_bytes(content)
    die_in(tmp_path / "begun", "poison")
    assert opened(tmp_path / "begun").begin("poison")


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=30))
def test_only_unfinished_events_are_counted(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bool]]
) -> None:
    file = tmp_path_factory.mktemp("begun") / "begun"
    crash_log, running = opened(file), set[str]()
    for key, begins in steps:
        if begins and key not in running:
            running.add(key)
            crash_log.begin(key)
        elif not begins:
            running.discard(key)
            crash_log.end(key)
    del crash_log
    die_in(file, *running)
    after = opened(file)
    assert {key for key in "abcdef" if not after.begin(key)} == running


async def shared(file: Path, database: MemorySettings) -> CrashLog:
    crash_log = opened(file)
    await crash_log.share(database, has_others=True)
    return crash_log


async def test_crashes_of_all_cluster_processes_are_counted_together(tmp_path: Path) -> None:
    database = MemorySettings()
    first, second = tmp_path / "first", tmp_path / "second"
    third = await shared(tmp_path / "third", database)
    die_in(first, "poison")
    await shared(first, database)
    die_in(second, "poison")
    await shared(second, database)
    await third.learn()
    with pytest.raises(EndedTwice):
        async with third.one_by_one("poison"):
            raise AssertionError
    await third.learn()
    assert await database.page(DIED_IN) == []
    assert third.begin("poison")  # the platform sends it again


async def test_events_finished_by_another_process_are_not_counted(tmp_path: Path) -> None:
    database = MemorySettings()
    die_in(tmp_path / "first", "slow")
    await shared(tmp_path / "first", database)
    second = await shared(tmp_path / "second", database)
    async with second.one_by_one("slow"):
        pass
    await second.forget_over()
    assert await database.page(DIED_IN) == []
    assert (await shared(tmp_path / "first", database)).begin("slow")
