"""The `time` tool."""

from typing import Annotated

from msgspec.structs import replace

from shoal.kernel.errors import InvalidInput
from shoal.kernel.ports import Invocation, ToolContext, ToolOutput
from shoal.kernel.traits import LOOKUP
from shoal.kernel.zones import zone_named
from shoal.tools.functions import as_tool_error, planned, tool

ZONE = "IANA name of the time zone; default: the time zone of the person who asked."


@tool(replace(LOOKUP, origin="own", in_cases=True), example={"timezone": "Europe/Berlin"})
def time(
    context: ToolContext,
    timezone: Annotated[str, ZONE] = "",
) -> Invocation:
    """Get the current date, weekday and time in a time zone."""
    with as_tool_error(InvalidInput):
        zone = zone_named(timezone or context.timezone)

    async def work() -> ToolOutput:
        now = context.clock.now().astimezone(zone)
        return ToolOutput(f"{now.isoformat(timespec='seconds')} ({now:%A}, {zone.key})")

    return planned("time", zone.key, work, zone=zone.key)
