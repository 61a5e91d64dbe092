"""Non-text content in messages of the OpenAI-compatible API."""

import msgspec
import pytest

from shoal.features.openai_api.messages import CompatMessage
from shoal.kernel.errors import InvalidInput

SPOKEN = b'{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]}'


def test_a_recording_is_accepted_only_with_speech_recognition() -> None:
    message = msgspec.json.decode(SPOKEN, type=CompatMessage)
    (file,) = message.files("messages[0]", accepts_audio=True)
    assert (file.name, file.media_type, bytes(file.data)) == ("audio.wav", "audio/wav", b"AAAA")
    with pytest.raises(InvalidInput, match="needs speech recognition"):
        list(message.files("messages[0]", accepts_audio=False))
