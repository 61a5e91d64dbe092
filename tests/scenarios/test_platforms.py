"""The complete app on each platform: approvals, files and commands, across restarts and outages."""

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from tests.scenarios.kit import calls
from tests.scenarios.scene import PAUSE_SECONDS, playing
from tests.scenarios.stands import Stand, WireStand

from shoal.agents.registry import AgentRegistry
from shoal.connections import Connections
from shoal.kernel.clock import SystemClock
from shoal.kernel.ids import make_thread_id
from shoal.kernel.permissions import Asker
from shoal.platforms.account import ChatAccount
from shoal.platforms.google_chat.adapter import GoogleChatAdapter
from shoal.platforms.teams.adapter import TeamsAdapter
from shoal.store.store import Store
from shoal.testing.model import FakeModel, Gate, Reply
from shoal.testing.platforms.google_chat import FakeGoogleChat
from shoal.testing.platforms.teams import FakeTeams
from shoal.threads.orchestrator import Orchestrator

BUTTONS = ["telegram", "discord", "slack", "teams", "google_chat"]
on_three = pytest.mark.parametrize("stand", ["telegram", "discord", "slack"], indirect=True)
on_all = pytest.mark.parametrize("stand", [*BUTTONS, "matrix"], indirect=True)
CALLED = ["teams", "google_chat"]
"""Platforms that call Shoal."""
MAKES = calls("bash", arguments='{"command": "echo x > made"}')
COMMANDS = {
    "/context": "This conversation is empty.",
    "/thread list": "main has no threads here.",
    "/tasks": "main is idle.",
    "/model": "uses demo",
    "/agent list": "main demo, open (default, idle)",
    "/settings": "in this channel: nothing chosen",
}


@pytest.mark.parametrize(
    ("stand", "by"),
    [(name, by) for name in BUTTONS for by in ("button", "words", "command") if by != "command" or name in BUTTONS[:3]],
    indirect=["stand"],
)
async def test_an_approval_is_granted(tmp_path: Path, stand: Stand, by: str) -> None:
    async with playing(stand, tmp_path, FakeModel(MAKES, "It is made."), profile="standard") as scene:
        await scene.ada.says("go")
        card = await scene.ada.sees("echo x > made")
        (asked,) = await scene.app[Store].approvals.search()
        if by == "button":
            told = await stand.clicks(card, "Allow once", stand.ada)
            assert stand.platform in CALLED or await scene.until(told) == "Allowed."
        elif by == "words":
            await scene.ada.says(f"allow {asked.id[-8:]}")
        else:
            await scene.ada.asks(f"/approve {asked.id}")
        await scene.ada.sees("It is made.")
        assert (scene.app[AgentRegistry].spec("main").workspace / "made").read_text() == "x\n"
        settled = await scene.ada.sees("it ran")
    assert (settled.id, settled.buttons) == (card.id, ())


@on_all
async def test_a_reaction_stops_the_turn(tmp_path: Path, stand: Stand) -> None:
    model = FakeModel(Reply("Let me count: one, two, three, four, five", gate=Gate(), gate_at=2))
    async with playing(stand, tmp_path, model) as scene:
        await scene.bob.says("count")
        preview = await scene.until(lambda: next(iter(stand.previews()), None))
        assert preview is not None
        await scene.thread_of(preview)  # a person would react only after Shoal has recorded its post
        await stand.reacts(preview, "❌", stand.bob)
        assert (await scene.bob.sees("Stopped")).id == preview.id


@on_three
async def test_files_are_sent_and_received(tmp_path: Path, stand: Stand) -> None:
    writes = calls("bash", arguments='{"command": "echo high > tides.txt"}')
    model = FakeModel(writes, calls("upload", arguments='{"path": "tides.txt"}'), "Sent.")
    async with playing(stand, tmp_path, model) as scene:
        await scene.ada.says("here", file=("question.txt", b"When is high tide?\n"))
        await scene.ada.sees("Sent.")
    assert "When is high tide?" in str(model.requests[0].messages[-1])
    assert [seen.file for seen in stand.said() if seen.file] == [("tides.txt", b"high\n")]


@on_three
async def test_commands_are_answered_without_the_model(tmp_path: Path, stand: Stand) -> None:
    model = FakeModel()
    async with playing(stand, tmp_path, model) as scene:
        for line, part in COMMANDS.items():
            assert part in await scene.ada.asks(line)
    assert not model.requests


@pytest.mark.parametrize("stand", ["telegram", "discord", "slack", "matrix"], indirect=True)
async def test_a_restart_answers_messages_from_the_downtime_once(tmp_path: Path, stand: Stand) -> None:
    async with playing(stand, tmp_path, FakeModel("first")) as scene:
        await scene.ada.says("one")
        await scene.ada.sees("first")
    await stand.says("while it was away", stand.direct, stand.ada)
    async with playing(stand, tmp_path, FakeModel("second")) as scene:
        await scene.ada.sees("second")
        assert scene.texts() == ["first", "second"]


