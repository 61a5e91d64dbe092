"""People whose access is revoked: their work stops, and the owner is notified once."""

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from tests.scenarios.routes import call

from shoal.accounts import OWNERS
from shoal.connections import Standing
from shoal.features.processes.service import ProcessService
from shoal.features.triggers.records import NewTrigger
from shoal.features.triggers.service import message_of
from shoal.features.triggers.store import TriggerStore
from shoal.kernel.clock import Clock
from shoal.kernel.events import UserSaid
from shoal.kernel.messages import Author, Origin, Prompt
from shoal.kernel.permissions import Asker
from shoal.permissions.access import AccessRules, Links, People, Person
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import FakeModel, Gate, Reply, Seen
from shoal.testing.scenario import World, scenario
from shoal.threads.access_gate import Admissions
from shoal.threads.access_tokens import AccessTokens, NewToken
from shoal.threads.departures import BY, Departures
from shoal.threads.orchestrator import Orchestrator
from shoal.threads.pairing import Pairing

WITH_BEN = AccessRules(owners=("ada",), allow=("ben", "carl", "role:crew"))
WITHOUT_BEN = AccessRules(owners=("ada",), allow=("carl",))


def shut_out(world: World, rules: AccessRules = WITHOUT_BEN) -> None:
    links = world.app[Admissions].links
    people = People(owners=(*OWNERS, *(f"fake:{owner}" for owner in rules.owners)))
    links.become(Links(people, {**links.rules, "fake": rules}))


def reminder(world: World, author: Author, thread: str) -> NewTrigger:
    at = (world.app[Clock].now() + timedelta(days=1)).isoformat()
    return msgspec.convert(
        {
            "kind": "one-shot", "schedule": at, "text": f"stretch, {author.id}", "tainted_by": "", "thread": thread,
            "author": {"id": author.id, "trusted": True},
        },
        NewTrigger,
    )  # fmt: skip


async def test_work_of_a_removed_person_ends_and_the_owner_is_notified_once(tmp_path: Path) -> None:
    gate = Gate()
    model = FakeModel(Reply("held", gate=gate), Reply("for carl"), Reply("for carl, too"))
    async with scenario(tmp_path, model, access=WITH_BEN) as world:
        owner = world.person("ada", "1", "dm-ada", direct=True)
        await world.app[Store].settings.put("owner", "direct", owner.thread)
        ben, carl = world.person("ben", "1", "square"), world.person("carl", "1", "square")
        triggers = world.app[TriggerStore]
        for name, person in (("ben", ben), ("carl", carl)):
            spec = reminder(world, Author(name, trusted=True), person.thread)
            await triggers.add(spec, world.app[Clock].now() + timedelta(days=1))
        await ben.says("first")
        await gate.reached.wait()
        await carl.says("mine")
        await ben.says("second")
        shut_out(world)
        await world.app[Departures].sweep()
        await world.app[Departures].sweep()  # a second sweep, which may run before the turn has ended
        gate.open()
        await carl.sees("for carl")
        await world.is_quiet()
        asked = [request.messages[-1].text for request in model.requests]
        assert not [text for text in asked if "second" in text]
        assert [trigger.spec.text for trigger in await triggers.all()] == ["stretch, carl"]
        (notice,) = [text for text in world.chat.texts(owner.thread) if "no longer has access" in text]
        for part in ("stretch, ben", "“second”", "the answer to “first”"):
            assert part in notice
        await world.app[Departures].sweep()
        shut_out(world, WITH_BEN)
        await world.app[Departures].sweep()
        await world.is_quiet()
        assert len([text for text in world.chat.texts(owner.thread) if "no longer has access" in text]) == 1
        assert len(await triggers.all()) == 1


