"""A person with identities on two platforms: access rules, budgets, approvals and ownership apply to both."""

from pathlib import Path

import pytest
from tests.scenarios.kit import calls, echo

from shoal.kernel.clock import Clock
from shoal.kernel.errors import Forbidden
from shoal.kernel.events import ToolFinished
from shoal.kernel.messages import Author, Prompt, Usage
from shoal.kernel.permissions import Asker
from shoal.permissions.access import AccessRules
from shoal.store.store import Store
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import scenario
from shoal.threads.orchestrator import Orchestrator

ADA = {"access": {"people": {"ada": {"identities": ["telegram:4711", "fake:ada"], "roles": ["captain"]}}}}


def bash(command: str) -> Reply:
    return Reply(calls=(Call("bash", f'{{"command": "{command}"}}'),))


async def test_a_linked_identity_decides_the_persons_requests(tmp_path: Path) -> None:
    settings = {**ADA, "permissions": {"default_profile": "standard"}}
    access = AccessRules(allow=("ada",))
    async with scenario(tmp_path, FakeModel(bash("touch made"), "done"), settings=settings, access=access) as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        decide = world.app[Orchestrator].decide
        for stranger in (
            Asker(trust="trusted", user="4711", platform="discord"),
            Asker(trust="trusted", user="ada", platform="telegram"),
        ):
            with pytest.raises(Forbidden):
                await decide(approval.id, True, stranger)
        assert await decide(approval.id, True, Asker(trust="trusted", user="4711", platform="telegram")) == "allow"
        await world.ada.sees("done")


async def test_an_approver_may_use_any_identity_or_role(tmp_path: Path) -> None:
    for number, approver in enumerate(("telegram:4711", "role:captain")):
        settings = {**ADA, "permissions": {"default_profile": "standard", "approvers": [approver]}}
        async with scenario(tmp_path / str(number), FakeModel(bash("touch made"), "done"), settings=settings) as world:
            bob = world.person("bob", "2")
            await bob.says("go")
            approval = await bob.is_asked()
            assert await world.ada.decides(approval.id, allow=True) == "allow"
            await bob.sees("done")


@pytest.mark.parametrize("who", [{"users": ["telegram:4711"]}, {"roles": ["captain"]}])
async def test_a_rule_for_one_identity_applies_to_linked_ones(tmp_path: Path, who: dict[str, list[str]]) -> None:
    overrides = [{**who, "deny": ["tool:echo:.*"]}]
    settings = {**ADA, "permissions": {"default_profile": "open", "overrides": overrides}}
    model = FakeModel(calls("echo", arguments='{"text": "x"}'), "denied", "done")
    async with scenario(tmp_path, model, tools=(echo,), settings=settings) as world:
        await world.ada.says("go")
        await world.ada.sees("denied")
        assert "echo" not in {spec.name for spec in model.requests[0].tools}
        bob = world.person("bob", "2")
        await bob.says("go")
        await bob.sees("done")
        assert "echo" in {spec.name for spec in model.requests[-1].tools}


async def test_a_budget_applies_to_all_identities_of_a_person(tmp_path: Path) -> None:
    settings = {**ADA, "budget": {"tokens_per_user_day": 1_000_000}, "model": {"max_output_tokens": 100}}
    async with scenario(tmp_path, FakeModel(Reply("hi", usage=Usage(7_000, 1))), settings=settings) as world:
        await world.ada.says("hi")
        await world.ada.sees("hi")
        (standing,) = await world.app[Store].budget.standings()
        assert (standing.scope, standing.tokens) == ("user:telegram:4711", 7_001)


async def test_a_persons_own_limit_replaces_the_shared_one(tmp_path: Path) -> None:
    people = {"ada": {"identities": ["telegram:4711", "fake:ada"], "tokens_per_day": 1_000_000}}
    settings = {
        "access": {"people": people},
        "budget": {"tokens_per_user_day": 50},
        "model": {"max_output_tokens": 100},
    }
    async with scenario(tmp_path, FakeModel("hi ada"), settings=settings) as world:
        await world.ada.says("hi")
        await world.ada.sees("hi ada")
        bob = world.person("bob", "2")
        await bob.says("hi")
        await bob.sees("I stopped: the budget")


async def test_a_rule_for_groups_applies_only_in_groups(tmp_path: Path) -> None:
    rules = {"default_profile": "open", "overrides": [{"kinds": ["group"], "deny": ["tool:time:.*"]}]}
    model = FakeModel(Reply(calls=(Call("time", "{}"),)), "first", Reply(calls=(Call("time", "{}"),)), "second")
    async with scenario(tmp_path, model, settings={"permissions": rules}) as world:
        for key, direct, answer in (("k1", False, "first"), ("k2", True, "second")):
            at = world.app[Clock].now()
            await world.app[Orchestrator].send(
                Prompt(world.ada.thread, key, "hi", Author("ada", trusted=True), at, direct=direct)
            )
            await world.ada.sees(answer)
        results = [event.data for event in await world.journal() if isinstance(event.data, ToolFinished)]
        assert [result.is_error for result in results] == [True, False]
