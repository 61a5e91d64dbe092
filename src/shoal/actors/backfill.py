"""Before a turn: what was said in the thread while nobody listened, read from the platform and put into the journal."""

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.events import Failed
from shoal.domain.ids import ThreadId
from shoal.domain.messages import Judge, Prompt
from shoal.domain.ports import ChatAdapter
from shoal.turn.session import Session

log = logging.getLogger(__name__)

SECONDS_MAX = 10.0
TEXT_CHARS_MAX = 20_000
"""A longer message is cut."""
FAILED = "Messages that were missed while I was away could not be read."


class BackfillLimits(msgspec.Struct, frozen=True):
    """How many messages are read in before a turn (0: none), and how old they may be."""

    messages_max: int = 50
    hours: float = 24.0


class Backfill:
    """Reads in what was missed, from platforms that have a history; `judge` says whom of its authors to trust."""

    def __init__(self, adapters: Mapping[str, ChatAdapter], judge: Judge, clock: Clock, limits: BackfillLimits) -> None:
        self._adapters = adapters
        self._judge = judge
        self._clock = clock
        self._limits = limits

    async def before(self, session: Session, prompt: Prompt) -> None:
        """Journal what came before `prompt` and was not seen; a failure is noted there. Raises StaleEpoch."""
        adapter = self._adapters.get(session.thread.split(":", 1)[0])
        if adapter is None or not adapter.limits.has_history or not self._limits.messages_max:
            return
        if prompt.origin != "person" or not prompt.history:
            return
        after = await self._after(session)
        try:
            async with asyncio.timeout(SECONDS_MAX):
                history = adapter.history(session.thread, after, self._limits.messages_max + 1)
                found = [message async for message in history]
        except (PlatformError, TimeoutError) as error:
            why = str(error) or f"no answer within {SECONDS_MAX:g} seconds"
            log.warning("history could not be read", extra={"thread_id": session.thread, "why": why})
            await session.note(Failed("backfill", FAILED, why, fatal=False))
            return
        missed = [_tidied(one, session.thread) for one in found if after < one.at < prompt.at and one.key != prompt.key]
        missed = [one for one in missed if one.text or one.attachments][-self._limits.messages_max :]
        if missed:
            await session.backfill([await self._judged(one) for one in missed])

    async def _judged(self, message: Prompt) -> Prompt:
        """The platform knows who wrote, and only the rules know whether they are trusted."""
        return msgspec.structs.replace(message, author=await self._judge(message.thread, message.author))

    async def _after(self, session: Session) -> datetime:
        """Nothing older than the configured age, and nothing from before the window was cleared or summarised."""
        oldest = self._clock.now() - timedelta(hours=self._limits.hours)
        began = session.lease.window_seq
        if began:
            events = await session.journal.events(session.thread, began - 1, 1)
            oldest = max([oldest, *(event.at for event in events)])
        return oldest


def _tidied(message: Prompt, thread: ThreadId) -> Prompt:
    text = message.text.replace("\r\n", "\n").replace("\0", "").strip()
    return msgspec.structs.replace(message, thread=thread, text=text[:TEXT_CHARS_MAX])