async def test_a_removed_persons_message_is_not_answered_even_before_the_sweep(tmp_path: Path) -> None:
    gate = Gate()
    model = FakeModel(Reply("held", gate=gate), Reply("later"))
    async with scenario(tmp_path, model, access=WITH_BEN) as world:
        carl, ben = world.person("carl", "1", "square"), world.person("ben", "1", "square")
        await carl.says("first")
        await gate.reached.wait()
        await ben.says("second")
        shut_out(world)
        gate.open()
        await world.is_quiet()
        assert len(model.requests) == 1
        assert not await world.app[Store].inbox.queued(carl.thread)


async def test_people_with_access_are_unaffected(tmp_path: Path) -> None:
    model = FakeModel(script=lambda _: Reply("done"))
    async with scenario(tmp_path, model, access=WITH_BEN) as world:
        for name in ("ada", "carl", "ben"):
            person = world.person(name, "1", f"dm-{name}", direct=True)
            await person.says("hi")
            await person.sees("done")
            await world.app[TriggerStore].add(
                reminder(world, Author(name, trusted=True), person.thread), world.app[Clock].now() + timedelta(days=1)
            )
        for author in (Author("owner", trusted=True), Author("shoal", trusted=True)):
            await world.app[TriggerStore].add(
                reminder(world, author, person.thread), world.app[Clock].now() + timedelta(days=1)
            )
        await world.app[Departures].sweep()
        assert len(await world.app[TriggerStore].all()) == 5


async def test_revoking_a_persons_last_token_ends_their_work(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(), access=WITH_BEN) as world:
        departures, tokens = world.app[Departures], world.app[AccessTokens]
        await tokens.create(NewToken("ben", "chat"), "web:owner")
        person, thread = Author("web:ben", trusted=False), "web:web%3Aben:one"
        await world.app[TriggerStore].add(reminder(world, person, thread), world.app[Clock].now() + timedelta(days=1))
        await departures.sweep()
        assert len(await world.app[TriggerStore].all()) == 1
        await tokens.revoke("ben", "web:owner")
        await departures.sweep()
        assert not await world.app[TriggerStore].all()


async def test_a_message_for_the_running_turn_ends_with_its_authors_access(tmp_path: Path) -> None:
    gate = Gate()
    model = FakeModel(Reply(calls=call("time").calls, gate=gate), "done")
    async with scenario(tmp_path, model, access=WITH_BEN) as world:
        owner = world.person("ada", "1", "dm-ada", direct=True)
        await world.app[Store].settings.put("owner", "direct", owner.thread)
        carl, ben = world.person("carl", "1", "square"), world.person("ben", "1", "square")
        await carl.says("first")
        await gate.reached.wait()
        await ben.asks("/steer take all of it")
        shut_out(world)
        await world.app[Departures].sweep()
        gate.open()
        await carl.sees("done")
        assert not [text for text in map(str, model.requests) if "take all of it" in text]
        assert [text for text in world.chat.texts(owner.thread) if "“take all of it”" in text]


async def test_a_subagent_ends_with_its_persons_access(tmp_path: Path) -> None:
    gate = Gate()

    def answers(seen: Seen) -> Reply | str:
        if "work alone" in seen.user_text:
            return Reply(calls=call("bash", command="echo ran > ran.txt").calls, gate=gate)
        return call("spawn", task="work alone") if seen.rounds == 0 else "it has begun"

    free = {"permissions": {"default_profile": "open"}}
    async with scenario(tmp_path, FakeModel(script=answers), access=WITH_BEN, settings=free) as world:
        ben = world.person("ben", "1", "square")
        await ben.says("begin")
        await ben.sees("it has begun")
        await gate.reached.wait()
        shut_out(world)
        await world.app[Departures].sweep()
        gate.open()
        await world.is_quiet()
        assert not list(tmp_path.rglob("ran.txt"))


