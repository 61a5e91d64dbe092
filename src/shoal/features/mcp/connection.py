"""Keep one MCP server connected while Shoal runs, and its tools registered while it is connected.

state       meaning                                       tools of the server
--------    ------------------------------------------    -----------------------------------------------------
starting    No attempt has finished.                      None are registered.
up          Connected. Tools are listed every             Registered if the owner allowed them (pins.py).
            CHECK_SECONDS and on each change notice.      Removed when the server no longer lists them.
lost        The connection ended.                         Registered for one attempt to reconnect. Calls fail.
down        The last attempt failed.                      None are registered. Attempts repeat with longer delays.

A failing server affects nothing else: each failure becomes a state and a log line. Tool results are bounded, wrapped as
untrusted, and taint the conversation. Images are stored as files (results.py). Unusable definitions are skipped and
reported. Messages that violate the protocol are repaired (wire.py).
"""

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import anyio
import msgspec

from shoal.features.mcp.definitions import Definition, definition_digest, definition_text, described, tool_name
from shoal.features.mcp.kinds import UNCONFIRMED, hints_of, traits_of
from shoal.features.mcp.pins import InForce, Pins, SendNotice
from shoal.features.mcp.transport import LastWords, McpServer, failures, opened
from shoal.installation import how_to_add
from shoal.kernel.clock import Clock, retry_delay
from shoal.kernel.errors import InvalidInput, SandboxError, ShoalError, StoreError, ToolError
from shoal.kernel.messages import ToolSpec
from shoal.kernel.permissions import Action
from shoal.kernel.phrases import counted
from shoal.kernel.ports import Enclose, Invocation, ToolContext, ToolOutput
from shoal.kernel.schema import refusal
from shoal.kernel.traits import Traits
from shoal.kernel.untrusted import UNREADABLE
from shoal.net.connections import network_reason
from shoal.tools.attachments import keep_copy
from shoal.tools.functions import Prepared, canonical
from shoal.tools.output import visible
from shoal.tools.registry import Registry

if TYPE_CHECKING:
    from mcp import types
    from mcp.client.session import ClientSession

    from shoal.features.mcp.schemas import Json

ARGUMENTS_CHARS_MAX = 1_000_000

Call: TypeAlias = Callable[[str, dict[str, object], ToolContext], Awaitable[ToolOutput]]
"""Calls a tool. The first argument is the server's name for the tool."""


class McpTool:
    """Tool of an MCP server. `traits` depend on the kind that the owner confirmed.

    `server_digest` identifies the server's command or URL. A change to this digest or to the tool's definition ends
    approvals that cover a whole thread.
    """

    def __init__(
        self,
        spec: ToolSpec,
        own_name: str,
        server_digest: str,
        call: Call,
        names: Mapping[str, str] | None = None,
        traits: Traits = UNCONFIRMED,
    ) -> None:
        self.spec = spec
        self.traits = traits
        self._own_name = own_name
        self._names = names or {}
        self._call = call
        definition = f"{server_digest}\0{own_name}\0{spec.description}\0{spec.parameters}"
        self.definition = hashlib.sha256(definition.encode("utf-8", errors="replace")).hexdigest()

    def is_same(self, other: "McpTool") -> bool:
        return self.definition == other.definition and self.traits == other.traits

    def prepare(self, arguments: str, context: ToolContext) -> Invocation:
        name, size = self.spec.name, len(arguments)
        if size > ARGUMENTS_CHARS_MAX:
            raise ToolError(
                f"The arguments of {name} have {size:,} characters, but the limit is {ARGUMENTS_CHARS_MAX:,}."
            )
        try:
            values = msgspec.json.decode(arguments.strip() or "{}", type=dict[str, object])
            if self._names:
                from shoal.features.mcp.schemas import own_names

                values = cast("dict[str, object]", own_names(cast("Json", values), self._names))
        except UNREADABLE as error:
            raise ToolError(
                f"The arguments of {name} are not a JSON object: {refusal(error, dict[str, object])}. Send one object."
            ) from error
        detail = msgspec.json.encode(values, order="sorted").decode()
        effect = canonical(name, arguments=values, definition=self.definition)
        shown = f"{name}\n{msgspec.json.format(detail.encode(), indent=2).decode()}"
        work = partial(self._call, self._own_name, values, context)
        advice = _unconfirmed if self.traits == UNCONFIRMED else None
        return Prepared((Action(f"tool:{name}:{detail}"),), shown, effect, work, advice)


async def _unconfirmed() -> str:
    return "The owner has not confirmed the kind of this tool. Use `/mcp` to confirm it."


