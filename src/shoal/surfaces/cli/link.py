"""A thread from the command line: of a Shoal in this process, or over the API of the one that runs already.

`shoal ask` and `shoal chat` take either; both kinds enter where every platform's messages enter.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from shoal.domain.clock import SystemClock
from shoal.domain.commands import CommandRequest, parse_command
from shoal.domain.errors import InvalidInput, NotFound, ShoalError
from shoal.domain.events import Event, LiveEvent, Scope
from shoal.domain.ids import OWN_PLATFORMS, ApprovalId, ThreadId, make_thread_id
from shoal.domain.messages import Abort, Author, Prompt, Steer
from shoal.domain.permissions import Asker
from shoal.domain.posts import OutboundPost
from shoal.domain.records import ThreadInfo
from shoal.surfaces.cli.client import Busy, ServerClient, decode_item, find_server, path_part
from shoal.surfaces.cli.context import CommandContext

if TYPE_CHECKING:
    from shoal.app import App

T = TypeVar("T")
OWNER = Author("owner", trusted=True)
ASKER = Asker(trust="owner", user="owner", platform="terminal")


@asynccontextmanager
async def open_link(
    context: CommandContext, thread: ThreadId | None, *, channel: str
) -> AsyncGenerator[tuple["Link", ThreadId]]:
    """Open a thread, or a new one of a terminal channel when none is named.

    Starts Shoal in this process unless one serves this home directory. Raises what starting raises.
    """
    chosen = thread or make_thread_id("terminal", channel, SystemClock().new_id())
    server = find_server(context)
    if server is not None:
        yield RemoteLink(server, chosen), chosen
        return
    from shoal.app import open_app
    from shoal.maintenance import collect_seldom
    from shoal.surfaces.cli.init import make_home

    make_home(context.home)
    config = context.config()
    context.guard()
    async with open_app(config) as app:
        collect_seldom(stays=False)
        yield LocalLink(app, chosen), chosen


@asynccontextmanager
async def open_api(context: CommandContext) -> AsyncGenerator[ServerClient]:
    """The API of the Shoal that serves this home directory, else of one that is started in this process meanwhile.

    Raises NotFound without a home directory, and what starting raises.
    """
    server = find_server(context)
    if server is not None:
        yield server
        return
    if not context.root.is_dir():
        raise NotFound(f"There is no home directory {context.root}. `shoal init` makes it; --home names another.")
    from shoal.app import open_app
    from shoal.maintenance import collect_seldom
    from shoal.surfaces.http.server import WebOptions, serve

    config, token = context.config(), secrets.token_urlsafe(32)
    context.guard()
    async with open_app(config) as app, serve(app, WebOptions(token=token, port=0)) as address:
        collect_seldom(stays=False)
        yield ServerClient(address, token)


def call_app(context: CommandContext, method: str, path: str, body: object = None, *, into: type[T]) -> T:
    """One call of `open_api`, for what needs an application that runs. Raises what this and the call raise."""

    async def call() -> T:
        async with open_api(context) as api:
            return await api.call(method, path, body, into=into)

    return asyncio.run(call())


class LocalLink:
    """A thread of the Shoal in this process, from the side of the person who types. `place` says where it runs."""

    place = "this process"

    def __init__(self, app: "App", thread: ThreadId) -> None:
        self._app = app
        self._thread = thread

    async def standing(self) -> ThreadInfo | None:
        """The thread's state; None before its first message."""
        return await self._app.store.journal.thread(self._thread)

    async def send(self, text: str, agent: str) -> str:
        """Send a prompt and return its message id, by which its turn is known; empty when the mailbox is full.

        Raises InvalidInput for an unknown agent.
        """
        app = self._app
        if agent and not app.agents.exists(agent):
            raise InvalidInput(f"There is no agent {agent!r}. There are: {', '.join(app.agents.names())}.")
        key = app.clock.new_id()
        alone = self._thread.partition(":")[0] in OWN_PLATFORMS
        prompt = Prompt(self._thread, key, text, OWNER, app.clock.now(), agent=agent, message_id=key, direct=alone)
        receipt = await app.orchestrator.send(prompt)
        return "" if receipt.status == "busy" else key

    async def steer(self, text: str) -> bool:
        """Hand a message to the running turn; False when none runs."""
        clock = self._app.clock
        receipt = await self._app.orchestrator.send(Steer(self._thread, clock.new_id(), text, OWNER, clock.now()))
        return receipt.delivered

    async def abort(self, *, all_queued: bool) -> bool:
        """End the running turn; False when none runs."""
        return (await self._app.orchestrator.send(Abort(self._thread, OWNER, all_queued))).delivered

    async def clear(self) -> None:
        """Start the model's window anew."""
        await self._app.orchestrator.clear(self._thread, OWNER.id)

    async def command(self, text: str) -> str:
        """Do what a slash command of the chats does, and return its answer."""
        clock, spoken = self._app.clock, parse_command(text)
        if spoken is None:
            return f"There is no command {text.split(maxsplit=1)[0]}. /help lists them."
        key, at = clock.new_id(), clock.now()
        asked = CommandRequest(self._thread, OWNER, spoken.name, spoken.argument, key, at, direct=True, by=ASKER)
        return await self._app.commands.command(asked)

    async def decide(self, approval: ApprovalId, *, allow: bool, scope: Scope) -> str:
        """Decide an approval and return what it became. Raises NotFound, Conflict or Gone."""
        return await self._app.orchestrator.decide(approval, allow, ASKER, scope)

    def posts(self, show: Callable[[OutboundPost], None]) -> AbstractContextManager[None]:
        """Have what is posted to the thread shown while inside, where this process posts it."""
        from shoal.chat.local import TerminalAdapter

        adapter = self._app.adapters.get("terminal")
        return adapter.attach(self._thread, show) if isinstance(adapter, TerminalAdapter) else nullcontext()

    async def watch(self, after: int) -> AsyncGenerator[Event | LiveEvent]:
        """Journal, then live; from the journal again where this reader fell behind or events were not shown."""
        seq, has_ended = after, False
        while not has_ended:
            with self._app.hub.subscribe(self._thread) as subscription:
                for event in await self._app.store.journal.events(self._thread, seq):
                    seq = event.seq
                    yield event
                async for item in subscription:
                    if isinstance(item, LiveEvent):
                        yield item
                    elif item.seq > seq + 1:
                        break
                    elif item.seq > seq:
                        seq = item.seq
                        yield item
                else:
                    has_ended = not subscription.lost


