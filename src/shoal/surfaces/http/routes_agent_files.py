"""Calls about the files of an agent: those that say who it is, and its documents."""

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from starlette.requests import Request

from shoal.actors.principals import Principal
from shoal.agents.self_edit import PERSONA, History, own_file, read_file
from shoal.domain.errors import InvalidInput, NotFound
from shoal.domain.files import in_thread
from shoal.surfaces.http.endpoints import ADMINS, READERS, Removed, Routes, WebContext, bounded_body
from shoal.tools.library import DOCUMENT_BYTES_MAX

routes = Routes()

CHANGES_MAX = 20
TEXT_CHARS_MAX = 100_000
"""What is shown to be edited; a larger document is put in the place of the old one."""


class AgentFileView(msgspec.Struct, frozen=True):
    """A file of an agent. A document is `searched` once it was read; `problem` says why it is not, or only in part."""

    path: str
    kind: Literal["persona", "document"]
    size_bytes: int
    changed_at: datetime
    searched: bool
    problem: str


class FileChangeView(msgspec.Struct, frozen=True):
    """A change of a file: when, by whom, and what it was called."""

    at: str
    author: str
    subject: str


class AgentFileText(msgspec.Struct, frozen=True):
    """What a file says, where it `is_text`, with the SHA-256 of its bytes and its newest changes."""

    path: str
    is_text: bool
    text: str
    digest: str
    changes: list[FileChangeView]


class NewFileText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file's whole new text; with `digest`, only if the file still is what was read."""

    text: Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]
    digest: Annotated[str, msgspec.Meta(max_length=64)] = ""


class TakenBack(msgspec.Struct, frozen=True):
    """What was taken back, as a sentence."""

    said: str


@routes("GET /api/agents/{name}/files", READERS)
async def agent_files(web: WebContext, name: str) -> list[AgentFileView]:
    """An agent's files: who it is, then its documents."""
    home = _home(web, name)
    known = await web.app.library.look(home / "docs")
    persona = [home / one for one in PERSONA if (home / one).is_file()]
    found = [_listed(home, path, "persona", searched=False, problem="") for path in persona]
    for source, path in known.files.items():
        problem = known.problems.get(source, "")
        is_read = not problem and source not in known.late
        found.append(_listed(home, path, "document", searched=is_read, problem=problem))
    return found


@routes("GET /api/agents/{name}/files/{path:path}", READERS)
async def agent_file(web: WebContext, name: str, path: str) -> AgentFileText:
    """What a file of an agent says, and its changes."""
    home = _home(web, name)
    place = own_file(home, path)
    content = await in_thread(lambda: read_file(place))
    changes = await in_thread(lambda: History(home).changes(place, CHANGES_MAX))
    if content is None and path not in PERSONA:
        raise NotFound(f"{name} has no file {path[:200]}.")
    body = content or b""
    try:
        text, is_text = body.decode(), len(body) <= TEXT_CHARS_MAX and b"\0" not in body
    except UnicodeDecodeError:
        text, is_text = "", False
    shown = [FileChangeView(one.at, one.author, one.subject) for one in changes]
    digest = hashlib.sha256(body).hexdigest() if content is not None else ""
    return AgentFileText(path, is_text, text if is_text else "", digest, shown)


@routes("PUT /api/agents/{name}/files/{path:path}", ADMINS)
async def write_agent_file(web: WebContext, by: Principal, name: str, path: str, body: NewFileText) -> AgentFileText:
    """Write a file of an agent, from its next turn on; 409 when `digest` is given and it has changed."""
    _home(web, name)
    text = body.text.replace("\r\n", "\n")
    await web.app.editor.put(name, path, text.encode(), by.person, body.digest)
    return await agent_file(web, name, path)


@routes("POST /api/agents/{name}/files/{path:path}", ADMINS, status=201, raw_body="application/octet-stream")
async def add_agent_document(web: WebContext, by: Principal, request: Request, name: str, path: str) -> AgentFileText:
    """Add a document of any kind that can be read, or put another in its place; 413 when it is too large."""
    _home(web, name)
    if path in PERSONA:
        raise InvalidInput(f"{path} is text: write it with PUT.")
    seconds = web.options.upload_seconds
    content = b"".join([piece async for piece in bounded_body(request, DOCUMENT_BYTES_MAX, seconds=seconds)])
    await web.app.editor.put(name, path, content, by.person)
    return await agent_file(web, name, path)


@routes("DELETE /api/agents/{name}/files/{path:path}", ADMINS)
async def delete_agent_file(web: WebContext, by: Principal, name: str, path: str) -> Removed:
    """Delete a file of an agent."""
    _home(web, name)
    await web.app.editor.put(name, path, None, by.person)
    return Removed(True)


@routes("POST /api/agents/{name}/undo", ADMINS, body_optional=True)
async def undo_agent_change(web: WebContext, by: Principal, name: str) -> TakenBack:
    """Take the newest change of an agent's files and settings back; 404 when there is none, 409 when it was changed."""
    _home(web, name)
    return TakenBack(await web.app.editor.undo(name, by.person))


def _home(web: WebContext, name: str) -> Path:
    if name not in web.app.agents.names():
        raise NotFound(f"There is no agent {name[:80]!r}.")
    return web.app.home.agent(name)


def _listed(
    home: Path, path: Path, kind: Literal["persona", "document"], *, searched: bool, problem: str
) -> AgentFileView:
    status = path.stat()
    changed_at = datetime.fromtimestamp(status.st_mtime, UTC)
    return AgentFileView(path.relative_to(home).as_posix(), kind, status.st_size, changed_at, searched, problem)
