"""Who reads along in a direct conversation: noted as its person writes, for the turns that nobody writes there.

A reminder, a process's hook or a subagent's report starts a turn in the same conversation, with the same readers. How
far that turn sees is up to whoever asked for it.
"""

import msgspec

from shoal.domain.ids import OWN_PLATFORMS, ThreadId, channel_of, thread_address
from shoal.domain.permissions import Audience
from shoal.domain.store import Settings

SCOPE = "audience"
_audience = msgspec.json.Decoder(Audience)


def noted_audience(thread: ThreadId, audience: Audience) -> tuple[tuple[str, str, str], ...]:
    """The setting (scope, key, value) that keeps it; none for the platforms that are direct by themselves."""
    if thread_address(thread).platform in OWN_PLATFORMS:
        return ()
    return ((SCOPE, channel_of(thread), msgspec.json.encode(audience).decode()),)


async def known_audience(settings: Settings, thread: ThreadId) -> Audience | None:
    """That of the direct conversation which a thread belongs to; None where others read along. Raises StoreError."""
    kept = await settings.get(SCOPE, channel_of(thread))
    return _audience.decode(kept) if kept else None
