"""The tool `overview`: what was asked and done lately, what it cost, what waits for a person, and what comes.

It tells what the turn's audience may see: where the owner alone reads along everything, else only its own channel.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from shoal.domain.errors import InvalidInput
from shoal.domain.ports import Invocation, ToolContext, ToolOutput
from shoal.domain.triggers import zone_named
from shoal.domain.untrusted import untrusted_block
from shoal.store.store import Store
from shoal.tools.functions import FunctionTool, as_tool_error, planned, tool
from shoal.tools.overview import look

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

TURNS_MAX = 40
LINES_MAX = 20
NOTHING = "Nothing was asked or done, nothing waits, and nothing is scheduled for the next day."


def overview_tool(store: Store) -> FunctionTool[Invocation]:
    """`overview` over what is stored."""

    @tool(read_only=True, idempotent=True)
    def overview(
        context: ToolContext,
        hours: Annotated[float, Meta(description="How far back to look.", ge=1, le=168)] = 24,
        timezone: Annotated[str, Meta(description="IANA name of the zone for times.", max_length=64)] = "UTC",
    ) -> Invocation:
        """Look up how things stand: what people asked and what was done in the last hours, what failed, what was spent,
        what waits for approval, and what is scheduled for the next day. For a daily brief, or "what did you do?"."""
        with as_tool_error(InvalidInput):
            zone = zone_named(timezone)
        within = context.within

        async def work() -> ToolOutput:
            found = await look(store, context.clock.now(), hours, within, context.turn)
            turns = found.turns[:TURNS_MAX]
            done = [
                f"- {_at(one.at, zone)} {one.thread}: {one.asked or '(no message)'} → {one.reply or '(no answer)'}"
                + ("" if one.outcome == "done" else f" [{one.outcome}]")
                for one in turns
            ]
            waiting = [
                f"- {one.tool}: {one.action} (in {one.asked_in}, until {_at(one.expires_at, zone)})"
                for one in found.waiting
            ]
            coming = [f"- {_at(one.at, zone)} {one.text}" for one in found.coming if one.at is not None]
            failing = [f"- {one.text}" for one in found.failing]  # why stands in their threads, with what tainted it
            if not (done or waiting or coming or failing):
                return ToolOutput(NOTHING)
            spent = [f"- {found.tokens:,} tokens in these conversations"] if done else []
            if not within and found.calls:
                spent = [f"- {found.calls} model calls" + (f", ${found.usd:.2f}" if found.usd else "")]
            parts = [f"From {_at(found.since, zone)} to {_at(found.until, zone)} ({timezone})."]
            titles = ("Done", "Schedules that fail", "Spent", "Waits for approval", "Scheduled for the next day")
            for title, lines in zip(titles, (done, failing, spent, waiting, coming), strict=True):
                more = [f"- and {len(lines) - LINES_MAX} more"] if len(lines) > LINES_MAX else []
                parts += [f"{title}:", *lines[:LINES_MAX], *more] if lines else []
            text, source = "\n".join(parts), next((one.tainted_by for one in turns if one.tainted_by), "")
            return ToolOutput(untrusted_block(source, text) if source else text, tainted_by=source)

        return planned("overview", f"{hours:g} {timezone}", work, hours=hours, timezone=timezone, within=within)

    return overview


def _at(moment: datetime, zone: "ZoneInfo") -> str:
    return f"{moment.astimezone(zone):%a %d %b %H:%M}"
