""" "Always allow": the owner saves the rule that an approval proposes, and can remove it there."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.scenarios.kit import echo

from shoal.kernel.home import Home
from shoal.kernel.messages import Author
from shoal.kernel.permissions import NO_RULE
from shoal.kernel.records import Approval
from shoal.kernel.traits import Traits
from shoal.kernel.untrusted import decode_toml
from shoal.permissions.access import AccessRules
from shoal.platforms.inbox import press
from shoal.store.store import Store
from shoal.testing.chat import Posted
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import World, scenario
from shoal.threads.always import NO_RULE_HERE, NOTHING_TO_TAKE_BACK, ONLY_THE_OWNER
from shoal.tools.functions import tool

RULES = """
[permissions.profiles.careful]
ask = ["tool:(echo|hear|bash):.*"]
allow = ["tool:read:.*"]
"""


@tool(Traits(origin="foreign"))
async def hear() -> str:
    """Return an untrusted person's words."""
    return "do as I say"


@asynccontextmanager
async def world_of(home: Path, *replies: Reply | str) -> AsyncGenerator[World]:
    home.mkdir(exist_ok=True)
    (home / "shoal.toml").write_text(RULES)
    settings = {"permissions": {"default_profile": "careful", **decode_toml(RULES)["permissions"]}}
    people = AccessRules(owners=("ada",), allow=("bob",))
    async with scenario(home, FakeModel(*replies), access=people, tools=(echo, hear), settings=settings) as world:
        yield world


def says(*texts: str) -> Reply:
    return Reply(calls=tuple(Call("echo", json.dumps({"text": text})) for text in texts))


def rules(world: World) -> str:
    return world.app[Home].config_file.read_text().removeprefix(RULES)


async def clicks(world: World, card: Posted, label: str, user: str = "ada") -> str:
    assert world.chat.inbox is not None
    value = next(button.value for button in card.buttons if button.label == label)
    return await press(value, world.ada.thread, Author(user, user, trusted=False), world.chat.inbox)


async def card_of(world: World, approval: Approval) -> Posted:
    return await world.ada.sees(f"write `always {approval.id[-8:]}`" if approval.item.always.allow else approval.shown)


async def asked(world: World, times: int) -> Approval:
    await world.happens(world.ada.thread, "approval_requested", times)
    return await world.ada.is_asked()


async def stays_asked(world: World, approval: Approval) -> Approval:
    found = await world.app[Store].approvals.get(approval.id)
    assert found is not None
    assert found.state == "pending"
    return found


async def test_the_owner_always_allows_a_call_and_reverts_it(tmp_path: Path) -> None:
    async with world_of(tmp_path, says("one"), "done 1", says("one"), "done 2", says("two"), "done 3") as world:
        await world.ada.says("first")
        approval = await world.ada.is_asked()
        card = await card_of(world, approval)
        assert "Always allow: echo with exactly" in card.markdown
        assert "You have not been asked this before." in card.markdown
        said = await clicks(world, card, "Always allow")
        assert said.startswith('Always allowed: echo with exactly {"text":"one"}, in main')
        await world.ada.sees("done 1")
        assert rules(world).count("[[permissions.overrides]]") == 1
        assert 'agents = ["main"]' in rules(world)
        assert 'users = ["fake:ada"]' in rules(world)

        await world.ada.says("the same again")
        await world.ada.sees("done 2")
        await world.ada.says("another")
        other = await asked(world, 2)
        assert other.actions == ('tool:echo:{"text":"two"}',)

        card = await world.ada.sees("Always allowed: echo with exactly")
        assert [button.label for button in card.buttons] == ["Remove the rule"]
        said = await clicks(world, card, "Remove the rule")
        assert said == "Removed the rule. Shoal asks again, starting with the next turn."
        assert "echo" not in rules(world)
        card = await world.ada.sees("Removed rule")
        assert card.buttons == ()


async def test_a_card_says_how_often_its_rule_would_have_decided(
    tmp_path: Path,
) -> None:
    async with world_of(tmp_path, says("one"), "done 1", says("one"), "done 2") as world:
        await world.ada.says("first")
        approval = await world.ada.is_asked()
        await world.ada.says("always")
        told = await world.ada.sees("Always allowed")
        await world.ada.sees("done 1")
        await world.ada.says(f"take back {approval.id[-8:]}")
        await world.ada.sees("Removed the rule.")
        await world.ada.says("again")
        again = await asked(world, 2)
        card = await card_of(world, again)
        assert "You recently answered this request 1 time and allowed it 1 time." in card.markdown
        assert told is not card
        await world.ada.says(f"take back {approval.id}")
        await world.ada.sees(NOTHING_TO_TAKE_BACK)


@pytest.mark.parametrize("words", ["always", "allow {id} always", "immer", "/approve {id} always", "♾️"])
async def test_always_allow_works_in_words(tmp_path: Path, words: str) -> None:
    async with world_of(tmp_path, says("one"), "done 1", says("one"), "done 2") as world:
        await world.ada.says("first")
        approval = await world.ada.is_asked()
        await world.ada.says(words.format(id=approval.id[-8:]))
        await world.ada.sees("done 1")
        await world.ada.says("again")
        await world.ada.sees("done 2")


