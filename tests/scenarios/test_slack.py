"""The app on Slack: the home tab, streams, sockets and workspaces."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.scenarios.kit import in_time
from tests.scenarios.scene import playing
from tests.scenarios.stands import SlackStand

from shoal.kernel.ids import ThreadId
from shoal.store.store import Store
from shoal.testing.model import FakeModel, Gate, Reply

pytestmark = pytest.mark.parametrize("stand", ["slack"], indirect=True)


async def test_the_home_tab_explains_how_to_address_the_agent(tmp_path: Path, stand: SlackStand) -> None:
    async with playing(stand, tmp_path, FakeModel()):
        await stand.fake.opens_home(stand.ada, "messages")
        await stand.fake.opens_home(stand.bob)
        await in_time(stand.clock, stand.fake.called("views.publish"))
    assert list(stand.fake.homes) == [stand.bob]
    how, commands = (str(block) for block in stand.fake.homes[stand.bob])
    assert "mention me in a channel" in how
    assert "`/voice [on|off|auto]` answer aloud" in commands


async def test_an_answer_is_streamed(tmp_path: Path, stand: SlackStand) -> None:
    gate = Gate()
    model = FakeModel(Reply("Let me count: one, two, three", gate=gate, gate_at=3))
    async with playing(stand, tmp_path, model) as scene:
        await scene.bob.says("count")
        await in_time(stand.clock, stand.fake.called("chat.startStream"))
        (shown,) = stand.fake.said(stand.harbour)
        assert shown.streaming
        assert shown.thread_ts
        assert "Let me count".startswith(shown.text[:12])
        gate.open()
        done = await scene.bob.sees("one, two, three")
    assert done.id == shown.ts
    assert len(stand.fake.said(stand.harbour)) == 1


async def test_a_socket_refresh_during_a_turn_loses_and_repeats_nothing(tmp_path: Path, stand: SlackStand) -> None:
    gate = Gate()
    async with playing(stand, tmp_path, FakeModel(Reply("first", gate=gate), "second")) as scene:
        await scene.ada.says("one")
        await in_time(stand.clock, gate.reached.wait())
        await stand.fake.socket.ask_to_reconnect()
        await scene.ada.says("two")
        gate.open()
        await scene.ada.sees("second")
        texts = scene.texts()
    assert (sum("first" in text for text in texts), sum("second" in text for text in texts)) == (1, 1)


async def test_two_workspaces_get_their_own_answers(tmp_path: Path, stand: SlackStand) -> None:
    other = SlackStand()
    await other.start()
    accounts: list[Mapping[str, object]] = [{}, {**other.account(), "account": "second"}]
    async with playing(stand, tmp_path, FakeModel("one", "two"), accounts=accounts) as scene:
        await scene.ada.says("first")
        await scene.ada.sees("one")
        await other.says("second", other.direct, other.ada)
        await scene.until(lambda: next((seen for seen in other.said() if "two" in seen.text), None))
        for thread in (f"slack:{stand.direct}:0", f"slack.second:{other.direct}:0"):
            assert await scene.app[Store].journal.events(ThreadId(thread))
    assert [len(one.fake.said(one.direct)) for one in (stand, other)] == [1, 1]
    await other.stop()
