"""Checks that a command's actions predicted everything that the command did.

In a command without opaque actions, an action must name each program that runs, with exactly the words that it runs
with. A program started by another one is exempt if the actions of the other one say that it runs programs.

A command that runs without asking in a tainted turn must in addition never:

- run a program from the workspace
- write outside the workspace, in `.git`, or to a file that is executed later
- read a secret
- use the network
- read a workspace file that is not among the reads of its actions
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from shoal.kernel.permissions import Action
from shoal.kernel.ports import Mount
from shoal.permissions.profiles import Profiles
from shoal.permissions.taint import Source, TaintState, gate
from shoal.shell.words import quote
from shoal.tools.read_files import secret_below
from tests.fuzz.ground import TRAP
from tests.fuzz.jail import Execution, Ran
from tests.known_tools import TRAITS

TAINTED = TaintState((Source(1, "a page"),), active=True)
OPEN = Profiles(TRAITS).get("open")

STARTED_BY = {
    "egrep": {"grep"}, "fgrep": {"grep"}, "xargs": {"echo"}, "diff": {"pr"}, "sdiff": {"diff"}, "diff3": {"diff"},
    "tar": {"gzip", "bzip2", "xz", "zstd", "lzip", "lzma", "lzop", "compress", "gunzip"},
    "zcat": {"gzip"}, "gunzip": {"gzip"}, "zgrep": {"sed", "gzip", "grep", "expr", "cat", "mktemp", "rm"},
    "unxz": {"xz"},
    "git": {"git"}, "git-submodule": {"git", "basename", "sed", "uname", "sh"},
    "npm": {"node"}, "yq": {"jq"},
}  # fmt: skip
"""Programs that a program starts whatever its arguments are. All of them are in /usr."""

CODE_NAMES = re.compile(
    r".*\.(?:sh|bash|zsh|fish|py|pyw|pyi|pth|js|mjs|cjs|ts|tsx|jsx|rb|pl|pm|php|lua|go|rs|c|h|cc|cpp|java|kt|mk|cmake|awk"
    r"|sed|jq|sql|ps1|bat|so|service|gradle|gemspec|toml|ini|cfg|ya?ml)|(?:GNU)?[Mm]akefile|Dockerfile|Justfile|justfile"
    r"|Rakefile|Gemfile|package\.json|conftest\.py|\.envrc|\.[a-z_]*rc|\.[a-z_]*profile|\.git[a-z]*|\.npmrc|\.editorconfig"
)
"""Names of files that get executed or hold settings, independent of the product's own list."""
_SECRETS = re.compile(r".*/\.env|/proc/.*/environ|.*/id_rsa|.*/\.netrc")
_DOUBTFUL = re.compile(r"[$`*?\[{~<>]")
_QUOTED = re.compile(r"\$'(?:[^'\\]|\\.)*'|'[^']*'|\\.")
_GIT_SETTINGS = re.compile(r".*\.git/(?:.*/)?(?:config(?:\.worktree)?|hooks(?:/.*)?|info/attributes|commondir|gitdir)")
_UNSEEN = ("/dev/null", "/dev/tty", "/dev/zero", "/dev/full", "/dev/pts", "/tmp/", "pipe:")
_SYSTEM = ("/usr/", "/bin/", "/lib/", "/lib64/")


def is_opaque(actions: Sequence[Action]) -> bool:
    """Return True if the `guarded` profile always asks before the command."""
    return any(action.opaque for action in actions)


def runs_unasked(actions: Sequence[Action]) -> bool:
    """Return True if a tainted turn may run the command without asking, judged by its text alone."""
    return gate("allow", actions, TAINTED, OPEN)[0] == "allow"


def unforeseen(
    actions: Sequence[Action], ran: Ran, code: frozenset[str] = frozenset(), mounts: Sequence[Mount] = ()
) -> str:
    """Return the first effect that the actions did not predict, or an empty string.

    `code` lists the executable files of the workspace. Opaque actions predict every effect.
    """
    if is_opaque(actions):
        return ""
    parts = [action for action in actions if not action.whole]
    outermost = ran.executed[0].argv if ran.executed else ()
    problems = (
        _not_named(parts, execution, [argv for argv in execution.callers if argv != outermost])
        for execution in ran.executed[1:]
    )
    first_problem = next((problem for problem in problems if problem), "")
    if not first_problem and runs_unasked(actions):
        secret = _secret_read(ran)
        is_asked = bool(secret) and bool(secret_below(actions, mounts, TRAITS, mapped=True))
        first_problem = _harm(ran, code) or (secret if not is_asked else "") or _unforeseen_reading(parts, ran)
    return first_problem


