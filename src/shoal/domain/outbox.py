"""The store's view of the posts on their way to platforms."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.messages import Prompt, Receipt
from shoal.domain.records import Fate, NewPost, OutboxRow


class Outbox(Protocol):
    """Posts on their way to platforms; a row is pending, sending, sent or failed."""

    async def put(self, post: NewPost) -> bool:
        """Enqueue a post and journal its note, unless that waits for an opening; False when its id is known already.

        An opening of no trigger that was given up is enqueued anew.
        """
        ...

    async def claim(
        self, platforms: Sequence[str], limit: int, claim_seconds: float, held: Sequence[str] = ()
    ) -> list[OutboxRow]:
        """Mark up to `limit` due rows as sending, oldest first and one a thread at a time, and return them.

        Rows claimed longer than `claim_seconds` ago come back with `maybe_sent`, save those `held`: the caller is still
        at work on them, and their claims last `claim_seconds` from now. Safe to cancel: all or none.
        """
        ...

    async def release(self, platform: str) -> None:
        """Make the claims of a platform's former sender due at once; they come back with `maybe_sent`.

        For a sender that starts, and only while it is the one sender of the platform.
        """
        ...

    async def give_back(self, row: OutboxRow) -> None:
        """A claimed post was not begun: it is due at once, and no repeat. Nothing when it was claimed anew or sent."""
        ...

    async def posted(self, row: OutboxRow, part: int, message_id: str, *, last: bool) -> bool:
        """Piece `part` is on the platform as `message_id`; `last` ends the row. Whether its thread has more to post."""
        ...

    async def opened(
        self,
        row: OutboxRow,
        thread: ThreadId,
        rest: Sequence[NewPost],
        prompt: Prompt | None = None,
        prompts_max: int = 0,
    ) -> Receipt | None:
        """An `opening` has opened this thread: its note is journaled there, `rest` goes there. Ends the row.

        So does its prompt, as it is to be accepted there; see `Inbox.accept`. A full mailbox fails the row instead. The
        opening's trigger learns either.
        """
        ...

    async def retry(self, row: OutboxRow, at: datetime, error: str, *, maybe_sent: bool = False) -> None:
        """Put it back until `at`; nothing when it was claimed anew or sent meanwhile."""
        ...

    async def fail(self, row: OutboxRow, error: str) -> None:
        """Give it up; it stays visible with its error. Nothing when it was claimed anew or sent meanwhile.

        The trigger of an opening learns it, once.
        """
        ...

    async def withdraw(self, post_id: str) -> str | None:
        """Give up a post that waits to be tried (again); its last error, or None when it is not waiting."""
        ...

    async def fate(self, post_id: str) -> Fate | None:
        """What has become of a post; None for an unknown one."""
        ...

    async def posted_ids(self, post_id: str) -> list[str]:
        """The platform's message ids of a post, part by part."""
        ...

    async def begin_preview(self, thread: ThreadId, turn: TurnId) -> bool:
        """A turn's answer is about to be shown, as the post `preview:TURN`, whose `posted_ids` have an empty one.

        False, and nothing is noted, while a post of the thread is pending or sending: the preview would stand above it.
        """
        ...

    async def previewed(self, thread: ThreadId, turn: TurnId, message_id: str) -> None:
        """A turn's answer is being shown in this message; kept as the post `preview:TURN` until the answer takes it."""
        ...

    async def is_overtaken(self, thread: ThreadId, turn: TurnId) -> bool:
        """Whether a post of the thread but the turn's answer was claimed since the turn's preview was begun."""
        ...

    async def unpreviewed(self, thread: ThreadId, turn: TurnId) -> None:
        """The preview that was about to be shown does not stand anywhere."""
        ...

    def underway(self, thread: ThreadId) -> AbstractContextManager[None]:
        """While the block lasts, a message of the thread goes to the platform and its id is noted."""
        ...

    async def thread_of(self, channel: str, message_id: str, key: str = "") -> ThreadId | None:
        """The thread, in a channel (`PLATFORM:CHANNEL:`), of one of our messages or of a prompt by its key.

        A message that is not known may be one that is on its way just now: its end is awaited, some seconds at most.
        """
        ...

    async def is_noted(self, platform: str, message_id: str) -> bool:
        """Whether a message of a platform is known as a post's."""
        ...

    async def depth(self) -> int:
        """How many posts are on their way, for metrics."""
        ...