log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
"""Seconds between two listings of a server's tools. Each listing also checks whether the server is alive."""
LISTINGS_MAX = 10
"""Maximum number of listings per CHECK_SECONDS, even if the server reports more changes."""
STEADY_SECONDS = 30.0
"""A lost connection is retried immediately if it lasted at least this many seconds. The loss of a shorter connection
counts as a failure.
"""
TOOLS_MAX = 128
PAGES_MAX = 20
LISTED_MAX = 2_000
"""Maximum number of tool definitions read per server."""

WARNINGS_MAX = 20

LOST = (
    "The connection to the MCP server {} was lost during the call, so the outcome is unknown. Check before repeating."
)
UNCLEAR = "The MCP server {} sent an unreadable response, so the outcome is unknown. Check before repeating."

LEFT_OUT_SHOWN = 5
METHOD_NOT_FOUND = -32601
PARSE_ERROR = -32700

Status: TypeAlias = Literal["starting", "up", "lost", "down"]


class McpState(msgspec.Struct, frozen=True):
    server: str
    status: Status = "starting"
    tools: tuple[str, ...] = ()
    """Names of the registered tools. Empty unless the server is up."""
    why: str = ""
    """Reason why the server is not up."""
    waiting: int = 0
    """Number of new or changed definitions that wait for the owner's decision."""
    left_out: tuple[str, ...] = ()
    """Unusable tools, each with the reason."""
    unconfirmed: int = 0
    """Number of tools whose kind the owner has not confirmed."""

    @property
    def summary(self) -> str:
        waiting = f", {self.waiting} changed or new (`shoal mcp list`)" if self.waiting else ""
        if self.unconfirmed:
            waiting += f", {self.unconfirmed} not confirmed (`shoal mcp confirm {self.server}`)"
        why = f"; {self.why}" if self.why else ""
        more = len(self.left_out) - LEFT_OUT_SHOWN
        left_out = f"; skipped: {'; '.join(self.left_out[:LEFT_OUT_SHOWN])}" if self.left_out else ""
        left_out += f" and {more} more" if more > 0 else ""
        return f"{self.server}: {self.status}, {counted(len(self.tools), 'tool')}{waiting}{why}{left_out}"


