"""A failing account reconnects after every failure and reports the outage once."""

import logging
from pathlib import Path

import pytest

from shoal.kernel.clock import SystemClock, retry_delay
from shoal.kernel.errors import PlatformError, StoreUnavailable
from shoal.kernel.home import Home
from shoal.kernel.ports import InboxPort
from shoal.kernel.settings_platforms import AccountSettings
from shoal.platforms.account import ChatAccount
from shoal.testing.contracts.chat_peer import Inbox, MemorySettings


class Ended(BaseException): ...


class Slept(SystemClock):
    """A clock that records each sleep and returns immediately."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


class Account(ChatAccount[AccountSettings]):
    """An account whose connections fail with `failures`, in order. None means that the connection worked for a
    while.
    """

    def __init__(self, clock: SystemClock, failures: list[Exception | None]) -> None:
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


async def waits(*failures: Exception | None) -> list[float]:
    clock = Slept()
    account = Account(clock, list(failures))
    with pytest.RaisesGroup(Ended):
        await account.run(Inbox())
    assert not account.connected.is_set()
    assert account.closed == sum(isinstance(failure, ValueError) for failure in failures)  # before each reconnection
    return clock.seconds


async def test_pauses_grow_until_a_connection_succeeds() -> None:
    away = PlatformError("away")
    seconds = await waits(*[away] * 5, None)
    first = [retry_delay(1) for _ in range(100)]
    assert seconds[4] > max(first)
    assert seconds[5] <= 2 * max(first)


async def test_a_platform_can_request_a_pause() -> None:
    (seconds,) = await waits(PlatformError("slow down", retry_after_seconds=45.0))
    assert seconds >= 45.0


async def test_a_repeated_failure_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    away, other = PlatformError("away"), PlatformError("refused")
    await waits(away, away, other, None)
    levels = [(record.getMessage(), record.levelname) for record in caplog.records]
    assert levels == [("away", "WARNING"), ("away", "INFO"), ("refused", "WARNING"), ("away", "WARNING")]


async def test_an_unexpected_error_ends_no_other_account(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first, second, _ = await waits(PlatformError("away"), ValueError("odd"), ValueError("odd"))
    assert 0 < first < second
    assert [(record.levelname, record.getMessage(), record.exc_info is not None) for record in caplog.records] == [
        ("WARNING", "away", False),
        ("WARNING", "ValueError: odd", True),
        ("INFO", "ValueError: odd", True),
    ]


async def test_a_database_error_is_raised_to_the_runner_of_the_account() -> None:
    class Away(Account):
        async def _keep_connected(self, inbox: InboxPort) -> None:
            raise StoreUnavailable("away")

    with pytest.RaisesGroup(StoreUnavailable):
        await Away(Slept(), []).run(Inbox())
