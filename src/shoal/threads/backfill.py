"""Before a turn starts, read missed messages from the platform's history."""

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta

import msgspec

from shoal.kernel.clock import Clock
from shoal.kernel.errors import PlatformError
from shoal.kernel.events import Failed
from shoal.kernel.messages import Judge, Prompt, bounded, judged_files
from shoal.kernel.ports import ChatAdapter
from shoal.kernel.settings import ContextSettings
from shoal.turn.thread import ThreadView

log = logging.getLogger(__name__)

BACKFILL_SECONDS_MAX = 10.0
TEXT_CHARS_MAX = 20_000
FAILED = "I could not read the messages that I missed while I was offline."


class Backfill(msgspec.Struct, frozen=True, eq=False):
    """Reads missed messages from platforms that provide a history. `judge` decides whether to trust their authors."""

    adapters: Mapping[str, ChatAdapter]
    judge: Judge
    clock: Clock
    settings: ContextSettings

    async def before(self, view: ThreadView, prompt: Prompt) -> None:
        """Journal unseen messages that precede `prompt`. If reading them fails, journal the failure. Raises
        StaleEpoch.
        """
        thread, messages_max = view.thread, self.settings.backfill_messages_max
        adapter = self.adapters.get(thread.split(":", 1)[0])
        if adapter is None or not adapter.limits.has_history or not messages_max:
            return
        if prompt.origin != "person" or not prompt.history:
            return
        # Skip messages older than the configured age, and those from before the window was cleared or summarized.
        after = self.clock.now() - timedelta(hours=self.settings.backfill_hours)
        if began := view.lease.window_seq:
            after = max([after, *(event.at for event in await view.journal.events(thread, began - 1, 1))])
        try:
            async with asyncio.timeout(BACKFILL_SECONDS_MAX):
                history = adapter.history(thread, after, messages_max + 1)
                messages = [message async for message in history]
        except (PlatformError, TimeoutError) as error:
            why = str(error) or f"no response within {BACKFILL_SECONDS_MAX:g} seconds"
            log.warning("reading message history failed", extra={"thread_id": thread, "why": why})
            await view.note(Failed("backfill", FAILED, why, fatal=False))
            return
        missed: list[Prompt] = []
        for message in messages:
            text = message.text.replace("\r\n", "\n").replace("\0", "").strip()[:TEXT_CHARS_MAX]
            has_content = text or message.attachments or message.refers_to
            if after < message.at < prompt.at and message.key != prompt.key and has_content:
                missed.append(msgspec.structs.replace(message, thread=thread, text=text))
        if missed := missed[-messages_max:]:  # The platform identifies the author. The access rules decide the trust.
            judged: list[Prompt] = []
            for missed_message in missed:
                author = await self.judge(thread, missed_message.author)
                others = [other for other in bounded(missed_message.refers_to) if not other.own]
                refers_to = [
                    msgspec.structs.replace(other, author=await self.judge(thread, other.author)) for other in others
                ]
                files = await judged_files(thread, missed_message.attachments, self.judge)
                judged.append(
                    msgspec.structs.replace(
                        missed_message, author=author, refers_to=tuple(refers_to), attachments=files
                    )
                )
            await view.backfill(judged)
