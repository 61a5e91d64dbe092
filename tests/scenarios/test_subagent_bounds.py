"""Subagents never get more rights than their caller. Taint passes from the caller to the subagent and back."""

from pathlib import Path

import pytest
from tests.scenarios.delegation import cast, children_of, delegates
from tests.scenarios.kit import echo
from tests.scenarios.test_taint import call, time_page

from shoal.agents.registry import AgentRegistry
from shoal.kernel.events import ApprovalRequested
from shoal.kernel.ids import ThreadId
from shoal.testing.scenario import World, scenario

CURL = call("bash", command="curl https://example.com/")


def agent(home: Path, name: str, text: str) -> None:
    folder = home / "agents" / name
    folder.mkdir(parents=True)
    (folder / "agent.toml").write_text(text)


async def asked(world: World, thread: ThreadId) -> ApprovalRequested:
    request = (await world.happens(thread, "approval_requested")).data
    assert isinstance(request, ApprovalRequested)
    return request


async def child_of(world: World) -> ThreadId:
    await world.happens(world.ada.thread, "tool_started")
    (child,) = await children_of(world)
    return child


@pytest.mark.parametrize("profile", ["open", "bounded"])
async def test_a_called_agent_asks_where_its_caller_would_ask(tmp_path: Path, profile: str) -> None:
    agent(tmp_path, "free", 'profile = "open"\n')
    model = cast(
        plan=[delegates("ask_agent", "job", agent="free"), "done"],
        job=[call("bash", command="echo x > made"), "made it"],
    )
    bounded = {"extends": "standard", "allow": ["tool:ask_agent:.*"]}
    settings = {"permissions": {"default_profile": profile, "profiles": {"bounded": bounded}}}
    async with scenario(tmp_path, model, settings=settings) as world:
        await world.ada.says("plan it")
        if profile == "bounded":
            card = await world.ada.sees("echo x > made")
            request = await asked(world, await child_of(world))
            assert dict((b.label, b.value) for b in card.buttons)["Allow once"] == f"allow:{request.approval_id}"
            await world.ada.decides(request.approval_id, allow=True)
        await world.ada.sees("done")
        assert (world.app[AgentRegistry].spec("free").workspace / "made").read_text() == "x\n"


async def test_a_child_has_no_tool_that_its_parent_lacks(tmp_path: Path) -> None:
    agent(tmp_path, "main", 'tools = ["ask_agent", "clock"]\n')
    agent(tmp_path, "free", "")
    model = cast(
        plan=[delegates("ask_agent", "job", agent="free"), "done"],
        job=[call("echo", text="x"), "tried"],
    )
    async with scenario(tmp_path, model, tools=(echo,)) as world:
        await world.ada.says("plan it")
        await world.ada.sees("done")
        offered = [{tool.name for tool in request.tools} for request in world.model.requests]
        assert offered[0] <= {"ask_agent", "clock"}
        assert offered[1] <= offered[0]
        (child,) = await children_of(world)
        (result,) = [event.data for event in await world.journal(child) if event.type == "tool_result"]
        assert result.is_error  # pyrefly: ignore[missing-attribute]


async def test_a_child_of_a_tainted_turn_is_tainted(tmp_path: Path) -> None:
    model = cast(plan=[call("time_page"), delegates("subagent", "job"), "done"], job=[CURL, "fetched"])
    async with scenario(tmp_path, model, tools=(time_page,)) as world:
        await world.ada.says("plan it")
        await world.ada.sees("curl https://example.com/")
        (child,) = await children_of(world)
        request = await asked(world, child)
        assert "the page of a stranger" in request.reason
        await world.ada.decides(request.approval_id, allow=False)
        await world.ada.sees("done")


async def test_a_tainted_childs_answer_taints_its_parent(tmp_path: Path) -> None:
    model = cast(plan=[delegates("subagent", "job"), CURL, "done"], job=[call("time_page"), "a summary"])
    async with scenario(tmp_path, model, tools=(time_page,)) as world:
        await world.ada.says("plan it")
        request = await asked(world, world.ada.thread)
        assert "stranger" in request.reason
        await world.ada.decides(request.approval_id, allow=False)
        await world.ada.sees("done")


@pytest.mark.parametrize(("of_turns", "of_children"), [(50, 2), (2, 50)])
async def test_a_child_has_its_own_step_limit_within_that_of_a_turn(
    tmp_path: Path, of_turns: int, of_children: int
) -> None:
    steps = [call("echo", text=str(number)) for number in range(6)]
    model = cast(plan=[delegates("subagent", "job"), "done"], job=[*steps, "that is all"])
    settings = {"turns": {"steps_max": of_turns}, "subagents": {"steps_max": of_children}}
    async with scenario(tmp_path, model, tools=(echo,), settings=settings) as world:
        await world.ada.says("plan it")
        await world.happens(world.ada.thread, "turn_finished")
        (child,) = await children_of(world)
        types = await world.types(child)
        assert types.count("limit_reached") == 1
        assert types.count("tool_started") == 2
