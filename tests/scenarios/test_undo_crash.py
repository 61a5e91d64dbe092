"""Kills at any point of undos and forks. After a restart, each undo or fork is complete or has no effect."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import pytest
from msgspec.structs import replace
from tests.forks import ForkServer, fork_server
from tests.postgres import database, empty
from tests.scenarios.undo_life import RESTORED, UNDOS, Life

from shoal.testing.crash import World
from shoal.testing.database import empty_database
from shoal.testing.faults import Side

pytestmark = pytest.mark.slow
Since: TypeAlias = Literal["undos", "fork"]


@pytest.fixture
def server() -> Iterator[ForkServer[Life]]:
    with fork_server("tests.scenarios.undo_life", Life) as found:
        yield found


def life_in(folder: Path, address: str = "") -> Life:
    for name in ("home", "world"):
        (folder / name).mkdir(parents=True)
    if not address:
        empty_database(folder / "home" / "shoal.db")
    return Life(str(folder / "home"), str(folder / "world"), address)


def check(life: Life, whole: Life, where: str) -> None:
    """Check that a run ended like one without a kill, and that no listing of the files shows a half-finished undo."""
    world, pattern = World(Path(life.world)), World(Path(whole.world))
    trees = {line["undos"]: line["tree"] for line in pattern.read("seen")}
    assert trees[0] == trees[2] != trees[1] == trees[3]
    assert {line["open"] for line in world.read("start")} == {0}, f"{where}: the next start leaves no undo cut"
    for line in world.read("seen"):
        assert line["tree"] == trees[line["undos"]], f"{where}: the files are not as {line['undos']} undos left them"
    for mine, other in zip(world.read("end"), pattern.read("end"), strict=True):
        assert mine["types"] == other["types"], where
        assert len(set(json.loads(str(mine["restored"])))) == (0 if mine["thread"] == RESTORED else UNDOS), where
    assert world.read("audit") == [{"undos": UNDOS}], where
    copy = pattern.read("copy")[0]
    assert (copy["maps"], copy["left"]) == ('["a map"]', "[]")
    assert world.read("copy") in ([copy], [copy, copy]), f"{where}: what calls itself a copy is one"
    assert [line["text"] for line in world.read("told")][-1:] == [line["text"] for line in pattern.read("told")], where
    left = [path.name for path in (Path(life.home) / "agents/main/workspace").rglob(".undo-*")]
    assert left == [], where


def begun_at(server: ForkServer[Life], folder: Path, since: Since) -> Life:
    """Return a run whose home already contains the turns to undo, or also the undos if counting starts at the fork."""
    life = replace(life_in(folder), since=since)
    assert server.run(replace(life, until="turns" if since == "undos" else "undos")).status == 0
    return life


def copied(begun: Life, folder: Path) -> Life:
    for name, there in (("home", begun.home), ("world", begun.world)):
        shutil.copytree(there, folder / name, symlinks=True)
    return replace(begun, home=str(folder / "home"), world=str(folder / "world"))


@pytest.mark.parametrize(
    ("since", "kind", "side", "step"),
    [
        ("undos", "write", "before", 2),
        ("undos", "write", "after", 2),  # a kill after one write has the same effect as before the next
        ("undos", "file", "before", 3),
        ("fork", "file", "before", 1),
    ],
)
def test_a_kill_anywhere_leaves_nothing_half_undone_or_copied_and_repeats_nothing(
    server: ForkServer[Life], tmp_path: Path, since: Since, kind: str, side: Side, step: int
) -> None:
    begun = begun_at(server, tmp_path / "begun", since)
    whole = copied(begun, tmp_path / "whole")
    outcome = server.run(replace(whole, kind=kind, until="fork"))
    assert (outcome.status, server.run(whole).status) == (0, 0)
    assert outcome.writes > (6 if kind == "write" else 15)
    assert len(World(Path(whole.world)).read("copy")) == 2, "one by the API and one by the command"
    for at in range(1, outcome.writes + 1, step):
        life = copied(begun, tmp_path / str(at))
        killed = server.run(replace(life, kind=kind, side=side, at=at, until="fork"))
        if killed.status == 0:  # this run had fewer writes, because it grouped them differently
            assert at > outcome.writes // 2
            continue
        assert killed.status == -9
        where = f"killed {side} {kind} {at}"
        assert server.run(life).status == 0, where
        check(life, whole, where)
        shutil.rmtree(tmp_path / str(at))


@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_kill_with_postgres_leaves_nothing_half_undone_or_copied(
    server: ForkServer[Life], tmp_path: Path, side: Side
) -> None:
    with database() as address:
        url = "postgresql:///?" + "&".join(address.split())
        whole = life_in(tmp_path / "whole", url)
        outcome = server.run(replace(whole, until="fork"))
        assert (outcome.status, server.run(whole).status) == (0, 0)
        for at in range(1, outcome.writes + 1, 2):  # a kill after one write has the same effect as before the next
            empty(address)
            life = life_in(tmp_path / str(at), url)
            killed = server.run(replace(life, side=side, at=at, until="fork"))
            if killed.status == 0:
                assert at > outcome.writes // 2
                continue
            assert killed.status == -9
            assert server.run(life).status == 0, f"killed {side} write {at}"
            check(life, whole, f"killed {side} write {at}")
