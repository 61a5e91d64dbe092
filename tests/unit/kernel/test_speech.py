"""Computing the duration of a recording from its bytes."""

import pytest

from shoal.kernel.speech import seconds_of, wav_of
from shoal.testing.model.speech import recording


def test_an_implausible_duration_counts_as_zero() -> None:
    audio = bytearray(recording("six"))
    at = audio.rfind(b"OggS") + 6
    audio[at : at + 8] = (1 << 62).to_bytes(8, "little")
    assert seconds_of(bytes(audio)) == 0.0
    assert seconds_of(recording("six")) > 0


@pytest.mark.parametrize("form", ["ogg", "wav"])
def test_the_duration_is_read_from_the_recording(form: str) -> None:
    assert seconds_of(recording("x" * 150, form)) == pytest.approx(10.0, abs=0.1)
    assert seconds_of(wav_of(bytes(32_000), 16_000)) == 1.0


@pytest.mark.parametrize("audio", [b"", b"OggS", b"OggS" + bytes(40), b"RIFF1234WAVEfmt ", b"1234ftypmvhd", b"noise"])
def test_a_damaged_recording_has_zero_duration(audio: bytes) -> None:
    assert seconds_of(audio) == 0.0