TOUCH = call("bash", command="touch made")
DECIDERS: dict[str, tuple[AccessRules, list[str], Asker]] = {
    "listed": (WITH_BEN, ["fake:ben"], Asker(trust="trusted", user="ben", platform="fake")),
    "by a role": (WITH_BEN, ["role:crew"], Asker(trust="trusted", user="eve", platform="fake", roles=("crew",))),
    "on the page": (WITH_BEN, ["fake:ben"], Asker(trust="trusted", user="fake:ben", platform="web", token="ben")),
    "the owner": (AccessRules(owners=("ada", "ben"), allow=("carl",)), ["fake:ben"],
        Asker(trust="owner", user="ben", platform="fake")),
}  # fmt: skip


@pytest.mark.parametrize("rights", ["kept", "lost"])
@pytest.mark.parametrize("decider", DECIDERS)
async def test_a_thread_approval_ends_with_its_approvers_rights(tmp_path: Path, decider: str, rights: str) -> None:
    rules, approvers, by = DECIDERS[decider]
    settings = {"permissions": {"default_profile": "standard", "approvers": approvers}}
    model = FakeModel(TOUCH, "first", TOUCH, "second")
    async with scenario(tmp_path, model, access=rules, settings=settings) as world:
        asker = world.person("ada" if by.trust == "owner" else "carl", "1", "square")
        if by.token:
            await world.app[AccessTokens].create(NewToken("ben", "approve", "fake:ben"), "web:owner")
        await asker.says("go")
        asked = await asker.is_asked()
        await world.app[Orchestrator].decide(asked.id, True, by, "thread")
        await asker.sees("first")
        if rights == "lost":
            shut_out(world, AccessRules(owners=("ada",), allow=("carl", "ben") if by.trust == "owner" else ("carl",)))
        await asker.says("again")
        if rights == "kept":
            await asker.sees("second")
        else:
            await world.happens(asker.thread, "approval_requested", 2)
            (waiting,) = await world.app[Store].approvals.search(thread=asker.thread)
            assert "can no longer approve it" in waiting.reason


async def test_thread_approvals_of_a_removed_approver_no_longer_apply(tmp_path: Path) -> None:
    settings = {"permissions": {"default_profile": "standard", "approvers": ["fake:ben"]}}
    model = FakeModel(TOUCH, "first", TOUCH, "second")
    async with scenario(tmp_path, model, access=WITH_BEN, settings=settings) as world:
        carl = world.person("carl", "1", "square")
        await carl.says("go")
        asked = await carl.is_asked()
        by = Asker(trust="trusted", user="ben", platform="fake")
        await world.app[Orchestrator].decide(asked.id, True, by, "thread")
        await carl.sees("first")
        world.app[Standing].approvers.remove("fake:ben")
        await carl.says("again")
        await world.happens(carl.thread, "approval_requested", 2)


async def test_a_waiting_reminder_ends_with_its_authors_access(tmp_path: Path) -> None:
    gate, clock = Gate(), ManualClock()
    model = FakeModel(Reply("held", gate=gate), "later")
    async with scenario(tmp_path, model, clock=clock, access=WITH_BEN) as world:
        owner = world.person("ada", "1", "dm-ada", direct=True)
        await world.app[Store].settings.put("owner", "direct", owner.thread)
        carl = world.person("carl", "1", "square")
        spec = reminder(world, Author("ben", trusted=True), carl.thread)
        await carl.says("first")
        await gate.reached.wait()
        await world.app[Orchestrator].send(message_of(spec, "T@1", spec.text, spec.author, clock.now()))
        shut_out(world)
        gate.open()
        await world.is_quiet()
        assert len(model.requests) == 1
        assert [text for text in world.chat.texts(owner.thread) if "stretch, ben" in text]