@on_three
async def test_an_outage_of_an_hour_loses_nothing_in_either_direction(tmp_path: Path, stand: Stand) -> None:
    model = FakeModel(MAKES, "after the outage", "and again")
    async with playing(stand, tmp_path, model, profile="standard") as scene:
        await scene.ada.says("go")
        await scene.ada.sees("echo x")
        await stand.stop()
        (asked,) = await scene.app[Store].approvals.search()
        await scene.app[Orchestrator].decide(
            asked.id, True, Asker(trust="trusted", user=stand.ada, platform=stand.platform)
        )
        for _ in range(60):
            await stand.clock.advance(60)
        assert await scene.app[Store].outbox.depth() > 0
        # the bot does not receive this message during the outage
        await stand.says("are you there?", stand.direct, stand.ada)
        await stand.start()
        await scene.ada.sees("after the outage")
        await scene.ada.sees("and again")
        assert scene.texts().count("after the outage") == 1


@on_three
async def test_a_storm_of_refusals_ends_with_one_reply(tmp_path: Path, stand: Stand) -> None:
    assert isinstance(stand, WireStand)
    stand.fake.troubles.extend([("refuse", 5.0), ("fail", 0.0), ("refuse", 30.0), ("fail", 0.0)])
    async with playing(stand, tmp_path, FakeModel("at last")) as scene:
        await scene.ada.says("go")
        await scene.ada.sees("at last")
        await scene.until(lambda: not stand.fake.troubles)
        assert [text.removeprefix("(possible duplicate)\n") for text in scene.texts()] == ["at last"]


@pytest.mark.parametrize("stand", BUTTONS, indirect=True)
async def test_an_untrusted_person_gets_a_code_and_no_answer(tmp_path: Path, stand: Stand) -> None:
    model = FakeModel("for ada")
    async with playing(stand, tmp_path, model) as scene:
        stranger = scene.person(stand.stranger, stand.strange)
        await stranger.says("let me in")
        await stranger.sees("shoal pair")
        await stranger.says("let me in")
        await scene.ada.says("hi")
        await scene.ada.sees("for ada")
        assert len(scene.texts(stand.strange)) == 1
    assert len(model.requests) == 1


@on_all
async def test_a_channel_thread_is_followed_after_a_mention(tmp_path: Path, stand: Stand) -> None:
    model = FakeModel("Hello in here", "And again")
    async with playing(stand, tmp_path, model) as scene:
        await stand.says("nothing for you", stand.harbour, stand.bob, named=False)
        await scene.bob.says("what is the tide?")
        first = await scene.bob.sees("Hello in here")
        await stand.says("thanks, and tomorrow?", stand.harbour, stand.bob, first, named=False)
        second = await scene.bob.sees("And again")
    assert second.place == first.place
    assert len(model.requests) == 2


@pytest.mark.parametrize("stand", CALLED, indirect=True)
async def test_each_account_answers_its_own_messages(
    tmp_path: Path, stand: WireStand[FakeTeams | FakeGoogleChat]
) -> None:
    accounts: list[Mapping[str, object]] = [{}, {"account": "second"}]
    async with playing(stand, tmp_path, FakeModel("one", "two"), accounts=accounts) as scene:
        await scene.ada.says("first")
        await scene.ada.sees("one")
        second = scene.app[Connections].adapters[f"{stand.platform}.second"]
        assert isinstance(second, TeamsAdapter | GoogleChatAdapter)
        stand.fake.deliver = second.receive
        await scene.ada.says("second")
        await scene.ada.sees("two")
        threads = {row.thread for row in await scene.app[Store].journal.threads()}
    assert {make_thread_id(name, stand.direct, "0") for name in (stand.platform, f"{stand.platform}.second")} <= threads


@on_all
async def test_a_post_under_way_ends_before_its_connection_is_closed(tmp_path: Path, stand: Stand) -> None:
    assert isinstance(stand, WireStand)
    async with playing(stand, tmp_path, FakeModel("It is done.")) as scene:
        adapter = scene.app[Connections].adapters[stand.platform]
        assert isinstance(adapter, ChatAccount)
        stand.fake.troubles.append(("delay", 0.0))
        await scene.ada.says("go")
        await scene.ada.sees("It is done.")

        async def answer_late() -> None:
            while adapter.connected.is_set():
                await SystemClock().sleep(PAUSE_SECONDS)
            await stand.fake.let_go()

        answering = asyncio.create_task(answer_late())
    await answering
    with closing(sqlite3.connect(tmp_path / "shoal.db")) as database:
        assert database.execute("select state, maybe_sent, error from outbox").fetchall() == [("sent", 0, "")]
