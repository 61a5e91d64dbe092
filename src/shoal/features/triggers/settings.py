"""[triggers]."""

import re
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.section import Problem, Section


class HookSettings(Section, frozen=True, kw_only=True):
    """Calls to POST /hooks/NAME that start a turn, in a thread or in a new one of a channel."""

    secret: Secret = NO_SECRET
    """What callers prove that they know, at least 16 characters."""
    template: str = ""
    """What the agent is told; {{ a.b }} is a value of the JSON body, {{ body }} all of it. Empty is the body alone."""
    thread: str = ""
    """Thread it goes into, PLATFORM:CHANNEL:THREAD."""
    channel: str = ""
    """Or the channel in which each call opens a thread, PLATFORM:CHANNEL."""
    agent: str = ""
    """Who answers; empty is the thread's or channel's agent."""
    repeat_seconds: Annotated[float, Meta(ge=0, le=604_800)] = 43_200.0
    """After how many seconds the same body with a bearer secret is a new call; 0: at once. Signed ones go by text."""


class TriggersSettings(Section, frozen=True, kw_only=True):
    """What starts turns by itself."""

    catch_up_seconds: Annotated[int, Meta(ge=0)] = 3600
    """How late a one-time trigger may still run after downtime, in seconds."""
    outage_seconds: Annotated[float, Meta(ge=0)] = 86_400.0
    """How long a trigger's turn waits for a model that is down, busy or out of reach, in seconds; 0 fails at once. A
    one-time trigger also waits so long for room in its conversation's queue, and at least 12 minutes."""
    heartbeat_minutes: Annotated[float, Meta(ge=0)] = 0.0
    """Time between looks at HEARTBEAT.md, in minutes; 0 is off."""
    webhooks: dict[str, HookSettings] = {}
    """Webhooks by name."""

    def problems(self) -> Iterator[Problem]:
        """What is wrong with webhooks."""
        for name, hook in self.webhooks.items():
            at = ("webhooks", name)
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
                yield at, "has another name than a path can have; allowed: letters, digits, - and _"
            if not hook.secret:
                yield (*at, "secret"), "is missing; allowed: any text of at least 16 characters that the caller knows"
            if bool(hook.thread) == bool(hook.channel):
                yield at, "needs a thread, or else a channel; give one of the two"
            if hook.thread and hook.thread.count(":") != 2:
                yield (*at, "thread"), f'is "{hook.thread}"; allowed: PLATFORM:CHANNEL:THREAD'
            if hook.channel and hook.channel.count(":") != 1:
                yield (*at, "channel"), f'is "{hook.channel}"; allowed: PLATFORM:CHANNEL'
