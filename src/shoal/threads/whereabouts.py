"""Resolve the thread of a command given in a channel where conversations are threads.

the command is given in                       thread
-------------------------------------------   ---------------------------------------------------------------
a direct conversation, or a known thread      that conversation or thread
a channel that is one conversation            that conversation
any other point in a channel                  the thread in which the person last wrote there. If none exists
                                              and the command accepts a new thread, the thread at that point.
"""

from typing import NamedTuple

from shoal.kernel.commands import CommandRequest
from shoal.kernel.ids import OWN_PLATFORMS, WHOLE_CHANNEL, ThreadId, channel_of, thread_address
from shoal.kernel.ports import Settings
from shoal.store.journal import Journal

SCOPE = "latest"
"""Settings scope that stores each person's last thread in a channel.

A key without a person means that the channel itself is a conversation, because someone wrote there outside threads.
"""


OWNER_IN = ("owner", "direct")
"""Setting that stores the direct conversation in which the owner last wrote."""


class Whereabouts(NamedTuple):
    """The thread of a command. `thread` is None if the command was given outside threads and the person has no thread
    in the channel.
    """

    thread: ThreadId | None
    in_channel: bool


async def note_latest(settings: Settings, thread: ThreadId, user: str) -> None:
    keys = [f"{channel_of(thread)}{user}"] + [channel_of(thread)] * thread.endswith(f":{WHOLE_CHANNEL}")
    for key in keys:
        if await settings.get(SCOPE, key) != thread:
            await settings.put(SCOPE, key, thread)


async def whereabouts(
    asked: CommandRequest, settings: Settings, journal: Journal, *, takes_place: bool = False
) -> Whereabouts:
    """Resolve the thread of a command according to the table in the module docstring. Raises StoreError."""
    thread = asked.thread
    if asked.direct or thread_address(thread).platform in OWN_PLATFORMS:
        return Whereabouts(thread, in_channel=False)
    if not thread.endswith(f":{WHOLE_CHANNEL}"):
        if await journal.thread(thread) is not None:
            return Whereabouts(thread, in_channel=False)
    elif await settings.get(SCOPE, channel_of(thread)) is not None:
        return Whereabouts(thread, in_channel=False)
    latest = await settings.get(SCOPE, f"{channel_of(thread)}{asked.author.id}")
    if latest is None or await journal.thread(ThreadId(latest)) is None:
        if takes_place and not thread.endswith(f":{WHOLE_CHANNEL}"):
            return Whereabouts(thread, in_channel=False)
        return Whereabouts(None, in_channel=True)
    return Whereabouts(ThreadId(latest), in_channel=True)
