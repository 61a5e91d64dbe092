"""Calls for searching, renaming, exporting and deleting threads, and the call that lists the available models."""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal
from urllib.parse import quote

import anyio.to_thread
import msgspec
from starlette.responses import Response, StreamingResponse

from shoal.agents.registry import AgentRegistry
from shoal.kernel.errors import InvalidInput
from shoal.kernel.events import AssistantSaid, Event, Steered, UserSaid, encode_event
from shoal.kernel.files import Folders
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, is_child, parse_thread_id
from shoal.kernel.messages import Usage
from shoal.kernel.ports import Models
from shoal.kernel.records import DeletedThread, ThreadInfo
from shoal.models.catalog import model_names
from shoal.store.appends import title_of
from shoal.store.store import Store
from shoal.surfaces.export import EXTENSIONS, WRITERS, ExportFormat
from shoal.surfaces.http.endpoints import ADMINS, EVERYONE, TALKERS, Routes, Text64, Text200, checked_text
from shoal.surfaces.http.routes_threads import check_agent, check_model, known_thread
from shoal.surfaces.http.streams import LiveStreams
from shoal.surfaces.http.thread_views import ThreadSummary
from shoal.threads.principals import Principal, may_use
from shoal.tools.executor import LiveToolServices
from shoal.tools.storage import delete_thread

routes = Routes()

FOUND_MAX = 1000
MODELS_MAX = 2000
EXPORTED_AT_ONCE = 20
EXCERPT_CHARS = 160
BEFORE_CHARS = 50


class ThreadChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes to a thread. Omitted fields stay unchanged.

    agent: the agent that answers from the next turn on.
    model: the model that answers from the next turn on. An empty string selects the agent's own model.
    """

    title: Annotated[str, msgspec.Meta(max_length=400)] | None = None
    pinned: bool | None = None
    archived: bool | None = None
    agent: Text64 | None = None
    model: Text200 | None = None


class FoundMessage(msgspec.Struct, frozen=True):
    """A message that matches a search: event `seq` of `thread`. `title` is the title of the thread."""

    thread: str
    title: str
    agent: str
    seq: int
    at: str
    by: Literal["person", "agent"]
    excerpt: str


class ModelView(msgspec.Struct, frozen=True):
    """A model.

    context_tokens: size of the context window.
    input_usd: price of one million input tokens in US dollars, or null if unknown.
    output_usd: price of one million output tokens in US dollars, or null if unknown.
    """

    name: str
    context_tokens: int
    input_usd: float | None
    output_usd: float | None


class TurnCost(msgspec.Struct, frozen=True):
    """The cost of a turn's model calls, excluding those of its subagents. `usd` is null if a price is unknown."""

    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    usd: float | None
    models: tuple[str, ...]


# ---- threads ----


@routes("PATCH /api/threads/{thread}", TALKERS, answer=ThreadSummary)
async def change_thread(
    store: Store, agents: AgentRegistry, models: Models, by: Principal, thread: ThreadId, body: ThreadChange
) -> ThreadInfo:
    """Rename, pin or archive a thread, or choose its agent or model."""
    title = body.title
    if title is not None:
        title = title_of(checked_text(title, "title"))
    if body.agent:
        check_agent(agents, by, body.agent)
    check_model(models, by, body.model)
    await store.threads.change(
        thread, title=title, pinned=body.pinned, archived=body.archived, agent=body.agent, model=body.model
    )
    return await known_thread(store, thread)


@routes("DELETE /api/threads/{thread}", ADMINS)
async def delete(
    store: Store, home: Home, outlets: LiveToolServices, folders: Folders, by: Principal, thread: ThreadId
) -> DeletedThread:
    """Delete a thread and its subagents' threads permanently. 409 while one of them is running or has queued messages.

    This deletes the journal, search index, files, full results and saved conversations. The audit log keeps the
    journal's digest.
    """
    info = await store.journal.thread(thread) if is_child(thread) else None
    if info is not None and info.parent and await store.journal.thread(ThreadId(info.parent)) is not None:
        raise InvalidInput(f"A subagent's thread is deleted with its parent. Delete {info.parent} instead.")
    return await delete_thread(store, home, outlets.artifacts, folders, thread, by.person, by.token.name)


@routes("GET /api/threads/{thread}/export", EVERYONE, media_type="text/markdown")
async def export(
    store: Store, streams: LiveStreams, thread: ThreadId, *, format: ExportFormat = "markdown"
) -> Response:
    """Export the conversation as a document: Markdown, one HTML file, or JSON with every event of every branch."""
    info = await known_thread(store, thread)
    name = " ".join(re.sub(r"[^\w. -]", " ", info.title or thread).split())[:80] or "thread"
    kinds = {"markdown": "text/markdown; charset=utf-8", "html": "text/html; charset=utf-8", "json": "application/json"}
    file = quote(f"{name}.{EXTENSIONS[format]}", safe="")
    headers = {"Content-Disposition": f"attachment; filename*=utf-8''{file}", "Cache-Control": "no-store"}
    return StreamingResponse(_exported(store, streams, info, format), 200, headers, kinds[format])


