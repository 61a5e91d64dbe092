"""The tools `search_channel` and `read_artifact`.

`search_channel` searches only the current channel, so anyone who writes there may use it. docs/security.md describes
who can search other conversations. `read_artifact` reads stored results and the conversation's own files.
"""

import asyncio
import re
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from shoal.kernel.errors import PlatformError, ToolError
from shoal.kernel.events import AssistantSaid, Event, Steered, UserSaid
from shoal.kernel.files import DIGEST_CHARS, Files, in_thread
from shoal.kernel.ids import WHOLE_CHANNEL, ThreadId, channel_of
from shoal.kernel.messages import Author, Judge, PlatformUser, Prompt
from shoal.kernel.ports import ChatAdapter, Invocation, Mount, ToolContext, ToolOutput
from shoal.kernel.traits import LOOKUP
from shoal.kernel.untrusted import UNREADABLE
from shoal.store.journal import SEQ_END, Journal, WindowStore
from shoal.store.projections import CONTEXT, LOG, ContextPosition, LogLine
from shoal.store.search import ArtifactStore, SearchIndex
from shoal.tools.functions import FunctionTool, planned, tool
from shoal.tools.jail import Jail

AROUND_CHARS = 300
"""Maximum number of characters shown from a message. The excerpt surrounds the first matching word."""
PLATFORM_MESSAGES_MAX = 500
PLATFORM_SECONDS_MAX = 10.0
NO_HISTORY = "[Bots cannot read the history of this platform. Pass a query to search your conversations here instead.]"
PIECE_CHARS = 8_000
PIECE_CHARS_MAX = 15_000
MATCHES_MAX = 100
LINE_CHARS_MAX = 400
_WORD = re.compile(r"\w+")
_AGENT = PlatformUser("agent", "agent")
_logged = msgspec.json.Decoder(LogLine)
_numbered = msgspec.json.Decoder(ContextPosition)

Query = Annotated[str, Meta(description="Words that must all occur. Omit for the newest messages.", max_length=500)]
Limit = Annotated[int, Meta(ge=1, le=200, description="Number of messages to show, newest first.")]


class Hit(NamedTuple):
    """A message that matches a search. `tainted_by` names the untrusted content that influenced it."""

    at: datetime
    author: PlatformUser
    text: str
    where: str
    tainted_by: str = ""

    def line(self, query: str, chars_max: int) -> str:
        excerpt = around(self.text, query, chars_max)
        return f"{self.at:%Y-%m-%d %H:%M} {self.author.name or self.author.id} in {self.where}: {excerpt}"


SEARCH_CHANNEL = tool(LOOKUP, name="search_channel", example={"query": "tea"})
READ_ARTIFACT = tool(
    replace(LOOKUP, offered="always", rank=11),
    name="read_artifact",
    example={"artifact": "0123456789abcdef", "grep": "error"},
)


def search_channel_tool(
    search: SearchIndex, adapters: Mapping[str, ChatAdapter], judge: Judge
) -> FunctionTool[Invocation]:
    async def on_platform(query: str, context: ToolContext) -> tuple[list[Hit], str]:
        adapter = adapters.get(context.chat.split(":")[0])
        if adapter is None or not adapter.limits.has_history:
            return [], "" if query else NO_HISTORY
        words = [word.casefold() for word in _WORD.findall(query)]
        messages: dict[str, Prompt] = {}
        note = ""
        try:
            async with asyncio.timeout(PLATFORM_SECONDS_MAX):
                for place in (context.chat, ThreadId(f"{channel_of(context.chat)}{WHOLE_CHANNEL}")):
                    async for message in adapter.history(place, None, PLATFORM_MESSAGES_MAX):
                        if all(word in message.text.casefold() for word in words):
                            messages[message.key] = message
        except PlatformError as error:
            note = f"[Searching the platform's own history failed: {error}]"
        except TimeoutError:
            note = "[Reading the platform's own history took too long, so Shoal searched only the journal.]"
        hits: list[Hit] = []
        for message in messages.values():
            author = await judge(context.chat, message.author)
            hits.append(Hit(message.at, author, message.text, message.thread, message.tainted_by or _untrusted(author)))
        return hits, note

    @SEARCH_CHANNEL
    def search_channel(context: ToolContext, query: Query = "", limit: Limit = 20) -> Invocation:
        """Search the messages of this channel, or show the newest, including those from before you joined."""
        within, words = channel_of(context.chat), words_of(query) if query.strip() else ""

        async def work() -> ToolOutput:
            found = await search.messages(query, within=within, limit=limit + 1)
            hits = [hit_of(event) for event in found if event.turn != context.turn]
            known = {hit.text for hit in hits}
            platform, note = await on_platform(query, context)
            hits += [hit for hit in platform if hit.text not in known]
            shown = sorted(hits, key=lambda hit: hit.at, reverse=True)[:limit]
            if not shown:
                return ToolOutput(f"Nothing found{f' for {query!r}' if query else ''}.\n{note}".rstrip())
            lines = [hit.line(query, AROUND_CHARS) for hit in shown]
            taint = next((hit.tainted_by for hit in shown if hit.tainted_by), "")
            return ToolOutput("\n".join([*lines, note] if note else lines), tainted_by=taint, is_piece=True)

        return planned("search_channel", words, work, query=query, limit=limit, within=within)

    return search_channel


def words_of(query: str) -> str:
    """Return the words of a query, separated by spaces. Raises ToolError if the query contains no word."""
    words = " ".join(_WORD.findall(query))
    if not words:
        raise ToolError("Specify at least one word to search for.")
    return words


