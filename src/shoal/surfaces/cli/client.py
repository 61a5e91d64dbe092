"""The API as commands call it: of the Shoal that serves this home directory, else of the same application in process;
and a thread in either, for `shoal ask` and `shoal chat`, which enters where every platform's messages enter.

The lock file tells where a server is, the token file lets in. It is ours and on this machine, so that a few lines of
HTTP/1.0 are enough.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import click
import msgspec

from shoal.config.secrets import read_token
from shoal.kernel import lazy_re
from shoal.kernel.clock import SystemClock
from shoal.kernel.commands import CommandRequest, CommandSpec
from shoal.kernel.errors import Conflict, Gone, InvalidId, InvalidInput, NotFound, ShoalError, StoreNewer
from shoal.kernel.events import LIVE_CLASSES, Event, LiveEvent, Scope, decode_data
from shoal.kernel.ids import OWN_PLATFORMS, ApprovalId, ThreadId, TurnId, make_thread_id
from shoal.kernel.messages import Abort, Author, Prompt, Steer
from shoal.kernel.permissions import Asker
from shoal.kernel.posts import OutboundPost
from shoal.kernel.records import ThreadInfo
from shoal.kernel.regular_files import read_regular
from shoal.kernel.untrusted import UNREADABLE
from shoal.store.lock import is_held
from shoal.surfaces.cli.context import CommandContext

if TYPE_CHECKING:
    from shoal.app import App

T = TypeVar("T")

REQUEST_SECONDS = 30.0
LINE_BYTES_MAX = 67_108_864
RECONNECT_SECONDS = 1.0
RECONNECTS_MAX = 30
"""How often a server that went away is looked for, once every RECONNECT_SECONDS, before giving up."""
OWNER = Author("owner", trusted=True)
ASKER = Asker(trust="owner", user="owner", platform="terminal")

_HOLDER = lazy_re.compile(r"process \d+ at (http://\S+)")


class _ReceivedEvent(msgspec.Struct):
    type: str
    thread: ThreadId
    turn: TurnId
    data: msgspec.Raw
    seq: int
    at: datetime

    def event(self) -> Event:
        return Event(self.seq, self.thread, self.turn, self.at, decode_data(self.type, bytes(self.data)))


class Busy(ShoalError):
    """The thread's mailbox is full."""


