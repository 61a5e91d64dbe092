"""The `recall` tool, which searches memory, notes, documents and conversations by meaning or by words. Each result
names its source. A result influenced by untrusted content taints the turn.
"""

from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from shoal.features.recall.library import SAID, Library
from shoal.features.recall.store import Passage
from shoal.kernel.errors import ProviderError, ToolError
from shoal.kernel.files import in_thread
from shoal.kernel.memory_files import MEMORY_FILE, note_day, note_path, read_memory, shown_to
from shoal.kernel.ports import Invocation, Tool, ToolContext, ToolOutput
from shoal.kernel.traits import LOOKUP
from shoal.kernel.untrusted import written_after
from shoal.store.search import SearchIndex
from shoal.store.store import Store
from shoal.tools.builtin.lookup import around, hit_of, words_of
from shoal.tools.functions import FunctionTool, Prepared, ToolDecorator, planned, tool
from shoal.tools.tainted_files import MarkedFiles

if TYPE_CHECKING:
    from shoal.services import Services

PASSAGE_CHARS = 700
PROBLEMS_MAX = 5
_RANK = 60
"""Constant in reciprocal rank fusion. A larger value reduces the weight of the top ranks."""


RECALL = tool(LOOKUP, name="recall", example={"query": "green tea", "limit": 3})
SEARCH_HISTORY = RECALL.alias("search_history")


def recall_tools(services: "Services") -> list[Tool]:
    library, search, marked = services[Library], services[Store].search, services[MarkedFiles]
    return [recall_tool(library, search, marked, described) for described in (RECALL, SEARCH_HISTORY)]


