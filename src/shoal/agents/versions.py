"""Versions of an agent's files. Each change is a commit in the git repository of the agent's directory.

Changes by people on the page and by agents to themselves are audited and can be undone.
"""

import asyncio
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from shoal.agents.folder import GIT_SECONDS_MAX
from shoal.agents.lifecycle import EditCheck
from shoal.kernel import lazy_re
from shoal.kernel.errors import Conflict, InvalidInput, NotFound, ToolError
from shoal.kernel.files import in_thread
from shoal.kernel.records import AuditEntry
from shoal.kernel.regular_files import read_regular
from shoal.store.store import Store
from shoal.tools.prompt_files import PromptFiles

PERSONA = ("AGENTS.md", "SOUL.md", "IDENTITY.md", "USER.md")
PART = lazy_re.compile(r"[\w][\w .-]{0,99}")
EDIT = "Shoal-Edit"
UNDOES = "Shoal-Undoes"
TAINT = "Shoal-Tainted-By"
_KEPT_OUT = "/workspace/\n/guests/\n/sessions/\n"
_TRACKED = (":(glob)*.toml", ":(glob)*.md", ":(glob)docs/**", ":(glob)skills/**")
SYSTEM = "data/SYSTEM.md"
"""Path, relative to the home directory, of the file that describes changes to the environment of all agents.

An agent that changes the file also commits it to its own repository, under this name.
"""
_QUIET = ("-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false", "-c", "core.autocrlf=false")


def place_of(folder: Path, name: str) -> Path:
    """Return the path of a file in an agent's repository. `SYSTEM` is shared and outside the agent's folder."""
    return folder.parents[1] / name if name == SYSTEM else folder / name


def name_of(folder: Path, path: Path) -> str:
    return SYSTEM if path == place_of(folder, SYSTEM) else path.relative_to(folder).as_posix()


class RecordedChange(NamedTuple):
    """A recorded change to a file. `at` is in ISO 8601."""

    commit: str
    at: str
    author: str
    subject: str


class History:
    """An agent's git repository. All methods block. Each git command has a time limit of GIT_SECONDS_MAX."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> None:
        """Create the repository if it is missing, and commit manual changes. Raises ToolError."""
        if not (self._folder / ".git").exists():
            self._git("init", "--quiet", "--template=", "--initial-branch=main")
        exclude = self._folder / ".git" / "info" / "exclude"
        exclude.parent.mkdir(exist_ok=True)
        exclude.write_text(_KEPT_OUT, encoding="utf-8")
        listed = ("ls-files", "--cached", "--others", "--exclude-standard", "--")
        named = [spec for spec in _TRACKED if self._git(*listed, spec)]  # `git add` fails for missing files.
        self._git("add", "--all", "--", *named)
        self._stage(place_of(self._folder, SYSTEM))
        if self._git("diff", "--cached", "--name-only") or not self._git("rev-list", "--max-count=1", "--all"):
            self._commit("Record manual changes", "Shoal")

    def record(self, path: Path, subject: str, author: str, *trailers: str) -> None:
        """Commit one changed, new or deleted file. Raises ToolError."""
        self._stage(path)
        self._commit("\n\n".join((subject, "\n".join(trailers))), author)

    def last_edit(self) -> tuple[str, str, Path]:
        """Return the commit, subject and file of the newest change that was not undone. Raises NotFound."""
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
        raise NotFound("Nothing is left to undo.")

    def changes(self, path: Path, limit: int) -> list["RecordedChange"]:
        """Return the latest changes to a file, newest first."""
        if not (self._folder / ".git").exists():
            return []
        form, name = "%H%x00%aI%x00%an%x00%s%x1e", name_of(self._folder, path)
        entries = self._git("log", f"--max-count={limit}", f"--format={form}", "--", name).split("\x1e")
        return [RecordedChange(*entry.strip("\n").split("\0")) for entry in entries if entry.strip("\n")]

    def tainted_by(self, path: Path) -> str:
        """Return the untrusted content that influenced the newest tainted change to a file, or an empty string."""
        name = name_of(self._folder, path)
        return self._git("log", f"--format=%(trailers:key={TAINT},valueonly)", "--", name).partition("\n")[0]

    def take_back(self) -> tuple[str, Path, bytes | None, bytes | None]:
        """Undo the newest change in a new commit.

        Returns the subject and the file of the change, and the content before and after the undo. Raises NotFound if
        nothing is left to undo, and Conflict if the file has changed since.
        """
        commit, subject, path = self.last_edit()
        self.open()
        name = name_of(self._folder, path)
        old, new = self._content(f"{commit}^", name), self._content(commit, name)
        if read_file(path) != new:
            raise Conflict(f"{name} has later changes, so Shoal cannot undo “{subject}” separately.")
        write_file(path, old)
        self.record(path, f"Take back: {subject}", "Shoal", f"{UNDOES}: {commit}")
        return subject, path, new, old

    def _stage(self, path: Path) -> None:
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
            raise ToolError("git is not installed. Install it to undo changes to the agent.")
        # An inherited GIT_DIR or similar variable must not redirect this to another repository.
        environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        try:
            return subprocess.run(
                [git, "-C", str(self._folder), *_QUIET, *words],
                env=environ, check=True, capture_output=True, timeout=GIT_SECONDS_MAX, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            reason = (error.stderr or b"").decode("utf-8", "replace").strip()
            raise ToolError(f"git could not record the change: {reason[-300:] or error}") from error


def read_file(path: Path) -> bytes | None:
    try:
        return read_regular(path)
    except FileNotFoundError:
        return None


def write_file(path: Path, content: bytes | None) -> None:
    """Replace a file's content atomically, or delete the file. Raises OSError."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(content)
    temporary.replace(path)


