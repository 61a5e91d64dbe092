"""`shoal doctor` checks the speech models."""

from pathlib import Path

import pytest

from shoal.config import load_config
from shoal.features.voice.doctor import look_at_voice
from shoal.surfaces.cli.context import CommandContext


async def findings(home: Path, **speech: str) -> list[tuple[str, str, str]]:
    providers = {"one": {"kind": "openai", "api_key": "sk-one"}}
    config = load_config(home, {}, {"providers": providers, "speech": speech})
    return [(one.check, one.status, one.message) async for one in look_at_voice(CommandContext(home), config)]


async def test_unconfigured_speech_is_not_mentioned(tmp_path: Path) -> None:
    assert await findings(tmp_path) == []


async def test_models_of_providers_are_named(tmp_path: Path) -> None:
    assert await findings(tmp_path, recognition="one/whisper-1", speaking="one/tts-1") == [
        ("speech.recognition", "ok", "one/whisper-1."),
        ("speech.speaking", "ok", "one/tts-1."),
    ]
    assert await findings(tmp_path, speaking="two/tts-1") == [
        (
            "speech.speaking",
            "fail",
            "speech.speaking must be PROVIDER/MODEL, not 'two/tts-1'. Providers: one.",
        )
    ]


async def test_a_missing_program_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await findings(tmp_path, speaking="espeak-ng") == [
        ("speech.speaking", "fail", "espeak-ng is not installed.")
    ]
