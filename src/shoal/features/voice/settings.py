"""Settings in [speech]."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from shoal.kernel.section import Section

VoiceMode: TypeAlias = Literal["on", "off", "auto"]
"""When answers are spoken.

`on`: always.
`off`: never.
`auto`: after voice messages.
"""
VOICE_MODES: tuple[VoiceMode, ...] = ("on", "off", "auto")


class SpeechSettings(Section, frozen=True, kw_only=True):
    """Recognition of voice messages, and spoken replies. See docs/voice.md."""

    recognition: Annotated[
        str, Meta(pattern=r"^$|^moonshine$|^[^/\s]+/\S+$", description="moonshine, PROVIDER/MODEL, or empty")
    ] = ""
    """Model that transcribes voice messages and recordings: PROVIDER/MODEL, or moonshine, which runs locally and
    understands only English (extra `voice`). If empty, recordings are not transcribed.
    """
    speaking: Annotated[
        str, Meta(pattern=r"^$|^espeak-ng$|^[^/\s]+/\S+$", description="espeak-ng, PROVIDER/MODEL, or empty")
    ] = ""
    """Model that speaks replies: PROVIDER/MODEL, or the local program espeak-ng. If empty, replies are not spoken."""
    voice: str = ""
    """Name of the voice. If empty, the model uses its default voice."""
    answers: VoiceMode = "auto"
    """Whether replies are also spoken in channels where nobody has used /voice. `auto` speaks after voice messages."""
    language: str = ""
    """Language of voice messages, such as `de`. If empty, the language is detected."""
    seconds_max: Annotated[float, Meta(gt=0)] = 900.0
    """Maximum length of a recording to transcribe, in seconds."""
    bytes_max: Annotated[int, Meta(ge=1024)] = 25_000_000
    """Maximum size of a recording to transcribe, in bytes. Most services accept 25 MB."""
    chars_max: Annotated[int, Meta(ge=50, le=4000)] = 2_000
    """Maximum number of characters of a reply that are read aloud. The written reply is always complete."""
    usd_per_minute: Annotated[float, Meta(ge=0)] | None = None
    """Price per minute of transcribed audio in US dollars, if the model's price is unknown. Set it to 0 for a local
    model.
    """
    usd_per_million_chars: Annotated[float, Meta(ge=0)] | None = None
    """Price per million spoken characters in US dollars, if the model's price is unknown."""
