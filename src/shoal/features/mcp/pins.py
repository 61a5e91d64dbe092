"""Pinned definitions of MCP tools: models see only the definitions that the owner allowed.

    tool in the server's list    definition for the model              report to the owner
    -------------------------    ----------------------------------    ------------------------------------------
    any tool in the first list   The listed one, because the owner     The number of tools, in the log and in
                                 has just configured the server.       `shoal doctor`.
    unchanged tool               The allowed one.                      None.
    changed tool                 The allowed one, until the owner      The change, as a diff.
                                 decides.
    new tool                     None, until the owner decides.        The complete definition.
    renamed tool                 None, until the owner decides.        The complete definition.
    removed tool                 None. If the tool returns, it is      None.
                                 compared with the allowed one.

The owner also confirms the kind of each tool (kinds.py), first for all tools of a server, then for each changed or new
tool. A kind applies only while the server offers the exact definition for which it was confirmed. Calls of a tool
without a confirmed kind need approval.

The owner decides on a digest, so a server gains nothing by changing a definition during the review. A server is
identified by its name and its command or URL. A different server under the same name starts without pins. All processes
share the pins.
"""

import difflib
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from shoal.features.mcp.definitions import DIGEST_CHARS, NO_DEFINITION, TEXT_CHARS_MAX, Definition, tool_name
from shoal.features.mcp.kinds import WORDS, Kind, offer_text
from shoal.features.mcp.settings import McpServerSettings, servers_of
from shoal.kernel.clock import Clock
from shoal.kernel.errors import Conflict, NotFound, StoreCorrupt, StoreError
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.ports import Settings
from shoal.kernel.records import AuditEntry
from shoal.kernel.schema import refusal
from shoal.kernel.untrusted import UNREADABLE
from shoal.store.audit import AuditLog
from shoal.store.store import Store

if TYPE_CHECKING:
    from shoal.services import Services

log = logging.getLogger(__name__)

SCOPE = "mcp"
CHAIN = "mcp"
"""Audit chain for changes by servers and for decisions of the owner."""
DENIED_MAX = 32
"""Maximum number of denied definitions stored per tool. If a server alternates between definitions, Shoal asks about
each one only once.
"""
TELL_SECONDS = 3600.0
"""Minimum number of seconds between notices about a server whose definitions keep changing."""
SWAPS_MAX = 50

State: TypeAlias = Literal["allowed", "changed", "new", "denied"]


