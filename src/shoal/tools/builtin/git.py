"""The tools `git_init`, `git_status`, `git_diff`, `git_log`, `git_commit`, `git_branch` and `git_push`.

They run the real git in the sandbox, in a directory of the workspace; see `git_command` for what keeps that safe.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from shoal.domain.errors import ToolError
from shoal.tools.builtin.git_command import GitCall, GitTool
from shoal.tools.jail import Jail, Place

PUSH_SECONDS_MAX = 300.0
COMMITS_MAX = 100
FILES_MAX = 200
CONFIG_BYTES_MAX = 262_144
"""Longest configuration of a repository whose remotes are looked at."""

_REVISION = re.compile(r"[A-Za-z0-9_@^~][A-Za-z0-9_./@{}^~:+-]{0,255}")
_BRANCH = re.compile(r"(?!.*(\.\.|@\{|//|\.lock(/|$)|/$|\.$|/\.))[A-Za-z0-9_][A-Za-z0-9_./@+#-]{0,199}")
_REMOTE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_LOCAL = re.compile(r"(/|\.|~|file:)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")

RepositoryPath = Annotated[str, Meta(description="Directory of the repository, inside the workspace.")]
Revision = Annotated[str, Meta(description="Commit, branch, tag or range, e.g. HEAD~1 or main..topic.", max_length=256)]
Files = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=4096)], ...],
    Meta(description="Only these files or directories, relative to the repository.", max_length=FILES_MAX),
]


class InitArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `git_init` takes."""

    path: RepositoryPath = "."


class StatusArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `git_status` takes."""

    path: RepositoryPath = "."


class DiffArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `git_diff` takes."""

    path: RepositoryPath = "."
    revision: Revision = ""
    staged: Annotated[bool, Meta(description="What is staged, instead of what is not.")] = False
    files: Files = ()


class LogArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `git_log` takes."""

    path: RepositoryPath = "."
    revision: Revision = ""
    count: Annotated[int, Meta(ge=1, le=COMMITS_MAX, description="How many commits.")] = 20
    patch: Annotated[bool, Meta(description="With what each commit changed.")] = False
    files: Files = ()


class CommitArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `git_commit` takes."""

    message: Annotated[str, Meta(description="The commit's message.", min_length=1, max_length=10_000)]
    path: RepositoryPath = "."
    files: Files = ()


class BranchArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `git_branch` takes."""

    do: Annotated[
        Literal["list", "create", "switch", "delete"],
        Meta(description="List branches; create one and switch to it; switch; or delete one that is merged."),
    ] = "list"
    name: Annotated[str, Meta(description="The branch; not for list.", max_length=200)] = ""
    path: RepositoryPath = "."


class PushArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `git_push` takes."""

    branch: Annotated[str, Meta(description="The branch to push, under the same name.", max_length=200)]
    remote: Annotated[str, Meta(description="Name of a remote of the repository.", max_length=100)] = "origin"
    path: RepositoryPath = "."


class GitInitTool(GitTool[InitArguments]):
    """Makes a repository; one that is there stays as it is."""

    name: ClassVar[str] = "git_init"
    description: ClassVar[str] = "Make a git repository in a directory of the workspace that exists."
    idempotent: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(InitArguments)

    def call(self, arguments: InitArguments, place: Place, jail: Jail) -> GitCall:
        """`git init`, without a template."""
        return GitCall(place.shown, (("init", "--template="),))


class GitStatusTool(GitTool[StatusArguments]):
    """Shows the branch and which files have changed."""

    name: ClassVar[str] = "git_status"
    description: ClassVar[str] = "Show a git repository's branch and which files are changed, staged or untracked."
    read_only: ClassVar[bool] = True
    idempotent: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(StatusArguments)

    def call(self, arguments: StatusArguments, place: Place, jail: Jail) -> GitCall:
        """`git status`, short."""
        return GitCall(place.shown, (("--no-optional-locks", "status", "--short", "--branch"),))


class GitDiffTool(GitTool[DiffArguments]):
    """Shows what has changed, line by line."""

    name: ClassVar[str] = "git_diff"
    description: ClassVar[str] = "Show changes in a git repository: of the work tree, of what is staged, or of a range."
    read_only: ClassVar[bool] = True
    idempotent: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(DiffArguments)

    def call(self, arguments: DiffArguments, place: Place, jail: Jail) -> GitCall:
        """`git diff` without any program of the repository's."""
        words = ["--no-optional-locks", "diff", "--no-ext-diff", "--no-textconv", "--no-color"]
        words += ["--cached"] if arguments.staged else []
        words += [_revision(arguments.revision)] if arguments.revision else []
        asked = [*words[5:], *arguments.files]
        return GitCall(" ".join([place.shown, *asked]), ((*words, "--", *_pathspecs(arguments.files)),))


class GitLogTool(GitTool[LogArguments]):
    """Shows the newest commits."""

    name: ClassVar[str] = "git_log"
    description: ClassVar[str] = "Show commits of a git repository, the newest first; with patch, what each changed."
    read_only: ClassVar[bool] = True
    idempotent: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(LogArguments)

    def call(self, arguments: LogArguments, place: Place, jail: Jail) -> GitCall:
        """`git log`, with stat or patch."""
        words = ["log", "--no-ext-diff", "--no-textconv", "--no-color", "--date=iso", f"-{arguments.count}"]
        words += ["--patch"] if arguments.patch else ["--stat"]
        words += [_revision(arguments.revision)] if arguments.revision else []
        asked = [place.shown, *words[5:], *arguments.files]
        return GitCall(" ".join(asked), ((*words, "--", *_pathspecs(arguments.files)),))


