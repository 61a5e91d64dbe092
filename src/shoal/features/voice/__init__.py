"""Voice: transcribe recordings and speak answers.

The core posts spoken answers, because the post is part of the turn's last transaction (`turn/thread.py`). The speech
services are adapters, so they are next to those of models (`models/speech.py`).
"""

from shoal.feature import Feature

FEATURE = Feature(
    name="voice",
    settings={"speech": "settings:SpeechSettings"},
    open="service:open_voice",
    doctor="doctor:look_at_voice",
    chat_commands="commands:chat_commands",
    routes="routes:routes",
    paths=("/api/threads/*/turns/*/speech",),
)
