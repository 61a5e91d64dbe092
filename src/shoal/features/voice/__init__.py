"""Voice: transcribe recordings and speak replies.

The core posts spoken replies, because the post is part of the turn's last transaction (`turn/thread.py`). Speech
services are adapters, so their code is next to that of the models (`models/speech.py`).
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
