"""The tools `search_history`, `search_channel` and `read_artifact`: what was said, and results too long to show whole.

A channel's conversations are open to whoever speaks in it; those of others only as the turn's audience says
(docs/security.md), which is to the owner where nobody else reads the answer.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Annotated, NamedTuple

from msgspec import Meta

from shoal.domain.errors import PlatformError, ToolError
from shoal.domain.events import AssistantSaid, Event, Steered, UserSaid
from shoal.domain.files import DIGEST_CHARS, Files
from shoal.domain.ids import channel_of
from shoal.domain.messages import Author, Judge, PlatformUser, Prompt
from shoal.domain.ports import ChatAdapter, Invocation, ToolContext, ToolOutput
from shoal.store.search import ArtifactStore, SearchIndex
from shoal.tools.functions import FunctionTool, Prepared, planned, tool
from shoal.tools.threads import in_thread

AROUND_CHARS = 300
"""How much of a message is shown, around the first word that was looked for."""
PLATFORM_MESSAGES_MAX = 500
PLATFORM_SECONDS_MAX = 10.0
PIECE_CHARS = 8_000
PIECE_CHARS_MAX = 15_000
MATCHES_MAX = 100
LINE_CHARS_MAX = 400
"""Of a line that matches, no more is shown."""
_WORD = re.compile(r"\w+")
_AGENT = PlatformUser("agent", "agent")

Query = Annotated[str, Meta(description="Words that must all occur.", min_length=1, max_length=500)]
Limit = Annotated[int, Meta(ge=1, le=50, description="How many messages to show, the newest first.")]


class _Hit(NamedTuple):
    at: datetime
    author: PlatformUser
    text: str
    where: str
    tainted_by: str = ""


def search_history_tool(search: SearchIndex) -> FunctionTool[Invocation]:
    """`search_history` searches the journals, as far as the turn's audience may see them."""

    @tool(read_only=True, idempotent=True)
    def search_history(context: ToolContext, query: Query, limit: Limit = 10) -> Invocation:
        """Search all earlier conversations that the person you talk with may see, also those no longer in front of
        you."""
        within = context.within

        async def work() -> ToolOutput:
            found = await search.said(query, within=within, limit=limit + 1)
            return _output([_hit(event) for event in found if event.turn != context.turn], query, limit)

        return _prepared("search_history", query, limit, within, work)

    return search_history


def search_channel_tool(
    search: SearchIndex, adapters: Mapping[str, ChatAdapter], judge: Judge
) -> FunctionTool[Invocation]:
    """`search_channel` searches the journals of a channel's threads, and what the platform has of this thread beyond
    them."""

    async def on_platform(query: str, context: ToolContext) -> tuple[list[_Hit], str]:
        """What the platform itself has; a note says when it could not be asked."""
        adapter = adapters.get(context.thread.split(":")[0])
        if adapter is None or not adapter.limits.has_history:
            return [], ""
        words = [word.casefold() for word in _WORD.findall(query)]
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
        hits: list[_Hit] = []
        for one in found:
            author = await judge(context.thread, one.author)
            hits.append(_Hit(one.at, author, one.text, context.thread, one.tainted_by or _untrusted(author)))
        return hits, note

    @tool(read_only=True, idempotent=True)
    def search_channel(context: ToolContext, query: Query, limit: Limit = 10) -> Invocation:
        """Search what was said in this channel, also before you were here."""
        within = channel_of(context.chat)

        async def work() -> ToolOutput:
            found = await search.said(query, within=within, limit=limit + 1)
            hits = [_hit(event) for event in found if event.turn != context.turn]
            known = {hit.text for hit in hits}
            platform, note = await on_platform(query, context)
            hits += [hit for hit in platform if hit.text not in known]
            hits.sort(key=lambda hit: hit.at, reverse=True)
            return _output(hits, query, limit, note)

        return _prepared("search_channel", query, limit, within, work)

    return search_channel


def _prepared(name: str, query: str, limit: int, within: str, work: Callable[[], Awaitable[ToolOutput]]) -> Prepared:
    words = " ".join(_WORD.findall(query))
    if not words:
        raise ToolError("Give at least one word to look for.")
    return planned(name, words, work, query=query, limit=limit, within=within)


def _hit(event: Event) -> _Hit:
    match event.data:
        case UserSaid(text=text, author=author, caller=caller, tainted_by=taint):
            taint = taint or (caller.tainted_by if caller is not None else "")
            return _Hit(event.at, author, text, event.thread, taint or _untrusted(author))
        case Steered(text=text, author=author):
            return _Hit(event.at, author, text, event.thread, _untrusted(author))
        case AssistantSaid(text=text, tainted_by=taint):
            return _Hit(event.at, _AGENT, text, event.thread, f"an answer after {taint}" if taint else "")
        case _:
            return _Hit(event.at, _AGENT, "", event.thread)