@dataclass(eq=False)
class McpConnection:
    server: McpServer
    registry: Registry
    clock: Clock
    enclose: Enclose | None = None
    pins: Pins | None = None
    notify: SendNotice | None = None
    on_change: Callable[[McpState], None] | None = None

    def __post_init__(self) -> None:
        self.state = McpState(self.server.name)
        self.has_tried = asyncio.Event()
        self._session: ClientSession | None = None
        self._stir = asyncio.Event()
        self._lost = asyncio.Event()
        self._offered: dict[str, McpTool] = {}
        self._up_at = 0.0
        self._waiting = 0
        self._unconfirmed = 0
        self._left_out: tuple[str, ...] = ()
        self._warned: set[tuple[str, str]] = set()
        self._digest = hashlib.sha256(self.server.settings.identity.encode()).hexdigest()
        self._listing: tuple[dict[str, tuple[str, Definition]], tuple[str, ...]] | None = None
        """The server's latest list of tools, and the reasons why some tools were omitted."""
        self._registering = asyncio.Lock()
        if self.pins is not None:
            self.pins.watchers.append((self.server.name, self._apply))

    async def run(self) -> None:
        """Connect, and reconnect whenever the connection is lost, until cancelled."""
        failures = 0
        try:
            while True:
                why = await self.attempt()
                was_up = self.state.status == "up"
                was_steady = was_up and self.clock.monotonic() - self._up_at >= STEADY_SECONDS
                failures = 0 if was_steady else failures + 1
                if not was_up:
                    self._withdraw()
                self._become("lost" if was_up else "down", why)
                self.has_tried.set()
                if failures > was_up:
                    await self.clock.sleep(retry_delay(failures))
        finally:
            self._withdraw()

    async def attempt(self) -> str:
        """Connect, wait until the connection ends, and return the reason.

        Stops the server process before returning, even on cancellation.
        """
        why = ""

        async def connect() -> None:
            nonlocal why
            why = await self._connect()

        # anyio shields the wait for the process only in a task that is not itself cancelled, so use a separate task.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connect)
        return why

    async def _connect(self) -> str:
        words, settings = LastWords(), self.server.settings
        self._lost.clear()
        self._warned.clear()

        def lose() -> None:
            self._lost.set()
            self._stir.set()

        async def hear(message: "types.ServerNotification | Exception") -> None:
            if getattr(message, "method", "") == "notifications/tools/list_changed":
                self._stir.set()

        try:
            if settings.sandbox and self.enclose is None:
                raise SandboxError(
                    'Shoal can sandbox MCP servers only with bubblewrap. Set sandbox.kind = "bubblewrap", or turn '
                    "off the server's `sandbox`."
                )
            try:
                await asyncio.to_thread(import_module, "mcp")
            except ModuleNotFoundError as error:
                raise ToolError(f"MCP servers need the `mcp` extra. {how_to_add('mcp')}") from error
            from mcp import types
            from mcp.client.session import ClientSession

            from shoal.features.mcp.wire import TolerantDispatcher

            logging.getLogger("mcp").setLevel(logging.CRITICAL)  # this module logs each problem once
            logging.getLogger("client").setLevel(logging.CRITICAL)
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(settings.timeout_seconds):
                    streams = opened(self.server, self.enclose if settings.sandbox else None, lose, words)
                    session = ClientSession(
                        dispatcher=TolerantDispatcher(*await stack.enter_async_context(streams)),
                        read_timeout_seconds=settings.timeout_seconds,
                        message_handler=hear,
                        client_info=types.Implementation(name="shoal", version="0.1"),
                    )
                    await negotiated(await stack.enter_async_context(session))
                self._session = session
                await self._offer(session)
                self._up_at, listed_at = self.clock.monotonic(), deque[float](maxlen=LISTINGS_MAX)
                self._become("up")
                self.has_tried.set()
                while not self._lost.is_set():
                    await self.clock.wait(self._stir, CHECK_SECONDS)
                    if len(listed_at) == LISTINGS_MAX:
                        await self.clock.wait(self._lost, listed_at[0] + CHECK_SECONDS - self.clock.monotonic())
                    self._stir.clear()
                    if self._lost.is_set():
                        break
                    listed_at.append(self.clock.monotonic())
                    try:
                        await self._offer(session)
                    except StoreError as error:
                        log.warning(
                            "MCP tool check failed; keeping the allowed tools",
                            extra={"server": self.server.name, "why": str(error)},
                        )
                why = "The server ended the connection."
        except failures() as error:
            why = _reason(error)
        finally:
            self._session = None
        return visible(f"{why} Its last output: {words.last_line}" if words.last_line else why)

    def release(self) -> None:
        """Unsubscribe from decisions about the server's tools."""
        if self.pins is not None:
            self.pins.watchers.remove((self.server.name, self._apply))

    # ---- the registry ----

    async def _listed(self, session: "ClientSession") -> list[object]:
        from mcp import MCPError, types

        from shoal.features.mcp.wire import RAW, listed

        tools, cursors, cursor = list[object](), set[str](), ""
        for page in range(PAGES_MAX):
            params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
            try:
                answer = await session.list_tools(params=params)
            except MCPError as error:
                if error.code == METHOD_NOT_FOUND and not page:
                    return []
                if self._lost.is_set() or not page:
                    raise
                self._warn("listing further MCP tools failed", error.message)
                break
            tools += listed(cast("dict[str, object]", (answer.meta or {})[RAW]))
            cursor = answer.next_cursor or ""
            if not cursor or cursor in cursors or len(tools) > LISTED_MAX:
                break
            cursors.add(cursor)
        return tools

    async def _offer(self, session: "ClientSession") -> None:
        chosen, left_out = self.server.settings.tools, list[str]()
        listed: dict[str, tuple[str, Definition]] = {}
        for tool in await self._listed(session):
            try:
                own, definition = definition_of(self.server.name, tool)
            except InvalidInput as error:
                left_out.append(str(error))
                continue
            if chosen and own not in chosen:
                continue
            if len(listed) >= TOOLS_MAX:
                self._warn("MCP tools skipped", f"the limit is {TOOLS_MAX}")
                break
            listed.setdefault(own, (tool_name(self.server.name, own), definition))
        for why in left_out:
            self._warn("MCP tool skipped", why)
        async with self._registering:
            await self._register(listed, tuple(left_out))
            self._listing = listed, tuple(left_out)

    async def _apply(self) -> None:
        async with self._registering:
            if self._listing is not None:
                await self._register(*self._listing)

    async def _register(self, listed: Mapping[str, tuple[str, Definition]], unusable: Sequence[str]) -> None:
        """Register the allowed tools and remove all others. Unchanged tools stay registered."""
        left_out = list(unusable)
        used = {own: InForce(name, definition) for own, (name, definition) in listed.items()}
        if self.pins is not None:
            used = await self.pins.in_force(self.server.name, listed, self.notify)
        self._waiting = sum(
            own not in used or used[own].definition != definition for own, (_, definition) in listed.items()
        )
        self._unconfirmed = sum(tool.kind is None for tool in used.values()) if self.pins is not None else 0
        wanted: dict[str, McpTool] = {}
        for own, (name, definition, kind) in sorted(used.items(), key=lambda item: item[0]):
            spec, traits = (
                ToolSpec(name, definition.description, definition.parameters),
                traits_of(kind, definition.hints),
            )
            made = McpTool(spec, own, self._digest, self.call, definition.names, traits)
            if wanted.setdefault(name, made) is not made:
                self._warn("duplicate MCP tool skipped", name)
                left_out.append(f"{visible(own)[:80]}: another tool has the same name")
        for name, tool in list(self._offered.items()):
            if name not in wanted or not wanted[name].is_same(tool):
                self.registry.remove(name)
                del self._offered[name]
        for name, tool in wanted.items():
            if name in self._offered:
                continue
            try:
                self.registry.add(tool)
            except InvalidInput as error:
                self._warn("MCP tool skipped", str(error))
                left_out.append(str(error))
            else:
                self._offered[name] = tool
        self._left_out = tuple(left_out)
        if self.state.status == "up":
            self._become("up")

    def _warn(self, what: str, why: str) -> None:
        if (what, why) not in self._warned and len(self._warned) < WARNINGS_MAX:
            self._warned.add((what, why))
            log.warning(what, extra={"server": self.server.name, "why": why})

    def _withdraw(self) -> None:
        for name in self._offered:
            self.registry.remove(name)
        self._offered.clear()
        self._listing = None

    def _become(self, status: Status, why: str = "") -> None:
        before = self.state
        self.state = McpState(
            self.server.name,
            status,
            tuple(sorted(self._offered)),
            why,
            self._waiting,
            self._left_out,
            self._unconfirmed,
        )
        if self.state == before:
            return
        extra = {"server": self.server.name, "tools": len(self._offered)}
        if status == "up":
            log.info("MCP server connected", extra=extra)
        elif (before.status, before.why) != (status, why):
            log.warning("MCP server %s; see `shoal doctor`", status, extra={**extra, "why": why})
        if self.on_change is not None:
            self.on_change(self.state)

    # ---- calls ----

    async def call(self, name: str, arguments: dict[str, object], context: ToolContext) -> ToolOutput:
        """Call a tool. `name` is the server's name for the tool. Raises ToolError if the server is unavailable."""
        from mcp import MCPError, types

        from shoal.features.mcp.results import marked, output_of, source_of
        from shoal.features.mcp.wire import RAW

        session, server = self._session, self.server.name
        if session is None or self.state.status != "up":
            raise ToolError(f"The MCP server {server} is not connected. Shoal is reconnecting, so try again shortly.")
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=arguments))
        try:
            answer = await session.send_request(request, types.CallToolResult)
        except MCPError as error:
            self._stir.set()  # list the tools to check that the server is alive
            if self._lost.is_set():
                raise ToolError(LOST.format(server)) from error
            if error.code == PARSE_ERROR and "validation error" in error.message:
                raise ToolError(UNCLEAR.format(server), tainted_by=source_of(server)) from error
            return marked(server, error.message, is_error=True)
        except failures() as error:
            text = f"The MCP server {server} failed: {_reason(error)}"
            raise ToolError(text, tainted_by=source_of(server)) from error
        keep, result = partial(keep_copy, context.home, context.thread), (answer.meta or {})[RAW]
        return await asyncio.to_thread(output_of, server, cast("dict[str, object]", result), keep)


