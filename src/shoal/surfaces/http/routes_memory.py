"""Calls about what agents remember and what they know how to do: memory files, daily notes, their changes, skills."""

import hashlib
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from starlette.requests import Request

from shoal.actors.principals import Principal
from shoal.agents.skill_files import ARCHIVE_BYTES_MAX, fetch_skills, install_skills, put_skill
from shoal.domain.errors import Conflict, InvalidInput, NotFound
from shoal.domain.files import in_thread
from shoal.domain.home import FILE_BYTES_MAX, MEMORY_SCOPES, entry_key, lines_of, memory_path, note_path
from shoal.domain.ids import make_thread_id, parse_thread_id
from shoal.domain.records import MemoryChange, MemoryEdit
from shoal.domain.web import URL_CHARS_MAX
from shoal.surfaces.http.endpoints import ADMINS, READERS, Routes, Text64, WebContext, view, whole_body
from shoal.surfaces.http.routes_agents import agent_home
from shoal.tools.memory_files import NOTES_MAX, note_files, read_memory
from shoal.turn.skills import Skill, SkillRoot, SkillScope, skill_roots
from shoal.turn.text_files import FileCache, SkillReader

routes = Routes()

NOWHERE = make_thread_id("terminal", "local", "main")

FileScope = Literal["global", "platform", "channel", "note"]
ThreadText = Annotated[str, msgspec.Meta(max_length=542)]
EntryText = Annotated[str, msgspec.Meta(max_length=4000)]
NoteCount = Annotated[int, msgspec.Meta(ge=0, le=NOTES_MAX)]
OwnScope = Literal["global", "platform", "channel", "agent"]
Day = Annotated[str, msgspec.Meta(pattern=r"^(\d{4}-\d{2}-\d{2})?$", description="a day like 2026-01-31")]


class MemoryFile(msgspec.Struct, frozen=True):
    """A memory file or daily note as it stands, with the lines that are for one person alone. `digest` is the SHA-256
    of its text; `day` is empty where it is no note."""

    scope: FileScope
    path: str
    day: str
    text: str
    digest: str


class MemoryText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole new text of a memory file: `thread` says of which platform or channel, `day` of which note.

    With `digest`, only if the file still is what was read.
    """

    scope: FileScope
    text: Annotated[str, msgspec.Meta(max_length=FILE_BYTES_MAX)]
    thread: ThreadText = ""
    day: Day = ""
    digest: Text64 = ""


@routes("GET /api/memory", READERS)
async def memory(web: WebContext, *, thread: ThreadText = "", day: Day = "", notes: NoteCount = 3) -> list[MemoryFile]:
    """What agents remember, the broadest scope first, then daily notes, the oldest first: everywhere's memory, with
    `thread` also that of its platform and channel, and the newest `notes`, or that of `day` alone."""
    home, where = web.app.home, parse_thread_id(thread) if thread else NOWHERE
    if day:
        return [await _shown("note", note_path(home, _day(day)), day)]
    scopes = MEMORY_SCOPES if thread else MEMORY_SCOPES[:1]
    found = [await _shown(scope, memory_path(home, scope, where)) for scope in scopes]
    newest = (await in_thread(lambda: note_files(home)))[:notes]
    return found + [await _shown("note", path, written.isoformat()) for written, path in reversed(newest)]


@routes("PUT /api/memory", ADMINS)
async def write(web: WebContext, by: Principal, body: MemoryText) -> MemoryFile:
    """Write a memory file or note anew; 409 when `digest` is given and the file has changed. Counts from the next turns
    on, and can be taken back."""
    path = _place(web, body.scope, body.thread, body.day)
    was = await in_thread(lambda: read_memory(path))
    if body.digest and body.digest != _digest(was):
        raise Conflict(f"{path.name} has changed since it was read. Read it again.")
    old, new = lines_of(was), lines_of(body.text.replace("\r\n", "\n").replace("\0", ""))
    first = next(
        (at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), min(len(old), len(new))
    )
    left = min(len(old), len(new)) - first
    last = next((at for at in range(left) if old[-1 - at] != new[-1 - at]), left)
    removed, added = old[first : len(old) - last], new[first : len(new) - last]
    if removed or added:
        edit = MemoryEdit(path, tuple(removed), tuple(added), first, changed_by=by.person)
        await web.app.outlets.memory.change(edit)
    return await _shown(body.scope, path, body.day)


@routes("DELETE /api/memory", ADMINS)
async def forget(
    web: WebContext, by: Principal, *, scope: FileScope, thread: ThreadText = "", day: Day = "", entry: EntryText = ""
) -> MemoryFile:
    """Forget an entry in any spelling, or without one everything in a file; 404 when it does not say that. Can be taken
    back."""
    path = _place(web, scope, thread, day)
    lines = lines_of(await in_thread(lambda: read_memory(path)))
    if not entry:
        if lines:
            await web.app.outlets.memory.change(MemoryEdit(path, tuple(lines), (), 0, changed_by=by.person))
        return await _shown(scope, path, day)
    wanted = entry_key(entry)
    found = [(at, line) for at, line in enumerate(lines) if entry_key(line.partition("<!-- only ")[0]) == wanted]
    if not found:
        raise NotFound(f"{path.name} has no entry {entry[:200]!r}. GET /api/memory shows what it says.")
    for at, line in reversed(found):
        await web.app.outlets.memory.amend(MemoryEdit(path, (line,), (), at, changed_by=by.person))
    return await _shown(scope, path, day)


@routes("GET /api/memory/changes", READERS)
async def changes(
    web: WebContext, *, limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50, below: Text64 = ""
) -> list[MemoryChange]:
    """What was changed of memory by agents, by this API and the command line, the newest first, or those before the
    change with the id `below`."""
    return await web.app.store.memory.newest(limit, below)


@routes("POST /api/memory/changes/{id}/undo", ADMINS)
async def undo(web: WebContext, by: Principal, id: str) -> MemoryChange:
    """Take a change back; 409 when that was done already, or the lines were changed since."""
    return await web.app.outlets.memory.undo(id, by.person)


def _place(web: WebContext, scope: FileScope, thread: str, day: str) -> Path:
    home = web.app.home
    if scope == "note":
        if not day:
            raise InvalidInput("A note is of a `day`: give one, YYYY-MM-DD.")
        return note_path(home, _day(day))
    if scope == "global":
        return memory_path(home, scope, NOWHERE)
    if not thread:
        raise InvalidInput(f"The memory of a {scope} is found by a `thread` of it; give one.")
    return memory_path(home, scope, parse_thread_id(thread))


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(f"{text} is no day; write YYYY-MM-DD.") from error


async def _shown(scope: FileScope, path: Path, day: str = "") -> MemoryFile:
    text = (await in_thread(lambda: read_memory(path))).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return MemoryFile(scope, str(path), day, text, _digest(text))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


# ---- skills ----


class SkillView(msgspec.Struct, frozen=True):
    """A skill. `inline`: its text is in prompts; `hidden`: it is in none. `source` is its whole SKILL.md."""

    name: str
    scope: SkillScope
    description: str
    path: str
    inline: bool
    hidden: bool
    text: str
    source: str


class SkillTrouble(msgspec.Struct, frozen=True):
    """What is wrong with a skill that is left out."""

    path: str
    problem: str


class SkillsView(msgspec.Struct, frozen=True):
    """The skills by name, what is wrong with others, and those that one of a narrower scope replaces; what the call has
    `installed`."""

    skills: list[SkillView]
    problems: list[SkillTrouble]
    shadowed: list[SkillView]
    installed: Sequence[str] = ()


class SkillText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole SKILL.md, and where it goes: `thread` says of which platform or channel, `agent` of which agent."""

    scope: OwnScope
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=65_536)]
    agent: Text64 = "main"
    thread: ThreadText = ""


