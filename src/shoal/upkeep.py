"""What runs beside the turns for as long as the app does."""

import logging
from typing import Protocol

import anyio

from shoal.delivery.hub import Hub
from shoal.domain.clock import Clock
from shoal.domain.events import Event, TurnFinished
from shoal.domain.home import Home
from shoal.domain.ids import make_thread_id
from shoal.domain.ports import Completion, Models
from shoal.domain.store import Audit
from shoal.permissions.audit import anchor_line
from shoal.providers.catalog import Catalog
from shoal.triggers.event_files import EventFiles
from shoal.triggers.heartbeat import Heartbeat
from shoal.triggers.service import Target

log = logging.getLogger(__name__)

EXPIRY_CHECK_SECONDS = 30.0
ANCHOR_SECONDS = 3600.0
FILES_AFTER_SECONDS = 1.0
"""Event files and the heartbeat begin a little later than the rest, so that `shoal ask` does not pay for them."""
DISCOVER_AFTER_SECONDS = 3.0
"""Providers are asked what they offer when the first messages have had their turn."""
HEARTBEAT_THREAD = make_thread_id("web", "lobby", "heartbeat")


class Expiring(Protocol):
    """What settles questions that nobody answered."""

    async def expire_approvals(self) -> None:
        """Settle those whose time is up."""
        ...


async def watch_approvals(orchestrator: Expiring, clock: Clock) -> None:
    """Settle questions when their time is up."""
    while True:
        await orchestrator.expire_approvals()
        await clock.sleep(EXPIRY_CHECK_SECONDS)


async def anchor_audit(audit: Audit, clock: Clock) -> None:
    """Put the heads of the audit chains into the log now and then, where nobody can change them unseen."""
    while True:
        await clock.sleep(ANCHOR_SECONDS)
        chains = await audit.chains()
        if chains:
            log.info("%s", anchor_line(clock.now(), chains))


async def tell_completions(hub: Hub, on_complete: Completion) -> None:
    """Await `on_complete` for each turn that finishes in this process."""
    with hub.subscribe() as coming:
        async for item in coming:
            if isinstance(item, Event) and isinstance(item.data, TurnFinished):
                await on_complete(item.thread, item.turn, item.data.reply)
    log.warning("the completion callback fell too far behind, or the app ends: it is not called any more")


async def discover_models(models: Models, clock: Clock) -> None:
    """Check the keys and list the models of every provider once, into available_models.json; failures are logged."""
    await clock.sleep(DISCOVER_AFTER_SECONDS)
    if isinstance(models, Catalog):
        await models.refresh()


async def watch_files(home: Home, target: Target, clock: Clock, files: EventFiles, minutes: float) -> None:
    """Start turns from event files and, every so many minutes (0: never), from HEARTBEAT.md."""
    await clock.sleep(FILES_AFTER_SECONDS)
    heartbeat = Heartbeat(home.data / "HEARTBEAT.md", HEARTBEAT_THREAD, target, clock, minutes=minutes)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(files.run)
        tasks.start_soon(heartbeat.run)
