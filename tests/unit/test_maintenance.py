"""Maintenance tasks run often enough."""

import asyncio

import pytest

from shoal.maintenance import EXPIRY_CHECK_SECONDS, watch_approvals
from shoal.testing import ManualClock


class Looks:
    def __init__(self) -> None:
        self.times = 0

    async def expire_approvals(self) -> None:
        self.times += 1


@pytest.mark.parametrize(("ask_expires_seconds", "pause"), [(2, 2), (3600, EXPIRY_CHECK_SECONDS)])
async def test_short_lived_approvals_expire_soon(ask_expires_seconds: float, pause: float) -> None:
    looks, clock = Looks(), ManualClock()
    watching = asyncio.create_task(watch_approvals(looks.expire_approvals, clock, ask_expires_seconds))
    await clock.advance(pause / 2)
    assert looks.times == 1
    await clock.advance(pause / 2)
    assert looks.times == 2
    watching.cancel()