class ServerClient:
    """The API of a running Shoal."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self._token = token

    async def call(self, method: str, path: str, body: object = None, *, into: type[T] = object) -> T:
        """Make a call and return its answer as `into`.

        Raises NotFound, Conflict, Gone, InvalidInput or Busy as the server says, ShoalError for anything else.
        """
        async with self._open(method, path, "application/json", body) as (status, answer):
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    content = await answer.read()
            except (OSError, TimeoutError) as error:
                raise ShoalError(f"Shoal at {self.address} broke off its answer. Look at its log.") from error
        return decoded(status, content, into, f"Shoal at {self.address}")

    async def stream(self, path: str, method: str = "GET", body: object = None) -> AsyncGenerator[bytes]:
        """The data of server-sent events, until the server ends them. Raises ShoalError."""
        async with self._open(method, path, "text/event-stream", body) as (status, answer):
            if status != 200:
                decoded(status, await answer.read(), object, f"Shoal at {self.address}")
            while True:
                try:
                    line = await answer.readline()
                except (OSError, ValueError) as error:
                    raise ShoalError(f"Shoal at {self.address} broke off its events. Look at its log.") from error
                if not line:
                    return
                if line.startswith(b"data: "):
                    yield line.removeprefix(b"data: ")

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, accept: str, body: object = None
    ) -> AsyncGenerator[tuple[int, asyncio.StreamReader]]:
        content = content_of(body)
        target = urlsplit(self.address)
        head = [
            f"{method} {path} HTTP/1.0",
            f"Host: {target.netloc}",
            f"Authorization: Bearer {self._token}",
            f"Accept: {accept}",
            f"Content-Type: application/{'octet-stream' if isinstance(body, bytes) else 'json'}",
            f"Content-Length: {len(content)}",
        ]
        with ExitStack() as opened:
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    reader, writer = await asyncio.open_connection(target.hostname, target.port, limit=LINE_BYTES_MAX)
                    opened.callback(writer.close)
                    writer.write("\r\n".join([*head, "", ""]).encode("latin-1") + content)
                    status = int((await reader.readline()).split()[1])
                    while (await reader.readline()).strip():
                        pass
            except (OSError, TimeoutError, ValueError, IndexError) as error:
                message = f"Shoal at {self.address} does not answer. Restart it, or stop it and try again."
                raise ShoalError(message) from error
            yield status, reader


def content_of(body: object) -> bytes:
    """What a call sends: bytes as they are, nothing for None, all else as JSON."""
    return body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)


def find_server(context: CommandContext) -> ServerClient | None:
    """The Shoal that serves this home directory now, or None."""
    try:
        found = _HOLDER.fullmatch(read_regular(context.home.lock_file).decode("utf-8", "replace").strip())
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found is None or not is_held(context.home.lock_file):
        return None
    token = context.config().web.token.reveal()
    if not token and context.home.token_file.exists():
        token = read_token(context.home)
    return ServerClient(found[1], token)


def call_api(context: CommandContext, method: str, path: str, body: object = None, *, into: type[T] = object) -> T:
    """Make an API call and return its answer as `into`.

    Where no server runs, the database is opened for it, as `CommandContext.read` does for a GET and `write` for any
    other. Raises what these raise, and NotFound, Conflict, Gone or InvalidInput as the API says.
    """
    server = find_server(context)
    if server is not None:
        return asyncio.run(server.call(method, path, body, into=into))
    from shoal.surfaces.cli.offline import call_offline

    config = context.config()
    use_store = context.read if method == "GET" else context.write
    return decoded(*use_store(lambda store: call_offline(context, config, store, method, path, body)), into)


@asynccontextmanager
async def open_api(context: CommandContext) -> AsyncGenerator[ServerClient]:
    """The API of the Shoal that serves this home directory, else of one that is started in this process meanwhile.

    Raises NotFound without a home directory, and what starting raises.
    """
    server = find_server(context)
    if server is not None:
        yield server
        return
    context.check_root()
    from shoal.app import open_app
    from shoal.maintenance import collect_seldom
    from shoal.surfaces.http.server import WebOptions, serve

    config, token = context.config(), secrets.token_urlsafe(32)
    context.guard()
    async with open_app(config) as app, serve(app, WebOptions(token=token, port=0)) as address:
        collect_seldom()
        yield ServerClient(address, token)


def call_app(context: CommandContext, method: str, path: str, body: object = None, *, into: type[T]) -> T:
    """One call of `open_api`, for what needs an application that runs. Raises what this and the call raise."""

    async def call() -> T:
        async with open_api(context) as api:
            return await api.call(method, path, body, into=into)

    return asyncio.run(call())


def get(context: CommandContext, path: str, into: type[T], **query: str | int | bool) -> T:
    """`call_api` for what is only looked at, with the parts of its query that are given."""
    given = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
    asked = urlencode({name: value for name, value in given.items() if value != ""})
    return call_api(context, "GET", f"{path}?{asked}" if asked else path, into=into)


def decoded(status: int, content: bytes, into: type[T], who: str = "Shoal") -> T:
    """An answer as `into`. Raises the error that a refusal tells of."""
    if status < 400:
        try:
            return msgspec.json.decode(content, type=into)
        except UNREADABLE as error:
            from shoal.kernel.schema import refusal

            why = f"{who} answered in a form that this version does not know: {refusal(error, into)}."
            raise ShoalError(f"{why} Use the `shoal` of the version that runs.") from error
    try:
        message = msgspec.json.decode(content, type=dict[str, str]).get("message")
    except UNREADABLE:
        message = ""
    kinds: dict[int, type[ShoalError]] = {
        400: InvalidInput, 404: NotFound, 409: Conflict, 410: Gone, 429: Busy, 501: StoreNewer
    }  # fmt: skip
    raise kinds.get(status, ShoalError)(message or f"{who} refused ({status}). Look at its log.")


@contextmanager
def as_usage() -> Generator[None]:
    """What is named in a command and is not there, or not of that form, is wrong usage. Raises click.UsageError."""
    try:
        yield
    except (InvalidId, InvalidInput, NotFound) as error:
        raise click.UsageError(str(error)) from error


def path_part(text: str) -> str:
    return quote(text, safe="")


def decode_item(content: bytes) -> Event | LiveEvent:
    """An event as the API shows it, of the journal or live."""
    item = msgspec.json.decode(content, type=_ReceivedEvent)
    live = LIVE_CLASSES.get(item.type)
    return LiveEvent(item.thread, item.turn, msgspec.json.decode(item.data, type=live)) if live else item.event()


def decode_event(content: msgspec.Raw) -> Event:
    """An event of the journal as the API shows it."""
    return msgspec.json.decode(content, type=_ReceivedEvent).event()


# ---- a thread ----


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
        collect_seldom()
        yield LocalLink(app, chosen), chosen


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

    async def commands(self) -> list[CommandSpec]:
        """The slash commands of all platforms."""
        return list(self._app.commands.table)

    async def command(self, text: str) -> str:
        """Do what a slash command of the chats does, and return its answer."""
        clock, spoken = self._app.clock, self._app.commands.table.parse(text)
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
        from shoal.platforms.local import TerminalAdapter

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

    async def commands(self) -> list[CommandSpec]:
        return await self._server.call("GET", "/api/commands", into=list[CommandSpec])

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
