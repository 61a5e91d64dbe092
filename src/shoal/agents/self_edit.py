"""The git repository in an agent's directory: each change of the agent is a commit, and can be taken back by one.

What agents change of themselves: their settings, persona files, documents and skills, and SYSTEM.md, which all agents
share; kept in git, audited, and taken back.
"""

import asyncio
import difflib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from shoal.agents.folder import FILE, GIT_SECONDS_MAX, read_agent, set_key
from shoal.agents.lifecycle import Checks, EditCheck
from shoal.kernel import lazy_re
from shoal.kernel.agents import AgentSpec
from shoal.kernel.errors import Conflict, InvalidInput, NotFound, ToolError
from shoal.kernel.files import in_thread
from shoal.kernel.ids import channel_of
from shoal.kernel.permissions import Action, Asker
from shoal.kernel.ports import Invocation, Tool, ToolContext, ToolOutput
from shoal.kernel.records import AuditEntry
from shoal.kernel.regular_files import read_regular
from shoal.kernel.traits import AGENT_ITSELF, LOOKUP, Traits, Treatment, Treatments
from shoal.kernel.untrusted import enclosed
from shoal.store.store import Store
from shoal.tools.builtin.files import replace_text
from shoal.tools.functions import Prepared, canonical, planned, quoting, tool
from shoal.tools.prompt_files import PromptFiles
from shoal.turn.prompt import SYSTEM_TITLE, SystemPrompt, assemble
from shoal.turn.skills import SkillProblem, parse_skill

EDIT = "Shoal-Edit"
UNDOES = "Shoal-Undoes"
TAINT = "Shoal-Tainted-By"
_KEPT_OUT = "/workspace/\n/guests/\n/sessions/\n"
_TRACKED = (":(glob)*.toml", ":(glob)*.md", ":(glob)docs/**", ":(glob)skills/**")
SYSTEM = "data/SYSTEM.md"
"""What was changed in the environment of all agents: a file of the home, kept under this name in the repository of each
agent that changes it."""
SYSTEM_FILE = "SYSTEM.md"
_QUIET = ("-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false", "-c", "core.autocrlf=false")


def place_of(folder: Path, name: str) -> Path:
    """Where a file is that an agent's repository has under this name."""
    return folder.parents[1] / name if name == SYSTEM else folder / name


def name_of(folder: Path, path: Path) -> str:
    return SYSTEM if path == place_of(folder, SYSTEM) else path.relative_to(folder).as_posix()


class RecordedChange(NamedTuple):
    """A recorded change of a file: when (ISO 8601), by whom, and what it was called."""

    commit: str
    at: str
    author: str
    subject: str