async def _exported(
    store: Store, streams: LiveStreams, info: ThreadInfo, form: ExportFormat
) -> AsyncIterator[str | bytes]:
    shown = msgspec.convert(info, ThreadSummary, from_attributes=True)
    writer = WRITERS[form](info.thread, info.title) if form != "json" else None
    yield writer.head() if writer else b'{"thread":%s,"events":[' % msgspec.json.encode(shown)
    journal, after = store.journal, 0

    def written(events: Sequence[Event]) -> str | bytes:
        if writer:
            return "".join(map(writer.event, events))
        return (b"," if after else b"") + b",".join(map(encode_event, events))

    while after < info.last_seq:
        async with streams.exporting:
            if writer:  # a document contains only the visible branch
                events = await journal.along(info.thread, info.last_seq, after, EXPORTED_AT_ONCE)
            else:
                events = await journal.events(info.thread, after, EXPORTED_AT_ONCE, before=info.last_seq + 1)
            if not events:
                break
            piece = await anyio.to_thread.run_sync(written, events)
        yield piece
        after = events[-1].seq
    yield writer.tail() if writer else b"]}"


@routes("GET /api/threads/{thread}/turns/{turn}/cost", EVERYONE)
async def cost(store: Store, thread: ThreadId, turn: str) -> TurnCost:
    """Return the cost of a turn's model calls."""
    if not re.fullmatch(r"[0-9A-Za-z]{1,40}", turn):
        raise InvalidInput("This is not a turn id. Use the `turn` field of an event.")
    spent = await store.threads.spent(thread, turn)
    used = sum((step.usage for step in spent), Usage())
    priced = [step.usd for step in spent if step.usd is not None]
    usd = sum(priced) if len(priced) == len(spent) and spent else None
    models = tuple(dict.fromkeys(step.model for step in spent))
    return TurnCost(len(spent), used.input_tokens, used.output_tokens, used.cached_tokens, usd, models)


# ---- search ----


@routes("GET /api/search", EVERYONE, narrows=True)
async def search(
    store: Store,
    by: Principal,
    *,
    q: Annotated[str, msgspec.Meta(min_length=1, max_length=400)],
    thread: Annotated[str, msgspec.Meta(max_length=600)] = "",
    limit: Annotated[int, msgspec.Meta(ge=1, le=FOUND_MAX)] = 30,
) -> list[FoundMessage]:
    """Return messages that contain all words in `q`, newest first. The last word may be incomplete. With `thread`,
    search only that thread.
    """
    index, journal = store.search, store.journal
    within = (parse_thread_id(thread),) if thread else by.channels or ("",)
    events: list[Event] = []
    for place in within:
        events += await index.messages(q, within=place, limit=limit, prefix=True)
    known: dict[ThreadId, ThreadInfo | None] = {}
    shown: list[FoundMessage] = []
    words = [word.casefold() for word in re.findall(r"\w+", q)]
    for event in sorted(events, key=lambda event: event.at, reverse=True):
        place = event.thread
        if place not in known:
            known[place] = await journal.thread(place) if await may_use(by, journal, place) else None
        info = known[place]
        if info is None or not isinstance(event.data, UserSaid | Steered | AssistantSaid):
            continue
        said_by = "agent" if isinstance(event.data, AssistantSaid) else "person"
        excerpt = excerpt_of(event.data.text, words)
        shown.append(FoundMessage(place, info.title, info.agent, event.seq, event.at.isoformat(), said_by, excerpt))
    return shown[:limit]


def excerpt_of(text: str, words: list[str]) -> str:
    flat = " ".join(text.split())
    places = [at for word in words if (at := flat.casefold().find(word)) >= 0]
    begin = max(0, min(places, default=0) - BEFORE_CHARS)
    if begin:
        begin = flat.find(" ", begin) + 1 or begin
    cut = flat[begin : begin + EXCERPT_CHARS]
    return f"{'…' if begin else ''}{cut}{'…' if begin + len(cut) < len(flat) else ''}"


# ---- models ----


@routes("GET /api/models", EVERYONE, narrows=True)
async def models_to_choose(models: Models) -> list[ModelView]:
    """List the available models with their context windows and prices."""
    known = models

    def look() -> list[ModelView]:
        shown: list[ModelView] = []
        for name in model_names(known)[:MODELS_MAX]:
            route = known.route(name)
            prices = (known.usd(route, Usage(input_tokens=1_000_000)), known.usd(route, Usage(output_tokens=1_000_000)))
            shown.append(ModelView(name, route.context_tokens, *prices))
        return shown

    return await anyio.to_thread.run_sync(look)
