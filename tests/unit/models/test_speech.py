"""Speech services: requests equal those of the providers' own packages, and recordings have the requested format."""

import shutil
from array import array
from collections.abc import AsyncIterator

import pytest

from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import ProviderDown, ProviderRefused
from shoal.kernel.ports import Speech
from shoal.kernel.secret import Secret
from shoal.kernel.settings import ProviderSettings
from shoal.kernel.speech import seconds_of
from shoal.models.catalog import model_endpoint
from shoal.models.speech import (
    PIECE_SECONDS,
    RATE,
    EspeakSpeech,
    GeminiSpeech,
    MoonshineSpeech,
    OpenAiSpeech,
    encoded,
    pieces_of,
)
from shoal.testing.model import FakeModel, FakeSettings, Refusal
from shoal.testing.model.speech import recording, words_in

# The Gemini package subclasses a class that aiohttp warns about subclassing.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")
SAID = "High tide is at six, and “low” at noon. 潮"


@pytest.fixture
async def fake() -> AsyncIterator[FakeModel]:
    model = FakeModel(settings=FakeSettings(api_key="key"))
    async with model.serve():
        yield model


def speech(fake: FakeModel, kind: str, key: str = "key", voice: str = "") -> Speech:
    base = f"{fake.url}/v1beta" if kind == "gemini" else f"{fake.url}/v1"
    provider = ProviderSettings(kind=kind, base_url=base, api_key=Secret("value", key))
    endpoint = model_endpoint("one", "model-1", provider, SystemClock(), {})
    return (GeminiSpeech if kind == "gemini" else OpenAiSpeech)(endpoint, voice, "", None, None)


@pytest.mark.parametrize("kind", ["openai", "gemini"])
@pytest.mark.parametrize("form", ["ogg", "mp3", "wav"])
async def test_speech_is_transcribed(fake: FakeModel, kind: str, form: str) -> None:
    ears = speech(fake, kind)
    audio = recording(SAID, form)
    heard = await ears.transcribe(audio, {"ogg": "audio/ogg", "mp3": "audio/mpeg", "wav": "audio/wav"}[form])
    await ears.close()
    assert heard.text == SAID
    assert heard.seconds == seconds_of(audio) or form == "mp3"


@pytest.mark.parametrize("form", ["ogg", "mp3"])
async def test_a_text_is_spoken_in_the_requested_format(fake: FakeModel, form: str) -> None:
    voice = speech(fake, "openai", voice="nova")
    spoken = await voice.say(SAID, form)  # pyrefly: ignore[bad-argument-type]
    await voice.close()
    assert words_in(spoken.audio) == SAID
    assert spoken.media_type == {"ogg": "audio/ogg", "mp3": "audio/mpeg"}[form]
    assert b'"voice":"nova"' in fake.audio[0][1]


async def test_samples_are_encoded_in_the_platforms_formats(fake: FakeModel) -> None:
    pytest.importorskip("av")
    voice = speech(fake, "gemini")
    note, song = await voice.say("six " * 20, "ogg"), await voice.say("six " * 20, "mp3")
    await voice.close()
    assert b"OpusHead" in note.audio[:100]
    assert seconds_of(note.audio) == pytest.approx(5.0, abs=0.1)
    assert (song.media_type, song.audio[:3] == b"ID3" or song.audio[0] == 0xFF) == ("audio/mpeg", True)
    assert note.usage.output_tokens == 8


async def test_espeak_says_a_sentence() -> None:
    if shutil.which("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed")
    spoken = await EspeakSpeech("").say("The tide is high at six.", "ogg")
    if spoken.media_type == "audio/ogg":
        assert b"OpusHead" in spoken.audio[:100]
    assert 1 < seconds_of(spoken.audio) < 5


async def test_a_sentence_is_transcribed_locally() -> None:
    pytest.importorskip("av")
    pytest.importorskip("moonshine_voice")
    if shutil.which("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed")
    ears = MoonshineSpeech()
    spoken = await EspeakSpeech("en-us").say("Open the door and close the window.", "ogg")
    heard = await ears.transcribe(spoken.audio, spoken.media_type)
    assert heard.text == "Open the door and close the window."
    assert heard.seconds == pytest.approx(seconds_of(spoken.audio), abs=0.2)
    with pytest.raises(ProviderRefused, match="Failed to read"):
        await ears.transcribe(b"no recording", "audio/ogg")
    with pytest.raises(ProviderRefused, match="cannot synthesize speech"):
        await ears.say("six", "ogg")
    await ears.close()


def test_a_long_recording_is_transcribed_in_lossless_pieces() -> None:
    samples = array("f", (0.0 if second % 58 == 57 else 0.5 for second in range(130) for _ in range(RATE)))
    pieces = list(pieces_of(samples))
    assert [sample for piece in pieces for sample in piece] == samples.tolist()
    assert all(len(piece) <= PIECE_SECONDS * RATE for piece in pieces)
    assert 57 * RATE <= len(pieces[0]) <= 58 * RATE, "cut where it is quiet"


async def test_an_unknown_espeak_voice_is_refused_by_name() -> None:
    if shutil.which("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed")
    with pytest.raises(ProviderRefused, match="nobody"):
        await EspeakSpeech("nobody").say("six", "ogg")


async def test_a_refused_key_and_an_unreachable_service_are_distinguished(fake: FakeModel) -> None:
    with pytest.raises(ProviderRefused, match="key"):
        await speech(fake, "openai", key="wrong").transcribe(recording(SAID), "audio/ogg")
    fake.audio_troubles.append(Refusal(503, "Overloaded."))
    with pytest.raises(ProviderDown, match="Overloaded"):
        await speech(fake, "openai").transcribe(recording(SAID), "audio/ogg")


async def test_the_fake_hears_and_speaks_as_openais_package_expects(fake: FakeModel) -> None:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{fake.url}/v1", api_key="key", max_retries=0) as client:
        file = ("speech.ogg", recording(SAID), "audio/ogg")
        heard = await client.audio.transcriptions.create(file=file, model="whisper-1", response_format="json")
        spoken = await client.audio.speech.create(model="tts-1", voice="nova", input=SAID, response_format="opus")
    assert heard.text == SAID
    assert words_in(spoken.content) == SAID


async def test_the_fake_hears_and_speaks_as_googles_package_expects(fake: FakeModel) -> None:
    from google import genai
    from google.genai import types

    client = genai.Client(api_key="key", http_options=types.HttpOptions(base_url=fake.url, api_version="v1beta"))
    part = types.Part.from_bytes(data=recording(SAID), mime_type="audio/ogg")
    async with client.aio:
        heard = await client.aio.models.generate_content(model="model-1", contents=["Write it down.", part])
        config = types.GenerateContentConfig(response_modalities=["AUDIO"])
        spoken = await client.aio.models.generate_content(model="model-1", contents="six", config=config)
    assert heard.text == SAID
    assert spoken.candidates
    content = spoken.candidates[0].content
    assert content is not None
    assert content.parts
    assert content.parts[0].inline_data is not None
    assert content.parts[0].inline_data.mime_type == "audio/L16;codec=pcm;rate=24000"


async def test_anything_but_a_recording_is_refused() -> None:
    with pytest.raises(ProviderRefused):
        await encoded(b"no recording at all", "ogg")
