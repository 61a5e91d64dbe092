"""Where people last wrote to an agent: the place for what it says by itself."""

from shoal.domain.ids import ThreadId, is_personal, thread_address
from shoal.domain.store import Settings

SCOPE = "last_channel"
_ANSWERS_ONLY = frozenset({"openai", "terminal", "agent"})
"""Platforms whose people see a turn's answer and are gone then."""


def noted_channel(agent: str, thread: ThreadId) -> tuple[tuple[str, str, str], ...]:
    """The setting (scope, key, value) by which it is known that a person wrote to the agent here, if it is one.

    The owner is told things there, so it is never a channel of one other person.
    """
    if is_personal(thread) or thread_address(thread).platform in _ANSWERS_ONLY:
        return ()
    return ((SCOPE, agent, thread),)


async def last_channel(settings: Settings, agent: str) -> ThreadId:
    """The thread in which a person wrote last; empty before anybody did. Raises StoreError."""
    return ThreadId(await settings.get(SCOPE, agent) or "")