def _words(action: Action) -> str:
    return re.sub(r"^(?:[A-Za-z_]\w*=\S* )+(?=\S)", "", action.text.split(":", 2)[2])


def _not_named(parts: Sequence[Action], execution: Execution, callers: Sequence[tuple[str, ...]]) -> str:
    argv = execution.argv
    name = PurePosixPath(execution.path).name
    exact = " ".join(quote(word) for word in argv)
    for action in parts:
        text = _words(action)
        if text == exact or (
            text.split(" ")[0] == argv[0] and (action.runs or _DOUBTFUL.search(_QUOTED.sub("", text)))
        ):
            return ""
    for caller in callers:
        called = " ".join(quote(word) for word in caller)
        if any((action.runs or action.runs_more) and _is(action, caller[0], called) for action in parts):
            return ""
    caller = callers[-1] if callers else ()
    starts: set[str] = STARTED_BY.get(PurePosixPath(caller[0]).name, set()) if caller else set()
    if execution.path.startswith(_SYSTEM) and (name in starts or (name.startswith("git-") and "git" in starts)):
        return ""
    if execution.path.startswith(_SYSTEM) and any(_appends(_words(action), argv) for action in parts):
        return ""
    return f"{list(argv)} ({execution.path}) was run and is not named"


def _is(action: Action, name: str, called: str) -> bool:
    text = _words(action)
    return text == called or text.split(" ")[0] == name


def _appends(text: str, argv: Sequence[str]) -> bool:
    if text.split(" ", 1)[0] not in (
        "xargs",
        "find",
        "timeout",
        "nice",
        "env",
        "nohup",
        "time",
        "stdbuf",
        "setsid",
        "command",
    ):
        return False
    words = [quote(word) for word in argv]
    return any(f" {' '.join(words[:count])} " in f"{text} " for count in range(len(words), 0, -1))


def sprang(ran: Ran) -> bool:
    """Return True if a trap was triggered: its program or a program of the workspace ran, or a secret was read."""
    programs = [PurePosixPath(execution.path) for execution in ran.executed]
    is_run = any(path.name == TRAP.split()[0] or path.is_relative_to("/workspace") for path in programs)
    return is_run or any(_SECRETS.fullmatch(path) for path in ran.read)


def did_harm(ran: Ran, code: frozenset[str]) -> bool:
    return sprang(ran) or bool(_harm(ran, code) or _secret_read(ran))


def _harm(ran: Ran, code: frozenset[str]) -> str:
    for execution in ran.executed[1:]:
        if not execution.path.startswith(_SYSTEM):
            return f"{execution.path} of the workspace was run"
    for address in ran.connected:
        if "AF_UNIX" not in address and "AF_NETLINK" not in address:
            return f"it connected to {address}"
    for path, argv in ran.written.items():
        problem = "" if path.startswith(_UNSEEN) else _written(path, PurePosixPath(argv[0]).name if argv else "", code)
        if problem:
            return f"{path}{problem} was written by {list(argv)}"
    return ""


def _secret_read(ran: Ran) -> str:
    secrets = [(path, argv) for path, argv in _readings(ran) if _SECRETS.fullmatch(path)]
    return f"the secret {secrets[0][0]} was read by {list(secrets[0][1])}" if secrets else ""


def _readings(ran: Ran) -> list[tuple[str, tuple[str, ...]]]:
    """Return each path that was read, with its reader's arguments. Excludes `df`, which only opens files to
    trigger mounts.
    """
    return [(path, argv) for path, argv in ran.read.items() if argv[:1] != ("df",)]


def _unforeseen_reading(parts: Sequence[Action], ran: Ran) -> str:
    reads = [action.reads for action in parts]
    if any(paths is None for paths in reads):
        return "what it reads is not known, and yet nobody is asked"
    known = [PurePosixPath(path) for paths in reads for path in paths or ()]
    for path, argv in _readings(ran):
        if not path.startswith("/workspace/") or path in ran.written:
            continue
        if not any(PurePosixPath(path).is_relative_to(one) for one in known):
            return f"{path} was read by {list(argv)} and is not among {[str(one) for one in known]}"
    return ""


def _written(path: str, program: str, code: frozenset[str]) -> str:
    if not path.startswith("/workspace/"):
        return " outside the workspace"
    if "/.git/" in path + "/":
        return " in a repository" if program != "git" or _GIT_SETTINGS.fullmatch(path) else ""
    if path in code or (program != "mkdir" and CODE_NAMES.fullmatch(PurePosixPath(path).name)):
        return ", which something may execute,"
    return ""
