"""An account is connected again however often it fails, and says so once."""

import logging

import pytest

from shoal.chat.account import ChatAccount
from shoal.domain.backoff import retry_delay
from shoal.domain.clock import SystemClock
from shoal.domain.errors import PlatformError
from shoal.domain.posts import OutboundPost


class Ended(Exception):
    """Enough was seen."""


class Slept(SystemClock):
    """Notes how long it was to sleep, and does not."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Note it."""
        self.seconds.append(seconds)


async def posted(_: OutboundPost) -> str:
    return "1"


async def waits(*failures: PlatformError | None) -> list[float]:
    """The pauses after these failures; None is a connection that worked before it failed."""
    clock, left = Slept(), list(failures)
    account = ChatAccount("fake", clock, posted)

    async def connect() -> None:
        if not left:
            raise Ended
        failure = left.pop(0)
        if failure is None:
            account.works()
        raise failure or PlatformError("away")

    with pytest.raises(Ended):
        await account.keep_connected(connect)
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
