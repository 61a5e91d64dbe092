"""The whole app on Discord: what people see there, also after a restart, an outage, a storm of refusals and a click."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.scenarios.kit import in_time

from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.kernel.ports import ROLES_SECONDS
from shoal.sandbox.host import HostSandbox
from shoal.services import Services
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database
from shoal.testing.model import FakeModel, Gate, Reply, Seen, own_words
from shoal.testing.platforms.discord import TOKEN, FakeDiscord
from shoal.testing.platforms.discord_wire import Sent
from shoal.testing.platforms.discord_world import ADA, BOT
from shoal.testing.scenario import FakeModels

SECONDS_MAX = 60.0
STEP_SECONDS = 0.5
"""So little at a time that heartbeats and answers on loopback keep up with the clock."""
STRANGER = "700000000000000009"
CREW = "700000000000000077"


class Pier:
    """A server with one channel, and a direct conversation with ada."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.fake = FakeDiscord(clock)
        self.guild, self.harbour = self.fake.add_server()
        self.direct = self.fake.direct()

    async def sees(self, channel: str, part: str) -> Sent:
        """What the bot wrote, as soon as it stands there; time passes meanwhile."""
        async with asyncio.timeout(SECONDS_MAX):
            return await in_time(self.clock, self.fake.sees(channel, part), STEP_SECONDS)

    async def asks(self, text: str, *, user: str = ADA) -> str:
        """Name the bot in the channel; returns the message's id, which is the thread's."""
        return await self.fake.says(self.harbour, f"<@{BOT}> {text}", user=user)

    async def waits(self, app: Services, prompts: int) -> None:
        """Wait until so many prompts are in the mailboxes, behind a turn that is held."""
        async with asyncio.timeout(SECONDS_MAX):
            while (await app[Store].inbox.backlog()).prompts < prompts:
                await in_time(self.clock, self.clock.sleep(STEP_SECONDS), STEP_SECONDS)


@pytest.fixture
async def pier() -> AsyncIterator[Pier]:
    made = Pier(ManualClock())
    await made.fake.start()
    yield made
    await made.fake.stop()


@asynccontextmanager
async def running(
    home: Path, pier: Pier, model: FakeModel, profile: str = "open",
    overrides: Sequence[Mapping[str, object]] = (), **more: object
) -> AsyncGenerator[Services]:  # fmt: skip
    """The app with one bot, whose owner is ada, connected."""
    account: Mapping[str, object] = {"token": TOKEN, "api_base": pier.fake.api_base, "owner": ADA, **more}
    settings: Mapping[str, object] = {
        "platforms": {"discord": [account]},
        "permissions": {"default_profile": profile, "overrides": overrides},
        "sandbox": {"kind": "host"},
    }
    parts = Overrides(clock=pier.clock, models=FakeModels(model), sandbox=HostSandbox())
    known = len(pier.fake.world.commands)
    empty_database(home / "shoal.db")
    async with open_app(load_config(home, {}, settings), parts) as app:
        if not known:
            await in_time(pier.clock, pier.fake.until(lambda: pier.fake.world.commands or None))
        yield app


async def test_slash_commands_are_answered_to_who_gave_them(tmp_path: Path, pier: Pier) -> None:
    async with running(tmp_path, pier, FakeModel("never")):
        heard = await pier.fake.commands(pier.harbour, "status")
        assert "There are no messages in this channel yet" in await in_time(pier.clock, pier.fake.hears(heard))
        heard = await pier.fake.commands(pier.harbour, "stop", "all", user=STRANGER)
        assert "no access" in await in_time(pier.clock, pier.fake.hears(heard))
    assert not pier.fake.said(pier.harbour)


