"""The whole app on Matrix: what people see there, also after a restart, an outage and a storm of refusals."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.scenarios.kit import in_time

from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.sandbox.host import HostSandbox
from shoal.services import Services
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database
from shoal.testing.model import Call, FakeModel, Reply, Seen
from shoal.testing.platforms.matrix import TOKEN, FakeMatrix
from shoal.testing.platforms.matrix_wire import Written
from shoal.testing.platforms.matrix_world import ADA, BOT
from shoal.testing.scenario import FakeModels

SECONDS_MAX = 60.0
STEP_SECONDS = 0.5
BEN = "@ben:harbour.example"
MAKES = Reply(calls=(Call("bash", '{"command": "echo x > made"}'),))


class Pier:
    """A room of ada's own with the bot, and a larger one."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.fake = FakeMatrix(clock)
        self.direct = self.fake.add_room()
        self.harbour = self.fake.add_room(ADA, BEN, name="harbour")

    async def sees(self, room: str, part: str) -> Written:
        """What the bot wrote, as soon as it stands there; time passes meanwhile."""
        async with asyncio.timeout(SECONDS_MAX):
            return await in_time(self.clock, self.fake.sees(room, part), STEP_SECONDS)


@pytest.fixture
async def pier() -> AsyncIterator[Pier]:
    made = Pier(ManualClock())
    await made.fake.start()
    yield made
    await made.fake.stop()


def account_of(pier: Pier, **more: object) -> Mapping[str, object]:
    """A bot whose owner is ada."""
    return {"homeserver": pier.fake.address, "user": BOT, "access_token": TOKEN, "owner": ADA, **more}


@asynccontextmanager
async def running(home: Path, pier: Pier, model: FakeModel, profile: str = "open") -> AsyncGenerator[Services]:
    """The app with one bot that has synced once."""
    overrides: Mapping[str, object] = {
        "platforms": {"matrix": [account_of(pier)]},
        "permissions": {"default_profile": profile},
        "sandbox": {"kind": "host"},
    }
    parts = Overrides(clock=pier.clock, models=FakeModels(model), sandbox=HostSandbox())
    syncs = pier.fake.syncs
    empty_database(home / "shoal.db")
    async with open_app(load_config(home, {}, overrides), parts) as app:
        await in_time(pier.clock, pier.fake.until(lambda: pier.fake.syncs > syncs or None))
        yield app


def tides(seen: Seen) -> str:
    """What the model answers."""
    return "It is high." if "then" in seen.user_text else "The tide is low."


async def test_a_post_that_was_never_confirmed_is_found_although_its_transaction_is_forgotten(
    tmp_path: Path, pier: Pier
) -> None:
    async with running(tmp_path, pier, FakeModel(script=tides)):
        pier.fake.server.mute = lambda called: "/send/m.room.message/" in called.path
        await pier.fake.says(pier.direct, "how is the tide?")
        await in_time(pier.clock, pier.fake.until(lambda: pier.fake.said(pier.direct) or None), STEP_SECONDS)
    pier.fake.server.mute = lambda _: False
    pier.fake.world.transactions.clear()
    await pier.clock.advance(6 * 3600)
    async with running(tmp_path, pier, FakeModel(script=tides)):
        await pier.fake.says(pier.direct, "and then?")
        await pier.sees(pier.direct, "It is high.")
    assert [message.text for message in pier.fake.said(pier.direct)] == ["The tide is low.", "It is high."]


async def test_a_stranger_who_wants_to_talk_alone_gets_a_code_and_a_room_of_many_is_declined(
    tmp_path: Path, pier: Pier
) -> None:
    async with running(tmp_path, pier, FakeModel()):
        room = await pier.fake.invites(user="@mallory:harbour.example", direct=True)
        code = await pier.sees(room, "pair")
        declined = await pier.fake.invites(user="@mallory:harbour.example", name="many")
        members = pier.fake.world.rooms[declined].members
        await in_time(pier.clock, pier.fake.until(lambda: members[BOT] == "leave" or None))
    assert "@mallory" not in code.text
