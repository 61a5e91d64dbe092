"""The two sides a chat adapter's contract puts it between: a platform's counterpart, and an inbox that writes down."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal, Protocol, TypeAlias

import msgspec

from shoal.domain.clock import Clock
from shoal.domain.commands import Asked
from shoal.domain.events import Scope
from shoal.domain.ids import ApprovalId, ThreadId
from shoal.domain.messages import Inbound, Prompt, Receipt
from shoal.domain.permissions import Asker
from shoal.domain.ports import ChatAdapter

WAIT_SECONDS = 20.0
"""How long a test waits for what has to come; it does not depend on it."""

Lack: TypeAlias = Literal[
    "people", "troubles", "connection", "files_in", "view", "edits", "deletions", "reactions", "bots", "replies"
]
"""`people`: messages come in by another way than the adapter. `troubles`: its posts cannot fail. `connection`: it has
none that could drop. `files_in`: people cannot send files. `view`: what is posted is seen elsewhere. `edits`,
`deletions`, `reactions`: the platform does not tell bots of them. `bots`: it has no other bots. `replies`: its messages
name none that they answer, but the thread they stand in."""


class Shown(msgspec.Struct):
    """A message as people see it now: `text` without markup, `file` as name and content."""

    id: str
    text: str
    buttons: tuple[str, ...] = ()
    file: tuple[str, bytes] | None = None
    reply_to: str = ""


class Counterpart(Protocol):
    """The other side of a platform, for one test."""

    adapter: ChatAdapter
    clock: Clock
    lacks: frozenset[Lack]
    thread: ThreadId
    """A conversation that exists, in which ada may speak."""
    stranger: str
    """The id of somebody the inbox does not admit."""

    def shown(self) -> Sequence[Shown]:
        """What stands in the conversation, oldest first."""
        ...

    async def says(self, text: str, *, author: Literal["ada", "bot", "itself", "stranger"] = "ada") -> str:
        """Somebody writes in the conversation; returns the platform's message id."""
        ...

    async def changes(self, message_id: str, text: str) -> None:
        """Ada edits what she wrote."""
        ...

    async def deletes(self, message_id: str) -> None:
        """Ada deletes what she wrote."""
        ...

    async def reacts(self, message_id: str, emoji: str) -> None:
        """Ada puts an emoji to a message."""
        ...

    async def sends_file(self, name: str, content: bytes) -> None:
        """Ada sends a file without words."""
        ...

    async def clicks(self, message_id: str, label: str) -> None:
        """Ada presses a button."""
        ...

    async def redeliver(self) -> None:
        """The platform delivers its last event again."""
        ...

    def refuse(self, retry_after_seconds: float) -> None:
        """The next call that posts is refused for so long."""
        ...

    def lose_answer(self) -> None:
        """The next post is made, and the connection breaks before the answer."""
        ...

    def break_connection(self) -> None:
        """Drop what is connected now, once."""
        ...

    def refuse_token(self, refused: bool) -> None:
        """Whether the platform takes the adapter's credential."""
        ...

    async def pass_time(self) -> None:
        """Let the adapter's next pause pass, without waiting for it."""
        ...


class Inbox:
    """An `InboxPort` that writes down what comes in."""

    def __init__(self) -> None:
        self.came: list[Inbound] = []
        self.decided: list[tuple[ApprovalId, bool, Asker, Scope]] = []
        self.commands: list[Asked] = []
        self.threads: dict[str, ThreadId] = {}
        self.answer: Literal["accepted", "busy"] = "accepted"
        self.strangers: set[str] = set()
        self._changed = asyncio.Condition()

    async def send(self, message: Inbound) -> Receipt:
        """Note it; the same key twice is a duplicate."""
        keys = {found.key for found in self.came if isinstance(found, Prompt)}
        if isinstance(message, Prompt) and message.key in keys:
            return Receipt("duplicate")
        if self.answer == "accepted":
            self.came.append(message)
        await self._tell()
        return Receipt(self.answer if isinstance(message, Prompt) else "delivered")

    async def admits(self, message: Prompt) -> bool:
        """Whether it is of nobody in `strangers`."""
        return message.author.id not in self.strangers

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Note it."""
        self.decided.append((approval, allow, by, scope))
        await self._tell()
        return "allow" if allow else "deny"

    async def command(self, asked: Asked) -> str:
        """Note it."""
        self.commands.append(asked)
        await self._tell()
        return f"Did /{asked.name}."

    async def thread_of(self, channel: str, message_id: str, key: str = "") -> ThreadId | None:
        """What `threads` says of the message's id, or its key."""
        return self.threads.get(message_id) or self.threads.get(key)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something is so; what it looks at are this inbox's notes."""
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(holds)

    async def prompts(self, count: int) -> list[Prompt]:
        """Wait for so many prompts, and return them."""
        await self.until(lambda: len(self.said()) >= count)
        return self.said()

    def said(self) -> list[Prompt]:
        """The prompts that came."""
        return [message for message in self.came if isinstance(message, Prompt)]

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def serving(adapter: ChatAdapter, inbox: Inbox) -> AsyncGenerator[asyncio.Task[None]]:
    """Run an adapter while inside; leaving cancels it and waits until it has ended."""
    task = asyncio.ensure_future(adapter.run(inbox))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or task.exception() is None