def recall_tool(
    library: Library, search: SearchIndex, marked: MarkedFiles, described: ToolDecorator = RECALL
) -> FunctionTool[Invocation]:
    name = described.name

    async def nearest(
        query: str, context: ToolContext, files: Collection[str], limit: int
    ) -> tuple[list[Passage], str]:
        """Search by meaning. Return the passages and, if the search was not possible, the reason."""
        if library.embeddings is None:
            return [], "Searched by words only: recall by meaning is not set up."
        within, person = context.within, context.purpose.audience.person

        def may_see(source: str) -> bool:
            if source.startswith(SAID):
                thread = source.removeprefix(SAID)
                return thread == within or not within or (within.endswith(":") and thread.startswith(within))
            return source in files

        try:
            return await library.nearest(query, may_see, person, limit), ""
        except ProviderError as error:
            return [], f"Searched by words only: {error}"

    async def found(query: str, context: ToolContext, limit: int) -> list[tuple[str, str]]:
        person = context.purpose.audience.person
        known = await library.refresh(context)
        near, note = await nearest(query, context, known.files.keys(), 2 * limit)
        exact = await library.with_words(query, list(known.files), person)
        hits = await search.messages(query, within=context.within, limit=limit + 1)
        standing = [Passage(0, f"{SAID}{event.thread}", str(event.seq), "", "") for event in hits]
        events = {_key(piece): event for piece, event in zip(standing, hits, strict=True)}
        ranked = _together(near, exact[: 2 * limit], standing)
        source_of = await marked.sources([context.home.attachments(context.thread), context.home.root], person)
        passages: list[tuple[str, str]] = []
        for piece in ranked:
            if piece.source.startswith(SAID):
                event = events.get(_key(piece)) or await library.message_of(piece)
                if event is not None and event.turn != context.turn:
                    hit = hit_of(event)
                    passages.append((hit.line(query, PASSAGE_CHARS), hit.tainted_by))
            else:
                path = known.files[piece.source]
                tainted_by = written_after(path.name, source_of(path))
                label = f"{_named(piece.source, path, context)}, {piece.place}"
                passages.append((f"{label}: {around(piece.text, query, PASSAGE_CHARS)}", tainted_by))
            if len(passages) == limit:
                break
        unread = [
            (known.files[name], _named(name, known.files[name], context), why) for name, why in known.problems.items()
        ]
        problems = [
            (f"[Shoal did not fully search {name}: {why}.]", written_after(path.name, source_of(path)))
            for path, name, why in unread[:PROBLEMS_MAX]
        ]
        left = len(unread) - PROBLEMS_MAX
        more = [f"Other files that were not fully searched: {left}."] if left > 0 else []
        late = ["Shoal is still reading some files. Search again in a moment."] if known.late else []
        passages = passages or [(f"Nothing found for {query!r}.", "")]
        notes = [(f"[{note}]", "") for note in (*more, *late)]
        return [*passages, *([(f"[{note}]", "")] if note else []), *problems, *notes]

    def note_of(day: str, context: ToolContext) -> Prepared:
        day_found = note_day(day.replace("-", ""))
        if day_found is None:
            raise ToolError(f"{day!r} is not a date. Use the format YYYY-MM-DD.")
        path, person = note_path(context.home, day_found), context.purpose.audience.person

        async def work() -> ToolOutput:
            text = shown_to(await in_thread(lambda: read_memory(path)), person).strip()
            text = text.encode("utf-8", "replace").decode()
            source = (await marked.sources([context.home.root], person))(path) if text else ""
            tainted_by = written_after(f"the note for {day_found}", source)
            return ToolOutput(
                f"Note for {day_found}:\n{text}" if text else f"No note exists for {day_found}.", tainted_by=tainted_by
            )

        return planned(name, f"note {day_found}", work, day=str(day_found), person=person)

    @described
    def recall(
        context: ToolContext,
        query: Annotated[str, Meta(description="What to look for, in a few words.", max_length=500)] = "",
        day: Annotated[
            str, Meta(description="YYYY-MM-DD: return the complete note of that day instead.", max_length=10)
        ] = "",
        limit: Annotated[int, Meta(ge=1, le=30, description="Number of passages.")] = 8,
    ) -> Invocation:
        """Search your memory, all daily notes, your documents, files sent to this conversation, and earlier
        conversations that the person you are talking to may see. Each passage names its source."""
        if day:
            return note_of(day, context)
        within, words = context.within, words_of(query)

        async def work() -> ToolOutput:
            lines = await found(query, context, limit)
            taint = next((tainted_by for _, tainted_by in lines if tainted_by), "")
            return ToolOutput("\n".join(line for line, _ in lines), tainted_by=taint, is_piece=True)

        return planned(name, words, work, query=query, limit=limit, within=within)

    return recall


def _together(near: Sequence[Passage], exact: Sequence[Passage], spoken: Sequence[Passage]) -> list[Passage]:
    """Merge rankings by reciprocal rank fusion (Cormack et al., 2009)."""
    scores: dict[tuple[str, ...], float] = {}
    pieces: dict[tuple[str, ...], Passage] = {}
    for ranking in (near, exact, spoken):
        for rank, piece in enumerate({_key(piece): piece for piece in ranking}.values()):
            key = _key(piece)
            pieces.setdefault(key, piece)
            scores[key] = scores.get(key, 0.0) + 1 / (_RANK + rank)
    return [pieces[key] for key in sorted(scores, key=lambda score: -scores[score])]


def _key(piece: Passage) -> tuple[str, ...]:
    return piece.source, piece.place, piece.text


def _named(source: str, path: Path, context: ToolContext) -> str:
    home = context.home
    if path.name == MEMORY_FILE:
        depth = len(PurePosixPath(source).parts)
        return f"memory ({('global', 'platform', 'channel')[min(depth, 4) - 2]})"
    if path.is_relative_to(home.data / "memory"):
        return f"note for {note_day(path.stem)}"
    if path.is_relative_to(context.agent.home):
        return path.relative_to(context.agent.home).as_posix()
    return f"/attachments/{path.relative_to(home.attachments(context.thread)).as_posix()}"
