"""Speech models in [speech] and their prices."""

import pytest

from shoal.features.voice.settings import SpeechSettings
from shoal.features.voice.speech import build_speech
from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import ConfigError
from shoal.kernel.settings import ProviderSettings


def test_the_local_recognizer_accepts_only_english() -> None:
    wanted = SpeechSettings(recognition="moonshine", language="de")
    with pytest.raises(ConfigError, match="English"):
        build_speech("recognition", wanted, {}, SystemClock(), {})


def test_a_provider_without_speech_is_a_configuration_error() -> None:
    for named, kind, told in (("two/m", "openai", "Providers: one"), ("one/m", "anthropic", "do not support speech")):
        providers = {"one": ProviderSettings(kind=kind)}
        with pytest.raises(ConfigError, match=told):
            build_speech("speaking", SpeechSettings(speaking=named), providers, SystemClock(), {})


def test_prices_apply_only_to_the_official_service() -> None:
    def price(base_url: str, usd: float | None = None) -> float | None:
        providers = {"one": ProviderSettings(kind="openai", base_url=base_url)}
        wanted = SpeechSettings(recognition="one/whisper-1", usd_per_minute=usd)
        found = build_speech("recognition", wanted, providers, SystemClock(), {})
        assert found is not None
        return found.usd_per_minute

    assert price("") == 0.006
    assert price("http://127.0.0.1:9/v1") is None
    assert price("http://127.0.0.1:9/v1", usd=0.0) == 0