def _untrusted(author: Author) -> str:
    return "" if author.trusted else f"message of {author.id}"


def _output(hits: list[_Hit], query: str, limit: int, note: str = "") -> ToolOutput:
    shown = hits[:limit]
    if not shown:
        return ToolOutput(f"Nothing was found for {query!r}.\n{note}".rstrip())
    lines: list[str] = []
    for hit in shown:
        text = " ".join(hit.text.split())
        if len(text) > AROUND_CHARS:
            folded = text.casefold()
            places = [place for word in _WORD.findall(query) if (place := folded.find(word.casefold())) >= 0]
            start = max(0, min(places, default=0) - AROUND_CHARS // 3)
            text = f"{'…' if start else ''}{text[start : start + AROUND_CHARS]}…"
        lines.append(f"{hit.at:%Y-%m-%d %H:%M} {hit.author.name or hit.author.id} in {hit.where}: {text}")
    taint = next((hit.tainted_by for hit in shown if hit.tainted_by), "")
    return ToolOutput("\n".join([*lines, note] if note else lines), tainted_by=taint, is_piece=True)


def read_artifact_tool(artifacts: ArtifactStore, files: Files) -> FunctionTool[Invocation]:
    """`read_artifact` shows a piece of an artifact of the same thread."""

    @tool(read_only=True, idempotent=True)
    def read_artifact(
        context: ToolContext,
        artifact: Annotated[
            str, Meta(description="The artifact's name as the excerpt gives it, or its first 8 characters or more.")
        ],
        offset: Annotated[int, Meta(ge=0, description="First character to show, counted from 0.")] = 0,
        limit: Annotated[int, Meta(ge=1, le=PIECE_CHARS_MAX, description="How many characters to show.")] = PIECE_CHARS,
        grep: Annotated[
            str,
            Meta(
                description="Show only the lines that contain this text, upper and lower case alike, each with its "
                "offset.",
                max_length=500,
            ),
        ] = "",
    ) -> Invocation:
        """Read a stored result of which you saw an excerpt: a piece of it by offset and limit, or by grep the lines
        that contain a text."""
        name = artifact.strip().lower()
        if not 8 <= len(name) <= DIGEST_CHARS:
            raise ToolError(f"{artifact[:80]!r} is no artifact; take the name from the excerpt.")

        async def work() -> ToolOutput:
            found = await artifacts.find(context.thread, name)
            if found is None:
                raise ToolError(f"This conversation has no artifact {name}. It may have been too old to be kept.")
            try:
                content = await in_thread(lambda: files.read(found.digest))
            except OSError as error:
                raise ToolError(f"Artifact {found.digest} is gone: {error.strerror or error}.") from error
            text = content.decode("utf-8", errors="replace")
            if grep:
                shown = await in_thread(lambda: _matches(text, grep, offset, limit))
            elif piece := text[offset : offset + limit]:
                shown = f"{piece}\n[Characters {offset:,} to {offset + len(piece):,} of {len(text):,}.]"
            else:
                shown = f"[Nothing at offset {offset:,}: the artifact has {len(text):,} characters.]"
            return ToolOutput(shown, tainted_by=found.tainted_by, is_piece=True)

        shown = f"read_artifact {name} {grep}".rstrip()
        return planned("read_artifact", name, work, shown, artifact=name, offset=offset, limit=limit, grep=grep)

    return read_artifact


def _matches(text: str, grep: str, offset: int, limit: int) -> str:
    """The lines from an offset on that contain a text, each with its own offset; of a long one what is around it."""
    wanted, place, count = grep.casefold(), 0, 0
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        at = line.casefold().find(wanted) if place >= offset else -1
        if at >= 0:
            count += 1
            if len(lines) < MATCHES_MAX and sum(map(len, lines)) < limit:
                shown = line.rstrip()
                if len(shown) > LINE_CHARS_MAX:
                    start = max(0, at - LINE_CHARS_MAX // 2)
                    shown = f"…{shown[start : start + LINE_CHARS_MAX]}…"
                lines.append(f"{place}: {shown}")
        place += len(line)
    if not count:
        return f"[No line contains {grep!r}.]"
    more = f" The first {len(lines)} are shown; go on with a higher offset." if count > len(lines) else ""
    return "\n".join([*lines, f"[{count} lines contain it, each with its offset.{more}]"])
