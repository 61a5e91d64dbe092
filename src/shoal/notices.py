"""What Shoal says by itself to its owner, or in the conversation that something belongs to."""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import anyio

from shoal.actors.access_gate import OWNER_IN
from shoal.agents.lifecycle import AgentLifecycle
from shoal.delivery.previews import by_adapter
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError, StoreError
from shoal.domain.ids import ThreadId
from shoal.domain.ports import ChatAdapter
from shoal.domain.posts import OutboundPost
from shoal.domain.records import NewPost
from shoal.domain.triggers import Trigger
from shoal.store.store import Store
from shoal.turn.budget import WINDOW_TOKENS_DEFAULT

log = logging.getLogger(__name__)

CHANNELS_AFTER_SECONDS = 20.0
"""Bound channels are looked for when the platforms have had time to connect."""
CHANNELS_TRIES = 5


@dataclass(eq=False, repr=False)
class Notices:
    """Posts them. `notes` are the lines that the start, the API and `shoal doctor` show as well."""

    store: Store
    clock: Clock
    adapters: Mapping[str, ChatAdapter]
    default_agent: str
    post: Callable[[NewPost], Awaitable[None]]
    notes: list[str]

    async def of_trigger(self, trigger: Trigger, text: str) -> None:
        """In the thread that the trigger belongs to; where each occurrence opens one of its own, to the owner."""
        log.warning("a trigger was switched off; see `shoal triggers list`", extra={"trigger": trigger.id, "why": text})
        if trigger.spec.thread is None:
            await self._tell_where_last_heard(text)
        else:
            await self.post(NewPost(f"trigger:{trigger.id}:{self.clock.new_id()}", trigger.spec.thread, text))

    async def tell_owner(self, text: str) -> None:
        """In the direct conversation in which the owner wrote last, where nobody else reads along; nowhere without."""
        found = await self.store.settings.get(*OWNER_IN)
        if found:
            await self.post(NewPost(f"notice:{self.clock.new_id()}", ThreadId(found), text))

    async def of_window(self, model: str) -> None:
        """That a model's window is not known: in the notes of this process, and once for ever in the log."""
        note = (
            f"The context window of {model} is not known: {WINDOW_TOKENS_DEFAULT:,} tokens are taken for it, and less "
            "once its provider refuses them. Set model.context_tokens_max to what it has."
        )
        if note not in self.notes:
            self.notes.append(note)
            if await self.store.settings.swap("windows", model, None, str(WINDOW_TOKENS_DEFAULT)):
                log.warning("%s", note)

    async def past_outbox(self, text: str) -> None:
        """To the owner in private, past the outbox, which is in the database that is damaged or takes nothing."""
        with contextlib.suppress(StoreError, PlatformError):
            found = await self.store.settings.get(*OWNER_IN)
            adapter = self.adapters.get(found.partition(":")[0]) if found else None
            if found and adapter is not None:
                await by_adapter(adapter.post(OutboundPost(ThreadId(found), f"notice:{self.clock.new_id()}", text)))

    async def watch_channels(self, agents: AgentLifecycle) -> None:
        """Look once whether the bound channels still exist; tell the log, the notes and the owner which do not."""
        for attempt in range(CHANNELS_TRIES):
            await self.clock.sleep(CHANNELS_AFTER_SECONDS * (attempt + 1))
            try:
                lost = await by_adapter(agents.lost_channels())
            except PlatformError as error:
                log.info("bound channels cannot be checked yet", extra={"why": str(error)})
                continue
            for line in lost:
                log.warning("%s", line)
            self.notes += lost
            if lost:
                await self._tell_where_last_heard("\n".join(lost))
            break
        await anyio.sleep_forever()

    async def _tell_where_last_heard(self, text: str) -> None:
        found = await self.store.settings.get("last_channel", self.default_agent)
        if found and found.count(":") == 2:
            await self.post(NewPost(f"notice:{self.clock.new_id()}", ThreadId(found), text))
