"""The complete app with a webhook chat: replies, approvals, an outage, a long reply, and a real HTTP process."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.processes import running as process
from tests.scenarios.kit import in_time

from shoal.agents.registry import AgentRegistry
from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.connections import Connections
from shoal.kernel.clock import Clock, SystemClock
from shoal.kernel.posts import WRITING
from shoal.platforms.webhook import WebhookAdapter
from shoal.sandbox.host import HostSandbox
from shoal.services import Services
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.platforms.webhook import SECRET, FakeHookChat, HookPosted
from shoal.testing.scenario import FakeModels

SECONDS_MAX = 60.0


@asynccontextmanager
async def chat(clock: Clock) -> AsyncGenerator[FakeHookChat]:
    found = FakeHookChat(clock)
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@asynccontextmanager
async def running(home: Path, hook: FakeHookChat, model: FakeModel, clock: Clock) -> AsyncGenerator[Services]:
    account = {"secret": SECRET, "post_url": f"{hook.server.address}/take", "owner": "ada"}
    overrides: Mapping[str, object] = {
        "platforms": {"webhook": {"ticker": account}}, "sandbox": {"kind": "host"},
    }  # fmt: skip
    parts = Overrides(clock=clock, models=FakeModels(model), sandbox=HostSandbox())
    empty_database(home / "shoal.db")
    async with open_app(load_config(home, {}, overrides), parts) as app:
        adapter = app[Connections].adapters["ticker"]
        assert isinstance(adapter, WebhookAdapter)
        await adapter.connected.wait()
        hook.deliver = adapter.receive
        yield app


async def sees(hook: FakeHookChat, part: str, times: int = 1) -> HookPosted:
    def found() -> HookPosted | None:
        done = [one for one in hook.messages if part in one.text and not one.text.endswith(WRITING)]
        return done[times - 1] if len(done) >= times else None

    async with asyncio.timeout(SECONDS_MAX):
        return await hook.until(found)


async def test_an_approval_is_granted_by_button_and_by_text(tmp_path: Path, clock: ManualClock) -> None:
    asks = Reply(calls=(Call("bash", '{"command": "echo x >> made"}'),))
    async with chat(clock) as hook, running(tmp_path, hook, FakeModel(asks, "one", asks, "two"), clock) as app:
        await hook.says("harbour", "7", "go")
        card = await in_time(clock, sees(hook, "echo x"))
        await hook.clicks(card.id, "Allow once")
        await in_time(clock, sees(hook, "one"))
        await hook.says("harbour", "7", "again")
        card = await in_time(clock, sees(hook, "echo x", 2))
        asked = dict(card.buttons)["Allow once"].partition(":")[2]
        await hook.says("harbour", "7", f"allow {asked}")
        await in_time(clock, sees(hook, "two"))
        assert (app[AgentRegistry].spec("main").workspace / "made").read_text() == "x\nx\n"


@pytest.mark.slow
async def test_a_real_process_answers_over_http_and_survives_a_kill(tmp_path: Path) -> None:
    async with chat(SystemClock()) as hook:
        (tmp_path / "shoal.toml").write_text(
            f'[platforms.webhook.ticker]\nsecret = "{SECRET}"\nowner = "ada"\npost_url = "{hook.server.address}/take"\n'
        )
        for times, text in enumerate(("hello", "once more"), 1):
            with process(tmp_path) as server:
                hook.call(f"{server.address}/platforms/ticker")
                assert (await hook.tells({"type": "message"})).status == 400
                await hook.says("harbour", "7", text)
                await sees(hook, "", times)
                server.process.send_signal(signal.SIGKILL)
        assert len(hook.messages) == 2