async def test_an_always_allow_reaction_makes_one_rule_for_its_owner(tmp_path: Path) -> None:
    async with world_of(tmp_path, says("one"), "done 1") as world:
        await world.ada.says("first")
        card = await card_of(world, await world.ada.is_asked())
        while await world.app[Store].outbox.depth():
            await world.rests()
        await world.chat.reacts(card.id, "♾️", user="bob")
        await world.ada.sees(f"{ONLY_THE_OWNER} Allow it once instead.")
        await world.chat.reacts(card.id, "♾️")
        await world.ada.sees("done 1")
        before = len(world.chat.posted)
        await world.chat.reacts(card.id, "♾️")
        assert len(world.chat.posted) == before
        assert rules(world).count("echo") == 1


async def test_a_card_of_several_calls_makes_a_rule_for_each(tmp_path: Path) -> None:
    async with world_of(tmp_path, says("one", "two"), "done 1", says("two"), says("one"), "done 2") as world:
        await world.ada.says("first")
        card = await world.ada.sees("2 calls are waiting")
        assert [button.label for button in card.buttons] == ["Allow all", "Choose", "Always allow all", "Deny"]
        await clicks(world, card, "Always allow all")
        await world.ada.sees("done 1")
        await world.ada.says("again")
        await world.ada.sees("done 2")
        await clicks(world, await world.ada.sees("Always allowed: echo"), "Remove the rule")
        assert "echo" not in rules(world)


async def test_only_some_calls_of_a_card_are_always_allowed(tmp_path: Path) -> None:
    async with world_of(tmp_path, says("one", "two"), "done") as world:
        await world.ada.says("first")
        await world.ada.sees("2 calls are waiting")
        await world.ada.says("always 2")
        await world.ada.sees("done")
        assert "two" in rules(world)
        assert "one" not in rules(world)


async def test_only_the_owner_makes_a_rule(tmp_path: Path) -> None:
    async with world_of(tmp_path, says("one"), "done 1", says("one"), "done 2") as world:
        await world.ada.says("first")
        approval = await world.ada.is_asked()
        card = await card_of(world, approval)
        assert await clicks(world, card, "Always allow", "bob") == f"{ONLY_THE_OWNER} Allow it once instead."
        await stays_asked(world, approval)
        assert rules(world) == ""


async def test_another_persons_call_is_offered_no_rule(tmp_path: Path) -> None:
    async with world_of(tmp_path, says("one"), "done 1") as world:
        await world.chat.says("harbour", "1", "first", user="bob")
        approval = await world.ada.is_asked()
        assert approval.item.always == NO_RULE
        card = await card_of(world, approval)
        assert "Always" not in card.markdown
        assert world.chat.inbox is not None
        ada = Author("ada", "ada", trusted=False)
        said = await press(f"always:{approval.id}", world.ada.thread, ada, world.chat.inbox)
        assert said == f"{NO_RULE_HERE} Allow it once instead."
        await stays_asked(world, approval)
        await world.chat.says("harbour", "1", "always", user="bob")
        await world.ada.sees(f"Allowed in this thread only. {ONLY_THE_OWNER}")
        await world.ada.sees("done 1")
        assert rules(world) == ""


async def test_a_tainted_turn_is_offered_no_rule(tmp_path: Path) -> None:
    async with world_of(tmp_path, Reply(calls=(Call("hear", "{}"),)), says("one"), "done") as world:
        await world.ada.says("first")
        heard = await world.ada.is_asked()
        assert heard.item.always.allow
        await world.ada.decides(heard.id, allow=True)
        approval = await asked(world, 2)
        assert approval.tool == "echo"
        assert approval.item.always == NO_RULE


async def test_a_rule_does_not_apply_after_untrusted_content(tmp_path: Path) -> None:
    turns = (says("one"), "done 1", Reply(calls=(Call("hear", "{}"),)), says("one"), "done 2")
    async with world_of(tmp_path, *turns) as world:
        await world.ada.says("first")
        await world.ada.is_asked()
        await world.ada.says("always")
        await world.ada.sees("done 1")
        await world.ada.says("listen")
        heard = await asked(world, 2)
        await world.ada.decides(heard.id, allow=True)
        assert "Untrusted content was read" in (await asked(world, 3)).reason


async def test_a_late_press_makes_no_rule(tmp_path: Path) -> None:
    async with world_of(tmp_path, says("one"), "done") as world:
        await world.ada.says("first")
        approval = await world.ada.is_asked()
        card = await card_of(world, approval)
        value = next(button.value for button in card.buttons if button.label == "Always allow")
        await world.ada.decides(approval.id, allow=False)
        assert world.chat.inbox is not None
        said = await press(value, world.ada.thread, Author("ada", "ada", trusted=False), world.chat.inbox)
        assert said == "This approval was already decided: it was denied. To change the decision, ask the agent again."
        await world.ada.sees("done")
        assert rules(world) == ""
