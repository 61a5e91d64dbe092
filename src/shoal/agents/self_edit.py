"""The git repository in an agent's directory: each change of the agent is a commit, and can be taken back by one.

What agents change of themselves: their settings, documents and skills; kept in git, audited, and taken back.
"""

import asyncio
import difflib
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from shoal.agents.folder import FILE, set_key
from shoal.domain.errors import Conflict, InvalidInput, NotFound, ToolError
from shoal.domain.permissions import Action, Asker
from shoal.domain.ports import Invocation, Tool, ToolContext, ToolOutput
from shoal.domain.records import AuditEntry
from shoal.store.store import Store
from shoal.tools.builtin.files import replace_text
from shoal.tools.functions import Prepared, canonical, tool
from shoal.tools.tainted_files import PromptFiles
from shoal.tools.threads import in_thread
from shoal.turn.skills import SkillProblem, parse_skill

GIT_SECONDS_MAX = 30.0
EDIT = "Shoal-Edit"
UNDOES = "Shoal-Undoes"
TAINT = "Shoal-Tainted-By"
_KEPT_OUT = "/workspace/\n/guests/\n/sessions/\n"
_TRACKED = (":(glob)*.toml", ":(glob)*.md", ":(glob)docs/**", ":(glob)skills/**")
_QUIET = ("-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false", "-c", "core.autocrlf=false")


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
        self._git("add", "--all", "--", *(spec for spec in _TRACKED if self._matches(spec)))
        if self._git("diff", "--cached", "--name-only") or not self._git("rev-list", "--max-count=1", "--all"):
            self._commit("Keep what was changed by hand", "Shoal")

    def record(self, path: Path, subject: str, author: str, *trailers: str) -> None:
        """Commit one changed, new or deleted file. Raises ToolError."""
        self._git("add", "--all", "--force", "--", str(path.relative_to(self._folder)))
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
                return commit, subject, self._folder / edited
        raise NotFound("There is nothing left to take back.")

    def tainted_by(self, path: Path) -> str:
        """What untrusted content had a hand in any change of a file that is recorded; empty when none had."""
        name = path.relative_to(self._folder).as_posix()
        return self._git("log", f"--format=%(trailers:key={TAINT},valueonly)", "--", name).partition("\n")[0]

    def before_and_after(self, commit: str, path: Path) -> tuple[bytes | None, bytes | None]:
        """What a file held before and after a commit; None where it was not there."""
        name = path.relative_to(self._folder).as_posix()
        return self._content(f"{commit}^", name), self._content(commit, name)

    def _content(self, revision: str, name: str) -> bytes | None:
        if not self._git("ls-tree", "--name-only", revision, "--", name):
            return None
        return self._run("show", f"{revision}:{name}").stdout

    def _matches(self, spec: str) -> bool:
        """Whether anything would be added; git refuses a pattern that names nothing."""
        return bool(self._git("ls-files", "--cached", "--others", "--exclude-standard", "--", spec))

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


def taint_of_undone(folder: Path) -> str:
    """What marks the file whose newest change `restore` takes back. Raises NotFound when there is none."""
    history = History(folder)
    _, _, path = history.last_edit()
    return history.tainted_by(path)


def restore(folder: Path) -> tuple[str, Path, bytes | None, bytes | None]:
    """Take the newest change back and commit that; returns its subject, its file, and the content before and now.

    Raises NotFound when there is none, Conflict when the file was changed since.
    """
    history = History(folder)
    commit, subject, path = history.last_edit()
    history.open()
    old, new = history.before_and_after(commit, path)
    if read_file(path) != new:
        raise Conflict(f"{path.relative_to(folder)} was changed since, so “{subject}” cannot be taken back by itself.")
    write_file(path, old)
    history.record(path, f"Take back: {subject}", "Shoal", f"{UNDOES}: {commit}")
    return subject, path, new, old


def read_file(path: Path) -> bytes | None:
    """A file's content, None when there is none. Raises OSError."""
    try:
        return path.read_bytes()
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
_SKILL = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PART = re.compile(r"[\w][\w .-]{0,99}")
_STRICTNESS = {"open": 0, "guarded": 1, "standard": 2, "locked": 3}


