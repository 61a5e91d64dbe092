"""/mcp: list the tools that MCP servers offer, and confirm them."""

from typing import TYPE_CHECKING

from shoal.features.mcp.definitions import DIGEST_CHARS
from shoal.features.mcp.kinds import KINDS, Kind
from shoal.features.mcp.pins import Pins, ServerPins
from shoal.kernel.commands import ChatCommand, CommandRequest, CommandSpec
from shoal.kernel.errors import Forbidden, InvalidInput

if TYPE_CHECKING:
    from shoal.services import Services

MCP = CommandSpec("mcp", "show and confirm the tools of MCP servers", "[confirm SERVER DIGEST]", number=21)
USAGE = "`/mcp`, `/mcp confirm SERVER DIGEST [write=TOOL] [read=TOOL] [read_outside=TOOL]`"
ONLY_OWNER = "Only my owner can use /mcp, and only in a private chat with me."


def chat_commands(services: "Services") -> list[ChatCommand]:
    return [ChatCommand(MCP, McpCommand(services[Pins]).mcp)]


class McpCommand:
    def __init__(self, pins: Pins) -> None:
        self._pins = pins

    async def mcp(self, asked: CommandRequest) -> str:
        if asked.asker.trust != "owner" or asked.asker.kind != "direct":
            raise Forbidden(ONLY_OWNER)
        match asked.argument.split():
            case []:
                servers = await self._pins.listed()
                return "\n\n".join(map(_shown, servers)) or "I have not connected to an MCP server yet."
            case ["confirm", server, digest, *moved]:
                confirmed = await self._pins.confirm(server, digest, dict(map(_moved, moved)), asked.asker.identity)
                return f"Confirmed. {confirmed.offer} Read-only tools now run without approval."
            case _:
                return f"Write {USAGE}."


def _shown(server: ServerPins) -> str:
    confirm = f"To confirm: `/mcp confirm {server.server} {server.digest[:DIGEST_CHARS]}`."
    waiting = (
        (f" Changed or new tools: {len(server.waiting)}. Run `shoal mcp list` to see them.") if server.waiting else ""
    )
    return f"{server.offer} {confirm if server.unconfirmed else 'Confirmed.'}{waiting}"


def _moved(text: str) -> tuple[str, Kind]:
    """Parse an argument such as `write=TOOL` into the tool and its kind."""
    name, _, tool = text.partition("=")
    kinds: dict[str, Kind] = {kind: kind for kind in KINDS}
    kind = kinds.get(name.lower())
    if kind is None or not tool:
        raise InvalidInput(f"I cannot read {text[:80]!r}. Usage: {USAGE}.")
    return tool, kind
