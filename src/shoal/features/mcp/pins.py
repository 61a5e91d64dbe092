"""Pinned definitions of MCP tools: models see only the definitions that the owner allowed.

what the server lists                    what the model sees                  what the owner sees
--------------------------------------   ----------------------------------   ---------------------------------------
anything, the first time                 all of it, because the owner has     the number of tools, in the log and in
                                         just configured the server           `shoal doctor`
a tool with the allowed definition       that definition                      -
a tool with a changed definition         the allowed one, until decided       the change, as a diff
a new tool                               nothing, until decided               the whole definition
a renamed tool                           a removed tool and a new one         the whole definition
a tool no longer                         nothing; if it returns, it is        -
                                         compared with the allowed definition

The owner also confirms the kind of each tool (kinds.py), first for all tools of a server, then for each changed or new
one. A kind applies only while the server offers exactly the definition for which it was confirmed. Shoal asks before
calls of a tool without a confirmed kind.

The allowed definition (definitions.py) is stored as a digest, so a server gains nothing by changing it while the owner
looks. A server is identified by its name and its command or address. Another server under the same name is new. All
processes share the pins.
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
"""Audit chain of servers' changes and the owner's decisions."""
DENIED_MAX = 32
"""Number of denied definitions remembered per tool. If a server alternates between definitions, Shoal asks once for
each."""
TELL_SECONDS = 3600.0
"""Minimum time between notices about a server that keeps changing, in seconds."""
SWAPS_MAX = 50

State: TypeAlias = Literal["allowed", "changed", "new", "denied"]


class Pin(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool with its allowed definition, and the server's offer if it differs. `name` is the model's name for it.

    `confirmed` is the kind that the owner confirmed for the allowed definition.
    """

    name: str
    allowed: Definition | None = None
    offered: Definition | None = None
    denied: tuple[str, ...] = ()
    is_told: bool = False
    confirmed: Kind | None = None

    @property
    def kind(self) -> Kind | None:
        """The kind in effect, or None until the owner has confirmed the current definition."""
        return self.confirmed if self.offered is None else None

    @property
    def proposed(self) -> Kind | None:
        """The kind in effect, or the one that the offered annotations propose."""
        definition = self.offered or self.allowed
        return self.kind or (definition.hints.kind if definition is not None else None)

    @property
    def is_unconfirmed(self) -> bool:
        """Whether the definition is allowed but the kind is not confirmed."""
        return self.state == "allowed" and self.confirmed is None

    @property
    def state(self) -> State:
        """Whether the tool waits for a decision, or the decision that was made."""
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
        """The change to decide on, line by line: `-` was allowed, `+` is offered. Contains no invisible characters."""
        before = self.allowed.text.splitlines() if self.allowed is not None else []
        after = self.offered.text.splitlines() if self.offered is not None else before
        if before == after and self.offered is not None and self.allowed is not None:
            return f"The definition changed after its first {TEXT_CHARS_MAX:,} characters. The rest is not stored."
        lines = difflib.unified_diff(before, after, "allowed", "offered", lineterm="", n=2)
        return "\n".join(list(lines)[2:])


class InForce(NamedTuple):
    """A tool in use: the name and definition that models see, and the confirmed kind."""

    name: str
    definition: Definition
    kind: Kind | None = None


class ServerPins(msgspec.Struct, frozen=True):
    """A server's tools by its own names, pinned `since`. `told_at` is the time of the last notice to the owner.

    `is_asked` is true if the owner was asked to confirm the kinds.
    """

    server: str
    since: datetime
    tools: dict[str, Pin]
    told_at: datetime | None = None
    is_asked: bool = False

    @property
    def kinds(self) -> dict[str, Kind]:
        """The confirmed or proposed kinds of all tools without a pending change, by the names that models use."""
        allowed = [pin for pin in self.tools.values() if pin.state == "allowed"]
        return {pin.name: kind for pin in allowed if (kind := pin.proposed) is not None}

    def named(self, name: str) -> str:
        """Return the model's name for a tool without a pending change, given the model's or the server's name. Raises
        NotFound."""
        tool_name = self.tools[name].name if name not in self.kinds and name in self.tools else name
        if tool_name not in self.kinds:
            raise NotFound(f"{self.server} has no tool {name[:80]!r} to confirm. `shoal mcp list` shows them.")
        return tool_name

    @property
    def unconfirmed(self) -> list[Pin]:
        return [pin for pin in self.tools.values() if pin.is_unconfirmed]

    @property
    def digest(self) -> str:
        """The digest that a confirmation must match. It covers the tools without pending changes, their definitions and
        kinds."""
        pins = sorted(self.tools.values(), key=lambda pin: pin.name)
        allowed = [pin for pin in pins if pin.state == "allowed"]
        lines = [f"{pin.name} {(pin.allowed or NO_DEFINITION).digest} {pin.confirmed}" for pin in allowed]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def offer(self) -> str:
        """Summary of the server's tools for people."""
        prefix = tool_name(self.server, "")
        return offer_text(self.server, [(name.removeprefix(prefix), kind) for name, kind in self.kinds.items()])

    @property
    def waiting(self) -> list[Pin]:
        return [pin for pin in self.tools.values() if pin.waits]


SendNotice: TypeAlias = Callable[[str], Awaitable[None]]
"""Sends a notice to the owner."""


