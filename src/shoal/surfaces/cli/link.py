"""A conversation from the command line: with a Shoal in this process, or through the one that runs already.

`shoal ask` and `shoal chat` know only the `Link`; both kinds enter where every platform's messages enter.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.domain.events import Event, LiveEvent, Scope
from shoal.domain.ids import OWN_PLATFORMS, ApprovalId, ThreadId
from shoal.domain.messages import Abort, Author, Prompt, Steer
from shoal.domain.permissions import Asker
from shoal.domain.posts import OutboundPost
from shoal.surfaces.cli.place import Place

if TYPE_CHECKING:
    from shoal.app import App

OWNER = Author("owner", trusted=True)
ASKER = Asker(trust="owner", user="owner", platform="terminal")


class Sent(NamedTuple):
    """Whether a prompt was taken, and the id by which its turn can be told."""

    accepted: bool
    message_id: str


class Standing(NamedTuple):
    """How a thread stands."""

    agent: str
    last_seq: int
    is_busy: bool
    queued: int


class Link(Protocol):
    """One thread, from the side of the person who types."""

    @property
    def place(self) -> str:
        """Where it runs, for a person."""
        ...

    async def standing(self) -> Standing | None:
        """How the thread stands; None before its first message."""
        ...

    async def send(self, text: str, agent: str) -> Sent:
        """Send a prompt. Raises InvalidInput for an unknown agent."""
        ...

    async def steer(self, text: str) -> bool:
        """Hand a message to the running turn; False when none runs."""
        ...

    async def abort(self, *, all_queued: bool) -> bool:
        """End the running turn; False when none runs."""
        ...

    async def clear(self) -> None:
        """Start the model's window anew."""
        ...

    async def decide(self, approval: ApprovalId, *, allow: bool, scope: Scope) -> str:
        """Settle an approval and return what it became. Raises NotFound, Conflict or Gone."""
        ...

    async def command(self, text: str) -> str:
        """Do what a slash command of the chats does, and return its answer."""
        ...

    def watch(self, after: int) -> AsyncIterator[Event | LiveEvent]:
        """Events with a higher number than `after`, then whatever happens, without gaps."""
        ...

    def posts(self, show: Callable[[OutboundPost], None]) -> AbstractContextManager[None]:
        """Have what is posted to the thread shown while inside, where this process posts it."""
        ...


@asynccontextmanager
async def open_link(place: Place, thread: ThreadId | None, *, channel: str) -> AsyncGenerator[tuple[Link, ThreadId]]:
    """Open a thread, or a new one of a terminal channel when none is named.

    Starts Shoal in this process unless one serves this home directory. Raises what starting raises.
    """
    from shoal.domain.clock import SystemClock
    from shoal.domain.ids import make_thread_id

    chosen = thread or make_thread_id("terminal", channel, SystemClock().new_id())
    if place.home.lock_file.exists():
        from shoal.surfaces.cli.remote import find_remote

        remote = find_remote(place)
        if remote is not None:
            from shoal.surfaces.cli.remote_link import RemoteLink

            yield RemoteLink(remote, chosen), chosen
            return
    from shoal.app import open_app
    from shoal.surfaces.cli.init import make_home
    from shoal.upkeep import collect_seldom

    make_home(place.home)
    async with AsyncExitStack() as stack:
        config = place.config()
        place.guard()
        app = await stack.enter_async_context(open_app(config))
        collect_seldom(stays=False)
        yield LocalLink(app, chosen), chosen


class LocalLink:
    """A thread of the Shoal in this process."""

    place = "this process"

    def __init__(self, app: "App", thread: ThreadId) -> None:
        self._app = app
        self._thread = thread

    async def standing(self) -> Standing | None:
        """How the thread stands."""
        info = await self._app.store.journal.thread(self._thread)
        return Standing(info.agent, info.last_seq, bool(info.open_turn), info.queued) if info else None

    async def send(self, text: str, agent: str) -> Sent:
        """Send a prompt."""
        from shoal.domain.errors import InvalidInput

        app = self._app
        if agent and not app.agents.exists(agent):
            raise InvalidInput(f"There is no agent {agent!r}. There are: {', '.join(app.agents.names())}.")
        key = app.clock.new_id()
        alone = self._thread.partition(":")[0] in OWN_PLATFORMS
        prompt = Prompt(self._thread, key, text, OWNER, app.clock.now(), agent=agent, message_id=key, direct=alone)
        receipt = await app.orchestrator.send(prompt)
        return Sent(receipt.status != "busy", key)

    async def steer(self, text: str) -> bool:
        """Hand a message to the running turn."""
        clock = self._app.clock
        receipt = await self._app.orchestrator.send(Steer(self._thread, clock.new_id(), text, OWNER, clock.now()))
        return receipt.delivered

    async def abort(self, *, all_queued: bool) -> bool:
        """End the running turn."""
        return (await self._app.orchestrator.send(Abort(self._thread, OWNER, all_queued))).delivered

    async def clear(self) -> None:
        """Start the model's window anew."""
        await self._app.orchestrator.clear(self._thread, OWNER.id)

    async def command(self, text: str) -> str:
        """Do what a slash command of the chats does."""
        from shoal.chat.commands import parse_command
        from shoal.domain.commands import Asked

        clock, spoken = self._app.clock, parse_command(text)
        if spoken is None:
            return f"There is no command {text.split(maxsplit=1)[0]}. /help lists them."
        key, at = clock.new_id(), clock.now()
        asked = Asked(self._thread, OWNER, spoken.name, spoken.argument, key, at, direct=True, by=ASKER)
        return await self._app.orchestrator.command(asked)

    async def decide(self, approval: ApprovalId, *, allow: bool, scope: Scope) -> str:
        """Settle an approval."""
        return await self._app.orchestrator.decide(approval, allow, ASKER, scope)

    def posts(self, show: Callable[[OutboundPost], None]) -> AbstractContextManager[None]:
        """The terminal's own posts."""
        from shoal.chat.terminal import TerminalAdapter

        adapter = self._app.adapters.get("terminal")
        return adapter.attach(self._thread, show) if isinstance(adapter, TerminalAdapter) else nullcontext()

    async def watch(self, after: int) -> AsyncGenerator[Event | LiveEvent]:
        """Journal, then live; from the journal again where this reader fell behind or events were not shown."""
        reader = _Reader(after)
        while not reader.has_ended:
            async with aclosing(self._read(reader)) as items:
                async for item in items:
                    yield item

    async def _read(self, reader: "_Reader") -> AsyncGenerator[Event | LiveEvent]:
        """One turn of it, up to a gap."""
        with self._app.hub.subscribe(self._thread) as subscription:
            for event in await self._app.store.journal.events(self._thread, reader.seq):
                reader.seq = event.seq
                yield event
            async for item in subscription:
                if reader.misses(item):
                    return
                if reader.takes(item):
                    yield item
            reader.has_ended = not subscription.lost


class _Reader:
    """How far a reader of the thread is."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.has_ended = False

    def misses(self, item: Event | LiveEvent) -> bool:
        """Whether events stand between what was read and this one."""
        return isinstance(item, Event) and item.seq > self.seq + 1

    def takes(self, item: Event | LiveEvent) -> bool:
        """Whether it is new; then it counts as read."""
        if isinstance(item, LiveEvent):
            return True
        is_new = item.seq > self.seq
        self.seq = max(self.seq, item.seq)
        return is_new