async def negotiated(session: "ClientSession") -> None:
    from mcp import MCPError
    from pydantic import ValidationError

    try:
        await session.discover()
    except (MCPError, ValidationError, RuntimeError):
        await session.initialize()


def definition_of(server: str, tool: object) -> tuple[str, Definition]:
    """Parse a tool from a server's list. Return the server's name for the tool, and its definition.

    Raises InvalidInput if the tool has no name or an unusable schema.
    """
    from mcp import types
    from pydantic import ValidationError

    from shoal.features.mcp.schemas import portable

    given = cast("dict[str, object]", tool) if isinstance(tool, dict) else {}
    own = given.get("name")
    if not isinstance(own, str) or not own.strip():
        raise InvalidInput("a tool has no name")
    schema = next((given[key] for key in ("inputSchema", "input_schema", "parameters") if key in given), None)
    try:
        parameters, names = portable(schema)
    except InvalidInput as error:
        raise InvalidInput(f"{visible(own)[:80]}: {error}") from error
    try:
        read = types.Tool.model_validate(given)
        raw = read.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"icons", "meta"})
    except ValidationError:
        raw = {key: value for key, value in given.items() if key not in ("icons", "_meta")}
    words = next(
        (title for key in ("description", "title") if isinstance(title := given.get(key), str) and title.strip()), own
    )
    digest, text, hints = definition_digest(raw), definition_text(raw), hints_of(raw)
    return own, Definition(digest, text, described(server, words), parameters, names, hints)


def _reason(error: Exception) -> str:
    if isinstance(error, ExceptionGroup):
        return _reason(cast("ExceptionGroup[Exception]", error).exceptions[0])
    if isinstance(error, TimeoutError):
        return "It did not respond in time."
    if isinstance(error, ShoalError):
        return " ".join(str(error).split())[:300]
    return f"{network_reason(error)[:300].rstrip('.')}."
