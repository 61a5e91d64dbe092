"""Settings in [triggers]."""

import re
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.section import Problem, Section


class HookSettings(Section, frozen=True, kw_only=True):
    """A webhook. A call to POST /hooks/NAME starts a turn in a thread, or in a new thread of a channel."""

    secret: Secret = NO_SECRET
    """Secret that authenticates callers, at least 16 characters."""
    template: str = ""
    """Text for the agent. {{ a.b }} is a value in the JSON body, and {{ body }} is the complete body. If empty, the
    agent gets the complete body.
    """
    thread: str = ""
    """Thread in which the turn runs, as PLATFORM:CHANNEL:THREAD."""
    channel: str = ""
    """Channel in which each call opens a new thread, as PLATFORM:CHANNEL. Set either `channel` or `thread`."""
    agent: str = ""
    """Agent that answers. If empty, the agent of the thread or channel answers."""
    repeat_seconds: Annotated[float, Meta(ge=0, le=604_800)] = 43_200.0
    """Seconds after which an identical body with a bearer secret counts as a new call. With 0, every such call is new.
    Signed calls are compared by their signed text.
    """


class TriggersSettings(Section, frozen=True, kw_only=True):
    """Triggers, which start turns at scheduled times, from event files and from webhooks."""

    catch_up_seconds: Annotated[int, Meta(ge=0)] = 3600
    """Maximum number of seconds by which a trigger may fire late after downtime."""
    outage_seconds: Annotated[float, Meta(ge=0)] = 86_400.0
    """Maximum time that a trigger's turn waits for an unavailable model, in seconds. With 0, the turn fails
    immediately. A one-time trigger also waits this long, and at least 12 minutes, for space in its conversation's
    queue.
    """
    heartbeat_minutes: Annotated[float, Meta(ge=0)] = 0.0
    """Minutes between two checks of HEARTBEAT.md. 0 turns the checks off."""
    webhooks: dict[str, HookSettings] = {}
    """Webhooks by name."""

    def problems(self, name: str = "") -> Iterator[Problem]:
        for name, hook in self.webhooks.items():
            at = ("webhooks", name)
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
                yield at, "must have a name of letters, digits, - and _"
            if not hook.secret:
                yield (*at, "secret"), "must be a secret of at least 16 characters"
            if bool(hook.thread) == bool(hook.channel):
                yield at, "needs either a thread or a channel"
            if hook.thread and hook.thread.count(":") != 2:
                yield (*at, "thread"), f'must be PLATFORM:CHANNEL:THREAD, not "{hook.thread}"'
            if hook.channel and hook.channel.count(":") != 1:
                yield (*at, "channel"), f'must be PLATFORM:CHANNEL, not "{hook.channel}"'
