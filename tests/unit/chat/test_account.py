"""An account is connected again however often it fails, and says so once."""

import logging
from pathlib import Path

import pytest

from shoal.chat.account import ChatAccount
from shoal.domain.clock import SystemClock, retry_delay
from shoal.domain.errors import PlatformError
from shoal.domain.home import Home
from shoal.domain.ports import InboxPort
from shoal.domain.settings_platforms import AccountSettings
from shoal.testing.contracts.chat_peer import Inbox, MemorySettings


class Ended(Exception):
    """Enough was seen."""


class Slept(SystemClock):
    """Notes how long it was to sleep, and does not."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Note it."""
        self.seconds.append(seconds)


class Account(ChatAccount[AccountSettings]):
    """Connects as often as it has failures left; None is a connection that worked before it failed."""

    def __init__(self, clock: SystemClock, failures: list[PlatformError | None]) -> None:
        super().__init__("fake", AccountSettings(), Home(Path("home")), MemorySettings(), clock)
        self.left = failures
        self.closed = 0

    async def _connect(self, inbox: InboxPort) -> None:
        self._inbox = inbox
        self.connected.set()
        if not self.left:
            raise Ended
        failure = self.left.pop(0)
        if failure is None:
            self._reset_backoff()
        raise failure or PlatformError("away")

    async def close(self) -> None:
        self.closed += 1


async def waits(*failures: PlatformError | None) -> list[float]:
    """The pauses after these failures."""
    clock = Slept()
    account = Account(clock, list(failures))
    with pytest.RaisesGroup(Ended):
        await account.run(Inbox())
    assert (account.closed, account.connected.is_set()) == (1, False)
    return clock.seconds


async def test_pauses_grow_until_it_works() -> None:
    away = PlatformError("away")
    seconds = await waits(*[away] * 5, None)
    first = [retry_delay(1) for _ in range(100)]
    assert seconds[4] > max(first)
    assert seconds[5] <= 2 * max(first)


async def test_a_platform_says_how_long() -> None:
    (seconds,) = await waits(PlatformError("slow down", retry_after_seconds=45.0))
    assert seconds >= 45.0


async def test_the_same_failure_is_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    away, other = PlatformError("away"), PlatformError("refused")
    await waits(away, away, other, None)
    levels = [(record.getMessage(), record.levelname) for record in caplog.records]
    assert levels == [("away", "WARNING"), ("away", "INFO"), ("refused", "WARNING"), ("away", "WARNING")]
