"""A voice message in a process that is killed at any write. It is transcribed, spoken and charged once."""

import asyncio
from pathlib import Path

import pytest
from tests.forks import fork_server
from tests.scenarios.test_voice import ADA, SAID, asked, is_voice, stage
from tests.scenarios.voice_life import VoiceOrder

from shoal.testing.faults import Side
from shoal.testing.model.speech import recording

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("side", "step"), [("before", 3), ("after", 2)])
async def test_speech_is_recognized_and_spoken_once_despite_kills(tmp_path: Path, side: Side, step: int) -> None:
    with fork_server("tests.scenarios.voice_life", VoiceOrder) as server:
        at, killed = 0, True
        while killed:
            at += step
            async with stage(*["Six."] * 3) as (telegram, model):
                await telegram.sends_voice(ADA, recording(SAID))
                order = VoiceOrder(str(tmp_path / str(at)), telegram.server.address, model.url, at, side)
                first = await asyncio.to_thread(server.run, order)
                killed = first.status != 0
                if killed:
                    again = VoiceOrder(order.home, order.telegram, order.model)
                    assert (await asyncio.to_thread(server.run, again)).status == 0
                assert (asked(model, "/audio/transcriptions"), asked(model, "/audio/speech")) == (1, 1), f"write {at}"
                assert any(map(is_voice, telegram.said(ADA))), f"write {at}"
        assert at > 5