RECONNECT_SECONDS = 1.0
RECONNECTS_MAX = 30
"""How often a server that went away is looked for, once every RECONNECT_SECONDS, before giving up."""


class RemoteLink:
    """A thread of the Shoal that runs already; what each method does, `LocalLink` says."""

    def __init__(self, server: ServerClient, thread: ThreadId) -> None:
        self._server = server
        self._path = f"/api/threads/{path_part(thread)}"
        self.place = f"the Shoal at {server.address}"

    async def standing(self) -> ThreadInfo | None:
        try:
            return await self._server.call("GET", self._path, into=ThreadInfo)
        except NotFound:
            return None

    async def send(self, text: str, agent: str) -> str:
        try:
            body = {"text": text, "agent": agent}
            answer = await self._server.call("POST", f"{self._path}/messages", body, into=dict[str, object])
        except Busy:
            return ""
        return str(answer["message_id"])

    async def steer(self, text: str) -> bool:
        return await self._deliver("steer", {"text": text})

    async def abort(self, *, all_queued: bool) -> bool:
        return await self._deliver("abort", {"all_queued": all_queued})

    async def clear(self) -> None:
        await self._server.call("POST", f"{self._path}/clear")

    async def decide(self, approval: ApprovalId, *, allow: bool, scope: Scope) -> str:
        body = {"decision": "allow" if allow else "deny", "scope": scope}
        answer = await self._server.call("POST", f"/api/approvals/{path_part(approval)}", body, into=dict[str, str])
        return answer["state"]

    async def command(self, text: str) -> str:
        return (await self._server.call("POST", f"{self._path}/command", {"text": text}, into=dict[str, str]))["answer"]

    async def watch(self, after: int) -> AsyncGenerator[Event | LiveEvent]:
        """The live stream, taken up where it broke off when the server was restarted."""
        seq, failures = after, 0
        while True:
            try:
                async for line in self._server.stream(f"{self._path}/events?after={seq}"):
                    item = decode_item(line)
                    failures = 0
                    seq = item.seq if isinstance(item, Event) else seq
                    yield item
            except ShoalError:
                if failures >= RECONNECTS_MAX:
                    raise
            failures += 1
            await asyncio.sleep(RECONNECT_SECONDS)

    def posts(self, show: Callable[[OutboundPost], None]) -> AbstractContextManager[None]:
        return nullcontext()

    async def _deliver(self, call: str, body: object) -> bool:
        return (await self._server.call("POST", f"{self._path}/{call}", body, into=dict[str, bool]))["delivered"]


Link: TypeAlias = LocalLink | RemoteLink
