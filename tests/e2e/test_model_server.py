"""The scripted model as a separate program."""

import asyncio
import signal
import sys

import pytest

from shoal.kernel.messages import UserMessage
from shoal.kernel.settings import ProviderSettings
from shoal.models.catalog import build_provider
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.provider import failure, request


@pytest.mark.slow
async def test_the_command_serves_until_it_is_stopped() -> None:
    command = (sys.executable, "-m", "shoal.testing.model", "--port", "0", "--key", "k", "--model", "m-9")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    provider = build_provider("p", ProviderSettings(kind="openai", base_url=f"{url}/v1"), ManualClock(), {})
    assert (await failure(provider, request(UserMessage("hi")))).kind == "auth"
    await provider.close()
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
