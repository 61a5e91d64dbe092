"""`shoal pair`: confirming codes, with and without a running Shoal."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Shoal

from shoal.kernel.clock import SystemClock
from shoal.kernel.messages import Author
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.threads.pairing import Pairing

SETTINGS = """
[platforms.telegram]
token = "123456:not-a-token"
api_base = "http://127.0.0.1:1"
"""


@pytest.fixture(autouse=True)
def configured(shoal: Shoal, home: Path) -> None:
    make_home(shoal, home)


def make_home(shoal: Shoal, home: Path) -> None:
    assert shoal("init").code == 0
    (home / "shoal.toml").write_text(SETTINGS)


def given(home: Path, *users: str) -> list[str]:
    async def ask() -> list[str]:
        store = Store(SqliteDriver(home / "shoal.db"), SystemClock())
        pairing = Pairing(store, SystemClock())
        codes = [await pairing.ask("telegram", Author(user, user.title(), trusted=True)) for user in users]
        await store.close()
        return codes

    return asyncio.run(ask())


def test_a_code_gives_its_sender_access(shoal: Shoal, home: Path) -> None:
    ada, _ = given(home, "ada", "eve")
    people = json.loads(shoal("pair", "list", "--json").out)
    assert [one["user"] for one in people["waiting"]] == ["ada", "eve"]
    assert ada not in shoal("pair", "list").out
    assert shoal("pair", ada.lower()).out == "telegram:ada can now talk to your agents.\n"
    people = json.loads(shoal("pair", "list", "--json").out)
    assert [(one["user"], one["by"]) for one in people["paired"]] == [("ada", "web:owner")]
    assert [one["user"] for one in people["waiting"]] == ["eve"]
    assert "telegram:ada" in shoal("pair", "list").out


def test_access_can_be_revoked(shoal: Shoal, home: Path) -> None:
    (ada,) = given(home, "ada")
    assert shoal("pair", ada).code == 0
    assert "can no longer talk" in shoal("pair", "remove", "telegram:ada").out
    assert shoal("pair", "remove", "telegram:ada").code == 1
    assert "PLATFORM:USER" in shoal("pair", "remove", "ada").err
    assert shoal("pair", "list").out == "No one has access through a pairing code, and no one is waiting for access.\n"


def test_a_wrong_code_is_reported_in_one_line(shoal: Shoal) -> None:
    ran = shoal("pair", "ABCDEFGH")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert shoal("pair", "short").err.startswith("shoal: A pairing code has 8 letters")
    assert shoal("pair").code in (0, 2)
