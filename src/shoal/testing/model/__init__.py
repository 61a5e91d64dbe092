"""A scripted model: `FakeModel` in process, or a loopback server with four providers' interfaces. See `fake.py`."""

from shoal.testing.model.fake import FakeModel, FakeSettings
from shoal.testing.model.script import (
    Call,
    Gate,
    Recorded,
    Refusal,
    Reply,
    Seen,
    SeenMessage,
    Step,
    follow_directive,
    own_words,
)

__all__ = [
    "Call", "FakeModel", "FakeSettings", "Gate", "Recorded", "Refusal", "Reply", "Seen", "SeenMessage", "Step",
    "follow_directive",
    "own_words",
]  # fmt: skip
