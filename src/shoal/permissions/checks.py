"""What the words of some programs say beside the roles of their options and operands: scripts, settings, methods.

Each check gets the words, how they were read, and the effect by roles, and returns the effect as it is.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from shoal.permissions.effects import Check, Effect, literal, opaque
from shoal.permissions.git_commands import GIT
from shoal.permissions.options import Reading
from shoal.permissions.repository import INERT
from shoal.permissions.scripts import awk_is_plain, jq_reads_more, sed_is_plain, yq_is_plain
from shoal.permissions.words import Word

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SIGNATURE = re.compile(r"%[-+ ]?G|signature")
_WEB = re.compile(r"https?://", re.IGNORECASE)
_HELPER = re.compile(r"[A-Za-z0-9+.-]+::")  # git runs git-remote-NAME for NAME::ADDRESS
_REMOTE = re.compile(r"(?:-[A-Za-z]*f|--file=)?[^/=]*:")
_TAR_LETTERS = re.compile(r"[cxtvzjJpkhamOPSwru]*f?[cxtvzjJpkhamOPSwru]*")
_CMAKE_SETTING = re.compile(
    r"(?!.*(?:COMPILER|LAUNCHER|PROGRAM|EXECUTABLE|COMMAND|TOOLCHAIN|INCLUDE|LINKER|_AR\b|RULE)[^=]*=)"
    r"[A-Z][A-Za-z0-9_]*(?::[A-Z]+)?=[A-Za-z0-9_.,/ +-]*"
)


def _sed(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    """`sed`: its scripts have to be known, and `-i` writes what it reads."""
    operands = list(reading.operands)
    scripts = reading.values("-e", "--expression")
    if not scripts and not reading.has("-f", "--file"):
        scripts = operands[:1]
        operands = operands[1:]
    files = reading.values("-f", "--file")
    if files or not scripts or not all(word.value is not None and sed_is_plain(word.value) for word in scripts):
        return opaque(words, len(words), runs=files)
    if reading.values("-i", "--in-place"):
        return msgspec.structs.replace(found, harmless=False, reads=None)
    if reading.has("-i", "--in-place"):
        return msgspec.structs.replace(found, reads=tuple(operands), writes=tuple(operands))
    return msgspec.structs.replace(found, reads=tuple(operands))


def _awk(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    files = reading.values("-f", "--file")
    program = reading.operands[0].value if reading.operands and not files else None
    if program is None or not awk_is_plain(program):
        return opaque(words, len(words), runs=files)
    data = tuple(word for word in reading.operands[1:] if not _ASSIGNMENT.match(word.begins))
    return msgspec.structs.replace(found, reads=data)


def _jq(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    script = reading.operands[0].value if reading.operands else ""
    if script is None or jq_reads_more(script) or reading.has("-f", "--from-file"):
        return msgspec.structs.replace(found, reads=None)
    return found


def _yq(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    if not all(word.value is not None and yq_is_plain(word.value) for word in reading.operands[:2]):
        return opaque(words, len(words))
    return found


def _git(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    """`git`: settings on the command line have to be inert; a format may not ask for signatures to be checked."""
    for name, _, word in reading.options:
        value = "" if word is None else word.value
        if name == "^-c" and (value is None or not INERT.fullmatch(value.partition("=")[0].lower())):
            named = (place + 1 for place, one in enumerate(words) if one.begins.startswith("-c"))
            return opaque(words, next(named, len(words)))  # all of it where it stands in a cluster, as in `git -Pc…`
        if name in ("--format", "--pretty", "--group", "--sort") and (value is None or _SIGNATURE.search(value)):
            return opaque(words, len(words))
        # Whether an option takes the next word differs by subcommand: what looks like an option may well be one.
        if word is not None and word in words and word.begins.startswith("-") and name not in ("-m", "--message"):
            return opaque(words, len(words))
    for place, word in zip(reading.places, reading.operands, strict=True):
        if _HELPER.match(word.begins):
            return opaque(words, place + 1)
    reads = None if found.reads is None else (*found.reads, literal("."))
    name = next((word.value or "" for word in words[1:] if word.value in GIT.subs), "git")
    if name == "branch" and (reading.operands or any(option in _CHANGES_BRANCHES for option, _, _ in reading.options)):
        found, reads = msgspec.structs.replace(found, harmless=False), None
    if name == "commit" and not reading.has("-m", "-F", "-C", "--message", "--file", "--reuse-message", "--no-edit"):
        found = msgspec.structs.replace(found, harmless=False)  # an editor reads settings of its own
    return msgspec.structs.replace(found, git=name, reads=reads)


_CHANGES_BRANCHES = frozenset(
    """
    -d -D -m -M -c -C -u -f --delete --force --move --copy --track --no-track --set-upstream-to --unset-upstream
    --create-reflog
    """.split()  # noqa: SIM905
)


def _git_setting(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    """`git config`: reading is harmless, setting is known for what runs nothing."""
    if reading.has("--get", "--get-all", "--get-regexp", "--list", "-l"):
        return _git(words, reading, msgspec.structs.replace(found, harmless=True, reads=()))
    name = reading.operands[0].value if reading.operands else None
    if name is None or not INERT.fullmatch(name.lower()):
        return opaque(words, 2)
    return _git(words, reading, found)


def _grep(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    """`grep -r` without a file searches the working directory."""
    recursive = reading.has("-r", "-R", "--recursive", "--dereference-recursive", "-d", "--directories")
    if recursive and found.reads is not None and len(reading.operands) < 2:
        return msgspec.structs.replace(found, reads=(*found.reads, literal(".")))
    return found


def _rg(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    """`rg --files` has no pattern among its operands."""
    if not reading.has("--files") or found.reads is None:
        return found
    return msgspec.structs.replace(found, reads=(*found.reads, *reading.operands))


def _strings(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    """`strings @FILE` takes options from the file, also where the value of an option should be."""
    named = all(word.value != "" and word.begins[:1] not in ("", "@") for word in words)
    return found if named else msgspec.structs.replace(found, reads=None)


def _tee(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    """`tee -a FILE` leaves what the file holds beside what it adds."""
    return msgspec.structs.replace(found, reads=found.writes) if reading.has("-a", "--append") else found


def _xxd(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    """`xxd FILE -r` writes a file called `-r`; `xxd -r FILE OTHER` changes parts of the other."""
    if reading.places and reading.places != list(range(reading.places[0], len(words))):
        return opaque(words, len(words))
    return found if found.reads is None else msgspec.structs.replace(found, reads=(*found.reads, *found.writes))


def _zcat(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    """`zcat NAME` reads `NAME.gz` where there is no such file, unless the name ends like that."""
    named = all(word.value is not None and re.search(r"[.](?:gz|tgz|z)$", word.value) for word in reading.operands)
    return found if named else msgspec.structs.replace(found, reads=None)


def _tar(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    """`tar xzf FILE`: the first word is a cluster of options without a dash; `HOST:FILE` needs a remote shell."""
    first = words[1] if len(words) > 1 else literal("")
    for place, word in enumerate(words):
        if not word.certain or _REMOTE.match(word.begins) or (word.value is None and "/" not in word.begins):
            return opaque(words, place + 1)
    if not first.begins.startswith("-") and not (first.value and _TAR_LETTERS.fullmatch(first.value)):
        return opaque(words, 2)
    return found


def _reading_call(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    """`gh api` and `curl`: known while the method is one that reads."""
    methods = reading.values("-X", "--method", "--request")
    sends = reading.has("-f", "-F", "--field", "--raw-field") and words[0].value == "gh" and not methods
    if sends or any(word.value not in ("GET", "HEAD", "OPTIONS") for word in methods):
        return opaque(words, len(words))
    # `gopher://HOST:PORT/_TEXT` sends any text.
    addresses = [*reading.operands, *reading.values("--url")]
    if any("://" in word.text and not _WEB.match(word.begins) for word in addresses):
        return opaque(words, len(words))
    return found


def _go_run(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    """`go run NAME@VERSION` fetches what it runs."""
    return opaque(words, len(words)) if any("@" in word.text for word in reading.operands) else found


def _ghostscript(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    """`gs %pipe%COMMAND` runs the command."""
    named = all(word.value is not None and not re.search(r"[%|]", word.value) for word in words)
    return found if named else opaque(words, len(words))


def _cmake(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    """`cmake -D NAME=VALUE`: known for what names no program."""
    if not all(word.value is not None and _CMAKE_SETTING.fullmatch(word.value) for word in reading.values("-D")):
        return opaque(words, len(words))
    return msgspec.structs.replace(found, runs=(*found.runs, literal("CMakeLists.txt")))


def _make(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    """`make`: an assignment among its words could replace the shell it uses."""
    for place, word in zip(reading.places, reading.operands, strict=True):
        if word.value is None or "=" in word.value:
            return opaque(words, place + 1)
    if not found.runs:
        names = [literal(name) for name in ("GNUmakefile", "makefile", "Makefile")]
        return msgspec.structs.replace(found, runs=tuple(names))
    return found


def _scripts_of(*names: str) -> Check:
    """A program that runs what these files of the working directory say."""

    def check(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
        return msgspec.structs.replace(found, runs=(*found.runs, *map(literal, names)))

    return check


def _uniq(words: Sequence[Word], reading: Reading, found: Effect) -> Effect:
    """`uniq +N` is an old option, so that what follows is read and not written."""
    return opaque(words, len(words)) if any(word.begins.startswith("+") for word in reading.operands) else found


CHECKS: Mapping[str, Check] = {
    "grep": _grep,
    "rg": _rg,
    "uniq": _uniq,
    "tar": _tar,
    "strings": _strings,
    "tee": _tee,
    "xxd": _xxd,
    "zcat": _zcat,
    "sed": _sed,
    "awk": _awk,
    "jq": _jq,
    "yq": _yq,
    "git": _git,
    "git config": _git_setting,
    "reading call": _reading_call,
    "make": _make,
    "cmake": _cmake,
    "gs": _ghostscript,
    "go run": _go_run,
    "package.json": _scripts_of("package.json"),
    "Cargo.toml": _scripts_of("Cargo.toml", "build.rs"),
    "pom.xml": _scripts_of("pom.xml"),
    "build.gradle": _scripts_of("build.gradle", "build.gradle.kts", "settings.gradle"),
    "pyproject.toml": _scripts_of("pyproject.toml", "setup.py", "setup.cfg"),
    "conftest.py": _scripts_of("conftest.py", "pytest.ini", "pyproject.toml", "setup.cfg", "tox.ini"),
    "Justfile": _scripts_of("justfile", "Justfile", ".justfile"),
    "Rakefile": _scripts_of("Rakefile", "rakefile"),
    "Gemfile": _scripts_of("Gemfile"),
}