@routes("GET /api/skills", READERS)
async def skills(web: WebContext, *, agent: Text64 = "main", thread: ThreadText = "") -> SkillsView:
    """The skills that an agent has, in a thread, narrower scopes winning by name."""
    roots = skill_roots(web.app.home, agent_home(web, agent), parse_thread_id(thread) if thread else None)
    found = await in_thread(lambda: SkillReader(FileCache()).read(roots))
    problems = [SkillTrouble(str(one.path), one.text) for one in found.problems]

    def shown(skills: Sequence[Skill]) -> list[SkillView]:
        return [
            view(SkillView, one, path=str(one.path), text=one.body, source=one.path.read_text("utf-8", "replace"))
            for one in skills
        ]

    return await in_thread(lambda: SkillsView(shown(found.found), problems, shown(found.shadowed)))


@routes("POST /api/skills", ADMINS, status=201, raw_body="application/octet-stream")
async def install(
    web: WebContext,
    by: Principal,
    request: Request,
    *,
    scope: OwnScope,
    agent: Text64 = "main",
    thread: ThreadText = "",
    url: Annotated[str, msgspec.Meta(max_length=URL_CHARS_MAX)] = "",
) -> SkillsView:
    """Install the skills of a zip archive, each a folder with a SKILL.md and what goes with it, or a single SKILL.md:
    of the https address `url`, else of the body; 409 for a name that is taken, 413 for an archive that is too large."""
    root, home = _skill_root(web, scope, agent, thread)
    if url:
        archive = await fetch_skills(web.app.fetcher, url)
    else:
        archive = await whole_body(request, ARCHIVE_BYTES_MAX, seconds=web.options.upload_seconds)
    names = await install_skills(root, home, archive, by.person, web.app.store.audit)
    found = await skills(web, agent=agent, thread=thread)
    return msgspec.structs.replace(found, installed=names)


@routes("PUT /api/skills/{name}", ADMINS)
async def write_skill(web: WebContext, by: Principal, name: str, body: SkillText) -> SkillsView:
    """Write a skill, a new one or anew; one of an agent can be taken back by `/agent undo`."""
    return await _put(web, by, name, body.text, body.scope, body.agent, body.thread)


@routes("DELETE /api/skills/{name}", ADMINS)
async def delete_skill(
    web: WebContext, by: Principal, name: str, *, scope: OwnScope, agent: Text64 = "main", thread: ThreadText = ""
) -> SkillsView:
    """Delete a skill's SKILL.md; other files of its folder stay."""
    return await _put(web, by, name, None, scope, agent, thread)


async def _put(
    web: WebContext, by: Principal, name: str, text: str | None, scope: SkillScope, agent: str, thread: str
) -> SkillsView:
    if "/" in name or name.startswith("."):
        raise InvalidInput(f"{name[:80]!r} is no name for a skill: small letters and digits with hyphens between.")
    root, home = _skill_root(web, scope, agent, thread)
    await put_skill(root, home, name, text, by.person, web.app.store.audit)
    return await skills(web, agent=agent, thread=thread)


def _skill_root(web: WebContext, scope: SkillScope, agent: str, thread: str) -> tuple[SkillRoot, Path | None]:
    """Where skills of a scope lie, and the home of the agent whose they are. Raises InvalidInput, NotFound."""
    if scope in ("platform", "channel") and not thread:
        raise InvalidInput(f"The skills of a {scope} are found by a `thread` of it; give one.")
    home = agent_home(web, agent) if scope == "agent" else None
    roots = skill_roots(web.app.home, home, parse_thread_id(thread) if thread else None)
    return next(one for one in roots if one.scope == scope), home
