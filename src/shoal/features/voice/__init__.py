"""Voice: recordings are heard as their words, and answers are spoken.

The post of a spoken answer stays in the core: it is part of the turn's last transaction (`turn/thread.py`). So do the
services that hear and speak (`models/speech.py`), which are adapters like those of models.
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
