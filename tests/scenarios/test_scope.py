"""A message keeps the rights that its asker and agent had at acceptance, except rights that were revoked since."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shoal.agents.registry import AgentRegistry
from shoal.kernel.agents import Binding
from shoal.kernel.clock import Clock
from shoal.kernel.events import TurnStarted, UserSaid
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.permissions import Asker
from shoal.permissions.access import AccessRules, People, Person
from shoal.testing.model import FakeModel, Gate, Reply
from shoal.testing.scenario import World, scenario
from shoal.threads.admissions import Admissions

RULES = AccessRules(owners=("ada",), allow=("ben", "carl", "*"))


class Held:
    """A thread in which carl's first turn runs until `let_go` is called. Later messages wait."""

    def __init__(self, world: World, gate: Gate, thread: ThreadId) -> None:
        self.world = world
        self.gate = gate
        self.thread = thread

    async def let_go(self) -> None:
        self.gate.open()
        await self.world.is_quiet()

    async def asked_by(self, user: str) -> tuple[TurnStarted, UserSaid, Asker]:
        events = await self.world.journal(self.thread)
        said = [event for event in events if isinstance(event.data, UserSaid) and event.data.author.id == user][-1]
        (started,) = [one.data for one in events if one.turn == said.turn and isinstance(one.data, TurnStarted)]
        assert isinstance(said.data, UserSaid)
        assert started.asker is not None
        return started, said.data, started.asker


@asynccontextmanager
async def held(home: Path, access: AccessRules = RULES) -> AsyncGenerator[Held]:
    gate = Gate()
    model = FakeModel(Reply("for carl", gate=gate), *[Reply("later")] * 3)
    async with scenario(home, model, access=access) as world:
        carl = world.person("carl", "1", "square")
        await carl.says("first")
        await gate.reached.wait()
        yield Held(world, gate, carl.thread)


def now_hold(world: World, rules: AccessRules) -> None:
    world.app[Admissions].links.rules["fake"] = rules
    world.app[Admissions].links.people.become(People((), [f"fake:{owner}" for owner in rules.owners]))


@pytest.mark.parametrize(
    ("user", "rules", "trust"),
    [
        ("ben", AccessRules(owners=("ada",), allow=("carl", "*")), "untrusted"),
        ("ada", AccessRules(owners=("olga",), allow=("ada", "carl")), "trusted"),
        ("ada", AccessRules(owners=("olga",), allow=("carl", "*")), "untrusted"),
        ("ben", RULES, "trusted"),
        ("ada", RULES, "owner"),
    ],
)
async def test_a_waiting_message_is_never_trusted_more_than_its_author_is_now(
    tmp_path: Path, user: str, rules: AccessRules, trust: str
) -> None:
    async with held(tmp_path) as place:
        await place.world.person(user, "1", "square").says("second")
        now_hold(place.world, rules)
        await place.let_go()
        started, said, asker = await place.asked_by(user)
        assert asker.trust == trust
        assert said.author.trusted == (trust != "untrusted")
        assert started.audience.speaker == ("owner" if trust == "owner" else f"fake:{user}")


async def test_later_trust_does_not_make_a_waiting_message_trusted(tmp_path: Path) -> None:
    async with held(tmp_path, AccessRules(owners=("ada",), allow=("carl", "*"))) as place:
        await place.world.person("ben", "1", "square").says("second")
        now_hold(place.world, RULES)
        await place.let_go()
        _, said, asker = await place.asked_by("ben")
        assert asker.trust == "untrusted"
        assert not said.author.trusted


async def test_rebinding_a_channel_does_not_move_waiting_messages(tmp_path: Path) -> None:
    async with held(tmp_path) as place:
        app = place.world.app
        app[Home].agent("deck").mkdir(parents=True)
        await place.world.person("ben", "1", "square").says("second")
        bindings = app[AgentRegistry].bindings
        assert bindings is not None
        await bindings.bind(Binding("fake", "square", "deck", "fake:ada", app[Clock].now()))
        await place.let_go()
        assert (await place.asked_by("ben"))[0].agent == "main"
        await place.world.person("ben", "1", "square").says("third")
        await place.world.is_quiet()
        assert (await place.asked_by("ben"))[0].agent == "deck"


async def test_a_link_made_later_does_not_change_the_asker_of_a_waiting_message(tmp_path: Path) -> None:
    async with held(tmp_path) as place:
        await place.world.person("ben", "1", "square").says("second")
        place.world.app[Admissions].links.people.become(
            People([Person(("matrix:@ben:b.c", "fake:ben"), roles=("crew",))], ["fake:ada"])
        )
        await place.let_go()
        _, _, asker = await place.asked_by("ben")
        assert (asker.identities, asker.roles) == (("fake:ben",), ())
