"""Create the speech models that [speech] names."""

from collections.abc import Mapping
from typing import Literal

from shoal.features.voice.settings import SpeechSettings
from shoal.kernel.clock import Clock
from shoal.kernel.errors import ConfigError
from shoal.kernel.ports import Speech
from shoal.kernel.settings import ProviderSettings
from shoal.models.catalog import address_of, model_endpoint
from shoal.models.model_table import BASE_URLS


def build_speech(
    key: Literal["recognition", "speaking"],
    settings: SpeechSettings,
    providers: Mapping[str, ProviderSettings],
    clock: Clock,
    environ: Mapping[str, str],
) -> Speech | None:
    """Create the model for the setting `speech.KEY`, or return None if the setting is empty. Does no I/O.

    Raises ConfigError if the setting is invalid or the provider does not support speech.
    """
    named = settings.recognition if key == "recognition" else settings.speaking
    if not named:
        return None
    if named == "espeak-ng":
        from shoal.models.speech import EspeakSpeech

        return EspeakSpeech(settings.voice)
    if named == "moonshine":
        if settings.language.lower().partition("-")[0] not in ("", "en"):
            raise ConfigError([f"speech.language is {settings.language!r}, but moonshine recognizes only English."])
        from shoal.models.speech import MoonshineSpeech

        return MoonshineSpeech()
    from shoal.models.speech import USD_PER_MILLION_CHARS, USD_PER_MINUTE, GeminiSpeech, OpenAiSpeech

    name, _, model = named.partition("/")
    provider = providers.get(name)
    if provider is None:
        raise ConfigError(
            [f"speech.{key} must be PROVIDER/MODEL, not {named!r}. Providers: {', '.join(providers) or 'none'}."]
        )
    address = address_of(provider)
    is_official = address == BASE_URLS.get(provider.kind)
    per_minute, per_chars = settings.usd_per_minute, settings.usd_per_million_chars
    if is_official:
        per_minute = USD_PER_MINUTE.get(model) if per_minute is None else per_minute
        per_chars = USD_PER_MILLION_CHARS.get(model) if per_chars is None else per_chars
    is_gemini = provider.kind == "gemini"
    if not is_gemini and provider.kind not in ("openai", "openai-responses"):
        raise ConfigError(
            [(f"speech.{key} is {named!r}, but providers of kind {provider.kind!r} do not support speech.")]
        )
    kind = GeminiSpeech if is_gemini else OpenAiSpeech
    endpoint = model_endpoint(name, model, provider, clock, environ)
    return kind(endpoint, settings.voice, settings.language, per_minute, per_chars)