def compared(known: ServerPins, offered: Mapping[str, tuple[str, Definition]]) -> ServerPins:
    """Return the pins updated with a new listing, which is by the server's own names."""
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
    """The pins of all enabled servers. Any number of processes share them."""

    def __init__(
        self, settings: Settings, audit: AuditLog, clock: Clock, servers: Mapping[str, McpServerSettings]
    ) -> None:
        self._settings = settings
        self._audit = audit
        self._clock = clock
        self.know(servers)
        self.watchers: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        """Functions by server name. Each is awaited after a decision in this process. When it returns, the decision is
        in effect."""

    @classmethod
    def of(cls, services: "Services") -> "Pins":
        store, config = services[Store], services[LiveConfig].current
        return cls(store.settings, store.audit, services[Clock], servers_of(config))

    def know(self, servers: Mapping[str, McpServerSettings]) -> None:
        """Set the servers whose pins are used."""
        self._servers = {name: server for name, server in servers.items() if server.enabled}

    async def in_force(
        self, server: str, offered: Mapping[str, tuple[str, Definition]], notify: SendNotice | None = None
    ) -> dict[str, InForce]:
        """Return the definitions to use, by the server's own names. Changed definitions wait for a decision. Raises
        StoreError."""
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
            log.warning("MCP server changed its tools; see `shoal mcp list`", extra={"server": server})
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
        """Return the pins of every enabled server that has been connected. Raises StoreError."""
        all_pins = [(await self._read(server))[1] for server in sorted(self._servers)]
        return [pins for pins in all_pins if pins is not None]

    async def confirm(self, server: str, digest: str, kinds: Mapping[str, Kind], by: str) -> ServerPins:
        """Confirm the kinds of all tools of a server without pending changes.

        `kinds` overrides the current or proposed kinds, by the model's or the server's names. `digest` is the beginning
        of the digest that the owner saw. Raises NotFound for an unknown server or tool, Conflict if the tools have
        changed since.
        """
        for _ in range(SWAPS_MAX):
            raw, known = await self._read(server) if server in self._servers else (None, None)
            if known is None:
                raise NotFound(f"No MCP server {server[:80]!r} has been connected yet. `shoal mcp list` shows them.")
            moved = {known.named(name): kind for name, kind in kinds.items()}
            if len(digest) < DIGEST_CHARS or not known.digest.startswith(digest):
                again = f"Look at them again with `shoal mcp confirm {server}`."
                raise Conflict(f"The tools of {server} have changed since you looked. {again}")
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
        """Allow or deny the offered definition of the tool that models call `name`.

        `digest` is the beginning of the definition's digest. With `confirms`, the tool's kind is also confirmed, as
        `kind` or as proposed. Raises NotFound if no change is pending, Conflict if the server has changed the
        definition since.
        """
        server = name.removeprefix("mcp_").partition("_")[0]
        for _ in range(SWAPS_MAX):
            raw, known = await self._read(server) if server in self._servers else (None, None)
            own_names = {} if known is None else {pin.name: own for own, pin in known.tools.items()}
            if known is None or name not in own_names:
                raise NotFound(f"No MCP tool named {name[:80]!r}. `shoal mcp list` shows them.")
            pin = known.tools[own_names[name]]
            offered = pin.offered
            if offered is None:
                raise NotFound(f"No change to {pin.name} is pending. Agents use what its server offers.")
            if len(digest) < DIGEST_CHARS or not offered.digest.startswith(digest):
                raise Conflict(
                    f"The server now offers a different {pin.name}. Look at it again with `shoal mcp show {pin.name}`."
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
                    log.warning("MCP decision not in effect yet", extra=extra)

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
    """Return the question for the owner after a server's first connection."""
    server, digest = known.server, known.digest[:DIGEST_CHARS]
    return (
        f"{known.offer} The server itself declares these kinds. Until you confirm them, "
        "Shoal asks before each call.\n\n"
        f"To confirm: `/mcp confirm {server} {digest}`. To move a tool to another kind, add for example `write=TOOL`. "
        f"The page shows all of them under MCP, and so does `shoal mcp confirm {server}`."
    )


def change_notice(server: str, waiting: Sequence[Pin], change_chars_max: int = 1500) -> str:
    """Return the notice for the owner: the pending changes as diffs, and how to decide."""
    lines = [
        f"The MCP server {server} changed its tools. Agents keep using the definitions you allowed and do "
        "not see new tools. Shoal asks before every call to a changed tool until you decide."
    ]
    for pin in waiting[:5]:
        change = pin.change if len(pin.change) <= change_chars_max else f"{pin.change[:change_chars_max]}\n…"
        fenced = change.replace("```", "'''")
        digest = pin.offered.digest[:DIGEST_CHARS] if pin.offered is not None else ""
        kind = (
            f" According to its annotations, it is one of the tools that {WORDS[pin.proposed]}."
            if pin.proposed is not None
            else ""
        )
        lines.append(
            f"{pin.name} is {pin.state}:\n```diff\n{fenced}\n```\n"
            f"To allow it: `shoal mcp allow {pin.name} {digest}`.{kind}"
        )
    if len(waiting) > 5:
        lines.append(f"{len(waiting) - 5} more tools are waiting. `shoal mcp list` shows them.")
    lines.append("The page shows them under MCP. `shoal mcp deny NAME DIGEST` keeps the allowed definition.")
    return "\n\n".join(lines)
