"""The git repository in an agent's directory: each change of the agent is a commit, and can be taken back by one."""

import os
import shutil
import subprocess
from pathlib import Path

from shoal.domain.errors import Conflict, NotFound, ToolError

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
