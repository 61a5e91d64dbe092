"""The audit log also records rejected decisions and changed settings."""

import re
from pathlib import Path

import pytest
from tests.scenarios.kit import echo, in_time

from shoal.kernel.errors import Conflict, Forbidden, Gone
from shoal.kernel.permissions import Asker
from shoal.kernel.records import AuditEntry
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import World, scenario
from shoal.threads.orchestrator import Orchestrator


def bash(command: str) -> Reply:
    return Reply(calls=(Call("bash", f'{{"command": "{command}"}}'),))


async def entries(world: World, kind: str, chain: str = "") -> list[AuditEntry]:
    rows = await world.app[Store].audit.tail(1000, chain_name=chain or world.ada.thread)
    return [row.entry for row in rows if row.entry.kind == kind]


async def test_a_refused_decision_is_reported(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash("touch made"), "done"), profile="standard") as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        with pytest.raises(Forbidden):
            await world.app[Orchestrator].decide(approval.id, True, Asker(trust="trusted", user="eve", platform="fake"))
        await world.ada.decides(approval.id, allow=False)
        with pytest.raises(Conflict):
            await world.ada.decides(approval.id, allow=True)
        found = await entries(world, "approval")
        assert [(one.decision, one.user, re.sub(r" [0-9a-f]{64}$", "", one.detail)) for one in found] == [
            ("refused", "fake:eve", "not an approver"),
            ("deny", "ada", "once"),
            ("refused", "fake:ada", "too late to allow"),
        ]


@pytest.mark.parametrize("names", [("time", "time", "time"), ("echo", "time", "time"), ("time", "echo", "time")])
async def test_every_call_is_reported_once_alone_or_in_parallel(tmp_path: Path, names: tuple[str, ...]) -> None:
    made = tuple(Call(name, '{"text": "hi"}' if name == "echo" else "{}") for name in names)
    async with scenario(tmp_path, FakeModel(Reply(calls=made), "done"), tools=[echo]) as world:
        await world.ada.says("go")
        await world.ada.sees("done")
        found = [(one.action.split(":")[1], one.decision) for one in await entries(world, "check")]
        assert found == [(name, "allow") for name in names]


async def test_a_late_decision_is_reported(tmp_path: Path) -> None:
    clock = ManualClock()
    async with scenario(tmp_path, FakeModel(bash("touch made"), "done"), profile="standard", clock=clock) as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        await clock.advance(3700)
        await in_time(clock, world.ada.sees("done"))
        with pytest.raises(Gone):
            await world.ada.decides(approval.id, allow=True)
        assert [one.decision for one in await entries(world, "approval")][-1] == "refused"


async def test_changed_settings_are_audited_at_the_start(tmp_path: Path) -> None:
    ada = {"access": {"people": {"ada": {"identities": ["fake:ada", "web:owner"]}}}}
    seen: list[list[str]] = []
    for settings in ({}, {}, ada):
        async with scenario(tmp_path, FakeModel("hi"), settings=settings) as world:
            found = [one.action for one in await entries(world, "config", "system")]
            seen.append([action for action in found if not action.startswith("agent ")])
    first = ["access first start", "budget first start", "permissions first start", "sandbox first start"]
    first.append("web.allow first start")
    assert seen == [first, first, [*first, "access changed"]]


async def test_a_card_of_a_truncated_command_says_how_to_see_the_full_text(tmp_path: Path) -> None:
    command = f"touch {'x' * 5000} the-end"
    async with scenario(tmp_path, FakeModel(bash(command), "done"), profile="standard") as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        card = await world.ada.sees("characters are not shown here")
        assert f"shoal approvals show {approval.id}" in card.markdown
        assert "the-end" in card.markdown
        assert approval.shown == command
        assert approval.asked_by == "fake:ada"
        await world.ada.decides(approval.id, allow=True)
        edited = await world.ada.sees("Allowed, and it ran.")
        assert "characters are not shown here" in edited.markdown


async def test_changed_agent_rights_are_audited_at_the_start(tmp_path: Path) -> None:
    settings = tmp_path / "agents" / "main" / "agent.toml"
    settings.parent.mkdir(parents=True)
    seen: list[int] = []
    for text in ('model = "one"', 'model = "two"', 'profile = "open"', "profile = 'open'\ntaint = false", "profile ="):
        settings.write_text(f"{text}\n")
        async with scenario(tmp_path, FakeModel("hi")) as world:
            found = await entries(world, "config", "system")
            seen.append(sum(one.action == "agent main changed" for one in found))
    assert seen == [0, 0, 1, 2, 3]


async def test_the_card_of_a_long_command_links_to_the_page_if_its_address_is_known(tmp_path: Path) -> None:
    settings = {"web": {"public_url": "https://shoal.example/"}}
    model = FakeModel(bash(f"touch {'x' * 5000}"))
    async with scenario(tmp_path, model, profile="standard", settings=settings) as world:
        await world.ada.says("go")
        card = await world.ada.sees("characters are not shown here")
        assert "or on the page: https://shoal.example/#/approvals." in card.markdown
