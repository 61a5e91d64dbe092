"""An approval of staged calls on each platform: the text, the decisions and the updates."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.scenarios.scene import Scene, playing
from tests.scenarios.stands import Seen, Stand
from tests.scenarios.test_staging import ADA, Outside, sends

from shoal.connections import Connections
from shoal.kernel.posts import ChatLimits
from shoal.platforms.inbox import press
from shoal.testing.chat import LIMITS, FakeChat
from shoal.testing.model import FakeModel
from shoal.testing.scenario import scenario
from shoal.threads.access_gate import OpenInbox

WITH_BUTTONS = ["telegram", "discord", "slack", "teams", "google_chat"]
WITH_REACTIONS = ["telegram", "discord", "slack", "matrix", "teams"]


def limits(scene: Scene) -> ChatLimits:
    return scene.app[Connections].adapters[scene.stand.platform].limits


async def card_of(scene: Scene) -> Seen:
    await scene.ada.says("write to bob and eve")
    await scene.ada.sees("I prepared two messages.")
    card = await scene.ada.sees("Run these 2 actions?")
    for part in ("Nothing has been done yet", "1.", "hello bob", "2.", "hello eve"):
        assert part in card.text
    return card


def model() -> FakeModel:
    return FakeModel(sends("bob", "eve"), "I prepared two messages.")


async def changes(scene: Scene, card: Seen, *, done: int) -> None:
    def look() -> Seen | None:
        now = next(seen for seen in scene.stand.said() if seen.id == card.id)
        counts = now.text.count("Done."), now.text.count("It did not run.")
        return now if counts == (done, 2 - done) else None

    assert (await scene.until(look)).buttons == ()


@pytest.mark.parametrize("stand", WITH_BUTTONS, indirect=True)
async def test_a_button_accepts_all_staged_calls(tmp_path: Path, stand: Stand) -> None:
    outside = Outside(tmp_path / "sent")
    async with playing(stand, tmp_path, model(), profile="standard", tools=[outside.tool()]) as scene:
        card = await card_of(scene)
        assert card.buttons == ("Do all", "Choose", "Always allow all", "Discard")
        assert "Accepted." in await scene.until(await stand.clicks(card, "Do all", stand.ada))
        await scene.happens(scene.ada.thread, "turn_finished", 2)
        assert outside.sent == ["bob", "eve"]
        await changes(scene, card, done=2)


@pytest.mark.parametrize("stand", WITH_BUTTONS, indirect=True)
async def test_ticks_choose_staged_calls(tmp_path: Path, stand: Stand) -> None:
    outside = Outside(tmp_path / "sent")
    async with playing(stand, tmp_path, model(), profile="standard", tools=[outside.tool()]) as scene:
        card = await card_of(scene)

        async def presses(label: str, shows: str) -> Seen:
            now = next(seen for seen in stand.said() if seen.id == card.id)
            pressed = next(button for button in now.buttons if button.startswith(label))
            await stand.clicks(now, pressed, stand.ada)

            def look() -> Seen | None:
                return next((one for one in stand.said() if one.id == card.id and shows in one.buttons), None)

            return await scene.until(look)

        assert len((await presses("Choose", "Do 1 and 2")).buttons) == 4
        last = await presses("☑ 2", "Do 1, discard the rest")
        await stand.clicks(last, "Do 1, discard the rest", stand.ada)
        await scene.happens(scene.ada.thread, "turn_finished", 2)
        assert outside.sent == ["bob"]
        await changes(scene, card, done=1)


@pytest.mark.parametrize("stand", WITH_REACTIONS, indirect=True)
@pytest.mark.parametrize(("emoji", "sent"), [("👍", ["bob", "eve"]), ("👎", [])])
async def test_a_reaction_decides_staged_calls(tmp_path: Path, stand: Stand, emoji: str, sent: list[str]) -> None:
    outside = Outside(tmp_path / "sent")
    async with playing(stand, tmp_path, model(), profile="standard", tools=[outside.tool()]) as scene:
        card = await card_of(scene)
        await scene.thread_of(card)  # a person would react only after Shoal has recorded its post
        await stand.reacts(card, emoji, stand.ada)
        await changes(scene, card, done=len(sent))
        assert outside.sent == sent


@pytest.mark.parametrize("stand", [*WITH_BUTTONS, "matrix"], indirect=True)
@pytest.mark.parametrize(("words", "sent"), [("do all", ["bob", "eve"]), ("do 2", ["eve"]), ("discard", [])])
async def test_words_decide_staged_calls(tmp_path: Path, stand: Stand, words: str, sent: list[str]) -> None:
    outside = Outside(tmp_path / "sent")
    async with playing(stand, tmp_path, model(), profile="standard", tools=[outside.tool()]) as scene:
        card = await card_of(scene)
        if not limits(scene).has_buttons:
            assert "To decide, write" in card.text
        await scene.ada.says(words)
        await changes(scene, card, done=len(sent))
        assert outside.sent == sent


async def test_words_choose_calls_where_messages_cannot_be_edited(tmp_path: Path) -> None:
    outside, chat = Outside(tmp_path / "sent"), FakeChat(limits=replace(LIMITS, can_edit=False))
    settings = {"permissions": {"default_profile": "standard"}}
    async with scenario(tmp_path, model(), tools=[outside.tool()], settings=settings, chat=chat) as world:
        await world.ada.says("write to bob and eve")
        card = await world.ada.sees("Run these 2 actions?")
        value = next(button.value for button in card.buttons if button.label == "Choose")
        words = await press(value, world.ada.thread, ADA, world.app[OpenInbox])
        assert words == f"Write `do {value.split(':')[1][-8:]} 1 2` to do calls 1 and 2 and discard the rest."
        await world.ada.says(words.split("`")[1].removesuffix(" 2"))
        await world.happens(world.ada.thread, "turn_finished", 2)
        assert outside.sent == ["bob"]
