"""Records of triggers, which start turns at scheduled times."""

from contextlib import suppress
from datetime import datetime
from typing import Literal

import msgspec

from shoal.kernel.errors import InvalidInput
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Author, Origin
from shoal.kernel.phrases import short_line
from shoal.kernel.zones import local_time, zone_named

RETRY_SECONDS = (30.0, 120.0, 600.0)
FAILURES_MAX = 5
"""Number of consecutive failures after which a recurring trigger is switched off."""


class NewTrigger(msgspec.Struct, frozen=True, omit_defaults=True):
    """A turn to start at scheduled times, in `thread` or in a new thread of `platform` and `channel`.

    schedule: a cron line for `periodic`, an ISO 8601 time for `one-shot`.
    author: the person who asked for it.
    tainted_by: untrusted content that influenced it, or empty.

    Its turns get at most the trust that `author` and `tainted_by` allow.
    """

    kind: Literal["one-shot", "periodic"]
    schedule: str
    text: str
    author: Author
    tainted_by: str
    thread: ThreadId | None = None
    platform: str = ""
    channel: str = ""
    timezone: str = "UTC"
    agent: str = ""
    name: str = ""
    origin: Origin = "trigger"


class Trigger(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored trigger. `next_at` is None if it will not fire again."""

    id: str
    spec: NewTrigger
    state: Literal["active", "paused", "done", "missed", "failed"]
    next_at: datetime | None
    created_at: datetime
    last_at: datetime | None = None
    failures: int = 0
    error: str = ""


class Occurrence(msgspec.Struct, frozen=True):
    """An occurrence of a trigger, claimed by one worker. Its key deduplicates the message."""

    trigger: Trigger
    due_at: datetime
    key: str


def source_of(spec: NewTrigger) -> str:
    """Return the untrusted source of a trigger's text, or an empty string."""
    if spec.tainted_by or spec.author.trusted:
        return spec.tainted_by
    return f"a schedule from {spec.author.id or 'an unknown person'}"


def title(trigger: Trigger) -> str:
    return trigger.spec.name or trigger.id[-6:]


def switched_off(trigger: Trigger, problem: str) -> str:
    return f"I switched off the trigger {title(trigger)} because it failed: {problem}"


def missed(trigger: Trigger, due_at: datetime) -> str:
    """Return the notice for a missed one-time trigger. Leaves out the text of a tainted trigger."""
    spec = trigger.spec
    with suppress(InvalidInput):  # the time zone may have been removed
        due_at = due_at.astimezone(zone_named(spec.timezone))
    what = title(trigger) if spec.tainted_by else f"“{short_line(spec.name or spec.text)}”"
    return (
        f"I missed {what}, due at {local_time(due_at)}, because I was not running. Schedule it again if you still "
        "need it."
    )
