"""Kills of a real process on every platform. No message is lost. None is answered twice if Shoal can detect that."""

import asyncio
from pathlib import Path

import pytest
from tests.scenarios.platform_life import PLACES, Place, life, opened, until

from shoal.testing.model import FakeModel, FakeSettings, Gate, Reply, Seen

pytestmark = pytest.mark.slow

ANSWER, SECOND = "The tide is high today.", "And low again at noon."
REPEATED = "(possible duplicate)"


class Tides:
    """A scripted model that answers questions about the tide. Its first reply blocks at `gate`."""

    def __init__(self, gate: Gate | None = None, gate_at: int = 0) -> None:
        self._gate = gate
        self._gate_at = gate_at
        self.model = FakeModel(script=self._answer, settings=FakeSettings())

    def _answer(self, seen: Seen) -> Reply:
        if "noon" in seen.user_text:
            return Reply(SECOND)
        gate, self._gate = self._gate, None
        return Reply(ANSWER, gate=gate, gate_at=self._gate_at)


async def lives_again(home: Path, place: Place, model: FakeModel) -> list[str]:
    """Run a new process until it has answered the old and the new message, and return the visible posts.

    The posts of a thread are sent in order, so the first is complete when the second is visible.
    """
    async with life(home, place, model):
        await until(lambda: any(ANSWER in text for text in place.shown()))
        await place.says("and at noon?")
        await until(lambda: any(SECOND in text and not text.endswith(" …") for text in place.shown()))
    return place.shown()


@pytest.mark.parametrize("platform", PLACES)
async def test_accepted_messages_are_answered_after_a_kill(tmp_path: Path, platform: str) -> None:
    tides = Tides(asked := Gate())
    async with opened(platform) as place, tides.model.serve():
        async with life(tmp_path, place, tides.model) as first:
            await place.says("what is the tide?")
            async with asyncio.timeout(60):
                await asked.reached.wait()
            await asyncio.to_thread(first.kill)
        assert not place.shown()
        assert await lives_again(tmp_path, place, tides.model) == [ANSWER, SECOND]


@pytest.mark.parametrize("platform", PLACES)
async def test_a_kill_before_recording_a_post_repeats_it_only_if_it_cannot_be_found(
    tmp_path: Path, platform: str
) -> None:
    tides = Tides()
    async with opened(platform) as place, tides.model.serve():
        place.fake.server.mute = lambda _: ANSWER in place.shown()
        async with life(tmp_path, place, tides.model) as first:
            await place.says("what is the tide?")
            await until(lambda: ANSWER in place.shown())
            await asyncio.to_thread(first.kill)
        place.fake.server.mute = lambda _: False
        found = await lives_again(tmp_path, place, tides.model)
    check(found, place)


@pytest.mark.parametrize("platform", PLACES)
async def test_a_killed_processs_preview_becomes_the_answer_if_found(tmp_path: Path, platform: str) -> None:
    gate = Gate()
    tides = Tides(gate, gate_at=6)
    async with opened(platform) as place, tides.model.serve():
        place.fake.server.mute = lambda _: bool(place.shown())
        async with life(tmp_path, place, tides.model) as first:
            await place.says("what is the tide?")
            await until(lambda: bool(place.shown()))
            await asyncio.to_thread(first.kill)
        place.fake.server.mute = lambda _: False
        gate.open()
        (preview,) = place.shown()
        assert ANSWER.startswith(preview.removesuffix(" …"))
        found = await lives_again(tmp_path, place, tides.model)
    assert found == ([ANSWER, SECOND] if place.once else [preview, ANSWER, SECOND])


def check(found: list[str], place: Place) -> None:
    """Check that both replies are complete and appear once. A platform without idempotency keys may also show one
    marked repeat.
    """
    repeats = [text for text in found if text == f"{REPEATED}\n{ANSWER}"]
    assert [text for text in found if text not in repeats] == [ANSWER, SECOND]
    assert len(repeats) <= (0 if place.once else 1)