class AgentVersions(msgspec.Struct, eq=False):
    """Changes agents' files, one change at a time.

    The person who approves an agent's change to itself sees the results of `edit_checks`. Features add their own
    checks.
    """

    store: Store
    home_of: Callable[[str], Path]
    files: PromptFiles
    edit_checks: list[EditCheck] = msgspec.field(default_factory=list[EditCheck])
    _lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    async def replace(
        self,
        folder: Path,
        name: str,
        old: bytes | None,
        new: bytes | None,
        what: str,
        author: str,
        trailers: Sequence[str],
    ) -> None:
        """Replace a file's content and commit the change. None means that the file does not exist.

        Raises ToolError if the current content is not `old`.
        """
        path = place_of(folder, name)

        def make() -> None:
            history = History(folder)
            history.open()
            if read_file(path) != old:
                raise ToolError(f"{name} has changed in the meantime. Read the file again, then retry.")
            write_file(path, new)
            history.record(path, what, author, *trailers)

        async with self._lock:
            await in_thread(make)

    async def put(self, agent: str, name: str, content: bytes | None, by: str, digest: str = "") -> None:
        """Write an agent's file for a person. If `content` is None, delete the file.

        The change is committed and audited, and can be undone. With `digest`, the file is written only if it has not
        changed since it was read. Raises InvalidInput if `name` is not a persona file or document, NotFound,
        Conflict, StoreError and OSError.
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
            except ToolError as error:  # git is missing or busy
                raise Conflict(str(error)) from error
            await self.audit(f"agent:{agent}", what, by, agent, old, content)

    async def undo(self, agent: str, by: str) -> str:
        """Undo the newest change to an agent's files and describe it. Raises NotFound and Conflict."""
        folder = self.home_of(agent)
        history = History(folder)
        async with self._lock:
            source = await in_thread(lambda: history.tainted_by(history.last_edit()[2]))
            async with self.files.marking(source):
                subject, path, before, after = await in_thread(history.take_back)
            await self.audit(f"agent:{agent}", f"take back: {subject}", by, agent, before, after)
        return f"Undone: {subject} ({name_of(folder, path)}). The old version takes effect on the next turn."

    async def audit(
        self, chain: str, what: str, user: str, agent: str, old: bytes | None, new: bytes | None, turn: str = ""
    ) -> None:
        detail = f"before {shown_digest(old)} after {shown_digest(new)}"
        await self.store.audit.record(
            chain, [AuditEntry("self_edit", what, "done", user=user, agent=agent, turn=turn, detail=detail)]
        )


def own_file(folder: Path, name: str) -> Path:
    """Return the path of an agent's persona file or document. Raises InvalidInput for any other name."""
    parts = PurePosixPath(name).parts
    is_document = len(parts) > 1 and parts[0] == "docs" and all(PART.fullmatch(part) for part in parts)
    path = folder / name
    if not (is_document or name in PERSONA) or path.resolve() != folder.resolve() / name:
        raise InvalidInput(f"{name[:200]!r} is not an agent file. Use {', '.join(PERSONA)}, or docs/….")
    return path


def shown_digest(content: bytes | None) -> str:
    """Return the SHA-256 of a file's content for the audit log, or "nothing" if the file does not exist."""
    return "nothing" if content is None else hashlib.sha256(content).hexdigest()