class Rules(msgspec.Struct, frozen=True):
    """What a change has to keep to: models and profiles that exist, and who may widen what an agent may do."""

    check_model: Callable[[str], None]
    check_profile: Callable[[str], None]
    may_widen: Callable[[Asker], bool]


class PlannedEdit(NamedTuple):
    """A planned change of one file of the agent's directory: its name there, the content before and after, the diff."""

    name: str
    old: bytes | None
    new: bytes | None
    diff: str


class SelfEditor:
    """Plans and makes the changes."""

    def __init__(self, store: Store, home_of: Callable[[str], Path], rules: Rules, files: PromptFiles) -> None:
        self._store = store
        self._home_of = home_of
        self._rules = rules
        self._files = files
        self._lock = asyncio.Lock()

    def setting(self, key: str, value: str, context: ToolContext) -> PlannedEdit:
        """Plan a change of agent.toml. Raises ToolError for a value that cannot be."""
        try:
            if key == "model":
                self._rules.check_model(value)
            if key == "profile":
                self._rules.check_profile(value)
                now, then = context.agent.profile, value
                stricter = then == "locked" or _STRICTNESS.get(then, -1) >= _STRICTNESS.get(now, len(_STRICTNESS))
                if not stricter and not self._rules.may_widen(context.asker):
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

    def document(self, path: str, change: Callable[[str | None], str | None], context: ToolContext) -> PlannedEdit:
        """Plan a change of a file below docs/. Raises ToolError for a path outside."""
        parts = PurePosixPath(path.removeprefix("/docs/")).parts
        if not parts or not all(_PART.fullmatch(part) for part in parts):
            raise ToolError(f"{path[:200]!r} is no path below docs/: use names of letters, digits, spaces, . _ and -.")
        name = "/".join(("docs", *parts))
        old = self._read(context, name)
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
        elif self._read(context, file) is None:
            raise ToolError(f"You have no skill {name!r} of your own.")
        return self._edit(context, file, None if text is None else text.encode())

    async def apply(self, edit: PlannedEdit, what: str, context: ToolContext) -> None:
        """Make a planned change, commit and audit it. Raises ToolError when the file is no more what it was."""
        folder = context.agent.home
        path = folder / edit.name
        asked = await self._store.approvals.search(pending=False, thread=context.thread)
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

    async def undo(self, agent: str, by: str) -> str:
        """Take an agent's newest change of itself back; returns what it was. Raises NotFound, Conflict."""
        folder = self._home_of(agent)
        async with self._lock:
            source = await in_thread(lambda: taint_of_undone(folder))
            async with self._files.marking(source):
                subject, path, before, after = await in_thread(lambda: restore(folder))
            what = f"take back: {subject}"
            await self._audit(f"agent:{agent}", what, by, agent, before, after)
        return f"Taken back: {subject} ({path.relative_to(folder)}). It counts from the next turn on."

    def _read(self, context: ToolContext, name: str) -> bytes | None:
        """A file of the agent's directory. Raises ToolError for one that leads elsewhere or is too large."""
        home = context.agent.home.resolve()
        path = home / name
        if path.resolve() != path:
            raise ToolError(f"{name} is a link, which is not followed.")
        if path.is_dir():
            raise ToolError(f"{name} is a directory.")
        content = read_file(path)
        if content is not None and len(content) > TEXT_BYTES_MAX:
            raise ToolError(f"{name} is larger than {TEXT_BYTES_MAX:,} bytes.")
        return content

    def _edit(self, context: ToolContext, name: str, new: bytes | None) -> PlannedEdit:
        if new is not None and len(new) > TEXT_BYTES_MAX:
            raise ToolError(f"{name} would be larger than {TEXT_BYTES_MAX:,} bytes.")
        old = self._read(context, name)
        if old == new:
            raise ToolError(f"{name} says that already, so there is nothing to change.")
        before, after = (
            [line.rstrip() for line in (content or b"").decode("utf-8", "replace").splitlines()]
            for content in (old, new)
        )
        diff = "\n".join(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm=""))
        return PlannedEdit(name, old, new, diff)

    async def _audit(
        self, chain: str, what: str, user: str, agent: str, old: bytes | None, new: bytes | None, turn: str = ""
    ) -> None:
        detail = f"before {_digest(old)} after {_digest(new)}"
        await self._store.audit.record(
            chain, [AuditEntry("self_edit", what, "done", user=user, agent=agent, turn=turn, detail=detail)]
        )


