"""Process logs, hook patterns, and the action that the permission engine checks before a process starts."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.known_tools import TRAITS

from shoal.features.processes.hooks import LINE_BYTES_MAX, LineMatcher
from shoal.features.processes.logs import FILE_BYTES_MAX, FILES_MAX, ProcessLog, read_log, remove_log, tail
from shoal.features.processes.service import ProcessService, ProcessSettings, ProcessTable
from shoal.features.processes.store import ProcessStore
from shoal.features.processes.tools import process_tools
from shoal.kernel.errors import InvalidInput, ToolError
from shoal.kernel.permissions import Action
from shoal.kernel.ports import Mount
from shoal.kernel.settings import ProfileSettings
from shoal.permissions.profiles import Profiles, decide_all
from shoal.sandbox import processes as host
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.contracts.tool import tool_context
from shoal.tools.registry import command_actions


def written(path: Path, *pieces: bytes) -> Path:
    log = ProcessLog(path)
    for piece in pieces:
        log.write(piece)
    log.close()
    return path


def test_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "x" / "p.log", b"one\ntw", b"o\nthree\n")
    assert read_log(path, lines_max=2).lines == ("two", "three")
    assert read_log(path, contains="o").lines == ("one", "two")
    assert tail(path, 2, 7) == "…\nthree"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_log_is_read_from_the_end_of_the_last_piece(tmp_path: Path) -> None:
    path = written(tmp_path / "p.log", b"one\ntwo\nthree\n")
    first = read_log(path, offset=0, lines_max=2)
    assert (first.lines, first.next_offset, first.total_bytes) == (("one", "two"), 8, 14)
    rest = read_log(path, offset=first.next_offset)
    assert (rest.lines, rest.next_offset) == (("three",), 14)
    assert read_log(path, offset=14).lines == ()
    assert read_log(tmp_path / "none.log").total_bytes == 0


def test_a_log_keeps_the_newest_files_and_counts_dropped_bytes(tmp_path: Path) -> None:
    line = b"x" * 1023 + b"\n"
    total = FILE_BYTES_MAX * (FILES_MAX + 2)
    path = written(tmp_path / "p.log", *[line * 1024] * (total // (1024 * 1024)), b"end\n")
    assert sum(file.stat().st_size for file in tmp_path.glob("p.log*")) <= FILE_BYTES_MAX * FILES_MAX + 20
    piece = read_log(path, offset=0, lines_max=1)
    assert piece.total_bytes == total + 4
    assert piece.lost_bytes == piece.total_bytes - 4 - FILE_BYTES_MAX * (FILES_MAX - 1)
    assert read_log(path, lines_max=1).lines == ("end",)
    remove_log(path)
    assert list(tmp_path.iterdir()) == []


def test_a_line_is_matched_even_if_its_output_arrives_in_pieces() -> None:
    matcher = LineMatcher(["^error: \\w+$", "warn"])
    assert list(matcher.take(b"fine\nerr")) == []
    assert list(matcher.take(b"or: disk\nwarning warn\nerror: ")) == [((0,), "error: disk"), ((1,), "warning warn")]
    assert list(matcher.end()) == []


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_any_split_of_the_output_gives_the_same_lines(data: bytes, cuts: list[int]) -> None:
    whole, pieces = LineMatcher(["a+b", "^$"]), LineMatcher(["a+b", "^$"])
    expected = [*whole.take(data), *whole.end()]
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    got = [match for begin, end in pairwise(at) for match in pieces.take(data[begin:end])]
    assert [*got, *pieces.end()] == expected
    lines = [line.decode("utf-8", "replace").rstrip("\r") for line in data.split(b"\n")]
    assert sum(0 in found for found, _ in expected) == sum(bool(re.search("a+b", line)) for line in lines)


def test_only_the_beginning_of_a_long_line_is_matched() -> None:
    matcher = LineMatcher(["needle"])
    assert list(matcher.take(b"x" * LINE_BYTES_MAX + b"needle\n")) == []
    for _ in range(100):
        assert list(matcher.take(b"y" * 65_536)) == []
    assert [line for _, line in matcher.take(b"\nneedle\n")] == ["needle"]


@pytest.mark.parametrize("pattern", ["(", "a)|(b", "(?<=x)y", "(a)\\1"])
def test_an_unusable_pattern_is_reported(pattern: str) -> None:
    with pytest.raises(InvalidInput, match="is not valid"):
        LineMatcher([pattern])


async def test_a_process_start_is_decided_like_a_bash_command(tmp_path: Path) -> None:
    context = tool_context(tmp_path)
    store = Store(SqliteDriver(tmp_path / "shoal.db", synchronous="OFF"), context.clock)
    table = ProcessTable(host.identity_of, host.is_alive, host.kill_leftovers)
    rows, settings = ProcessStore(store.driver, context.clock), ProcessSettings("h 1 2 3")
    service = ProcessService(rows, context.home, context.clock, None, str, table, settings)  # pyrefly: ignore[bad-argument-type]
    tool, *_ = process_tools(service, command_actions, nothing)
    profiles = Profiles(
        TRAITS,
        {
            "mine": ProfileSettings(deny=("tool:bash:rm .*",), allow=("tool:process_start:make .*",)),
            "shell": ProfileSettings(allow=("tool:bash:.*",)),
        },
    )

    def decision(profile: str, command: str) -> str:
        actions = tool.prepare(f'{{"command": "{command}"}}', context).actions
        return decide_all(profiles.get(profile), actions)[0]

    assert decision("mine", "make all") == "allow"
    assert decision("mine", "make all && make test") == "allow"
    assert decision("mine", "make all; rm -rf x") == "deny"
    assert decision("shell", "make all") == "deny", "what bash may, this may not"
    assert decision("locked", "ls") == "deny"
    assert decision("standard", "ls") == "ask"
    for wrong in ('{"command": "x", "hooks": [{"on": "output"}]}', '{"command": "x", "hooks": [{"on": "timeout"}]}'):
        with pytest.raises(ToolError, match="needs"):
            tool.prepare(wrong, context)
    await store.close()


async def nothing(_: Sequence[Action], __: Sequence[Mount]) -> str:
    return ""
