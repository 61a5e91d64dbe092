"""A scripted model. `FakeModel` runs in process or as a loopback server that speaks four model APIs. See `fake.py`."""

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