class GitCommitTool(GitTool[CommitArguments]):
    """Commits all changes, or those of the files named."""

    name: ClassVar[str] = "git_commit"
    description: ClassVar[str] = (
        "Commit in a git repository, with you as the author: everything that has changed, new and deleted files too, "
        "or only the files named. What .gitignore excludes is left out. No hooks or filters run."
    )

    def __init__(self) -> None:
        super().__init__(CommitArguments)

    def call(self, arguments: CommitArguments, place: Place, jail: Jail) -> GitCall:
        """`git add`, then `git commit`."""
        message = _CONTROL.sub("", arguments.message).strip()
        if not message:
            raise ToolError("The commit's message is empty.")
        paths = _pathspecs(arguments.files)
        commit = ("commit", "--no-verify", "--no-gpg-sign", "--cleanup=whitespace", "-m", message)
        steps = (("add", "--all", "--", *(paths or (".",))), (*commit, "--", *paths) if paths else commit)
        which = ", ".join(arguments.files) or "all changes"
        return GitCall(message, steps, shown=f"git_commit {which}\n\n{message}")


class GitBranchTool(GitTool[BranchArguments]):
    """Lists, makes, changes or deletes branches."""

    name: ClassVar[str] = "git_branch"
    description: ClassVar[str] = "List the branches of a git repository, create one, switch to one, or delete one."

    def __init__(self) -> None:
        super().__init__(BranchArguments)

    def call(self, arguments: BranchArguments, place: Place, jail: Jail) -> GitCall:
        """`git branch` or `git switch`; a branch with commits of its own is not deleted."""
        if arguments.do == "list":
            return GitCall("list", (("branch", "--list", "--all", "-vv"),))
        name = _branch(arguments.name)
        steps = {
            "create": ("switch", "--create", name),
            "switch": ("switch", "--no-guess", name),
            "delete": ("branch", "--delete", name),
        }
        return GitCall(f"{arguments.do} {name}", (steps[arguments.do],))


class GitPushTool(GitTool[PushArguments]):
    """Pushes one branch to a remote of the repository."""

    name: ClassVar[str] = "git_push"
    description: ClassVar[str] = (
        "Push one branch of a git repository to one of its remotes. Never by force, and without stored credentials."
    )

    def __init__(self) -> None:
        super().__init__(PushArguments)

    def call(self, arguments: PushArguments, place: Place, jail: Jail) -> GitCall:
        """`git push` of exactly this branch; an approval holds for the remote's address as it is now."""
        branch = _branch(arguments.branch)
        if not _REMOTE.fullmatch(arguments.remote):
            raise ToolError("remote is the name of a remote, such as origin: letters, digits, '_', '.' and '-'.")
        url, digest = _address(jail, place, arguments.remote)
        words = ["push", "--no-verify", "--no-signed", "--no-follow-tags"]
        # The other side's hooks are its own business; those of a repository on this machine do not run either.
        words.append(f"--receive-pack={_RECEIVE if _LOCAL.match(url) else 'git-receive-pack'}")
        words += [arguments.remote, f"refs/heads/{branch}:refs/heads/{branch}"]
        address = _USERINFO.sub("", url)
        return GitCall(
            f"{arguments.remote} {branch}",
            (tuple(words),),
            shown=f"git_push {branch} to {arguments.remote}: {address or 'its address could not be read'}",
            effect=digest,
            names=(f"{address} {branch}",) if address else (),
            seconds_max=PUSH_SECONDS_MAX,
            uses_network=not _LOCAL.match(url),
        )


_RECEIVE = "git -c core.hooksPath=/dev/null receive-pack"


def git_tools() -> tuple[
    GitInitTool, GitStatusTool, GitDiffTool, GitLogTool, GitCommitTool, GitBranchTool, GitPushTool
]:
    """All of them."""
    return (
        GitInitTool(),
        GitStatusTool(),
        GitDiffTool(),
        GitLogTool(),
        GitCommitTool(),
        GitBranchTool(),
        GitPushTool(),
    )


def _revision(text: str) -> str:
    if not _REVISION.fullmatch(text):
        raise ToolError(f"{text[:80]!r} is no revision. Give a commit, branch, tag or range, such as main..topic.")
    return text


def _branch(text: str) -> str:
    if not _BRANCH.fullmatch(text):
        raise ToolError(f"{text[:80]!r} cannot be a branch: use letters, digits and _ . / @ + # -.")
    return text


def _pathspecs(files: Sequence[str]) -> tuple[str, ...]:
    for file in files:
        if "\0" in file or file.startswith("/") or ".." in file.split("/"):
            raise ToolError(f"{file[:200]!r} is not a path below the repository.")
    return tuple(files)


def _address(jail: Jail, place: Place, remote: str) -> tuple[str, str]:
    """Where pushes to a remote go by the repository's configuration, empty when that is not plain to see, and a digest
    of that configuration."""
    config = jail.resolve(f"{place.shown}/.git/config")
    try:
        content = jail.read(config, CONFIG_BYTES_MAX)
    except ToolError:
        return "", ""
    digest = hashlib.sha256(content).hexdigest()
    text = content.decode(errors="replace")
    if re.search(r"^\s*\[\s*(url|include|includeif)\b", text, re.IGNORECASE | re.MULTILINE) or "\\" in text:
        return "", digest
    import configparser

    parser = configparser.RawConfigParser(strict=False, comment_prefixes=("#", ";"), allow_no_value=True)
    try:
        parser.read_string("\n".join(line.strip() for line in text.splitlines()))
    except configparser.Error:
        return "", digest
    section = f'remote "{remote}"'
    if not parser.has_section(section):
        return "", digest
    url = parser.get(section, "pushurl", fallback=None) or parser.get(section, "url", fallback=None) or ""
    return _CONTROL.sub("", url).strip('"'), digest
