"""HTTP API for agents (channels, files, documents and skills) and for the status of the runtime."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from starlette.requests import Request

from shoal.agents.lifecycle import AgentCard, AgentLifecycle
from shoal.agents.registry import AgentRegistry, RuntimeInfo
from shoal.agents.skill_files import ARCHIVE_BYTES_MAX, fetch_skills, install_skills, put_skill
from shoal.agents.versions import PERSONA, AgentVersions, History, own_file, read_file
from shoal.kernel.agents import AgentBudget, Binding, Listen
from shoal.kernel.errors import InvalidInput, NotFound
from shoal.kernel.files import in_thread
from shoal.kernel.home import Home
from shoal.kernel.ids import make_thread_id, parse_thread_id
from shoal.kernel.untrusted import is_text
from shoal.net.addresses import URL_CHARS_MAX, Fetcher
from shoal.running import Status
from shoal.store.store import Store
from shoal.surfaces.http.endpoints import ADMINS, READERS, Removed, Routes, Text64, view, whole_body
from shoal.surfaces.http.options import WebOptions
from shoal.threads.principals import Principal
from shoal.tools.documents import DOCUMENT_BYTES_MAX, DocumentStates, documents_below
from shoal.turn.skills import Skill, SkillRoot, SkillScope, skill_roots
from shoal.turn.text_files import FileCache, SkillReader

routes = Routes()

CHANGES_MAX = 20
TEXT_CHARS_MAX = 100_000
"""Maximum length of a text that can be edited. A longer document can only be replaced."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Part = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Settings = dict[str, Annotated[str, msgspec.Meta(max_length=20_000)]]


class AgentView(msgspec.Struct, frozen=True):
    """An agent.

    tools: names of its tools, or empty for all tools.
    channels: its channels as PLATFORM:CHANNEL.
    listen: the messages that it answers in each channel.
    error: problem with its file. The fields that come from the file are then empty.
    """

    name: str
    model: str = ""
    profile: str = ""
    system_prompt: str = ""
    tools: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    listen: dict[str, Listen] = {}
    at_work: int = 0
    is_default: bool = False
    idle_minutes: float = 0.0
    timezone: str = ""
    budget: AgentBudget = AgentBudget()
    error: str = ""


class NewAgent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An agent to create from the template.

    settings: keys of its agent.toml, each as text.
    beside: an existing channel, as PLATFORM:CHANNEL. Shoal creates a new channel next to it and binds the new
    channel to the agent.
    listen: the messages that the agent answers in the new channel.
    """

    name: Name
    settings: Settings = {}
    beside: Annotated[str, msgspec.Meta(max_length=400)] = ""
    listen: Listen = "all"


class NewAgentView(msgspec.Struct, frozen=True):
    """The new agent. `note` explains why it has no channel although one was requested."""

    agent: AgentView
    note: str


class AgentChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys to set in the agent's agent.toml, in this order, each as text. An empty text removes the key."""

    settings: Settings


class DestroyedAgent(msgspec.Struct, frozen=True):
    """The agent is removed. `files` is the new location of its files, or empty if they were deleted."""

    destroyed: bool
    files: str


class NewBinding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A binding of an agent to a channel.

    listen: the agent answers `all` messages, only mentions (`named`), or mentions and the `threads` that they open.
    """

    platform: Part
    channel: Part
    agent: Name
    listen: Listen = "all"


class Unbound(msgspec.Struct, frozen=True):
    """The channel is no longer bound to an agent."""

    unbound: bool


def agent_home(home: Home, agents: AgentRegistry, name: str) -> Path:
    """Return the folder of an existing agent. Raises NotFound."""
    if name not in agents.names():
        raise NotFound(f"No agent named {name[:80]!r}.")
    return home.agent(name)


def _view(card: AgentCard) -> AgentView:
    settings = msgspec.structs.asdict(card.spec) if card.spec is not None else {}
    own = {"name": card.name, "channels": tuple(card.places), "listen": card.places}
    return view(AgentView, card, **{**settings, **own})


@routes("GET /api/agents", READERS, narrows=True)
async def agents(lifecycle: AgentLifecycle, by: Principal) -> list[AgentView]:
    """List the agents."""
    return [_view(card) for card in await lifecycle.cards() if by.token.agent in ("", card.name)]


@routes("GET /api/agents/{name}", READERS, narrows=True)
async def agent(lifecycle: AgentLifecycle, by: Principal, name: str) -> AgentView:
    """Return one agent."""
    own = by.token.agent
    if own not in ("", name):
        raise NotFound(f"No agent named {name[:80]!r}. Agents: {own}.")
    return _view(await lifecycle.card(name))


@routes("POST /api/agents", ADMINS, status=201)
async def create(lifecycle: AgentLifecycle, by: Principal, body: NewAgent) -> NewAgentView:
    """Create an agent from the template. 409 if the name is taken."""
    platform, _, channel = body.beside.partition(":")
    if body.beside and not (platform and channel):
        raise InvalidInput(f"{body.beside[:80]!r} is not a channel. Specify the channel as PLATFORM:CHANNEL.")
    await lifecycle.create(body.name, body.settings, by.person)
    note = ""
    if body.beside:
        beside = make_thread_id(platform, channel, "0")
        made = await lifecycle.give_channel(body.name, beside, by.person, body.listen)
        note = made if isinstance(made, str) else ""
    return NewAgentView(_view(await lifecycle.card(body.name)), note)


@routes("PATCH /api/agents/{name}", ADMINS)
async def change(lifecycle: AgentLifecycle, by: Principal, name: str, body: AgentChange) -> AgentView:
    """Change an agent's settings. The changes take effect on its next turn."""
    for key, value in body.settings.items():
        await lifecycle.configure(name, key, value, by.person)
    return _view(await lifecycle.card(name))


