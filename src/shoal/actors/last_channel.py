"""Where people last wrote to an agent: the place for what it says by itself."""

from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.store import Settings

SCOPE = "last_channel"
_ANSWERS_ONLY = frozenset({"openai", "terminal", "agent"})
"""Platforms whose people see a turn's answer and are gone then."""


async def note_channel(settings: Settings, agent: str, thread: ThreadId) -> None:
    """A person wrote to the agent here. Raises StoreError."""
    if thread_address(thread).platform in _ANSWERS_ONLY:
        return
    if await settings.get(SCOPE, agent) != thread:
        await settings.put(SCOPE, agent, thread)


async def last_channel(settings: Settings, agent: str) -> ThreadId:
    """The thread in which a person wrote last; empty before anybody did. Raises StoreError."""
    return ThreadId(await settings.get(SCOPE, agent) or "")
