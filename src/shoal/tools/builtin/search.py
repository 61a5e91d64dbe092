"""The tools `search_history` and `search_channel`: what was said before, as far as whoever asks may see it.

A channel's conversations are open to whoever speaks in it; those of others only as the turn's audience says
(docs/security.md), which is to the owner where nobody else reads the answer.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from shoal.domain.errors import PlatformError, ToolError
from shoal.domain.events import AssistantSaid, Event, Steered, UserSaid
from shoal.domain.ids import channel_of
from shoal.domain.messages import Author, Judge, PlatformUser, Prompt
from shoal.domain.permissions import Action
from shoal.domain.ports import ChatAdapter, Invocation, ToolContext, ToolOutput
from shoal.domain.store import Search
from shoal.tools.typed import Prepared, TypedTool, canonical

AROUND_CHARS = 300
"""How much of a message is shown, around the first word that was looked for."""
PLATFORM_MESSAGES_MAX = 500
PLATFORM_SECONDS_MAX = 10.0
_WORD = re.compile(r"\w+")

Query = Annotated[str, Meta(description="Words that must all occur.", min_length=1, max_length=500)]
_AGENT = PlatformUser("agent", "agent")
Limit = Annotated[int, Meta(ge=1, le=50, description="How many messages to show, the newest first.")]


class SearchArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What both tools take."""

    query: Query
    limit: Limit = 10


class _Hit(msgspec.Struct, frozen=True):
    at: datetime
    author: PlatformUser
    text: str
    where: str
    tainted_by: str


class SearchHistoryTool(TypedTool[SearchArguments]):
    """Searches the journals."""

    name: ClassVar[str] = "search_history"
    description: ClassVar[str] = (
        "Search all earlier conversations that the person you talk with may see, also those no longer in front of you."
    )
    read_only: ClassVar[bool] = True
    idempotent: ClassVar[bool] = True

    def __init__(self, search: Search) -> None:
        super().__init__(SearchArguments)
        self._search = search

    def plan(self, arguments: SearchArguments, context: ToolContext) -> Invocation:
        """Settle how far the search may go."""
        within = context.within

        async def work() -> ToolOutput:
            found = await self._search.said(arguments.query, within=within, limit=arguments.limit + 1)
            return _output([_hit(event) for event in found if event.turn != context.turn], arguments)

        return _prepared(self.name, arguments, within, work)


class SearchChannelTool(TypedTool[SearchArguments]):
    """Searches the channel: its threads' journals, and what the platform has of this thread beyond them."""

    name: ClassVar[str] = "search_channel"
    description: ClassVar[str] = "Search what was said in this channel, also before you were here."
    read_only: ClassVar[bool] = True
    idempotent: ClassVar[bool] = True

    def __init__(self, search: Search, adapters: Mapping[str, ChatAdapter], judge: Judge) -> None:
        super().__init__(SearchArguments)
        self._search = search
        self._adapters = adapters
        self._judge = judge

    def plan(self, arguments: SearchArguments, context: ToolContext) -> Invocation:
        """The channel is that of the conversation."""
        within = channel_of(context.chat)

        async def work() -> ToolOutput:
            found = await self._search.said(arguments.query, within=within, limit=arguments.limit + 1)
            hits = [_hit(event) for event in found if event.turn != context.turn]
            known = {hit.text for hit in hits}
            platform, note = await self._platform(arguments, context)
            hits += [hit for hit in platform if hit.text not in known]
            hits.sort(key=lambda hit: hit.at, reverse=True)
            return _output(hits, arguments, note)

        return _prepared(self.name, arguments, within, work)

    async def _platform(self, arguments: SearchArguments, context: ToolContext) -> tuple[list[_Hit], str]:
        """What the platform itself has; a note says when it could not be asked."""
        adapter = self._adapters.get(context.thread.split(":")[0])
        if adapter is None or not adapter.limits.has_history:
            return [], ""
        words = [word.casefold() for word in _WORD.findall(arguments.query)]
        found: list[Prompt] = []
        note = ""
        try:
            async with asyncio.timeout(PLATFORM_SECONDS_MAX):
                past = adapter.history(context.thread, None, PLATFORM_MESSAGES_MAX)
                found = [one async for one in past if all(word in one.text.casefold() for word in words)]
        except PlatformError as error:
            note = f"[The platform's own history could not be searched: {error}]"
        except TimeoutError:
            note = "[The platform's own history took too long; only the journal was searched.]"
        authors = [await self._judge(context.thread, message.author) for message in found]
        there = zip(found, authors, strict=True)
        return [_hit_of(one.at, author, one.text, context.thread, one.tainted_by) for one, author in there], note


def _prepared(
    name: str, arguments: SearchArguments, within: str, work: Callable[[], Awaitable[ToolOutput]]
) -> Prepared:
    if not _WORD.search(arguments.query):
        raise ToolError("Give at least one word to look for.")
    effect = canonical(name, query=arguments.query, limit=arguments.limit, within=within)
    words = " ".join(_WORD.findall(arguments.query))
    return Prepared((Action(f"tool:{name}:{words}"),), f"{name} {words}", effect, work)


def _hit(event: Event) -> _Hit:
    match event.data:
        case UserSaid(text=text, author=author, caller=caller):
            taint = event.data.tainted_by or (caller.tainted_by if caller is not None else "")
            return _hit_of(event.at, author, text, event.thread, taint)
        case Steered(text=text, author=author):
            return _hit_of(event.at, author, text, event.thread)
        case AssistantSaid(text=text, tainted_by=taint):
            return _Hit(event.at, _AGENT, text, event.thread, f"an answer after {taint}" if taint else "")
        case _:
            return _Hit(event.at, _AGENT, "", event.thread, "")


def _hit_of(at: datetime, author: Author, text: str, where: str, tainted_by: str = "") -> _Hit:
    return _Hit(at, author, text, where, tainted_by or ("" if author.trusted else f"message of {author.id}"))


def _output(hits: list[_Hit], arguments: SearchArguments, note: str = "") -> ToolOutput:
    shown = hits[: arguments.limit]
    if not shown:
        return ToolOutput(f"Nothing was found for {arguments.query!r}.\n{note}".rstrip())
    taint = next((hit.tainted_by for hit in shown if hit.tainted_by), "")
    lines = [_line(hit, arguments.query) for hit in shown]
    if note:
        lines.append(note)
    return ToolOutput("\n".join(lines), tainted_by=taint, is_piece=True)


def _line(hit: _Hit, wanted: str) -> str:
    who = hit.author.name or hit.author.id
    text = " ".join(hit.text.split())
    if len(text) > AROUND_CHARS:
        folded = text.casefold()
        places = [place for word in _WORD.findall(wanted) if (place := folded.find(word.casefold())) >= 0]
        start = max(0, min(places, default=0) - AROUND_CHARS // 3)
        text = f"{'…' if start else ''}{text[start : start + AROUND_CHARS]}…"
    return f"{hit.at:%Y-%m-%d %H:%M} {who} in {hit.where}: {text}"
