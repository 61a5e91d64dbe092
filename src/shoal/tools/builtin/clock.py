"""The tool `time`: what time it is."""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from shoal.domain.errors import InvalidInput, ToolError
from shoal.domain.permissions import Action
from shoal.domain.ports import Invocation, ToolContext, ToolOutput
from shoal.domain.schedule import zone_named
from shoal.tools.typed import Prepared, TypedTool, canonical


class TimeArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `time` takes."""

    timezone: Annotated[str, Meta(description="IANA name, such as Europe/Berlin; UTC unless given.")] = "UTC"


class TimeTool(TypedTool[TimeArguments]):
    """Tells the time of the call's clock."""

    name: ClassVar[str] = "time"
    description: ClassVar[str] = "Get the current date, weekday and time in a time zone."
    read_only: ClassVar[bool] = True
    idempotent: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(TimeArguments)

    def plan(self, arguments: TimeArguments, context: ToolContext) -> Invocation:
        """Find the time zone. Raises ToolError for an unknown one."""
        try:
            zone = zone_named(arguments.timezone)
        except InvalidInput as error:
            raise ToolError(str(error)) from error

        async def work() -> ToolOutput:
            now = context.clock.now().astimezone(zone)
            return ToolOutput(f"{now.isoformat(timespec='seconds')} ({now:%A}, {arguments.timezone})")

        action = Action(f"tool:{self.name}:{arguments.timezone}")
        return Prepared((action,), f"{self.name} {arguments.timezone}", canonical(self.name, zone=zone.key), work)