class History:
    """Commits to and reads the repository of one agent. Everything blocks; git has GIT_SECONDS_MAX for each command."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> None:
        """Make the repository if there is none, and commit what people changed by hand. Raises ToolError."""
        if not (self._folder / ".git").exists():
            self._git("init", "--quiet", "--template=", "--initial-branch=main")
        exclude = self._folder / ".git" / "info" / "exclude"
        exclude.parent.mkdir(exist_ok=True)
        exclude.write_text(_KEPT_OUT, encoding="utf-8")
        listed = ("ls-files", "--cached", "--others", "--exclude-standard", "--")
        named = [spec for spec in _TRACKED if self._git(*listed, spec)]  # git refuses to add what is not there
        self._git("add", "--all", "--", *named)
        self._stage(place_of(self._folder, SYSTEM))
        if self._git("diff", "--cached", "--name-only") or not self._git("rev-list", "--max-count=1", "--all"):
            self._commit("Keep what was changed by hand", "Shoal")

    def record(self, path: Path, subject: str, author: str, *trailers: str) -> None:
        """Commit one changed, new or deleted file. Raises ToolError."""
        self._stage(path)
        self._commit("\n\n".join((subject, "\n".join(trailers))), author)

    def last_edit(self) -> tuple[str, str, Path]:
        """The newest change that was not taken back: its commit, its subject and its file. Raises NotFound."""
        if not (self._folder / ".git").exists():
            raise NotFound("This agent has not changed itself yet.")
        form = f"%H%x00%s%x00%(trailers:key={EDIT},valueonly,separator=%x2c)%x00%(trailers:key={UNDOES},valueonly)%x1e"
        undone: set[str] = set()
        for entry in self._git("log", f"--format={form}").split("\x1e"):
            fields = entry.strip("\n").split("\0")
            if len(fields) < 4:
                continue
            commit, subject, edited, undoes = (field.strip() for field in fields)
            undone.update(undoes.split())
            if edited and commit not in undone:
                return commit, subject, place_of(self._folder, edited)
        raise NotFound("There is nothing left to take back.")

    def changes(self, path: Path, limit: int) -> list["RecordedChange"]:
        """The newest recorded changes of a file, the newest first."""
        if not (self._folder / ".git").exists():
            return []
        form, name = "%H%x00%aI%x00%an%x00%s%x1e", name_of(self._folder, path)
        entries = self._git("log", f"--max-count={limit}", f"--format={form}", "--", name).split("\x1e")
        return [RecordedChange(*entry.strip("\n").split("\0")) for entry in entries if entry.strip("\n")]

    def tainted_by(self, path: Path) -> str:
        """What untrusted content had a hand in any change of a file that is recorded; empty when none had."""
        name = name_of(self._folder, path)
        return self._git("log", f"--format=%(trailers:key={TAINT},valueonly)", "--", name).partition("\n")[0]

    def take_back(self) -> tuple[str, Path, bytes | None, bytes | None]:
        """Take the newest change back and commit that; returns its subject, its file, and the content before and now.

        Raises NotFound when there is none, Conflict when the file was changed since.
        """
        commit, subject, path = self.last_edit()
        self.open()
        name = name_of(self._folder, path)
        old, new = self._content(f"{commit}^", name), self._content(commit, name)
        if read_file(path) != new:
            raise Conflict(f"{name} was changed since, so “{subject}” cannot be taken back by itself.")
        write_file(path, old)
        self.record(path, f"Take back: {subject}", "Shoal", f"{UNDOES}: {commit}")
        return subject, path, new, old

    def _stage(self, path: Path) -> None:
        """Put a file's content, or that it is gone, into the next commit."""
        name = name_of(self._folder, path)
        if name != SYSTEM:
            self._git("add", "--all", "--force", "--", name)
        elif path.is_file():
            blob = self._git("hash-object", "-w", "--no-filters", "--", str(path))
            self._git("update-index", "--add", "--cacheinfo", f"100644,{blob},{name}")
        else:
            self._git("update-index", "--force-remove", "--", name)

    def _content(self, revision: str, name: str) -> bytes | None:
        if not self._git("ls-tree", "--name-only", revision, "--", name):
            return None
        return self._run("show", f"{revision}:{name}").stdout

    def _commit(self, message: str, author: str) -> None:
        name = "".join(char for char in author if char.isprintable() and char not in "<>") or "agent"
        who = ("-c", f"user.name={name}", "-c", "user.email=agent@localhost")
        self._git(*who, "commit", "--quiet", "--allow-empty", "--cleanup=verbatim", "--message", message)

    def _git(self, *words: str) -> str:
        return self._run(*words).stdout.decode("utf-8", "replace").strip()

    def _run(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        git = shutil.which("git")
        if git is None:
            raise ToolError("git is not installed, and without it no change of the agent could be taken back.")
        # Variables such as GIT_DIR of the caller must not turn this to another repository.
        environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        try:
            return subprocess.run(
                [git, "-C", str(self._folder), *_QUIET, *words],
                env=environ, check=True, capture_output=True, timeout=GIT_SECONDS_MAX, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            said = (error.stderr or b"").decode("utf-8", "replace").strip()
            raise ToolError(f"git could not keep the change: {said[-300:] or error}") from error


def read_file(path: Path) -> bytes | None:
    """A file's content, None when there is none. Raises OSError."""
    try:
        return read_regular(path)
    except FileNotFoundError:
        return None


def write_file(path: Path, content: bytes | None) -> None:
    """Put a content in a file's place at once, or delete the file. Raises OSError."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(content)
    temporary.replace(path)


TEXT_BYTES_MAX = 262_144
PERSONA = ("AGENTS.md", "SOUL.md", "IDENTITY.md", "USER.md")
_SKILL = lazy_re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PART = lazy_re.compile(r"[\w][\w .-]{0,99}")
_STRICTNESS = {"open": 0, "guarded": 1, "standard": 2, "locked": 3}


class PlannedEdit(NamedTuple):
    """A planned change of one file of the agent's directory: its name there, the content before and after, the diff."""

    name: str
    old: bytes | None
    new: bytes | None
    diff: str


@dataclass(eq=False, repr=False)
class SelfEditor:
    """Plans and makes the changes. They name models, profiles and tools that `checks` know, no tool that the agent's
    profile denies for every argument, and nothing that widens what it may do but for who `may_widen` that. A person
    who is asked about a change is told what `edit_checks` say of it."""

    store: Store
    home_of: Callable[[str], Path]
    checks: Checks
    is_denied: Callable[[AgentSpec, Asker, str], bool]
    may_widen: Callable[[Asker], bool]
    files: PromptFiles
    edit_checks: list[EditCheck] = field(default_factory=list[EditCheck])
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def setting(self, key: str, value: str, context: ToolContext) -> PlannedEdit:
        """Plan a change of agent.toml. Raises ToolError for a value that cannot be."""
        try:
            self.checks.check(key, value)
            if key == "profile":
                now, then = context.agent.profile, value
                stricter = then == "locked" or _STRICTNESS.get(then, -1) >= _STRICTNESS.get(now, len(_STRICTNESS))
                if not stricter and not self.may_widen(context.asker):
                    raise ToolError(
                        f"The profile {then!r} may allow more than {now!r}, and who asks may not grant that. The owner "
                        "or an approver has to ask for it."
                    )
            with tempfile.TemporaryDirectory(prefix="shoal-edit-") as name:
                there = Path(name)
                content = read_file(context.agent.home / FILE)
                if content is not None:
                    (there / FILE).write_bytes(content)
                set_key(there, key, value)
                changed = (there / FILE).read_bytes()
            return self._edit(context, FILE, changed)
        except InvalidInput as error:
            raise ToolError(str(error)) from error

    def tools(self, names: Sequence[str], context: ToolContext) -> PlannedEdit:
        """Plan another list of tools, none for all there are. Raises ToolError for one that there is not or that the
        profile denies, and for more than the agent has where who asks may not grant that."""
        try:
            for name in names:
                self.checks.tool(name)
                if self.is_denied(context.agent, context.asker, name):
                    raise ToolError(
                        f"Your profile {context.agent.profile!r} denies {name}: naming it would not give it."
                    )
        except InvalidInput as error:
            raise ToolError(str(error)) from error
        has = context.agent.tools
        if has and (not names or set(names) - set(has)) and not self.may_widen(context.asker):
            raise ToolError(
                "That would be more tools than you have, and who asks may not grant that. The owner or an approver has "
                "to ask for it."
            )
        return self.setting("tools", msgspec.json.encode(list(names)).decode() if names else "", context)

    def persona(self, file: str, text: str, context: ToolContext) -> PlannedEdit:
        """Plan a change of a file that says who the agent is, or of SYSTEM.md. Raises ToolError for the latter where
        who asks may not."""
        if file == SYSTEM_FILE and not self.may_widen(context.asker):
            raise ToolError(
                f"{SYSTEM_FILE} stands in the prompts of all agents, and who asks may not change it. The owner or an "
                "approver has to ask for it."
            )
        return self._edit(context, SYSTEM if file == SYSTEM_FILE else file, text.encode() or None)

    async def settings(self, context: ToolContext) -> str:
        """The agent's own settings, a line each; of its channels those that this turn may know of."""
        agent, channel = context.agent, channel_of(context.chat).removesuffix(":")
        places = [one.place for one in await self.store.registry.bindings() if one.agent == agent.name]
        if not context.purpose.audience.everywhere:
            places = [place for place in places if place == channel]
        budget = {name: value for name, value in msgspec.structs.asdict(agent.budget).items() if value}
        lines = {
            "agent": agent.name,
            "model": agent.model,
            "fallback": ", ".join(agent.fallback) or "none",
            "profile": agent.profile,
            "tools": ", ".join(spec.name for spec in context.tools()) or "none",
            "budget": ", ".join(f"{name} = {value:,}" for name, value in budget.items()) or "no ceilings of its own",
            "bound channels": ", ".join(places) or "none that you may know of here",
            "max_output_tokens": agent.max_output_tokens,
            "temperature": "the provider's own" if agent.temperature is None else agent.temperature,
            "idle_minutes": agent.idle_minutes,
            "restrict_to_workspace": "yes" if agent.restrict_to_workspace else "no",
            "taint": "yes" if agent.taint else "no",
        }
        return "\n".join(f"{name}: {value}" for name, value in lines.items())

    def document(self, path: str, change: Callable[[str | None], str | None], context: ToolContext) -> PlannedEdit:
        """Plan a change of a file below docs/. Raises ToolError for a path outside."""
        parts = PurePosixPath(path.removeprefix("/docs/")).parts
        if not parts or not all(_PART.fullmatch(part) for part in parts):
            raise ToolError(f"{path[:200]!r} is no path below docs/: use names of letters, digits, spaces, . _ and -.")
        name = "/".join(("docs", *parts))
        old = self._read(context, name)
        with quoting(context.agent.home / name):
            new = change(None if old is None else old.decode("utf-8", "replace"))
        return self._edit(context, name, None if new is None else new.encode())

    def skill(self, name: str, text: str | None, context: ToolContext) -> PlannedEdit:
        """Plan a new, changed or (None) deleted skill of the agent. Raises ToolError for one that could not be used."""
        if not _SKILL.fullmatch(name) or len(name) > 64:
            raise ToolError(f"{name[:80]!r} is no name for a skill: small letters and digits with hyphens between.")
        file = f"skills/{name}/SKILL.md"
        if text is not None:
            found = parse_skill(context.agent.home / file, text, "agent")
            if isinstance(found, SkillProblem):
                raise ToolError(f"That is no skill yet: {found.text}")
            if found.name != name:
                raise ToolError(f"The text names itself {found.name!r}, not {name!r}. Use one name.")
        elif self._read(context, file) is None:
            raise ToolError(f"You have no skill {name!r} of your own.")
        return self._edit(context, file, None if text is None else text.encode())

    def prepared(self, name: str, edit: PlannedEdit, detail: str, context: ToolContext) -> Prepared:
        """The call that makes a planned change, bound to the bytes before and after it; its diff is what people see."""
        what = f"{name} {detail}".strip()

        async def work() -> ToolOutput:
            await self.apply(edit, what, context)
            done = "It counts from your next turn on, and `/agent undo` takes it back."
            return ToolOutput(f"{edit.name} is changed. {done}")

        old, new = (None if content is None else content.hex() for content in (edit.old, edit.new))
        effect = canonical(name, file=edit.name, old=old, new=new)

        async def advice() -> str:
            return await self._advice(edit, context)

        return Prepared((Action(f"tool:{name}:{detail}"),), f"{what}\n\n{edit.diff}", effect, work, advice)

    async def _advice(self, edit: PlannedEdit, context: ToolContext) -> str:
        """Run the checks on a planned change, which is made to a copy of the agent's files."""
        agent = context.agent
        checks = [check for check in self.edit_checks if check.applies(agent.home)]
        if not checks:
            return ""

        def changed(system: SystemPrompt) -> SystemPrompt:
            """Put the new SYSTEM.md into the instructions: it lies outside of the agent's directory."""
            heading, text = f"# {SYSTEM_TITLE}\n", enclosed((edit.new or b"").decode("utf-8", "replace"), 1)
            return assemble(
                msgspec.structs.replace(one, text=f"{heading}{text}" if text else "") if one.name == SYSTEM else one
                for one in system.sections
            )

        with tempfile.TemporaryDirectory(prefix="shoal-edit-") as name:
            there = Path(name) / agent.name
            try:
                before = read_agent(agent.home)
                await in_thread(lambda: _copy_files(agent.home, there))
                if edit.name != SYSTEM:
                    write_file(there / edit.name, edit.new)
                after = read_agent(there)
            except (OSError, InvalidInput) as error:
                return f"Its cases could not be run: {error}"
            own = {key: getattr(after, key) for key in ("model", "system_prompt", "tools", "profile")}
            new = {key: value for key, value in own.items() if value != getattr(before, key)}
            spec = msgspec.structs.replace(agent, home=there, **new)
            change = changed if edit.name == SYSTEM else None
            return "\n".join([await check.run(spec, agent.home, context.asker, change) for check in checks]).strip()

    async def apply(self, edit: PlannedEdit, what: str, context: ToolContext) -> None:
        """Make a planned change, commit and audit it. Raises ToolError when the file is no more what it was."""
        folder = context.agent.home
        path = place_of(folder, edit.name)
        asked = await self.store.approvals.search(pending=False, thread=context.thread)
        mine = [one for one in asked if one.turn == context.turn and one.call_id == context.call_id]
        approved = mine[0].decided_by if mine else ""
        trailers = [f"{EDIT}: {edit.name}", f"Asked-by: {context.asker.user or 'nobody'}"]
        trailers += [f"Approved-by: {approved}"] if approved else []
        tainted_by = " ".join(context.purpose.tainted_by.split())
        trailers += [f"{TAINT}: {tainted_by}"] if tainted_by else []

        def make() -> None:
            history = History(folder)
            history.open()
            if read_file(path) != edit.old:
                raise ToolError(f"{edit.name} was changed meanwhile. Look at it and try again.")
            write_file(path, edit.new)
            history.record(path, what, context.agent.name, *trailers)

        async with self._lock:
            await in_thread(make)
            user, agent = context.asker.user, context.agent.name
            await self._audit(str(context.thread), what, user, agent, edit.old, edit.new, context.turn)

    async def put(self, agent: str, name: str, content: bytes | None, by: str, digest: str = "") -> None:
        """Write a file of an agent as a person wants it, or (None) delete it; committed, audited, and taken back like
        the agent's own changes. With `digest`, only if the file still is what was read.

        Raises InvalidInput for a name that is none of these files, NotFound, Conflict, StoreError, OSError.
        """
        folder = self.home_of(agent)
        path, what = own_file(folder, name), f"{'write' if content is not None else 'delete'} {name}"

        def make() -> bytes | None:
            old = read_file(path)
            if digest and digest != shown_digest(old):
                raise Conflict(f"{name} has changed since it was read. Read it again.")
            if old is None and content is None:
                raise NotFound(f"{agent} has no file {name}.")
            history = History(folder)
            history.open()
            write_file(path, content)
            history.record(path, what, by, f"{EDIT}: {name}", f"Asked-by: {by}")
            return old

        async with self._lock, self.files.marking(await self.files.source_of(path)):
            try:
                old = await in_thread(make)
            except ToolError as error:  # git is missing, or at work on something else
                raise Conflict(str(error)) from error
            await self._audit(f"agent:{agent}", what, by, agent, old, content)

    async def undo(self, agent: str, by: str) -> str:
        """Take an agent's newest change of itself back; returns what it was. Raises NotFound, Conflict."""
        folder = self.home_of(agent)
        history = History(folder)
        async with self._lock:
            source = await in_thread(lambda: history.tainted_by(history.last_edit()[2]))
            async with self.files.marking(source):
                subject, path, before, after = await in_thread(history.take_back)
            await self._audit(f"agent:{agent}", f"take back: {subject}", by, agent, before, after)
        return f"Taken back: {subject} ({name_of(folder, path)}). It counts from the next turn on."

    def _read(self, context: ToolContext, name: str) -> bytes | None:
        """A file of the agent's directory. Raises ToolError for one that leads elsewhere or is too large."""
        home = context.agent.home.resolve()
        path = place_of(home, name)
        if path.resolve() != path:
            raise ToolError(f"{name} is a link, which is not followed.")
        if path.is_dir():
            raise ToolError(f"{name} is a directory.")
        content = read_file(path)
        if content is not None and len(content) > TEXT_BYTES_MAX:
            raise ToolError(f"{name} is larger than {TEXT_BYTES_MAX:,} bytes.")
        return content

    def _edit(self, context: ToolContext, name: str, new: bytes | None) -> PlannedEdit:
        if new and not new.endswith(b"\n"):
            new += b"\n"  # so that no two contents have one diff
        if new is not None and len(new) > TEXT_BYTES_MAX:
            raise ToolError(f"{name} would be larger than {TEXT_BYTES_MAX:,} bytes.")
        old = self._read(context, name)
        if old == new:
            raise ToolError(f"{name} says that already, so there is nothing to change.")
        diff = "\n".join(difflib.unified_diff(_lines(old), _lines(new), f"a/{name}", f"b/{name}", lineterm=""))
        return PlannedEdit(name, old, new, diff)

    async def _audit(
        self, chain: str, what: str, user: str, agent: str, old: bytes | None, new: bytes | None, turn: str = ""
    ) -> None:
        detail = f"before {shown_digest(old)} after {shown_digest(new)}"
        await self.store.audit.record(
            chain, [AuditEntry("self_edit", what, "done", user=user, agent=agent, turn=turn, detail=detail)]
        )


def own_file(folder: Path, name: str) -> Path:
    """Where a persona file or document of the agent in a folder is. Raises InvalidInput for any other name."""
    parts = PurePosixPath(name).parts
    is_document = len(parts) > 1 and parts[0] == "docs" and all(_PART.fullmatch(part) for part in parts)
    path = folder / name
    if not (is_document or name in PERSONA) or path.resolve() != folder.resolve() / name:
        raise InvalidInput(f"{name[:200]!r} is no file of an agent: take {', '.join(PERSONA)}, or one below docs/.")
    return path


def _copy_files(folder: Path, there: Path) -> None:
    """Copy what stands in an agent's prompt; links are left out."""
    files = (*folder.glob("*.toml"), *folder.glob("*.md"), *folder.glob("docs/**/*"), *folder.glob("skills/**/*"))
    there.mkdir()
    for path in files:
        if path.is_file() and not path.is_symlink():
            target = there / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _lines(content: bytes | None) -> list[str]:
    return content.decode("utf-8", "replace").removesuffix("\n").split("\n") if content else []


def shown_digest(content: bytes | None) -> str:
    """What tells a file's contents apart in the audit log."""
    return "nothing" if content is None else hashlib.sha256(content).hexdigest()


Text = Annotated[str, Meta(description="The whole new text.", max_length=200_000)]
DocPath = Annotated[str, Meta(description="Path below your docs/, e.g. guides/tides.md.", min_length=1)]
SkillName = Annotated[str, Meta(description="Name of the skill: small letters and digits with hyphens.", min_length=1)]


_EDIT = Traits(
    group="agent",
    offered="deferred",
    effect="lasting",
    origin="own",
    harm="agent",
    changes="home",
    undo="agent",
    treatments=Treatments(
        guarded=Treatment(otherwise="deny", others=AGENT_ITSELF),
    ),
)
_SETTING = replace(_EDIT, keeps="settings")
MY_SETTINGS = tool(replace(LOOKUP, group="agent", origin="own"), name="my_settings")
SET_SYSTEM_PROMPT = tool(_SETTING, name="set_system_prompt")
SET_MODEL = tool(_SETTING, name="set_model")
SET_PERMISSIONS = tool(_SETTING, name="set_permissions")
SET_TOOLS = tool(_SETTING, name="set_tools")
SET_PERSONA = tool(_EDIT, name="set_persona")
WRITE_DOC = tool(_EDIT, name="write_doc")
EDIT_DOC = tool(replace(_EDIT, keeps="document"), name="edit_doc")
DELETE_DOC = tool(_EDIT, name="delete_doc")
WRITE_SKILL = tool(_EDIT, name="write_skill")
DELETE_SKILL = tool(_EDIT, name="delete_skill")


def self_edit_tools(editor: SelfEditor) -> tuple[Tool, ...]:
    """The tools by which an agent sees what it is, and changes itself: each of these plans a change, shows its diff,
    and makes it when it may."""
    return (*setting_tools(editor), *document_tools(editor))


def setting_tools(editor: SelfEditor) -> tuple[Tool, ...]:
    """Those that change settings and persona files, and the one that shows the settings."""

    @SET_SYSTEM_PROMPT
    def set_system_prompt(
        context: ToolContext,
        text: Annotated[str, Meta(description="Your whole new system prompt.", max_length=50_000)],
    ) -> Invocation:
        """Change your own system prompt, for all your conversations."""
        line = " ".join(text.split())[:200]
        return editor.prepared("set_system_prompt", editor.setting("system_prompt", text, context), line, context)

    @SET_MODEL
    def set_model(
        context: ToolContext,
        model: Annotated[str, Meta(description="PROVIDER/MODEL, one that is configured.", min_length=1)],
    ) -> Invocation:
        """Change the model that you run on, for all your conversations."""
        return editor.prepared("set_model", editor.setting("model", model, context), model, context)

    @SET_PERMISSIONS
    def set_permissions(
        context: ToolContext,
        profile: Annotated[
            str, Meta(description="Name of a permission profile, e.g. standard or locked.", min_length=1)
        ],
    ) -> Invocation:
        """Change your own permission profile. It can get wider only when the owner or an approver asks you to."""
        return editor.prepared("set_permissions", editor.setting("profile", profile, context), profile, context)

    @SET_TOOLS
    def set_tools(
        context: ToolContext,
        tools: Annotated[
            tuple[str, ...],
            Meta(description="Names of all the tools you are to have; none for all that there are.", max_length=200),
        ],
    ) -> Invocation:
        """Change which tools you have, for all your conversations. They can get more only when the owner or an approver
        asks you to, and never any that your profile denies."""
        return editor.prepared("set_tools", editor.tools(tools, context), " ".join(tools) or "all", context)

    @SET_PERSONA
    def set_persona(
        context: ToolContext,
        file: Annotated[
            Literal["IDENTITY.md", "SOUL.md", "AGENTS.md", "USER.md", "SYSTEM.md"],
            Meta(
                description="IDENTITY.md says who you are, SOUL.md your character, AGENTS.md how you work, USER.md "
                "whom you work for; SYSTEM.md, for all agents, what was changed in this environment."
            ),
        ],
        text: Annotated[str, Meta(description="The whole new text; empty deletes the file.", max_length=32_768)],
    ) -> Invocation:
        """Write one of the files that say who you are, which are part of every prompt of yours."""
        return editor.prepared("set_persona", editor.persona(file, text, context), file, context)

    @MY_SETTINGS
    def my_settings(context: ToolContext) -> Invocation:
        """See your own settings: model, profile, tools, budget, bound channels."""

        async def work() -> ToolOutput:
            return ToolOutput(await editor.settings(context), is_piece=True)

        return planned("my_settings", context.agent.name, work)

    return my_settings, set_system_prompt, set_model, set_permissions, set_tools, set_persona


def document_tools(editor: SelfEditor) -> tuple[Tool, ...]:
    """Those that change documents and skills."""

    def document(name: str, path: str, change: Callable[[str | None], str | None], context: ToolContext) -> Prepared:
        edit = editor.document(path, change, context)
        return editor.prepared(name, edit, edit.name.removeprefix("docs/"), context)

    @WRITE_DOC
    def write_doc(context: ToolContext, path: DocPath, text: Text) -> Invocation:
        """Write one of your documents in docs/, which are part of every prompt of yours."""
        return document("write_doc", path, lambda _: text, context)

    @EDIT_DOC
    def edit_doc(
        context: ToolContext,
        path: DocPath,
        old_string: Annotated[str, Meta(description="The text to replace, exactly as it stands there, once.")],
        new_string: Annotated[str, Meta(description="What takes its place.")],
    ) -> Invocation:
        """Replace a text in one of your documents in docs/."""

        def change(old: str | None) -> str:
            if old is None:
                raise ToolError(f"There is no document {path}.")
            return replace_text(old, old_string, new_string, replace_all=False, shown=path).content

        return document("edit_doc", path, change, context)

    @DELETE_DOC
    def delete_doc(context: ToolContext, path: DocPath) -> Invocation:
        """Delete one of your documents in docs/."""
        return document("delete_doc", path, lambda _: None, context)

    @WRITE_SKILL
    def write_skill(
        context: ToolContext,
        name: SkillName,
        text: Annotated[
            str, Meta(description="The whole SKILL.md: front matter with name and description, then what to do.")
        ],
    ) -> Invocation:
        """Write down how to do something as a skill of yours, for later conversations."""
        return editor.prepared("write_skill", editor.skill(name, text, context), name, context)

    @DELETE_SKILL
    def delete_skill(context: ToolContext, name: SkillName) -> Invocation:
        """Delete one of your own skills."""
        return editor.prepared("delete_skill", editor.skill(name, None, context), name, context)

    return write_doc, edit_doc, delete_doc, write_skill, delete_skill