@routes("DELETE /api/agents/{name}", ADMINS)
async def destroy(lifecycle: AgentLifecycle, by: Principal, name: str, *, keep_files: bool = False) -> DestroyedAgent:
    """Stop an agent's turns and remove the agent. Its journals are kept. Its files are deleted or, with `keep_files`,
    moved to removed/.
    """
    return DestroyedAgent(True, await lifecycle.destroy(name, by.person, keep=keep_files))


@routes("GET /api/bindings", READERS)
async def bindings(store: Store) -> list[Binding]:
    """List the bindings of agents to channels."""
    return await store.registry.bindings()


@routes("PUT /api/bindings", ADMINS)
async def bind(lifecycle: AgentLifecycle, by: Principal, body: NewBinding) -> Binding:
    """Bind a channel to an agent. The agent answers there, starting with the next message."""
    thread = make_thread_id(body.platform, body.channel, "0")
    return await lifecycle.bind(body.agent, thread, by.person, body.listen)


@routes("DELETE /api/bindings/{platform}/{channel}", ADMINS)
async def unbind(lifecycle: AgentLifecycle, by: Principal, platform: str, channel: str) -> Unbound:
    """Remove a channel's binding."""
    await lifecycle.unbind(make_thread_id(platform, channel, "0"), by.person)
    return Unbound(True)


@routes("GET /api/info", READERS)
async def info(status: Status) -> RuntimeInfo:
    """Return the runtime's status: agents, tools, skills, models, platforms, and warnings for the operator."""
    return status.info()


# ---- agents' files: persona files and documents ----


class AgentFileView(msgspec.Struct, frozen=True):
    """A file of an agent.

    searched: true if the document is indexed.
    problem: why the document is not indexed, or only partly indexed. Empty if there is no problem.
    """

    path: str
    kind: Literal["persona", "document"]
    size_bytes: int
    changed_at: datetime
    searched: bool
    problem: str


class FileChangeView(msgspec.Struct, frozen=True):
    """A change to a file. `subject` describes the change."""

    at: str
    author: str
    subject: str


class AgentFileText(msgspec.Struct, frozen=True):
    """A file of an agent.

    text: the content, or empty unless `is_text`.
    digest: SHA-256 of the file's bytes.
    changes: the newest changes.
    """

    path: str
    is_text: bool
    text: str
    digest: str
    changes: list[FileChangeView]


class NewFileText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The complete new text of a file. With `digest`, the file is written only if it is unchanged since it was read."""

    text: Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]
    digest: Text64 = ""


class TakenBack(msgspec.Struct, frozen=True):
    """The undone change. `said` describes it in a sentence."""

    said: str


@routes("GET /api/agents/{name}/files", READERS)
async def agent_files(
    home: Home, agents: AgentRegistry, document_states: DocumentStates, name: str
) -> list[AgentFileView]:
    """List an agent's files: its instructions, then its documents."""
    folder = agent_home(home, agents, name)
    known: dict[Path, str] = {}
    for state in document_states:
        known |= await state(folder / "docs")
    persona = [folder / file_name for file_name in PERSONA if (folder / file_name).is_file()]
    listed_files = [_listed(folder, path, "persona", searched=False, problem="") for path in persona]
    for path in await in_thread(lambda: documents_below(folder / "docs")):
        if path.is_symlink() or not path.is_file() or not is_text(str(path)):
            continue
        problem = known.get(path, "")
        listed_files.append(_listed(folder, path, "document", searched=path in known and not problem, problem=problem))
    return listed_files