async def test_a_role_that_was_taken_away_ends_what_its_bearer_had_waiting(tmp_path: Path, pier: Pier) -> None:
    pier.fake.world.roles[STRANGER] = (CREW,)
    gate = Gate()
    model = FakeModel(Reply("held", gate=gate), Reply("for ada"))
    async with running(tmp_path, pier, model, allow=[f"role:{CREW}"]) as app:
        asked = await pier.asks("first", user=STRANGER)
        await in_time(pier.clock, gate.reached.wait())
        await in_time(pier.clock, pier.fake.until(lambda: asked in pier.fake.world.rooms or None))
        await pier.fake.says(asked, "second", user=STRANGER)
        await pier.fake.says(asked, "mine", user=ADA)
        await pier.waits(app, 2)
        await in_time(pier.clock, pier.clock.sleep(ROLES_SECONDS))
        pier.fake.world.roles[STRANGER] = ()
        gate.open()
        await pier.sees(asked, "for ada")
    said = [own_words(seen.messages[-1].text) for seen in model.requests]
    assert not any("second" in text for text in said)
    assert any("mine" in text for text in said)


async def test_rules_for_a_role_follow_the_roles_of_now(tmp_path: Path, pier: Pier) -> None:
    pier.fake.world.roles[ADA] = (CREW,)
    gate = Gate()
    model = FakeModel(Reply("held", gate=gate), "later")
    async with running(tmp_path, pier, model, overrides=[{"roles": [CREW], "deny": ["tool:bash.*"]}]) as app:
        asked = await pier.asks("first", user=ADA)
        await in_time(pier.clock, gate.reached.wait())
        await in_time(pier.clock, pier.fake.until(lambda: pier.fake.world.rooms.get(asked)))
        await pier.fake.says(asked, "second", user=ADA)
        await pier.waits(app, 1)
        await in_time(pier.clock, pier.clock.sleep(ROLES_SECONDS))
        pier.fake.world.roles[ADA] = ()
        gate.open()
        await pier.sees(asked, "later")
    assert ["bash" in {tool.name for tool in seen.tools} for seen in model.requests] == [False, True]


async def test_a_session_that_ends_in_the_middle_of_a_turn_loses_and_repeats_nothing(
    tmp_path: Path, pier: Pier
) -> None:
    gate = Gate()
    async with running(tmp_path, pier, FakeModel(Reply("first", gate=gate), "second")):
        await pier.fake.says(pier.direct, "one")
        await in_time(pier.clock, gate.reached.wait())
        pier.fake.gateway.forget()  # what is resumed is answered by an invalid session
        await pier.fake.gateway.end(4000)
        await pier.fake.says(pier.direct, "two")  # nobody tells the bot
        identified = pier.fake.gateway.identified
        await in_time(pier.clock, pier.fake.until(lambda: pier.fake.gateway.identified > identified))
        gate.open()
        await pier.sees(pier.direct, "second")
    assert [message.text for message in pier.fake.said(pier.direct)] == ["first", "second"]


async def test_a_post_that_was_never_confirmed_is_found_hours_after(tmp_path: Path, pier: Pier) -> None:
    """Discord has forgotten the nonce; what says the same and is another post's does not count."""

    def tides(seen: Seen) -> str:
        return "It is high." if "then" in seen.user_text else "The tide is low."

    async with running(tmp_path, pier, FakeModel(script=tides)) as app:
        await pier.fake.says(pier.direct, "how is the tide?")
        await pier.sees(pier.direct, "The tide is low.")
        while await app[Store].outbox.depth():
            await pier.clock.advance(STEP_SECONDS)
        pier.fake.server.mute = lambda called: called.method == "POST" and called.path.endswith("/messages")
        await pier.fake.says(pier.direct, "and now?")
        await in_time(pier.clock, pier.fake.until(lambda: len(pier.fake.said(pier.direct)) == 2 or None), STEP_SECONDS)
    pier.fake.server.mute = lambda _: False
    await pier.clock.advance(6 * 3600)
    async with running(tmp_path, pier, FakeModel(script=tides)):
        await pier.fake.says(pier.direct, "and then?")
        await pier.sees(pier.direct, "It is high.")
    texts = [message.text for message in pier.fake.said(pier.direct)]
    assert texts == ["The tide is low.", "The tide is low.", "It is high."]