class Pin(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool and the definition that the owner allowed.

    `name`: name of the tool for models.
    `allowed`: allowed definition, or None for a new tool.
    `offered`: the server's current definition, if it differs.
    `denied`: digests of denied definitions.
    `is_told`: whether the owner was notified of the offered definition.
    `confirmed`: kind that the owner confirmed for the allowed definition.
    """

    name: str
    allowed: Definition | None = None
    offered: Definition | None = None
    denied: tuple[str, ...] = ()
    is_told: bool = False
    confirmed: Kind | None = None

    @property
    def kind(self) -> Kind | None:
        """Confirmed kind, or None while the server offers a different definition."""
        return self.confirmed if self.offered is None else None

    @property
    def proposed(self) -> Kind | None:
        """Kind in effect, or the kind that the current annotations propose."""
        definition = self.offered or self.allowed
        return self.kind or (definition.hints.kind if definition is not None else None)

    @property
    def is_unconfirmed(self) -> bool:
        return self.state == "allowed" and self.confirmed is None

    @property
    def state(self) -> State:
        if self.offered is None:
            return "allowed"
        if self.offered.digest in self.denied:
            return "denied"
        return "new" if self.allowed is None else "changed"

    @property
    def waits(self) -> bool:
        return self.state in ("new", "changed")

    @property
    def change(self) -> str:
        """Diff from the allowed to the offered definition, without invisible characters."""
        before = self.allowed.text.splitlines() if self.allowed is not None else []
        after = self.offered.text.splitlines() if self.offered is not None else before
        if before == after and self.offered is not None and self.allowed is not None:
            return f"The definition changed after its first {TEXT_CHARS_MAX:,} characters. The rest is not stored."
        lines = difflib.unified_diff(before, after, "allowed", "offered", lineterm="", n=2)
        return "\n".join(list(lines)[2:])


class InForce(NamedTuple):
    """A tool that agents can use, as models see it. `kind` is None until the owner confirms it."""

    name: str
    definition: Definition
    kind: Kind | None = None


class ServerPins(msgspec.Struct, frozen=True):
    """Pinned tools of a server.

    `since`: time at which the server was pinned.
    `tools`: pins, by the server's name for the tool.
    `told_at`: time of the last notice to the owner.
    `is_asked`: whether the owner was asked to confirm the kinds.
    """

    server: str
    since: datetime
    tools: dict[str, Pin]
    told_at: datetime | None = None
    is_asked: bool = False

    @property
    def kinds(self) -> dict[str, Kind]:
        """Confirmed or proposed kind of each tool in the state `allowed`, by the tool's name for models."""
        allowed = [pin for pin in self.tools.values() if pin.state == "allowed"]
        return {pin.name: kind for pin in allowed if (kind := pin.proposed) is not None}

    def named(self, name: str) -> str:
        """Return a tool's name for models, given that name or the server's name for it.

        Raises NotFound if the tool is unknown or has a pending change.
        """
        tool_name = self.tools[name].name if name not in self.kinds and name in self.tools else name
        if tool_name not in self.kinds:
            raise NotFound(
                f"{self.server} has no tool {name[:80]!r} to confirm. Run `shoal mcp list` to see the servers and "
                "their tools."
            )
        return tool_name

    @property
    def unconfirmed(self) -> list[Pin]:
        return [pin for pin in self.tools.values() if pin.is_unconfirmed]

    @property
    def digest(self) -> str:
        """Digest that a confirmation must match. It covers the names, definitions and confirmed kinds of all allowed
        tools.
        """
        pins = sorted(self.tools.values(), key=lambda pin: pin.name)
        allowed = [pin for pin in pins if pin.state == "allowed"]
        lines = [f"{pin.name} {(pin.allowed or NO_DEFINITION).digest} {pin.confirmed}" for pin in allowed]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def offer(self) -> str:
        prefix = tool_name(self.server, "")
        return offer_text(self.server, [(name.removeprefix(prefix), kind) for name, kind in self.kinds.items()])

    @property
    def waiting(self) -> list[Pin]:
        return [pin for pin in self.tools.values() if pin.waits]


SendNotice: TypeAlias = Callable[[str], Awaitable[None]]


def compared(known: ServerPins, offered: Mapping[str, tuple[str, Definition]]) -> ServerPins:
    """Return the pins after a new listing. `offered` is keyed by the server's tool names."""
    tools = dict(known.tools)
    for own, (name, definition) in offered.items():
        pin = tools.get(own, Pin(name))
        if pin.allowed is not None and pin.allowed.digest == definition.digest:
            tools[own] = replace(pin, allowed=definition, offered=None, is_told=False)
        elif pin.offered is None or pin.offered.digest != definition.digest:
            tools[own] = replace(pin, offered=definition, is_told=False)
    listed = {own: pin for own, pin in tools.items() if own in offered or pin.allowed is not None}
    return replace(known, tools=listed)


class Pins:
    """Pins of all enabled servers, shared by all processes."""

    def __init__(
        self, settings: Settings, audit: AuditLog, clock: Clock, servers: Mapping[str, McpServerSettings]
    ) -> None:
        self._settings = settings
        self._audit = audit
        self._clock = clock
        self.know(servers)
        self.watchers: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        """Functions to await after a decision in this process, each with the name of its server. The decision is in
        effect when they return.
        """

    @classmethod
    def of(cls, services: "Services") -> "Pins":
        store, config = services[Store], services[LiveConfig].current
        return cls(store.settings, store.audit, services[Clock], servers_of(config))

    def know(self, servers: Mapping[str, McpServerSettings]) -> None:
        """Set the configured servers. Disabled servers are ignored."""
        self._servers = {name: server for name, server in servers.items() if server.enabled}

    async def in_force(
        self, server: str, offered: Mapping[str, tuple[str, Definition]], notify: SendNotice | None = None
    ) -> dict[str, InForce]:
        """Update the pins with a new listing, notify the owner of changes, and return the tools that agents can use.

        `offered` and the result are keyed by the server's tool names. Raises StoreError.
        """
        while True:
            raw, known = await self._read(server)
            now = self._clock.now()
            first = {own: Pin(name, definition) for own, (name, definition) in offered.items()}
            pins = ServerPins(server, now, first) if known is None else compared(known, offered)
            quiet = pins.told_at is not None and (now - pins.told_at).total_seconds() < TELL_SECONDS
            unreported = [] if quiet else [pin for pin in pins.waiting if not pin.is_told]
            if unreported:
                tools = {own: replace(pin, is_told=pin.waits) for own, pin in pins.tools.items()}
                pins = replace(pins, tools=tools, told_at=now)
            asks = notify is not None and bool(pins.unconfirmed) and not pins.is_asked
            pins = replace(pins, is_asked=pins.is_asked or asks)
            if pins == known or await self._swap(server, raw, pins):
                break
        if known is None:
            log.info("MCP tools pinned", extra={"server": server, "tools": len(pins.tools)})
            await self._note("pin", list(pins.tools.values()), "allow", "system")
        if unreported:
            log.warning("MCP tools changed; see `shoal mcp list`", extra={"server": server})
            await self._note("change", unreported, "ask", "system")
            if notify is not None:
                await notify(change_notice(server, pins.waiting))
        if asks and notify is not None:
            await notify(confirm_notice(pins))
        return {
            own: InForce(pin.name, pin.allowed, pin.kind)
            for own, pin in pins.tools.items()
            if own in offered and pin.allowed is not None
        }

    async def listed(self) -> list[ServerPins]:
        """Return the pins of every enabled server that has connected at least once. Raises StoreError."""
        all_pins = [(await self._read(server))[1] for server in sorted(self._servers)]
        return [pins for pins in all_pins if pins is not None]

    async def confirm(self, server: str, digest: str, kinds: Mapping[str, Kind], by: str) -> ServerPins:
        """Confirm the kinds of a server's tools, except tools with pending changes.

        `digest`: first characters of the digest that the owner saw.
        `kinds`: kinds that override the current or proposed ones, by the server's tool names or the names for models.

        Raises NotFound for an unknown server or tool, and Conflict if the tools have changed since.
        """
        for _ in range(SWAPS_MAX):
            raw, known = await self._read(server) if server in self._servers else (None, None)
            if known is None:
                raise NotFound(
                    f"Shoal has not connected to an MCP server named {server[:80]!r} yet. Run `shoal mcp list` to "
                    "see the servers and their tools."
                )
            moved = {known.named(name): kind for name, kind in kinds.items()}
            if len(digest) < DIGEST_CHARS or not known.digest.startswith(digest):
                again = f"Review them again with `shoal mcp confirm {server}`."
                raise Conflict(f"The tools of {server} have changed since you reviewed them. {again}")
            chosen = {**known.kinds, **moved}
            tools = {
                own: replace(pin, confirmed=chosen[pin.name]) if pin.name in chosen else pin
                for own, pin in known.tools.items()
            }
            changed = replace(known, tools=tools, is_asked=True)
            if await self._swap(server, raw, changed):
                await self._note("confirm", [pin for pin in tools.values() if pin.name in chosen], "allow", by)
                await self._apply(server)
                return changed
        raise Conflict("The tools of this server keep changing. Try again.")

    async def decide(
        self, name: str, digest: str, allow: bool, by: str, kind: Kind | None = None, *, confirms: bool = False
    ) -> Pin:
        """Allow or deny the offered definition of a tool. `name` is the tool's name for models.

        `digest`: first characters of the digest of the offered definition.
        `kind`: kind to confirm. None means the proposed kind.
        `confirms`: whether allowing the definition also confirms the kind.

        Raises NotFound if no change is pending, and Conflict if the server has changed the definition since.
        """
        server = name.removeprefix("mcp_").partition("_")[0]
        for _ in range(SWAPS_MAX):
            raw, known = await self._read(server) if server in self._servers else (None, None)
            own_names = {} if known is None else {pin.name: own for own, pin in known.tools.items()}
            if known is None or name not in own_names:
                raise NotFound(
                    f"No MCP tool named {name[:80]!r}. Run `shoal mcp list` to see the servers and their tools."
                )
            pin = known.tools[own_names[name]]
            offered = pin.offered
            if offered is None:
                raise NotFound(f"No change to {pin.name} is pending. Agents use the definition that its server offers.")
            if len(digest) < DIGEST_CHARS or not offered.digest.startswith(digest):
                raise Conflict(
                    f"The server now offers a different definition of {pin.name}. Review it with `shoal mcp show "
                    f"{pin.name}`."
                )
            if allow:
                confirmed = (kind or offered.hints.kind) if confirms else None
                changed = replace(pin, allowed=offered, offered=None, is_told=False, confirmed=confirmed)
            else:
                changed = replace(pin, denied=(*pin.denied, offered.digest)[-DENIED_MAX:])
            if await self._swap(server, raw, replace(known, tools={**known.tools, own_names[name]: changed})):
                await self._note("decide", [pin], "allow" if allow else "deny", by)
                await self._apply(server)
                return changed
        raise Conflict("The tools of this server keep changing. Try again.")

    async def _apply(self, server: str) -> None:
        for name, apply in list(self.watchers):
            if name == server:
                try:
                    await apply()
                except StoreError as error:  # the decision is stored, and the next listing applies it
                    extra = {"server": server, "why": str(error)}
                    log.warning("applying MCP decision failed", extra=extra)

    async def _read(self, server: str) -> tuple[str | None, ServerPins | None]:
        raw = await self._settings.get(SCOPE, self._key(server))
        try:
            return raw, msgspec.json.decode(raw, type=ServerPins) if raw else None
        except UNREADABLE as error:
            raise StoreCorrupt(
                f"The list of allowed tools of the MCP server {server} is damaged: {refusal(error, ServerPins)}."
            ) from error

    async def _swap(self, server: str, raw: str | None, pins: ServerPins) -> bool:
        return await self._settings.swap(SCOPE, self._key(server), raw, msgspec.json.encode(pins).decode())

    def _key(self, server: str) -> str:
        return f"{server} {hashlib.sha256(self._servers[server].identity.encode()).hexdigest()[:16]}"

    async def _note(self, what: str, pins: Sequence[Pin], decision: str, by: str) -> None:
        entries = [
            AuditEntry(
                "mcp",
                f"{what} {pin.name} {f'{pin.confirmed} ' if what == 'confirm' else ''}"
                f"{(pin.offered or pin.allowed or NO_DEFINITION).digest}",
                decision,
                user=by,
            )
            for pin in pins
        ]
        if entries:
            await self._audit.record(CHAIN, entries)


def confirm_notice(known: ServerPins) -> str:
    server, digest = known.server, known.digest[:DIGEST_CHARS]
    return (
        f"{known.offer} The server itself declares which tools read and which write. Until you confirm "
        "this, Shoal asks before each call.\n\n"
        f"To confirm: `/mcp confirm {server} {digest}`. To change the kind of a tool, add, for example, "
        f"`write=TOOL`. To see all tools, open MCP on the page or run `shoal mcp confirm {server}`."
    )


def change_notice(server: str, waiting: Sequence[Pin], change_chars_max: int = 1500) -> str:
    lines = [
        f"The MCP server {server} changed its tools. Agents keep using the definitions you allowed and do "
        "not see new tools. Shoal asks before every call to a changed tool until you decide."
    ]
    for pin in waiting[:5]:
        change = pin.change if len(pin.change) <= change_chars_max else f"{pin.change[:change_chars_max]}\n…"
        fenced = change.replace("```", "'''")
        digest = pin.offered.digest[:DIGEST_CHARS] if pin.offered is not None else ""
        kind = (
            f" Proposed kind, from the tool's annotations: {WORDS[pin.proposed]}." if pin.proposed is not None else ""
        )
        lines.append(
            f"{pin.name} ({pin.state}):\n```diff\n{fenced}\n```\n"
            f"To allow it: `shoal mcp allow {pin.name} {digest}`.{kind}"
        )
    if len(waiting) > 5:
        lines.append(f"Other tools waiting for your decision: {len(waiting) - 5}. Run `shoal mcp list` to see them.")
    lines.append(
        "You can also decide on the page, under MCP. `shoal mcp deny NAME DIGEST` keeps the allowed definition."
    )
    return "\n\n".join(lines)
