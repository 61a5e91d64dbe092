"""Notices from Shoal to its owner or to a conversation."""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import anyio
import msgspec

from shoal.agents.lifecycle import AgentLifecycle
from shoal.delivery.barred import scope_of as barred_scope
from shoal.delivery.previews import by_adapter
from shoal.kernel.clock import Clock, iso
from shoal.kernel.errors import PlatformError, StoreError
from shoal.kernel.ids import OWN_PLATFORMS, ThreadId, channel_of, thread_address, unopened
from shoal.kernel.phrases import counted
from shoal.kernel.ports import ChatAdapter
from shoal.kernel.posts import OutboundPost
from shoal.kernel.records import NewPost, OutboxRow
from shoal.store.store import Store
from shoal.threads.whereabouts import OWNER_IN
from shoal.turn.fitting import WINDOW_TOKENS_DEFAULT

log = logging.getLogger(__name__)

CHANNELS_AFTER_SECONDS = 20.0
"""Seconds before the first check of bound channels. The platforms connect in that time."""
CHANNELS_TRIES = 5
NOTES_MAX = 50
"""Maximum number of notes. Further notes are only logged and posted."""
UNPOSTED_CHARS = 1500
NOTICE = "notice:"
RESTORED = ("restored", "told")
"""Setting that stores the last restore of which the owner was notified."""


class Notices(msgspec.Struct, eq=False):
    """Posts notices to the owner or to a conversation. `notes` contains lines for the startup output, the API and
    `shoal doctor`.
    """

    store: Store
    clock: Clock
    adapters: Mapping[str, ChatAdapter]
    post: Callable[[NewPost], Awaitable[None]]
    notes: list[str]
    approvers: Callable[[], Sequence[str]] = tuple
    """Returns the people to notify if the owner cannot be reached, as PLATFORM:USER."""

    async def notify_owner(self, text: str) -> None:
        """Post to the owner's most recent direct conversation. If this is not possible, post to an approver.

        If no approver can be reached, do nothing.
        """
        id = f"{NOTICE}{self.clock.new_id()}"
        owner_thread = await self.store.settings.get(*OWNER_IN)
        if owner_thread and not await self._is_barred(ThreadId(owner_thread)):
            await self.post(NewPost(id, ThreadId(owner_thread), text))
            return
        for person in reversed(self.approvers()):  # owners are at the end of the list
            platform, _, user = person.partition(":")
            if platform not in self.adapters or platform in OWN_PLATFORMS or not user or user.startswith("role:"):
                continue
            place = unopened(platform, user)
            if not await self._is_barred(place):
                await self.post(NewPost(id, place, text, "opening"))
                return

    async def _is_barred(self, thread: ThreadId) -> bool:
        return bool(await self.store.settings.get(barred_scope(thread_address(thread).platform), channel_of(thread)))

    async def of_unposted(self, row: OutboxRow, why: str, *, will_retry: bool) -> None:
        """Notify the owner that a chat refused a post, quote the post, and add a note."""
        info, address = await self.store.journal.thread(row.thread), thread_address(row.thread)
        title = f" ({info.title})" if info is not None and info.title else ""
        where = f"{address.platform}, chat {address.channel}{title}"
        what = (
            f"I cannot post in {where} at the moment. I will keep trying for a day."
            if will_retry
            else f"I could not post in {where}."
        )
        self.note(f"{what} {why}")
        if row.id.startswith(NOTICE):  # the owner's own chat refused a notice, so notify an approver
            settings = self.store.settings
            await settings.put(barred_scope(address.platform), channel_of(row.thread), why)
            await self.notify_owner(row.post.text)
            return
        excerpt = row.post.text[:UNPOSTED_CHARS] + ("…" if len(row.post.text) > UNPOSTED_CHARS else "")
        files = "".join(f"\n[file {Path(file).name}]" for file in (row.post.file, *row.post.album) if file)
        card = "\nApprove or deny the request on the page, under Approvals." if row.post.approval else ""
        await self.notify_owner(f"{what} {why}\n\n{excerpt}{files}{card}".rstrip())

    async def of_restored(self, at: datetime) -> None:
        """Notify the owner once that this home was restored from a backup."""
        stored = await self.store.settings.get(*RESTORED)
        if stored != iso(at) and await self.store.settings.swap(*RESTORED, stored, iso(at)):
            count = counted(len(await self.store.inbox.waiting()), "conversation")
            await self.notify_owner(
                f"I was restored from a backup. {count} had unfinished work, which I did not continue because it "
                "may have been finished after the backup. I asked the people there to send their messages again. "
                "Reminders that were due before the restore are listed as missed."
            )

    def note(self, note: str) -> None:
        """Add a line to this process's notes unless the notes contain it or are full."""
        if note not in self.notes and len(self.notes) < NOTES_MAX:
            self.notes.append(note)

    async def of_window(self, model: str) -> None:
        note = (
            f"The context window of {model} is unknown. I assume {WINDOW_TOKENS_DEFAULT:,} tokens, or fewer if its "
            "provider rejects that. Set model.context_tokens_max to the correct size."
        )
        if note not in self.notes:
            self.notes.append(note)
            if await self.store.settings.swap("windows", model, None, str(WINDOW_TOKENS_DEFAULT)):
                log.warning("%s", note)

    async def past_outbox(self, text: str) -> None:
        """Notify the owner without the outbox, because the database is damaged or unavailable. Errors are ignored."""
        with contextlib.suppress(StoreError, PlatformError):
            owner_thread = await self.store.settings.get(*OWNER_IN)
            adapter = self.adapters.get(owner_thread.partition(":")[0]) if owner_thread else None
            if owner_thread and adapter is not None:
                await by_adapter(
                    adapter.post(OutboundPost(ThreadId(owner_thread), f"{NOTICE}{self.clock.new_id()}", text))
                )

    async def watch_channels(self, agents: AgentLifecycle) -> None:
        """Check once whether the bound channels still exist.

        Missing channels are logged, added to the notes, and reported to the owner.
        """
        for attempt in range(CHANNELS_TRIES):
            await self.clock.sleep(CHANNELS_AFTER_SECONDS * (attempt + 1))
            try:
                lost = await by_adapter(agents.lost_channels())
            except PlatformError as error:
                log.info("checking bound channels failed", extra={"why": str(error)})
                continue
            for line in lost:
                log.warning("%s", line)
            self.notes += lost
            if lost:
                await self.notify_owner("\n".join(lost))
            break
        await anyio.sleep_forever()
