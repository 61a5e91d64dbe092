"""`shoal triggers`: what starts turns by the clock."""

import asyncio
import heapq
from collections.abc import Iterator
from datetime import UTC, datetime

import click
import msgspec

from shoal.domain.errors import InvalidInput, NotFound
from shoal.domain.ids import parse_thread_id
from shoal.domain.records import NewTrigger, Trigger
from shoal.domain.store import Store
from shoal.surfaces.cli.output import json_option, print_json, print_table, printable, when
from shoal.surfaces.cli.place import Place

THREAD = "terminal:local:main"


class Coming(msgspec.Struct, frozen=True):
    """A time at which a trigger comes."""

    at: datetime
    id: str
    name: str
    text: str


@click.group()
def triggers() -> None:
    """Turns that start by the clock: once, or again and again."""


@triggers.command("list")
@json_option
@click.pass_obj
def list_(place: Place, as_json: bool) -> None:
    """List the triggers, the next due first."""
    found = place.read(lambda store: store.triggers.all())
    if as_json:
        print_json(found)
        return
    rows = [
        (
            trigger.id,
            trigger.state,
            when(trigger.next_at if trigger.state == "active" else None),
            f"{trigger.spec.schedule} ({trigger.spec.timezone})",
            _target(trigger.spec),
            printable(trigger.error or trigger.spec.name or trigger.spec.text),
        )
        for trigger in found
    ]
    head = ("id", "state", "next (UTC)", "schedule", "into", "what")
    print_table(head, rows, "There are no triggers. `shoal triggers add WHEN TEXT` makes one.")


@triggers.command()
@click.argument("when_", metavar="WHEN")
@click.argument("text")
@click.option("--thread", help=f"The thread it goes into.  [default: {THREAD}]")
@click.option("--platform", default="", help="With --channel: open a new thread there each time.")
@click.option("--channel", default="")
@click.option("--timezone", default="UTC", show_default=True, help="IANA name, such as Europe/Berlin.")
@click.option("--agent", default="", help="Who answers; without it the thread's or channel's agent.")
@click.option("--name", default="", help="A name for lists.")
@click.pass_obj
def add(place: Place, when_: str, text: str, thread: str | None, **given: str) -> None:
    """Have the agent do TEXT at a time.

    WHEN is "in 10 minutes", an ISO time such as 2026-05-04T09:00, or a cron line such as "0 9 * * 1-5".
    """
    from shoal.domain.clock import SystemClock
    from shoal.domain.messages import Author
    from shoal.domain.schedule import first_time, parse_when
    from shoal.surfaces.cli.remote import find_remote

    if bool(given["platform"]) != bool(given["channel"]) or (thread and given["platform"]):
        raise InvalidInput("Give --thread, or --platform and --channel.")
    now = SystemClock().now()
    moment = parse_when(when_, given["timezone"], now)
    target = None if given["platform"] else parse_thread_id(thread or THREAD)
    fields = {"kind": moment.kind, "schedule": moment.schedule, "text": text, "thread": target, **given}
    spec = msgspec.convert({**fields, "author": Author("owner", trusted=True), "tainted_by": ""}, NewTrigger)
    first = first_time(spec, now)
    remote = find_remote(place)
    if remote is not None:
        body = {**fields, "thread": target or ""}
        trigger = msgspec.json.decode(asyncio.run(remote.call("POST", "/api/triggers", body)), type=_Added).id
    else:
        trigger = place.write(lambda store: store.triggers.add(spec, first)).id
    print(f"Added {trigger}: first at {when(first)} UTC.")
    if remote is None:
        print("Triggers come while `shoal run` runs.")


@triggers.command()
@click.argument("id")
@click.pass_obj
def remove(place: Place, id: str) -> None:
    """Remove a trigger."""
    from shoal.surfaces.cli.remote import find_remote, part

    remote = find_remote(place)
    if remote is not None:
        asyncio.run(remote.call("DELETE", f"/api/triggers/{part(id)}"))
    elif not place.write(lambda store: store.triggers.remove(id)):
        raise NotFound(f"There is no trigger {id}. `shoal triggers list` shows them.")
    print(f"Removed {id}.")


@triggers.command()
@click.argument("id")
@click.pass_obj
def pause(place: Place, id: str) -> None:
    """Let a trigger rest until it is resumed."""
    from shoal.surfaces.cli.remote import find_remote, part

    remote = find_remote(place)
    if remote is not None:
        asyncio.run(remote.call("POST", f"/api/triggers/{part(id)}/pause"))
    elif not place.write(lambda store: store.triggers.pause(id)):
        raise NotFound(f"There is no active trigger {id}. `shoal triggers list` shows them.")
    print(f"Paused {id}.")


@triggers.command()
@click.argument("id")
@click.pass_obj
def resume(place: Place, id: str) -> None:
    """Let a trigger come again that rests or was switched off."""
    from shoal.domain.clock import SystemClock
    from shoal.domain.schedule import first_time
    from shoal.surfaces.cli.remote import find_remote, part

    remote = find_remote(place)
    if remote is not None:
        asyncio.run(remote.call("POST", f"/api/triggers/{part(id)}/resume"))
        print(f"Resumed {id}.")
        return
    spec = next((one.spec for one in place.read(lambda store: store.triggers.all()) if one.id == id), None)
    at = first_time(spec, SystemClock().now()) if spec is not None else None
    if at is None or not place.write(lambda store: store.triggers.resume(id, at)):
        raise NotFound(f"There is no trigger {id} that rests. `shoal triggers list` shows them.")
    print(f"Resumed {id}: next at {when(at)} UTC.")


@triggers.command("next")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000))
@json_option
@click.pass_obj
def next_(place: Place, limit: int, as_json: bool) -> None:
    """Show the times that come next, over all triggers."""
    found = place.read(_active)
    now = datetime.now(UTC)
    streams = [_times(trigger, now) for trigger in found]
    coming = [one for _, one in zip(range(limit), heapq.merge(*streams, key=lambda one: one.at), strict=False)]
    if as_json:
        print_json(coming)
        return
    rows = [(when(one.at), one.id, printable(one.name or one.text)) for one in coming]
    print_table(("time (UTC)", "id", "what"), rows, "Nothing is scheduled.")


class _Added(msgspec.Struct):
    id: str


async def _active(store: Store) -> list[Trigger]:
    return [trigger for trigger in await store.triggers.all() if trigger.state == "active"]


def _times(trigger: Trigger, now: datetime) -> Iterator[Coming]:
    """When it comes, one after the other; what is due already first."""
    from shoal.domain.schedule import next_after

    at = trigger.next_at
    while at is not None:
        yield Coming(at, trigger.id, trigger.spec.name, trigger.spec.text)
        at = next_after(trigger.spec, max(at, now)) if trigger.spec.kind == "periodic" else None


def _target(spec: NewTrigger) -> str:
    return str(spec.thread) if spec.thread else f"{spec.platform}:{spec.channel}"