@pytest.mark.parametrize("origin", ["person", "trigger"])
async def test_remaining_work_runs_with_the_persons_current_trust(tmp_path: Path, origin: Origin) -> None:
    gate = Gate()
    async with scenario(tmp_path, FakeModel(Reply("held", gate=gate), "done"), access=WITH_BEN) as world:
        carl = world.person("carl", "1", "square")
        await carl.says("first")
        await gate.reached.wait()
        now = world.app[Clock].now()
        left = Prompt(carl.thread, "later", "do it", Author("ben", trusted=True), now, origin=origin)
        await world.app[Orchestrator].send(left)
        shut_out(world, AccessRules(owners=("ada",), allow=("carl", "*")))
        gate.open()
        await world.happens(carl.thread, "turn_finished", 2)
        said = [event.data for event in await world.journal(carl.thread) if isinstance(event.data, UserSaid)]
        assert [(one.author.id, one.author.trusted) for one in said] == [("carl", True), ("ben", False)]


async def test_access_on_another_account_keeps_no_work_on_this_account(tmp_path: Path) -> None:
    """A user id on two accounts or platforms means one person only if `[access.people]` says so."""
    async with scenario(tmp_path, FakeModel(), access=WITH_BEN) as world:
        world.app[Standing].gated.add("fake.work")
        world.app[Admissions].links.rules["fake.work"] = AccessRules(allow=("ben",))
        ben = world.person("ben", "1", "square")
        spec = reminder(world, Author("ben", trusted=True), ben.thread)
        await world.app[TriggerStore].add(spec, world.app[Clock].now() + timedelta(days=1))
        shut_out(world)
        await world.app[Departures].sweep()
        assert not await world.app[TriggerStore].all()


async def test_a_linked_identity_keeps_access_until_it_is_removed(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(), access=WITH_BEN) as world:
        links, gated = world.app[Admissions].links, world.app[Standing].gated
        gated.add("mail")
        ben, triggers = world.person("ben", "1", "square"), world.app[TriggerStore]
        spec = reminder(world, Author("ben", trusted=True), ben.thread)
        await triggers.add(spec, world.app[Clock].now() + timedelta(days=1))
        linked = People((Person(("fake:ben", "mail:7")),), OWNERS)
        links.become(Links(linked, {**links.rules, "fake": WITHOUT_BEN, "mail": AccessRules(allow=("7",))}))
        await world.app[Departures].sweep()
        assert await triggers.all()
        links.become(Links(linked, {**links.rules, "mail": AccessRules()}))
        await world.app[Departures].sweep()
        assert not await triggers.all()


async def test_a_paired_person_loses_access_with_the_pairing(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(), access=WITHOUT_BEN) as world:
        pairing, triggers = world.app[Pairing], world.app[TriggerStore]
        code = await pairing.ask("fake", Author("ben", trusted=False))
        await pairing.confirm(code, ("fake",), "web:owner")
        ben = world.person("ben", "1", "square")
        spec = reminder(world, Author("ben", trusted=True), ben.thread)
        await triggers.add(spec, world.app[Clock].now() + timedelta(days=1))
        await world.app[Departures].sweep()
        assert await triggers.all()
        await pairing.remove("fake", "ben", "web:owner")
        await world.app[Departures].sweep()
        assert not await triggers.all()


async def test_a_subagents_process_ends_with_its_persons_access(tmp_path: Path) -> None:
    def answers(seen: Seen) -> Reply | str:
        if "work alone" in seen.user_text:
            return call("process_start", command="sleep 60") if seen.rounds == 0 else "begun"
        return call("spawn", task="work alone") if seen.rounds == 0 else "it has begun"

    free = {"permissions": {"default_profile": "open"}}
    async with scenario(tmp_path, FakeModel(script=answers), access=WITH_BEN, settings=free) as world:
        ben, processes = world.person("ben", "1", "square"), world.app[ProcessService].rows
        await ben.says("begin")
        await ben.sees("it has begun")
        await world.is_quiet()
        assert [one.killed_by for one in await processes.search()] == [""]
        shut_out(world)
        await world.app[Departures].sweep()
        assert [one.killed_by for one in await processes.search()] == [BY]
