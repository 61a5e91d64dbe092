"""Check MCP servers in `shoal doctor`."""

import asyncio
from collections.abc import AsyncGenerator

from shoal.features.mcp.pins import Pins
from shoal.features.mcp.servers import McpServers
from shoal.features.mcp.settings import servers_of
from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import ShoalError
from shoal.kernel.phrases import counted
from shoal.kernel.settings import Config
from shoal.sandbox.choose import server_enclosure
from shoal.surfaces.cli.context import CommandContext
from shoal.surfaces.cli.findings import DoctorFinding, fail, ok, warn
from shoal.surfaces.cli.output import when
from shoal.tools.registry import Registry


async def look_at_servers(context: CommandContext, config: Config) -> AsyncGenerator[DoctorFinding]:
    """Connect to every server, and report unusable tools and pending decisions."""
    if not servers_of(config):
        return
    clock = SystemClock()
    try:
        listed = await asyncio.to_thread(
            context.read, lambda store: Pins(store.settings, store.audit, clock, servers_of(config)).listed()
        )
    except ShoalError:  # the database check reports this error
        listed = []
    pinned = {pins.server: pins for pins in listed}
    enclose = server_enclosure(config.sandbox)
    for state in await McpServers(servers_of(config), context.home, Registry(), clock, enclose).probe():
        check, known = f"mcp {state.server}", pinned.get(state.server)
        if state.status != "up":
            yield fail(check, state.why, f"Correct [mcp.{state.server}], or set enabled = false there.")
            continue
        since = (
            f"pinned since {when(known.since)}"
            if known is not None
            else ("not pinned, so the first start allows all tools")
        )
        yield ok(check, f"{counted(len(state.tools), 'tool')} ({since}): {', '.join(state.tools)}.")
        if state.left_out:
            yield warn(
                check,
                f"unusable: {'; '.join(state.left_out)}.",
                "Only the server's developer can fix the unusable tools. The other tools work.",
            )
        if known is not None and known.unconfirmed:
            todo = f"Run `shoal mcp confirm {state.server}` to let read-only tools run without approval."
            yield warn(check, f"waiting for confirmation: {counted(len(known.unconfirmed), 'tool')}.", todo)
        if known is not None and known.waiting:
            names = ", ".join(f"{pin.name} ({pin.state})" for pin in known.waiting)
            yield warn(check, f"waiting for your decision: {names}.", "Run `shoal mcp show NAME` to see the change.")