async def test_its_own_replies_are_no_unknown_messages(
    tmp_path: Path, pier: Pier, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, pier, FakeModel("The tide is low.", "It is high.")):
        await pier.fake.says(pier.direct, "how is the tide?")
        await pier.sees(pier.direct, "The tide is low.")
        assert pier.fake.said(pier.direct)[-1].reply_to, "Discord calls it a message of the type 19"
        await pier.fake.says(pier.direct, "and then?")
        await pier.sees(pier.direct, "It is high.")
    assert "message of the type" not in caplog.text


async def test_settings_hold_in_the_server_where_they_were_made(tmp_path: Path, pier: Pier) -> None:
    deck = pier.fake.add_channel(pier.guild, name="deck")
    other, far = pier.fake.add_server()
    assert other != pier.guild
    async with running(tmp_path, pier, FakeModel()):
        heard = await pier.fake.commands(pier.harbour, "settings", "permissions locked")
        assert f"in discord@{pier.guild} from the next turn on" in await in_time(pier.clock, pier.fake.hears(heard))
        for channel, part in ((deck, "in this server: permissions locked"), (deck, "the permissions locked"),
                              (far, "in this server: nothing chosen"), (far, "the permissions open"),
                              (pier.direct, "the permissions open")):  # fmt: skip
            heard = await pier.fake.commands(channel, "settings")
            assert part in await in_time(pier.clock, pier.fake.hears(heard))


async def test_two_bots_answer_each_in_its_own_name(tmp_path: Path, pier: Pier) -> None:
    other = Pier(pier.clock)
    await other.fake.start()
    accounts = [
        {"account": name, "token": TOKEN, "api_base": one.fake.api_base, "owner": ADA}
        for name, one in (("main", pier), ("second", other))
    ]
    overrides: Mapping[str, object] = {"platforms": {"discord": accounts}, "sandbox": {"kind": "host"}}
    parts = Overrides(clock=pier.clock, models=FakeModels(FakeModel("hello", "hello")), sandbox=HostSandbox())
    async with open_app(load_config(tmp_path, {}, overrides), parts) as app:
        for one in (pier, other):
            await in_time(pier.clock, one.fake.until(lambda one=one: one.fake.world.commands or None))
            await one.fake.says(one.direct, "hi")
            await one.sees(one.direct, "hello")
        found = {row.thread.partition(":")[0] for row in await app[Store].journal.threads()}
    assert found == {"discord", "discord.second"}
    await other.fake.stop()


async def test_fifty_threads_of_one_channel_answer_within_its_window(tmp_path: Path, pier: Pier) -> None:
    def script(seen: Seen) -> str:
        asked = own_words(seen.messages[-1].text)  # what follows tells of other threads
        return "the answer to " + re.findall(r"question (\d\d)", asked)[0]

    async with running(tmp_path, pier, FakeModel(script=script), threading="reply"):
        asked = [await pier.asks(f"question {number:02}") for number in range(50)]
        for number in range(50):
            coming = pier.fake.sees(pier.harbour, f"the answer to {number:02}")
            await in_time(pier.clock, coming, 0.1)  # less than what the adapter leaves free in its window
    said = pier.fake.said(pier.harbour)
    assert sorted(message.text for message in said) == [f"the answer to {number:02}" for number in range(50)]
    assert {message.reply_to for message in said} == set(asked)
    times = sorted(at for at, channel in pier.fake.posted if channel == pier.harbour)
    assert all(later - earlier >= 5.0 for earlier, later in zip(times, times[5:], strict=False))
    assert pier.fake.exceeded < 50  # few: time passes while a call is on its way, so that some come too early
