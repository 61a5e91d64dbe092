"""The hook runner: the stricter ruling wins, and a failing hook denies."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

import pytest

from shoal.kernel.errors import ToolError
from shoal.kernel.hooks import HookRuling, Hooks, PlannedCall, TurnSummary
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import Usage
from shoal.tools.hooks import REASON_CHARS_MAX, TURNS_WAITING_MAX, HookRunner

THREAD, TURN = ThreadId("fake:harbour:1"), TurnId("t1")
CALL = PlannedCall(
    THREAD, TURN, "main", "fake:ada", "trusted", "bash", '{"command":"ls"}', "ls", ("tool:bash:ls",), "allow"
)
ASK, DENY = HookRuling("ask", "It is Friday."), HookRuling("deny", "It is Sunday.")


def answers(ruling: HookRuling | None) -> Callable[[PlannedCall], Awaitable[HookRuling | None]]:
    async def before_call(call: PlannedCall) -> HookRuling | None:
        return ruling

    return before_call


async def ruling_of(hooks: Mapping[str, Hooks]) -> tuple[str, HookRuling] | None:
    return await HookRunner(hooks).before_call(CALL)


@pytest.mark.parametrize(
    ("rulings", "strictest"),
    [
        ((None, None), None),
        ((ASK, None), ("0", ASK)),
        ((ASK, DENY), ("1", DENY)),
        ((DENY, ASK), ("0", DENY)),
        ((None, ASK, HookRuling("ask", "Later.")), ("1", ASK)),
    ],
)
async def test_the_strictest_ruling_wins(
    rulings: tuple[HookRuling | None, ...], strictest: tuple[str, HookRuling] | None
) -> None:
    hooks = {str(number): Hooks(before_call=answers(ruling)) for number, ruling in enumerate(rulings)}
    assert await ruling_of(hooks) == strictest


async def test_a_hook_that_fails_denies() -> None:
    async def breaks(call: PlannedCall) -> HookRuling | None:
        raise KeyError(call.tool)

    assert await ruling_of({"guard": Hooks(before_call=breaks)}) == (
        "guard",
        HookRuling("deny", "The hook 'guard' failed: KeyError: 'bash'"),
    )


async def test_a_hook_that_raises_a_shoal_error_denies_with_its_message() -> None:
    async def breaks(call: PlannedCall) -> HookRuling | None:
        raise ToolError("The list of hosts cannot be read.")

    assert await ruling_of({"guard": Hooks(before_call=breaks)}) == (
        "guard",
        HookRuling("deny", "The list of hosts cannot be read."),
    )


async def test_a_hook_that_takes_too_long_denies_and_is_cancelled() -> None:
    ended = asyncio.Event()

    async def waits(call: PlannedCall) -> HookRuling | None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return None

    assert await ruling_of({"guard": Hooks(before_call=waits, seconds_max=0.01)}) == (
        "guard",
        HookRuling("deny", "The hook 'guard' took longer than 0.01 s."),
    )
    assert ended.is_set()


async def test_a_hook_that_returns_something_else_denies() -> None:
    async def allows(call: PlannedCall) -> HookRuling | None:
        return cast("HookRuling", "allow")

    assert await ruling_of({"guard": Hooks(before_call=allows)}) == (
        "guard",
        HookRuling("deny", "The hook 'guard' must return a HookRuling or None."),
    )


async def test_a_long_reason_is_cut() -> None:
    ruled = await ruling_of({"guard": Hooks(before_call=answers(HookRuling("ask", "x" * 1000)))})
    assert ruled is not None
    assert len(ruled[1].reason) == REASON_CHARS_MAX


def summary(turn: str) -> TurnSummary:
    return TurnSummary(THREAD, TurnId(turn), "main", "done", "Hello.", 1, Usage())


async def test_every_hook_gets_every_turn_in_order_even_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    is_done = asyncio.Event()

    async def breaks(ended: TurnSummary) -> None:
        raise KeyError(ended.turn)

    async def notes(ended: TurnSummary) -> None:
        seen.append(ended.turn)
        if len(seen) == 2:
            is_done.set()

    runner = HookRunner({"a": Hooks(after_turn=breaks), "b": Hooks(after_turn=notes)})
    runner.turn_ended(summary("1"))
    runner.turn_ended(summary("2"))
    with caplog.at_level(logging.ERROR):
        running = asyncio.create_task(runner.run())
        await is_done.wait()
        running.cancel()
    assert seen == ["1", "2"]
    assert [record.__dict__["why"] for record in caplog.records] == [
        "The hook 'a' failed: KeyError: '1'", "The hook 'a' failed: KeyError: '2'",
    ]  # fmt: skip


async def test_turns_past_the_bound_are_skipped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def notes(ended: TurnSummary) -> None:
        pass

    runner = HookRunner({"a": Hooks(after_turn=notes)})
    for number in range(TURNS_WAITING_MAX + 1):
        runner.turn_ended(summary(str(number)))
    assert caplog.messages == ["turn hooks skipped"]
