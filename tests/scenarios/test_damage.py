"""A database that is damaged or replaced under a running app: intake stops with a reason, and accepted messages
are kept.
"""

import asyncio
import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path

import httpx2
import pytest

from shoal.backend import Backend
from shoal.kernel.errors import StoreCorrupt
from shoal.maintenance import HEALTH_CHECK_SECONDS
from shoal.net.connections import default_tls
from shoal.store.store import Store
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import serve
from shoal.testing import ManualClock
from shoal.testing.model import FakeModel, Gate, Reply
from shoal.testing.scenario import World, scenario
from shoal.threads.whereabouts import OWNER_IN

TOKEN = "a-token-that-is-long-enough-to-be-unguessable"
MESSAGES = "/api/threads/web:lobby:one/messages"
NOT_READY = 503


def model() -> FakeModel:
    return FakeModel(script=lambda _: Reply("Aye."))


def said_in(database: Path) -> int:
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        return connection.execute("select count(*) from events where type = 'turn_finished'").fetchone()[0]


def overwrite_pages(home: Path) -> None:
    """Overwrite every page except the first with noise, including pages in the -wal file."""
    for name, first in (("shoal.db", 4096), ("shoal.db-wal", 32)):
        content = (home / name).read_bytes()
        with (home / name).open("r+b") as file:
            file.seek(first)
            file.write(b"\xa5" * (len(content) - first))


def remove_wal(home: Path) -> None:
    (home / "shoal.db-wal").unlink()


def replace_file(home: Path) -> None:
    with closing(sqlite3.connect(home / "other.db")) as other:
        other.execute("create table t (a)")
    (home / "other.db").replace(home / "shoal.db")


async def until_noticed(world: World, clock: ManualClock) -> None:
    async with asyncio.timeout(60):
        while not world.app[Backend].health.damage:
            await clock.advance(HEALTH_CHECK_SECONDS)


@pytest.mark.parametrize("damage", [overwrite_pages, remove_wal, replace_file])
async def test_damage_stops_intake_and_is_reported_without_ending_the_process(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(scenario(tmp_path, model(), clock=clock, replays=False))
        address = await stack.enter_async_context(serve(world.app, WebOptions(token=TOKEN, port=0)))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        client = await stack.enter_async_context(
            httpx2.AsyncClient(verify=default_tls(), base_url=address, headers=headers, timeout=20)
        )
        owner = world.person("ada", "7", direct=True)
        await owner.says("ahoy")
        await owner.sees("Aye.")
        await world.is_quiet()
        await world.app[Store].settings.put(*OWNER_IN, owner.thread)
        assert (await client.get("/readyz")).status_code == 200
        damage(tmp_path)
        if damage is overwrite_pages:  # damage to the pages is noticed when they are read, at the latest by a turn
            await client.post(MESSAGES, json={"text": "hello"})
            await until_noticed(world, clock)
        refused = await client.post(MESSAGES, json={"text": "hello"})
        assert (refused.status_code, refused.json()["error"]) == (NOT_READY, "store")
        assert "shoal.db" in refused.json()["message"]
        clock.jump(2)
        ready = await client.get("/readyz")
        assert ready.status_code == NOT_READY
        assert "shoal.db" in ready.json()["store"]
        assert str(tmp_path) not in ready.json()["store"]
        with pytest.raises(StoreCorrupt):
            await world.ada.says("is anybody there?")
        if damage is not overwrite_pages:  # with overwritten pages, the owner's address may be unreadable
            await clock.advance(HEALTH_CHECK_SECONDS)
            await owner.sees("I have stopped accepting messages and running turns.")
            for _ in range(5):
                await clock.advance(HEALTH_CHECK_SECONDS)
            assert len([one for one in world.chat.posted if "I have stopped accepting" in one.markdown]) == 1
        assert (await client.get("/healthz")).status_code == 200
    if damage is not overwrite_pages:
        assert said_in(tmp_path / "shoal.db.rescued-1") == 1


async def test_a_turn_that_loses_its_database_leaves_nothing_half_written(tmp_path: Path) -> None:
    gate, clock = Gate(), ManualClock()
    slow = FakeModel(script=lambda _: Reply("Aye.", gate=gate))
    async with scenario(tmp_path, slow, clock=clock, replays=False) as world:  # damaged data cannot be replayed
        await world.ada.says("ahoy")
        async with asyncio.timeout(60):
            await gate.reached.wait()
        remove_wal(tmp_path)
        await until_noticed(world, clock)
        gate.open()
        await world.rests()
        assert not world.chat.posted
    saved = tmp_path / "shoal.db.rescued-1"
    for name in ("shoal.db", "shoal.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    saved.rename(tmp_path / "shoal.db")
    async with scenario(tmp_path, model()) as world:
        await world.ada.sees("Aye.")


async def test_a_damaged_database_prevents_the_start(tmp_path: Path) -> None:
    async with scenario(tmp_path, model()) as world:
        await world.ada.says("ahoy")
        await world.ada.sees("Aye.")
    content = bytearray((tmp_path / "shoal.db").read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    (tmp_path / "shoal.db").write_bytes(content)
    with pytest.raises(StoreCorrupt, match="shoal restore"):
        async with scenario(tmp_path, model()):
            pass
    assert (tmp_path / "shoal.db").read_bytes() == content