@routes("GET /api/agents/{name}/files/{path:path}", READERS)
async def agent_file(home: Home, agents: AgentRegistry, name: str, path: str) -> AgentFileText:
    """Return the text of an agent's file and the newest changes to it."""
    folder = agent_home(home, agents, name)
    place = own_file(folder, path)
    content = await in_thread(lambda: read_file(place))
    changes = await in_thread(lambda: History(folder).changes(place, CHANGES_MAX))
    if content is None and path not in PERSONA:
        raise NotFound(f"{name} has no file {path[:200]}.")
    body = content or b""
    try:
        text, is_text = body.decode(), len(body) <= TEXT_CHARS_MAX and b"\0" not in body
    except UnicodeDecodeError:
        text, is_text = "", False
    shown = [FileChangeView(change.at, change.author, change.subject) for change in changes]
    digest = hashlib.sha256(body).hexdigest() if content is not None else ""
    return AgentFileText(path, is_text, text if is_text else "", digest, shown)


@routes("PUT /api/agents/{name}/files/{path:path}", ADMINS)
async def write_agent_file(
    home: Home, agents: AgentRegistry, versions: AgentVersions, by: Principal, name: str, path: str, body: NewFileText
) -> AgentFileText:
    """Write a file of an agent. It takes effect on the next turn. 409 if `digest` is given and the file has changed."""
    agent_home(home, agents, name)
    await versions.put(name, path, body.text.replace("\r\n", "\n").encode(), by.person, body.digest)
    return await agent_file(home, agents, name, path)


@routes("POST /api/agents/{name}/files/{path:path}", ADMINS, status=201, raw_body="application/octet-stream")
async def add_agent_document(
    home: Home,
    agents: AgentRegistry,
    versions: AgentVersions,
    options: WebOptions,
    by: Principal,
    request: Request,
    name: str,
    path: str,
) -> AgentFileText:
    """Add or replace a document in any readable format. 413 if it is too large."""
    agent_home(home, agents, name)
    if path in PERSONA:
        raise InvalidInput(f"{path} is a text file. Edit its text instead of uploading a file.")
    content = await whole_body(request, DOCUMENT_BYTES_MAX, seconds=options.upload_seconds)
    await versions.put(name, path, content, by.person)
    return await agent_file(home, agents, name, path)


@routes("DELETE /api/agents/{name}/files/{path:path}", ADMINS)
async def delete_agent_file(
    home: Home, agents: AgentRegistry, versions: AgentVersions, by: Principal, name: str, path: str
) -> Removed:
    """Delete a file of an agent."""
    agent_home(home, agents, name)
    await versions.put(name, path, None, by.person)
    return Removed(True)


@routes("POST /api/agents/{name}/undo", ADMINS, body_optional=True)
async def undo_agent_change(
    home: Home, agents: AgentRegistry, versions: AgentVersions, by: Principal, name: str
) -> TakenBack:
    """Undo the newest change to an agent's files or settings. 404 if there is no change, 409 if the file has
    changed since then.
    """
    agent_home(home, agents, name)
    return TakenBack(await versions.undo(name, by.person))


def _listed(
    home: Path, path: Path, kind: Literal["persona", "document"], *, searched: bool, problem: str
) -> AgentFileView:
    status = path.stat()
    changed_at = datetime.fromtimestamp(status.st_mtime, UTC)
    return AgentFileView(path.relative_to(home).as_posix(), kind, status.st_size, changed_at, searched, problem)


# ---- skills ----

ThreadText = Annotated[str, msgspec.Meta(max_length=542)]
OwnScope = Literal["global", "platform", "channel", "agent"]


class SkillView(msgspec.Struct, frozen=True):
    """A skill.

    inline: true if the text is included in prompts.
    hidden: true if the skill is left out of all prompts.
    source: the complete SKILL.md.
    """

    name: str
    scope: SkillScope
    description: str
    path: str
    inline: bool
    hidden: bool
    text: str
    source: str


class SkillTrouble(msgspec.Struct, frozen=True):
    """A skill that is left out because of a problem."""

    path: str
    problem: str