def hit_of(event: Event) -> Hit:
    match event.data:
        case UserSaid(text=text, author=author, caller=caller, tainted_by=taint):
            taint = taint or (caller.tainted_by if caller is not None else "")
            return Hit(event.at, author, text, event.thread, taint or _untrusted(author))
        case Steered(text=text, author=author):
            return Hit(event.at, author, text, event.thread, _untrusted(author))
        case AssistantSaid(text=text, tainted_by=taint):
            return Hit(event.at, _AGENT, text, event.thread, f"an answer after {taint}" if taint else "")
        case _:
            return Hit(event.at, _AGENT, "", event.thread)


def _untrusted(author: Author) -> str:
    return "" if author.trusted else f"a message of {author.name or author.id}"


def around(text: str, query: str, chars_max: int) -> str:
    line = " ".join(text.split())
    if len(line) <= chars_max:
        return line
    folded = line.casefold()
    places = [place for word in _WORD.findall(query) if (place := folded.find(word.casefold())) >= 0]
    start = max(0, min(places, default=0) - chars_max // 3)
    return f"{'…' if start else ''}{line[start : start + chars_max]}…"


def _own_file(folder: Path, name: str, window: Collection[int], grep: str, offset: int, limit: int) -> tuple[str, str]:
    """Return the file's text, and the taint of the part that is shown.

    Lines of `context.jsonl` that are outside the model's current window are omitted. Messages by untrusted authors
    taint the text. Raises ToolError.
    """
    jail = Jail((Mount(folder, "/thread"),))
    lines, tainted_by, start = list[str](), "", 0
    for body in jail.read(jail.resolve(name)).splitlines(keepends=True):
        if not body.endswith(b"\n") or (name == CONTEXT and _numbered.decode(body).seq not in window):
            continue
        text = body.decode("utf-8", "replace")
        try:
            if name == CONTEXT:  # the shown part may begin or end inside an untrusted block
                is_trusted = b"<untrusted" not in body
            else:
                line = _logged.decode(body)
                is_trusted = line.trusted or not (line.text or line.attachments)
        except UNREADABLE:
            is_trusted = False
        end = start + len(text)
        is_shown = grep.casefold() in text.casefold() if grep else start < offset + limit
        if not is_trusted and is_shown and end > offset:
            tainted_by = "a file of this conversation"
        lines.append(text)
        start = end
    return "".join(lines), tainted_by


def read_artifact_tool(
    artifacts: ArtifactStore, files: Files, journal: Journal, windows: WindowStore
) -> FunctionTool[Invocation]:
    @READ_ARTIFACT
    def read_artifact(
        context: ToolContext,
        artifact: Annotated[
            str,
            "The artifact's name from the excerpt, or at least its first 8 characters; or log.jsonl (this whole "
            "conversation) or context.jsonl (the content sent to you).",
        ],
        offset: Annotated[int, Meta(ge=0, description="First character to show, counted from 0.")] = 0,
        limit: Annotated[
            int, Meta(ge=1, le=PIECE_CHARS_MAX, description="Number of characters to show.")
        ] = PIECE_CHARS,
        grep: Annotated[
            str,
            "Show only lines that contain this text, ignoring case, each with its offset.",
            Meta(max_length=500),
        ] = "",
    ) -> Invocation:
        """Read a stored result when you have seen only an excerpt of it. Use offset and limit to read a part of it, or
        grep to show only the lines that contain a given text.
        """
        name = artifact.strip().lower()
        if name not in (LOG, CONTEXT) and not 8 <= len(name) <= DIGEST_CHARS:
            raise ToolError(f"{artifact[:80]!r} is not an artifact. Use the name from the excerpt.")

        async def content() -> tuple[str, str]:
            if name in (LOG, CONTEXT):
                folder, window = context.home.thread(context.thread), await windows.window(context.thread)
                seen = set[int]()
                # the file contains the window as it was at the end of the last turn
                if window is not None and name == CONTEXT:
                    after = max(0, window.window_seq - 1)
                    seen = {event.seq for event in await journal.along(context.thread, window.last_seq, after, SEQ_END)}
                return await in_thread(lambda: _own_file(folder, name, seen, grep, offset, limit))
            artifact_row = await artifacts.find(context.thread, name)
            if artifact_row is None:
                raise ToolError(f"This conversation has no artifact {name}. It may have expired.")
            try:
                body = await in_thread(lambda: files.read(artifact_row.digest))
            except OSError as error:
                raise ToolError(
                    f"Shoal cannot read artifact {artifact_row.digest}: {error.strerror or error}."
                ) from error
            return body.decode("utf-8", errors="replace"), artifact_row.tainted_by

        async def work() -> ToolOutput:
            text, tainted_by = await content()
            if grep:
                shown = await in_thread(lambda: _matches(text, grep, offset, limit))
            elif piece := text[offset : offset + limit]:
                shown = f"{piece}\n[Characters {offset:,} to {offset + len(piece):,} of {len(text):,}.]"
            else:
                shown = f"[Offset {offset:,} is past the end of the text ({len(text):,} characters).]"
            return ToolOutput(shown, tainted_by=tainted_by, is_piece=True)

        shown = f"read_artifact {name} {grep}".rstrip()
        return planned("read_artifact", name, work, shown, artifact=name, offset=offset, limit=limit, grep=grep)

    return read_artifact


def _matches(text: str, grep: str, offset: int, limit: int) -> str:
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
    more = f" The first {len(lines)} are shown; continue with a higher offset." if count > len(lines) else ""
    return "\n".join([*lines, f"[Matching lines: {count}, each with its offset.{more}]"])
