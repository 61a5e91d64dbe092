"""Run the hooks of installed packages, before tool calls and after turns."""

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from shoal.kernel.errors import ExtensionFailed, ShoalError
from shoal.kernel.hooks import HookRuling, Hooks, PlannedCall, TurnSummary
from shoal.kernel.permissions import STRICTNESS

log = logging.getLogger(__name__)
T = TypeVar("T")

REASON_CHARS_MAX = 300
TURNS_WAITING_MAX = 1000
"""Maximum number of ended turns that wait for the hooks. While the queue is full, hooks are not called for further
turns.
"""


class HookRunner:
    """Calls the hooks of all packages, in the order of their entry point names."""

    def __init__(self, hooks: Mapping[str, Hooks]) -> None:
        self._before = [(name, hook.before_call, hook.seconds_max) for name, hook in hooks.items() if hook.before_call]
        self._after = [(name, hook.after_turn, hook.seconds_max) for name, hook in hooks.items() if hook.after_turn]
        self._ended = asyncio.Queue[TurnSummary](TURNS_WAITING_MAX)
        self.asks_before_calls = bool(self._before)
        self.runs_after_turns = bool(self._after)

    async def before_call(self, planned: PlannedCall) -> tuple[str, HookRuling] | None:
        """Return the strictest ruling on a call and the name of the hook that made it. Returns None if no hook makes a
        ruling.

        A hook that fails or times out denies the call. Never raises.
        """
        strictest: tuple[str, HookRuling] | None = None
        for name, hook, seconds in self._before:
            try:
                ruling = await call_extension(f"The hook {name!r}", seconds, hook(planned))
                if not (ruling is None or isinstance(ruling, HookRuling)):  # pyright: ignore[reportUnnecessaryIsInstance]
                    raise ExtensionFailed(f"The hook {name!r} must return a HookRuling or None.")
            except ShoalError as error:
                log.error("hook failed", extra={"hook": name, "tool": planned.tool, "why": str(error)})
                ruling = HookRuling("deny", str(error))
            if ruling is not None and (
                strictest is None or STRICTNESS[ruling.decision] > STRICTNESS[strictest[1].decision]
            ):
                strictest = name, HookRuling(ruling.decision, ruling.reason[:REASON_CHARS_MAX])
        return strictest

    def turn_ended(self, summary: TurnSummary) -> None:
        """Enqueue a finished turn for the hooks. Does not block. If the queue is full, the turn is skipped."""
        if not self.runs_after_turns:
            return
        try:
            self._ended.put_nowait(summary)
        except asyncio.QueueFull:
            log.warning("turn hooks skipped", extra={"thread_id": summary.thread, "turn": summary.turn})

    async def run(self) -> None:
        while True:
            summary = await self._ended.get()
            for name, hook, seconds in self._after:
                try:
                    await call_extension(f"The hook {name!r}", seconds, hook(summary))
                except ShoalError as error:
                    fields = {"hook": name, "thread_id": summary.thread, "turn": summary.turn}
                    log.error("hook failed", exc_info=error.__cause__, extra={**fields, "why": str(error)})


async def call_extension(what: str, seconds: float, call: Awaitable[T]) -> T:
    """Await an extension's code. Raises ExtensionFailed if it fails or takes longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await call
    except ShoalError:
        raise
    except TimeoutError as error:
        raise ExtensionFailed(f"{what} took longer than {seconds:g} s.") from error
    except Exception as error:
        raise ExtensionFailed(f"{what} failed: {type(error).__name__}: {error}") from error
