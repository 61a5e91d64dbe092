"""Records of saved conversations."""

from datetime import datetime

import msgspec

from shoal.kernel.ids import ThreadId


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A saved conversation: the database row for a file in the agent's `sessions/`."""

    id: str
    thread: ThreadId
    agent: str
    description: str
    messages: int
    created_at: datetime
