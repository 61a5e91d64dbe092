"""The terminal chat processes events in any order of arrival."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import cast

from shoal.kernel.events import AssistantSaid, Event, EventData, LiveEvent, Scope, TurnFinished, TurnStarted, UserSaid
from shoal.kernel.ids import ApprovalId, ThreadId, TurnId
from shoal.kernel.messages import Author
from shoal.kernel.posts import OutboundPost
from shoal.kernel.records import ThreadInfo
from shoal.surfaces.cli.chat import ChatScreen, TerminalChat
from shoal.surfaces.cli.thread_client import ThreadClient

THREAD = ThreadId("terminal:local:main")


class QuickLink:
    """A client that receives `count` events before `send` returns."""

    place = "a test"

    def __init__(self, count: int) -> None:
        self._before = count
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    async def standing(self) -> ThreadInfo | None:
        return None

    async def send(self, text: str, agent: str) -> str:
        turn: tuple[EventData, ...] = (
            TurnStarted(agent="main", model="demo"),
            UserSaid(text, Author("owner", trusted=True), "m1"),
            AssistantSaid("Hello!"),
            TurnFinished("done", reply="Hello!"),
        )
        events = [
            Event(n, THREAD, TurnId("T1"), datetime(2026, 1, 5, tzinfo=UTC), data) for n, data in enumerate(turn, 1)
        ]
        for event in events[: self._before]:
            await self._events.put(event)
        await self._events.join()
        for event in events[self._before :]:
            await self._events.put(event)
        return "m1"

    async def steer(self, text: str) -> bool:
        return False

    async def abort(self, *, all_queued: bool) -> bool:
        return False

    async def clear(self) -> None: ...

    async def decide(self, approval: ApprovalId, *, allow: bool, scope: Scope) -> str:
        return ""

    async def command(self, text: str) -> str:
        return ""

    async def watch(self, after: int) -> AsyncIterator[Event | LiveEvent]:
        while True:
            yield await self._events.get()
            self._events.task_done()

    def posts(self, show: Callable[[OutboundPost], None]) -> AbstractContextManager[None]:
        return nullcontext()


class Lines(ChatScreen):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def show_answer(self, markdown: str) -> None:
        self.lines.append(markdown)


async def test_an_answer_that_arrives_before_the_message_id_is_shown_once() -> None:
    for count in range(5):
        screen = Lines()
        conversation = TerminalChat(cast(ThreadClient, QuickLink(count)), THREAD, "", screen)
        following = asyncio.ensure_future(conversation.follow())
        await conversation.opened.wait()
        await conversation.type("hello")
        async with asyncio.timeout(60):
            await conversation.quiet.wait()
        assert (count, screen.lines, conversation.is_running) == (count, ["Hello!"], False)
        following.cancel()