class SkillsView(msgspec.Struct, frozen=True):
    """The skills of an agent.

    skills: available skills by name.
    problems: problems with skills that are left out.
    shadowed: skills that a skill in a narrower scope replaces.
    installed: names of the skills that this call installed.
    """

    skills: list[SkillView]
    problems: list[SkillTrouble]
    shadowed: list[SkillView]
    installed: Sequence[str] = ()


class SkillText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A complete SKILL.md and its scope. `thread` selects the platform or channel, and `agent` selects the agent."""

    scope: OwnScope
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=65_536)]
    agent: Text64 = "main"
    thread: ThreadText = ""


@routes("GET /api/skills", READERS)
async def skills(home: Home, agents: AgentRegistry, *, agent: Text64 = "main", thread: ThreadText = "") -> SkillsView:
    """List an agent's skills in a thread. If several skills have the same name, the narrowest scope wins."""
    roots = skill_roots(home, agent_home(home, agents, agent), parse_thread_id(thread) if thread else None)
    skills_read = await in_thread(lambda: SkillReader(FileCache()).read(roots))
    problems = [SkillTrouble(str(problem.path), problem.text) for problem in skills_read.problems]

    def shown(skills: Sequence[Skill]) -> list[SkillView]:
        return [
            view(
                SkillView, skill, path=str(skill.path), text=skill.body, source=skill.path.read_text("utf-8", "replace")
            )
            for skill in skills
        ]

    return await in_thread(lambda: SkillsView(shown(skills_read.found), problems, shown(skills_read.shadowed)))


@routes("POST /api/skills", ADMINS, status=201, raw_body="application/octet-stream")
async def install(
    store: Store,
    home: Home,
    agents: AgentRegistry,
    fetcher: Fetcher,
    options: WebOptions,
    by: Principal,
    request: Request,
    *,
    scope: OwnScope,
    agent: Text64 = "main",
    thread: ThreadText = "",
    url: Annotated[str, msgspec.Meta(max_length=URL_CHARS_MAX)] = "",
) -> SkillsView:
    """Install a SKILL.md, or a zip archive with a folder for each skill. The file is downloaded from the https
    address `url`. Without `url`, it is the body. 409 if a name is taken, 413 if the archive is too large.
    """
    root, folder = _skill_root(home, agents, scope, agent, thread)
    if url:
        archive = await fetch_skills(fetcher, url)
    else:
        archive = await whole_body(request, ARCHIVE_BYTES_MAX, seconds=options.upload_seconds)
    names = await install_skills(root, folder, archive, by.person, store.audit)
    view_found = await skills(home, agents, agent=agent, thread=thread)
    return msgspec.structs.replace(view_found, installed=names)


@routes("PUT /api/skills/{name}", ADMINS)
async def write_skill(
    store: Store, home: Home, agents: AgentRegistry, by: Principal, name: str, body: SkillText
) -> SkillsView:
    """Create or replace a skill. `/agent undo` undoes a change to an agent's skill."""
    return await _put(store, home, agents, by, name, body.text, body.scope, body.agent, body.thread)


@routes("DELETE /api/skills/{name}", ADMINS)
async def delete_skill(
    store: Store,
    home: Home,
    agents: AgentRegistry,
    by: Principal,
    name: str,
    *,
    scope: OwnScope,
    agent: Text64 = "main",
    thread: ThreadText = "",
) -> SkillsView:
    """Delete a skill's SKILL.md. Other files in its folder are kept."""
    return await _put(store, home, agents, by, name, None, scope, agent, thread)


async def _put(
    store: Store,
    home: Home,
    agents: AgentRegistry,
    by: Principal,
    name: str,
    text: str | None,
    scope: SkillScope,
    agent: str,
    thread: str,
) -> SkillsView:
    if "/" in name or name.startswith("."):
        raise InvalidInput(
            f"{name[:80]!r} is not a valid skill name. Use lowercase letters and digits, separated by hyphens."
        )
    root, folder = _skill_root(home, agents, scope, agent, thread)
    await put_skill(root, folder, name, text, by.person, store.audit)
    return await skills(home, agents, agent=agent, thread=thread)


def _skill_root(
    home: Home, agents: AgentRegistry, scope: SkillScope, agent: str, thread: str
) -> tuple[SkillRoot, Path | None]:
    if scope in ("platform", "channel") and not thread:
        raise InvalidInput(f"Set `thread` to a thread of the {scope}.")
    folder = agent_home(home, agents, agent) if scope == "agent" else None
    roots = skill_roots(home, folder, parse_thread_id(thread) if thread else None)
    return next(root for root in roots if root.scope == scope), folder
