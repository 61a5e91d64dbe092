"""The app on Discord: slash commands, roles, sessions, nonces and servers."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.scenarios.kit import in_time
from tests.scenarios.scene import SECONDS_MAX, STEP_SECONDS, Scene, playing
from tests.scenarios.stands import DiscordStand

from shoal.kernel.ports import ROLES_SECONDS
from shoal.store.store import Store
from shoal.testing.model import FakeModel, Gate, Reply, Seen, own_words
from shoal.testing.platforms.discord_wire import Sent
from shoal.testing.platforms.discord_world import BOT

pytestmark = pytest.mark.parametrize("stand", ["discord"], indirect=True)
CREW = "700000000000000077"
NATIVE: Mapping[str, object] = {"threading": "native"}


async def sees(stand: DiscordStand, channel: str, part: str) -> Sent:
    async with asyncio.timeout(SECONDS_MAX):
        return await in_time(stand.clock, stand.fake.sees(channel, part), STEP_SECONDS)


async def asks(stand: DiscordStand, text: str, *, user: str) -> str:
    """Name the bot in the channel and return the id of the message, which is also the id of its thread."""
    return await stand.fake.says(stand.harbour, f"<@{BOT}> {text}", user=user)


async def waits(scene: Scene, prompts: int) -> None:
    async def are_there() -> bool:
        return (await scene.app[Store].inbox.backlog()).prompts >= prompts

    await scene.comes(are_there)


async def test_the_answer_to_a_slash_command_is_shown_only_to_its_author(tmp_path: Path, stand: DiscordStand) -> None:
    async with playing(stand, tmp_path, FakeModel("never"), accounts=[NATIVE]):
        heard = await stand.fake.commands(stand.harbour, "status")
        assert "This channel has no messages yet" in await in_time(stand.clock, stand.fake.hears(heard))
        heard = await stand.fake.commands(stand.harbour, "stop", "all", user=stand.stranger)
        assert "You do not have access here." in await in_time(stand.clock, stand.fake.hears(heard))
    assert not stand.fake.said(stand.harbour)


async def test_losing_a_role_ends_the_persons_pending_work(tmp_path: Path, stand: DiscordStand) -> None:
    stand.fake.world.roles[stand.stranger] = (CREW,)
    gate = Gate()
    model = FakeModel(Reply("held", gate=gate), Reply("for ada"))
    async with playing(stand, tmp_path, model, accounts=[{**NATIVE, "allow": [f"role:{CREW}"]}]) as scene:
        asked = await asks(stand, "first", user=stand.stranger)
        await in_time(stand.clock, gate.reached.wait())
        await in_time(stand.clock, stand.fake.until(lambda: asked in stand.fake.world.rooms or None))
        await stand.fake.says(asked, "second", user=stand.stranger)
        await stand.fake.says(asked, "mine", user=stand.ada)
        await waits(scene, 2)
        await in_time(stand.clock, stand.clock.sleep(ROLES_SECONDS))
        stand.fake.world.roles[stand.stranger] = ()
        gate.open()
        await sees(stand, asked, "for ada")
    said = [own_words(seen.messages[-1].text) for seen in model.requests]
    assert not any("second" in text for text in said)
    assert any("mine" in text for text in said)


async def test_rules_for_a_role_follow_current_roles(tmp_path: Path, stand: DiscordStand) -> None:
    stand.fake.world.roles[stand.ada] = (CREW,)
    gate = Gate()
    model = FakeModel(Reply("held", gate=gate), "later")
    rules = {"permissions": {"overrides": [{"roles": [CREW], "deny": ["tool:bash.*"]}]}}
    async with playing(stand, tmp_path, model, settings=rules, accounts=[NATIVE]) as scene:
        asked = await asks(stand, "first", user=stand.ada)
        await in_time(stand.clock, gate.reached.wait())
        await in_time(stand.clock, stand.fake.until(lambda: stand.fake.world.rooms.get(asked)))
        await stand.fake.says(asked, "second", user=stand.ada)
        await waits(scene, 1)
        await in_time(stand.clock, stand.clock.sleep(ROLES_SECONDS))
        stand.fake.world.roles[stand.ada] = ()
        gate.open()
        await sees(stand, asked, "later")
    assert ["bash" in {tool.name for tool in seen.tools} for seen in model.requests] == [False, True]


async def test_a_session_that_ends_during_a_turn_loses_and_repeats_nothing(tmp_path: Path, stand: DiscordStand) -> None:
    gate = Gate()
    async with playing(stand, tmp_path, FakeModel(Reply("first", gate=gate), "second"), accounts=[NATIVE]):
        await stand.fake.says(stand.direct, "one")
        await in_time(stand.clock, gate.reached.wait())
        stand.fake.gateway.forget()  # the gateway then rejects the resume as an invalid session
        await stand.fake.gateway.end(4000)
        await stand.fake.says(stand.direct, "two")  # the bot does not receive this event
        identified = stand.fake.gateway.identified
        await in_time(stand.clock, stand.fake.until(lambda: stand.fake.gateway.identified > identified))
        gate.open()
        await sees(stand, stand.direct, "second")
    assert [message.text for message in stand.fake.said(stand.direct)] == ["first", "second"]


async def test_an_unconfirmed_post_is_found_hours_later(tmp_path: Path, stand: DiscordStand) -> None:
    """Discord forgets the nonce of a post within hours. An older post with the same text must not be mistaken for
    the unconfirmed one.
    """

    def tides(seen: Seen) -> str:
        return "It is high." if "then" in seen.user_text else "The tide is low."

    async with playing(stand, tmp_path, FakeModel(script=tides), accounts=[NATIVE]) as scene:
        await stand.fake.says(stand.direct, "how is the tide?")
        await sees(stand, stand.direct, "The tide is low.")
        while await scene.app[Store].outbox.depth():
            await stand.clock.advance(STEP_SECONDS)
        stand.fake.server.mute = lambda called: called.method == "POST" and called.path.endswith("/messages")
        await stand.fake.says(stand.direct, "and now?")
        await in_time(
            stand.clock, stand.fake.until(lambda: len(stand.fake.said(stand.direct)) == 2 or None), STEP_SECONDS
        )
    stand.fake.server.mute = lambda _: False
    await stand.clock.advance(6 * 3600)
    async with playing(stand, tmp_path, FakeModel(script=tides), accounts=[NATIVE]):
        await stand.fake.says(stand.direct, "and then?")
        await sees(stand, stand.direct, "It is high.")
    texts = [message.text for message in stand.fake.said(stand.direct)]
    assert texts == ["The tide is low.", "The tide is low.", "It is high."]


async def test_own_replies_are_not_unknown_messages(
    tmp_path: Path, stand: DiscordStand, caplog: pytest.LogCaptureFixture
) -> None:
    async with playing(stand, tmp_path, FakeModel("The tide is low.", "It is high."), accounts=[NATIVE]):
        await stand.fake.says(stand.direct, "how is the tide?")
        await sees(stand, stand.direct, "The tide is low.")
        assert stand.fake.said(stand.direct)[-1].reply_to, "Discord calls it a message of the type 19"
        await stand.fake.says(stand.direct, "and then?")
        await sees(stand, stand.direct, "It is high.")
    assert "message of type" not in caplog.text


async def test_server_settings_apply_only_in_their_server(tmp_path: Path, stand: DiscordStand) -> None:
    deck = stand.fake.add_channel(stand.guild, name="deck")
    other, far = stand.fake.add_server()
    assert other != stand.guild
    async with playing(stand, tmp_path, FakeModel(), accounts=[NATIVE]):
        heard = await stand.fake.commands(stand.harbour, "settings", "permissions locked")
        assert f"in discord@{stand.guild}. The change takes effect on the next turn" in await in_time(
            stand.clock, stand.fake.hears(heard)
        )
        for channel, part in ((deck, "in this server: permissions locked"), (deck, "the permissions locked"),
                              (far, "in this server: nothing chosen"), (far, "the permissions open"),
                              (stand.direct, "the permissions open")):  # fmt: skip
            heard = await stand.fake.commands(channel, "settings")
            assert part in await in_time(stand.clock, stand.fake.hears(heard))


async def test_two_bots_answer_under_their_own_names(tmp_path: Path, stand: DiscordStand) -> None:
    other = DiscordStand(stand.clock)
    await other.start()
    accounts: list[Mapping[str, object]] = [{}, {**other.account(), "account": "second"}]
    async with playing(stand, tmp_path, FakeModel("hello", "hello"), accounts=accounts) as scene:
        for one in (stand, other):
            await scene.until(lambda one=one: one.fake.world.commands or None)
            await one.says("hi", one.direct, one.ada)
            await sees(one, one.direct, "hello")
        found = {row.thread.partition(":")[0] for row in await scene.app[Store].journal.threads()}
    assert found == {"discord", "discord.second"}
    await other.stop()


async def test_fifty_threads_of_one_channel_answer_within_its_window(tmp_path: Path, stand: DiscordStand) -> None:
    def script(seen: Seen) -> str:
        asked = own_words(seen.messages[-1].text)  # the rest of the text mentions other threads
        return "the answer to " + re.findall(r"question (\d\d)", asked)[0]

    async with playing(stand, tmp_path, FakeModel(script=script)):
        asked = [await asks(stand, f"question {number:02}", user=stand.ada) for number in range(50)]
        for number in range(50):
            coming = stand.fake.sees(stand.harbour, f"the answer to {number:02}")
            # a step shorter than the margin that the adapter leaves in its rate window
            await in_time(stand.clock, coming, 0.1)
    said = stand.fake.said(stand.harbour)
    assert sorted(message.text for message in said) == [f"the answer to {number:02}" for number in range(50)]
    assert {message.reply_to for message in said} == set(asked)
    times = sorted(at for at, channel in stand.fake.posted if channel == stand.harbour)
    assert all(later - earlier >= 5.0 for earlier, later in zip(times, times[5:], strict=False))
    assert stand.fake.exceeded < 50  # some posts are early, because the clock advances while they are sent