def _digest(content: bytes | None) -> str:
    return "nothing" if content is None else hashlib.sha256(content).hexdigest()


def undo_in(folder: Path) -> str:
    """Take the newest change of an agent that does not run back; returns what it was. Raises NotFound, Conflict."""
    if not folder.is_dir():
        raise NotFound(f"There is no agent {folder.name!r}.")
    subject, path, _, _ = restore(folder)
    return f"Taken back: {subject} ({path.relative_to(folder)})."


Text = Annotated[str, Meta(description="The whole new text.", max_length=200_000)]
DocPath = Annotated[str, Meta(description="Path below your docs/, e.g. guides/tides.md.", min_length=1)]
SkillName = Annotated[str, Meta(description="Name of the skill: small letters and digits with hyphens.", min_length=1)]


def self_edit_tools(editor: SelfEditor) -> tuple[Tool, ...]:
    """The tools by which an agent changes itself: each plans a change, shows its diff, and makes it when it may."""

    def prepared(name: str, edit: PlannedEdit, detail: str, context: ToolContext) -> Prepared:
        what = f"{name} {detail}".strip()

        async def work() -> ToolOutput:
            await editor.apply(edit, what, context)
            done = "It counts from your next turn on, and `/agent undo` takes it back."
            return ToolOutput(f"{edit.name} is changed. {done}")

        old, new = (None if content is None else content.hex() for content in (edit.old, edit.new))
        effect = canonical(name, file=edit.name, old=old, new=new)
        return Prepared((Action(f"tool:{name}:{detail}"),), f"{what}\n\n{edit.diff}", effect, work)

    def document(name: str, path: str, change: Callable[[str | None], str | None], context: ToolContext) -> Prepared:
        edit = editor.document(path, change, context)
        return prepared(name, edit, edit.name.removeprefix("docs/"), context)

    @tool
    def set_system_prompt(
        context: ToolContext,
        text: Annotated[str, Meta(description="Your whole new system prompt.", max_length=50_000)],
    ) -> Invocation:
        """Change your own system prompt, for all your conversations."""
        line = " ".join(text.split())[:200]
        return prepared("set_system_prompt", editor.setting("system_prompt", text, context), line, context)

    @tool
    def set_model(
        context: ToolContext,
        model: Annotated[str, Meta(description="PROVIDER/MODEL, one that is configured.", min_length=1)],
    ) -> Invocation:
        """Change the model that you run on, for all your conversations."""
        return prepared("set_model", editor.setting("model", model, context), model, context)

    @tool
    def set_permissions(
        context: ToolContext,
        profile: Annotated[
            str, Meta(description="Name of a permission profile, e.g. standard or locked.", min_length=1)
        ],
    ) -> Invocation:
        """Change your own permission profile. It can get wider only when the owner or an approver asks you to."""
        return prepared("set_permissions", editor.setting("profile", profile, context), profile, context)

    @tool
    def write_doc(context: ToolContext, path: DocPath, text: Text) -> Invocation:
        """Write one of your documents in docs/, which are part of every prompt of yours."""
        return document("write_doc", path, lambda _: text, context)

    @tool
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

    @tool
    def delete_doc(context: ToolContext, path: DocPath) -> Invocation:
        """Delete one of your documents in docs/."""
        return document("delete_doc", path, lambda _: None, context)

    @tool
    def write_skill(
        context: ToolContext,
        name: SkillName,
        text: Annotated[
            str, Meta(description="The whole SKILL.md: front matter with name and description, then what to do.")
        ],
    ) -> Invocation:
        """Write down how to do something as a skill of yours, for later conversations."""
        return prepared("write_skill", editor.skill(name, text, context), name, context)

    @tool
    def delete_skill(context: ToolContext, name: SkillName) -> Invocation:
        """Delete one of your own skills."""
        return prepared("delete_skill", editor.skill(name, None, context), name, context)

    return (
        set_system_prompt, set_model, set_permissions, write_doc, edit_doc, delete_doc, write_skill, delete_skill,
    )  # fmt: skip
