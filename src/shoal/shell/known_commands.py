"""Compute the effect of a simple command from its words: what it runs, reads and writes, and whether that is known.

`programs.txt` lists the known programs and their options. An unknown command is never harmless. It may read and run
anything, and the rule that allows it must name it (`Effect.naming`). This module handles what the table cannot
express: scripts in arguments, settings, HTTP methods, expressions, commands that run commands, and shell builtins.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypeAlias

from msgspec.structs import replace

from shoal.shell.options import (
    ARGUMENTS,
    CHECKS,
    HARMLESS,
    PROGRAMS,
    Effect,
    Reading,
    check,
    literal,
    named_program,
    opaque,
    read_options,
    scripts_of,
    table_effect,
)
from shoal.shell.words import (
    Piece,
    Variables,
    Word,
    expand,
    harmless_variable,
    may_be_option,
    numeric,
    single,
    special_variable,
)

Own: TypeAlias = Callable[[Sequence[Word], Variables], Effect]

INERT_GIT_KEYS = re.compile(
    r"core\.(repositoryformatversion|filemode|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol|safecrlf"
    r"|quotepath|abbrev|compression|longpaths|preloadindex|untrackedcache|checkstat|trustctime|sharedrepository)"
    r"|user\.(name|email|useconfigonly|signingkey)|author\.(name|email)|committer\.(name|email)"
    r"|remote\.[^\n]*\.(url|pushurl|fetch|push|tagopt|prune|mirror)|branch\.[^\n]*\.(remote|merge|rebase|description)"
    r"|color\.[a-z.]+|init\.defaultbranch|pull\.(rebase|ff)|push\.(default|autosetupremote|followtags)|advice\.[a-z]+"
    r"|fetch\.(prune|prunetags)|merge\.(ff|conflictstyle)|rebase\.(autostash|autosquash)|commit\.verbose|tag\.sort"
    r"|status\.(short|branch|showuntrackedfiles|relativepaths)|log\.(date|decorate|follow|abbrevcommit)"
    r"|diff\.(renames|renamelimit|algorithm|mnemonicprefix|noprefix|context|interhunkcontext|colormoved|statgraphwidth)"
    r"|blame\.(date|showemail|coloring)|column\.[a-z]+|gc\.(auto|reflogexpire)|index\.version"
    r"|submodule\.[^\n]*\.(url|active)|http\.(postbuffer|sslverify)|safe\.directory|i18n\.[a-z]+|grep\.[a-z]+"
)
"""Matches lowercase configuration keys whose values never make git run a program or write elsewhere."""
_OWN: dict[str, Own] = {}


def _own(*names: str) -> Callable[[Own], Own]:
    def register(own: Own) -> Own:
        _OWN.update(dict.fromkeys(names, own))
        return own

    return register


# ---- any command ----

_SAFE_VALUE = re.compile(r"(?![/:])(?!.*\.\.)[A-Za-z0-9_.,=+@/-]*")


def effect_of(words: Sequence[Word], variables: Variables) -> Effect:
    name = words[0].value
    if not name or not name.isascii() or name.startswith("-"):
        return opaque(words)
    if "/" in name:
        return opaque(words, 1, runs=words[:1])
    if (own := _OWN.get(name)) is not None:
        return own(words, variables)
    program = PROGRAMS.get(name)
    effect = opaque(words, 1) if program is None else table_effect(program, words, variables)
    no_file = any(word.value == "-" or _NO_FILE.match(word.begins) for word in effect.runs)
    return opaque(words, 1) if no_file else effect  # The command runs its standard input, as `make -f -` does.


def harmless_assignment(name: str, value: str | None) -> bool:
    """Return True if this variable does not change a program's effect.

    For example, `TZ=:/FILE` returns False, because programs would read the file.
    """
    return (
        harmless_variable(name) and value is not None and (name == "PYTHONPATH" or bool(_SAFE_VALUE.fullmatch(value)))
    )


# ---- scripts, settings, methods ----

# Some versions of sed allow the delimiter between brackets, and others end the pattern there. A script must be plain in
# one interpretation, and plain or an error in the other. `{0}` is the delimiter.
_SED_TEXT = r"(?:\\[^\n]|[^{0}\\\n])*+"
_SED_BRACKETS = r"\[\^?+\]?+(?:\[[:.=][a-z]+[:.=]\]|[^\]\n\\\[]|\[(?![:.=])|\\[^\]\n])*+\]"
_SED_WITH_BRACKETS = rf"(?:\\[^\n]|{_SED_BRACKETS}|[^{{0}}\\\n\[])*+"
_DELIMITERS = (r"/", r"\|", "#", ",", ":", "@", "!", "%", "~", "_", ";")


@cache
def _sed_pattern(pattern: str) -> re.Pattern[str]:
    """Compile the pattern of plain scripts on first use, because that takes 8 ms."""
    address = rf"(?:[0-9]+(?:~[0-9]+)?|\$|/{pattern.format('/')}/[IM]*|[+~][0-9]+)"
    replacing = "|".join(
        rf"[sy]{mark}{pattern.format(mark)}{mark}{_SED_TEXT.format(mark)}{mark}[gpIiMm0-9]*" for mark in _DELIMITERS
    )
    text = r"[aic](?:\\\n|\\? ?)[^\n\\]*"
    command = rf"(?:[pPdDgGhHxnNlz=]|[qQ][0-9]*|[btT] ?[A-Za-z0-9_]*|:[A-Za-z0-9_]+|{replacing}|\{{|\}}|{text})"
    addressed = rf"[\s;]*+(?:{address}(?:,\s*+{address})?\s*+(?:!\s*+)?)?{command}[ \t]*+(?=[;\n}}]|$|(?<=\{{))"
    return re.compile(rf"(?:{addressed})*+[\s;]*")


_SED_ERROR = re.compile(r"\s*+[0-9,$]*+\s*+s([/|#,:@])(?:(?:\\.|(?!\1)[^\\\n])*+\1){2}[^gpiIMmew0-9\s;}#]")
_AWK_HIDES = re.compile(r"@|system|extension|getline|ARGV|ARGC|PROCINFO|ENVIRON|SYMTAB|FUNCTAB")
_JQ_READS_MORE = re.compile(r"\b(?:import|include|modulemeta)\b|(?<![.\w])env\b|\$ENV\b")
_YQ_HIDES = re.compile(r"load|env|system|exec|eval")


def sed_is_plain(script: str) -> bool:
    """Return True if a sed script only prints, deletes, inserts and replaces text. Others can run commands or use
    files.
    """
    ends_at_once = _sed_pattern(_SED_TEXT).fullmatch(script) is not None
    allows_brackets = _sed_pattern(_SED_WITH_BRACKETS).fullmatch(script) is not None
    return allows_brackets and (ends_at_once or _SED_ERROR.match(script) is not None)


def awk_is_plain(program: str) -> bool:
    """Return True if an awk program runs no command and opens no file. `>` and `|` do not redirect before the
    first `print`.
    """
    before_print = re.split(r"print", program, maxsplit=1)
    rest = before_print[1] if len(before_print) > 1 else ""
    return not (_AWK_HIDES.search(program) or re.search(r"[|>]", rest.replace("||", "")))


_AWK_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SIGNATURE = re.compile(r"%[-+ ]?G|signature")
_WEB = re.compile(r"https?://", re.IGNORECASE)
_HELPER = re.compile(r"[A-Za-z0-9+.-]+::")  # git runs git-remote-NAME for NAME::ADDRESS
_REMOTE = re.compile(r"(?:--file=)?[^/=:]*+:")
_TAR_LETTERS = re.compile(r"[cxtvzjJpkhamOPSwru]*+(?:f[cxtvzjJpkhamOPSwru]*+)?")
_CMAKE_SETTING = re.compile(
    r"(?!(?:(?!COMPILER|LAUNCHER|PROGRAM|EXECUTABLE|COMMAND|TOOLCHAIN|INCLUDE|LINKER|_AR\b|RULE).)*+.[^=]*+=)"
    r"[A-Z][A-Za-z0-9_]*(?::[A-Z]+)?=[A-Za-z0-9_.,/ +-]*"
)


@check("sed")
def _sed(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """The effect is known only for a plain script. With `-i`, sed also writes the files that it reads."""
    operands = list(reading.operands)
    scripts = reading.values("-e", "--expression")
    if not scripts and not reading.has("-f", "--file"):
        scripts = operands[:1]
        operands = operands[1:]
    files = reading.values("-f", "--file")
    if files or not scripts or not all(word.value is not None and sed_is_plain(word.value) for word in scripts):
        return opaque(words, runs=files)
    if reading.values("-i", "--in-place"):
        return replace(effect, harmless=False, reads=None)
    if reading.has("-i", "--in-place"):
        return replace(effect, reads=tuple(operands), writes=tuple(operands))
    return replace(effect, reads=tuple(operands))


@check("awk")
def _awk(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    files = reading.values("-f", "--file")
    program = reading.operands[0].value if reading.operands and not files else None
    if program is None or not awk_is_plain(program):
        return opaque(words, runs=files)
    data = tuple(word for word in reading.operands[1:] if not _AWK_ASSIGNMENT.match(word.begins))
    return replace(effect, reads=data)


@check("jq")
def _jq(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    script = reading.operands[0].value if reading.operands else ""
    is_plain = script is not None and not _JQ_READS_MORE.search(script) and not reading.has("-f", "--from-file")
    return effect if is_plain else replace(effect, reads=None)


@check("yq")
def _yq(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    is_plain = all(word.value is not None and not _YQ_HIDES.search(word.value) for word in reading.operands[:2])
    return effect if is_plain else opaque(words)


@check("git")
def _git(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """Settings on the command line must be inert. Formats must not verify signatures, because that runs another
    program.
    """
    for name, _, word in reading.options:
        value = "" if word is None else word.value
        if name == "^-c" and (value is None or not INERT_GIT_KEYS.fullmatch(value.partition("=")[0].lower())):
            named = (place + 1 for place, word in enumerate(words) if word.begins.startswith("-c"))
            return opaque(words, next(named, len(words)))  # for `git -Pc…`, a rule must name all words
        if name in ("--format", "--pretty", "--group", "--sort") and (value is None or _SIGNATURE.search(value)):
            return opaque(words)
        # The options that have a value differ by subcommand, so every word that looks like an option counts as one.
        if word is not None and word in words and word.begins.startswith("-") and name not in ("-m", "--message"):
            return opaque(words)
    for place, word in zip(reading.places, reading.operands, strict=True):
        if _HELPER.match(word.begins):
            return opaque(words, place + 1)
    reads = None if effect.reads is None else (*effect.reads, literal("."))
    name = next((word.value or "" for word in words[1:] if word.value in PROGRAMS["git"].subs), "git")
    if name == "branch" and (reading.operands or any(option in _CHANGES_BRANCHES for option, _, _ in reading.options)):
        effect, reads = replace(effect, harmless=False), None
    if name == "commit" and not reading.has("-m", "-F", "-C", "--message", "--file", "--reuse-message", "--no-edit"):
        effect = replace(effect, harmless=False)  # This starts the editor, which reads its own settings.
    return replace(effect, git=name, reads=reads)


_CHANGES_BRANCHES = frozenset(
    """
    -d -D -m -M -c -C -u -f --delete --force --move --copy --track --no-track --set-upstream-to --unset-upstream
    --create-reflog
    """.split()  # noqa: SIM905
)


@check("git-config")
def _git_setting(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """Reading a setting is harmless. The effect of writing one is known only for settings that run nothing."""
    if reading.has("--get", "--get-all", "--get-regexp", "--list", "-l"):
        return _git(words, reading, replace(effect, harmless=True, reads=()))
    name = reading.operands[0].value if reading.operands else None
    if name is None or not INERT_GIT_KEYS.fullmatch(name.lower()):
        return opaque(words, 2)
    return _git(words, reading, effect)


@check("grep")
def _grep(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """Without a file, `grep -r` searches the working directory."""
    recursive = reading.has("-r", "-R", "--recursive", "--dereference-recursive", "-d", "--directories")
    if recursive and effect.reads is not None and len(reading.operands) < 2:
        return replace(effect, reads=(*effect.reads, literal(".")))
    return effect


@check("rg")
def _rg(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """With `--files`, every operand is a path, because there is no pattern."""
    if not reading.has("--files") or effect.reads is None:
        return effect
    return replace(effect, reads=(*effect.reads, *reading.operands))


@check("strings")
def _strings(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """`strings @FILE` reads options from the file, even in place of an option's value."""
    named = all(word.value != "" and word.begins[:1] not in ("", "@") for word in words)
    return effect if named else replace(effect, reads=None)


@check("tee")
def _tee(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """`tee -a` preserves the content of the file, so it counts as a read."""
    return replace(effect, reads=effect.writes) if reading.has("-a", "--append") else effect


@check("xxd")
def _xxd(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """`xxd FILE -r` writes a file named `-r`. `xxd -r FILE OTHER` changes only parts of OTHER."""
    if reading.places and reading.places != list(range(reading.places[0], len(words))):
        return opaque(words)
    return effect if effect.reads is None else replace(effect, reads=(*effect.reads, *effect.writes))


@check("zcat")
def _zcat(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """`zcat NAME` may read `NAME.gz` if NAME has no known extension."""
    named = all(word.value is not None and re.search(r"[.](?:gz|tgz|z)$", word.value) for word in reading.operands)
    return effect if named else replace(effect, reads=None)


@check("unzip")
def _unzip(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """The effect is known only for `unzip -l NAME`.

    `unzip` reads `NAME.zip` or `NAME.ZIP` if NAME does not exist, and it expands patterns.
    """
    name = words[2].value if len(words) == 3 and words[1].value == "-l" else None
    if name is None or not re.fullmatch(r"(?!-)[\w ./-]+", name):
        return effect
    return replace(HARMLESS, reads=tuple(literal(f"{name}{ending}") for ending in ("", ".zip", ".ZIP")))


@check("tar")
def _tar(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """The first word of `tar xzf FILE` is a cluster of options without a dash. `HOST:FILE` starts a remote shell."""
    first = words[1] if len(words) > 1 else literal("")
    for place, word in enumerate(words):
        if not word.certain or _REMOTE.match(word.begins) or (word.value is None and "/" not in word.begins):
            return opaque(words, place + 1)
    if not first.begins.startswith("-") and not (first.value and _TAR_LETTERS.fullmatch(first.value)):
        return opaque(words, 2)
    return effect


@check("reading-call")
def _reading_call(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    methods = reading.values("-X", "--method", "--request")
    sends = reading.has("-f", "-F", "--field", "--raw-field") and words[0].value == "gh" and not methods
    if sends or any(word.value not in ("GET", "HEAD", "OPTIONS") for word in methods):
        return opaque(words)
    # `gopher://HOST:PORT/_TEXT` sends arbitrary text to any port.
    addresses = [*reading.operands, *reading.values("--url")]
    if any("://" in word.text and not _WEB.match(word.begins) for word in addresses):
        return opaque(words)
    return effect


@check("go-run")
def _go_run(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """`go run NAME@VERSION` downloads the program."""
    return opaque(words) if any("@" in word.text for word in reading.operands) else effect


@check("gs")
def _ghostscript(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """`gs %pipe%COMMAND` runs the command."""
    named = all(word.value is not None and not re.search(r"[%|]", word.value) for word in words)
    return effect if named else opaque(words)


@check("cmake")
def _cmake(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """The effect of `cmake -D NAME=VALUE` is known unless the setting names a program."""
    if not all(word.value is not None and _CMAKE_SETTING.fullmatch(word.value) for word in reading.values("-D")):
        return opaque(words)
    return replace(effect, runs=(*effect.runs, literal("CMakeLists.txt")))


@check("make")
def _make(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """An assignment among make's arguments may replace the shell."""
    for place, word in zip(reading.places, reading.operands, strict=True):
        if word.value is None or "=" in word.value:
            return opaque(words, place + 1)
    if not effect.runs:
        return replace(effect, runs=tuple(literal(name) for name in ("GNUmakefile", "makefile", "Makefile")))
    return effect


_SCRIPTS = {
    "package.json": ("package.json",),
    "Cargo.toml": ("Cargo.toml", "build.rs"),
    "pom.xml": ("pom.xml",),
    "build.gradle": ("build.gradle", "build.gradle.kts", "settings.gradle"),
    "pyproject.toml": ("pyproject.toml", "setup.py", "setup.cfg"),
    "conftest.py": ("conftest.py", "pytest.ini", "pyproject.toml", "setup.cfg", "tox.ini"),
    "Justfile": ("justfile", "Justfile", ".justfile"),
    "Rakefile": ("Rakefile", "rakefile"),
    "setup.cfg": ("setup.cfg", "tox.ini", ".flake8"),
    "Gemfile": ("Gemfile",),
}


def _runs_files(files: Sequence[str], words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    return replace(effect, runs=(*effect.runs, *map(literal, files)))


CHECKS.update({name: partial(_runs_files, files) for name, files in _SCRIPTS.items()})


@check("tox")
def _tox(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """`tox exec` runs its arguments as a command, and `tox devenv` installs its arguments."""
    for place, word in zip(reading.places, reading.operands, strict=True):
        if word.value in (None, "exec", "e", "devenv", "d"):
            return opaque(words, place + 1)
        if words[place - 1].value == "--":
            break
    return _runs_files(("tox.ini", "noxfile.py", "pyproject.toml", "setup.cfg"), words, reading, effect)


@check("npm-run")
def _npm_run(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """`npm run env COMMAND` runs a command. Other names are scripts of `package.json`."""
    if reading.operands and reading.operands[0].value in (None, "env"):
        return opaque(words, reading.places[0] + 1)
    return _runs_files(_SCRIPTS["package.json"], words, reading, effect)


@check("dotnet")
def _dotnet(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """`dotnet build /p:PreBuildEvent=COMMAND` sets a build property that may be a command."""
    for place, word in zip(reading.places, reading.operands, strict=True):
        if word.value is None or (word.value.startswith("/") and ":" in word.value):
            return opaque(words, place + 1)
    return effect


@check("uniq")
def _uniq(words: Sequence[Word], reading: Reading, effect: Effect) -> Effect:
    """After the old option `+N`, uniq reads the next file instead of writing it."""
    return opaque(words) if any(word.begins.startswith("+") for word in reading.operands) else effect


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_FORMAT = re.compile(
    r"(?:[^%]|%%|%[-+ #0']*+(?:\*|[1-9][0-9]*+)?(?:\.(?:\*|[0-9]*+))?"
    r"(?:[hjlLtz]*+[diouxXeEfFgGaAcsbqQ]|\([^()]*+\)T))*+",
    re.DOTALL,
)
_SET_OPTION = re.compile(r"[-+][euxfo]+|pipefail|errexit|nounset|xtrace")
_UNARY = re.compile(r"-[abcdefghknoprstuwxzGLNOSt]")
_BINARY = re.compile(r"-(?:eq|ne|lt|le|gt|ge|nt|ot|ef|a|o)|==?|!=|[<>]")
_SH_DIFFERS = re.compile(r"[\\{}\[\]()!`~]|\$['\"]|&>|\|&|<<|>&(?![12](?:\s|$))|<&")
_NO_FILE = re.compile(r"[-+]|/dev/|/proc/|$")  # options, devices and empty words, which are not script files
_CLUSTER_WITH_C = re.compile(r"-[euxl]*c")


_SHELLS_OF_SCRIPTS = frozenset({"tinker", "shell", "shell_plus", "dbshell", "runner", "eval", "console"})
"""Subcommands of `manage.py`, `artisan` and similar tools that run code from their arguments."""


@_own("python", "python3", *(f"python3.{number}" for number in range(8, 16)))
def _python(words: Sequence[Word], variables: Variables) -> Effect:
    """`-m MODULE` ends the interpreter's options, as a script does."""
    place = 1
    while place < len(words) and words[place].begins.startswith("-") and not words[place].begins.startswith("-m"):
        place += 2 if words[place].value in ("-W", "-X") else 1
    if place >= len(words) or not words[place].begins.startswith("-m"):
        return _interpreter(words, variables)
    if words[place].value != "-m" or read_options(PROGRAMS["python3"], words[:place], variables).offending is not None:
        return opaque(words, place + 1)
    effect = table_effect(PROGRAMS["-m"], words[place:], variables)
    return opaque(words, place + 1) if effect.naming is not None else effect


@_own("node", "ruby", "php", "Rscript", "julia", "lua", "tsx", "ts-node", "perl")
def _interpreter(words: Sequence[Word], variables: Variables) -> Effect:
    reading = read_options(PROGRAMS[words[0].value or ""], words, variables)
    if reading.offending is not None:
        return opaque(words, reading.offending + 1)
    if reading.has("--version", "-V", "-v", "--help", "-h") and len(words) == 2:
        return HARMLESS if (words[0].value or "").startswith("python") else Effect(runs_more=True)
    if reading.has("--test") and all(word.value is not None for word in reading.operands):
        return Effect(runs=tuple(reading.operands), runs_more=True)
    script = reading.operands[0] if reading.operands else literal("-")
    named = script.value is not None or bool(expand(script, variables)) or not script.splits
    if not named or not single(script) or script.value in ("inspect", "watch") or _NO_FILE.match(script.begins):
        return opaque(words, reading.places[0] + 1 if reading.places else 1)
    if len(reading.operands) > 1 and reading.operands[1].value in _SHELLS_OF_SCRIPTS:
        return opaque(words, reading.places[1] + 1)
    if (named := named_program(words, reading)) is not None:
        return opaque(words, named + 1)
    return Effect(runs=(reading.operands[0], *scripts_of(reading)), runs_more=True)


@_own("bash", "sh")
def _shell(words: Sequence[Word], variables: Variables) -> Effect:
    """`bash FILE` and `sh FILE` run a file, and `-c TEXT` runs the text.

    The effect of `sh -c` is known only for text that all shells interpret alike.
    """
    if len(words) > 2 and words[1].value is not None and _CLUSTER_WITH_C.fullmatch(words[1].value):
        text = words[2].value
        if text is None or (words[0].value == "sh" and _SH_DIFFERS.search(text)) or "l" in words[1].value:
            return opaque(words, 1)
        return Effect(harmless=True, reads=(), script=text)
    effect = _interpreter(words, variables)
    return effect if effect.naming is None else opaque(words, 1, runs=effect.runs)


@_own(".", "source")
def _source(words: Sequence[Word], variables: Variables) -> Effect:
    file = words[1] if len(words) == 2 and single(words[1]) else None
    if file is not None and file.value is not None and re.fullmatch(r"([^-].*/)?bin/activate", file.value):
        return Effect(runs=(file,), runs_more=True)
    return opaque(words, 1, runs=words[1:2])


@_own("env")
def _env(words: Sequence[Word], variables: Variables) -> Effect:
    """The effect of `env NAME=VALUE… COMMAND` is known for variables that change only the command's output."""
    reading = read_options(PROGRAMS["env"], words, variables)
    if reading.offending is not None:
        return opaque(words, 1)
    for number, word in enumerate(reading.operands):
        name = _ASSIGNMENT.match(word.begins)
        if name is None:
            return Effect(harmless=True, reads=(), commands=(tuple(reading.operands[number:]),))
        if not harmless_assignment(name[1], None if word.value is None else word.value[name.end() :]):
            return opaque(words, 1)
    unset = [word.value or "" for word in reading.values("-u", "--unset")]
    return Effect() if all(harmless_variable(name) for name in unset) else opaque(words, 1)


@_own("xargs")
def _xargs(words: Sequence[Word], variables: Variables) -> Effect:
    """xargs appends unknown words to the command, or inserts them where the command contains the `-I` text."""
    reading = read_options(PROGRAMS["xargs"], words, variables)
    if reading.offending is not None:
        return opaque(words, 1)
    inner = reading.operands or [literal("echo")]
    marks = [word.value for word in reading.values("-I")]
    if not marks or reading.has("-n", "-L", "--max-args", "--max-lines"):  # these options and `-I` override each other
        inner = [*inner, ARGUMENTS]
    for mark in marks:
        if not mark:
            return opaque(words, 1)
        inner = [_with_unknown(word, mark) for word in inner]
    return Effect(harmless=True, reads=(), commands=(tuple(inner),))


def _with_unknown(word: Word, mark: str, pieces: tuple[Piece, ...] = (Piece("unknown"),), begins: str = "") -> Word:
    if word.value is None:
        return Word(
            word.text, None, "", word.splits, pieces=(Piece("unknown"),)
        )  # The unknown value may contain the `-I` placeholder.
    if mark not in word.value:
        return word
    whole = word.value == mark
    return Word(
        word.text, None, begins if whole else word.value.split(mark)[0], pieces=pieces if whole else (Piece("unknown"),)
    )


_FIND_PLAIN = frozenset(
    """
    -L -H -P -print -print0 -ls -prune -quit -o -a -or -and -not ! ( ) , -empty -readable -writable -executable -depth
    -xdev -mount -noleaf -true -false -daystart -nouser -nogroup -follow -O1 -O2 -O3 -delete -warn -nowarn
    """.split()  # noqa: SIM905
)
_FIND_WITH_VALUE = frozenset(
    """
    -name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -type -xtype -size -mtime -mmin -atime
    -amin -ctime -cmin -perm -user -group -uid -gid -maxdepth -mindepth -links -inum -printf -newer -newermt -newerct
    -newerat -anewer -cnewer -samefile -lname -ilname -fstype -used
    """.split()  # noqa: SIM905
)


_EXEC_MARKS = frozenset({";", "+", "{}"})
_FIND_OTHERS = frozenset({"-o", "-or", "!", "-not", ",", "-L", "-follow"})


@_own("find")
def _find(words: Sequence[Word], variables: Variables) -> Effect:
    """The arguments are paths and then an expression, every word of which must be known.

    `-exec` runs a command for each match.
    """
    place, paths = 1, list[Word]()
    while place < len(words) and words[place].value in ("-L", "-H", "-P"):
        place += 1
    while place < len(words) and _is_path(words[place], variables):
        paths.append(words[place])
        place += 1
    commands: list[tuple[Word, ...]] = []
    harmless, only_files = True, False
    values = [word.value for word in words]
    known = "-L" not in values and "-follow" not in values
    while place < len(words):
        value = words[place].value or ""
        if value == "-exec":
            ends = (
                at
                for at in range(place, len(words))
                if values[at] == ";" or (values[at] == "+" and values[at - 1] == "{}")
            )
            end = next(ends, 0)
            if not end or any(_may_end_exec(word, variables) for word in words[place + 1 : end]):
                return opaque(words, place + 1)
            # Unless `find` returns only regular files, a match may be a symlink, and the command opens its target.
            plain = only_files and not _FIND_OTHERS & {*values}
            named = words[place + 1 : end]
            if words[end].value == "+":  # An option may consume the first name.
                named = [*named, named[-1]]
            # A match begins with one of the paths, so it is not an option.
            below = paths if plain else [ARGUMENTS]
            start = below[0].value if len(below) == 1 else None
            if not below:
                pieces, begins = (Piece("below", "."),), "./"
            elif start is not None:
                pieces, begins = (Piece("below", start),), start
            else:
                pieces, begins = (Piece("unknown"),), "./"
            commands.append(tuple(_with_unknown(word, "{}", pieces, begins) for word in named))
            place = end
        elif value in _FIND_WITH_VALUE:
            place += 1
            if place == len(words) or not single(words[place]):
                return opaque(words, place + 1)
            only_files = only_files or (value == "-type" and words[place].value == "f")
        elif value not in _FIND_PLAIN:
            return opaque(words, place + 1)
        harmless = harmless and value != "-delete"
        place += 1
    reads = tuple(paths) or (literal("."),)
    return Effect(harmless=harmless, reads=reads if known else None, commands=tuple(commands))


def _is_path(word: Word, variables: Variables) -> bool:
    if word.value is not None:
        return word.value[:1] not in ("-", "(", ")", "!", ",")
    texts = expand(word, variables)
    if texts is None:
        return bool(word.begins) and word.begins[0] not in "-()!," and not word.splits
    return all(text[:1] not in ("-", "(", ")", "!", ",", "\0", "\1", "") for text in texts)


def _may_end_exec(word: Word, variables: Variables) -> bool:
    if word.value is not None:
        return False
    texts = expand(word, variables)
    if texts is None:
        return not single(word) or any(mark.startswith(word.begins) for mark in _EXEC_MARKS)
    return not single(word) or not _EXEC_MARKS.isdisjoint(texts)


@_own("test", "[")
def _test(words: Sequence[Word], variables: Variables) -> Effect:
    """`-v` and `-R` evaluate their operand, even if the operator comes from a variable."""
    inner = list(words[1:])
    if words[0].value == "[" and (not inner or inner.pop().value != "]"):
        return opaque(words)
    while inner and inner[0].value == "!":
        inner.pop(0)
    values = [word.value for word in inner]
    fine = all(single(word) or numeric(word, variables) for word in inner) and not any(
        value in ("-v", "-R") for value in values
    )
    if len(inner) == 2:
        fine = fine and values[0] is not None and _UNARY.fullmatch(values[0]) is not None
    elif len(inner) == 3:
        fine = fine and values[1] is not None and _BINARY.fullmatch(values[1]) is not None
    elif len(inner) > 3:
        fine = fine and None not in values
    return HARMLESS if fine else opaque(words)


@_own("printf")
def _printf(words: Sequence[Word], variables: Variables) -> Effect:
    """The format must not be an option.

    If words follow the format, its conversions must be known, because `%n` and `%ln` set the variable that a word
    names.
    """
    form, more = (words[2:3], words[3:]) if len(words) > 2 and words[1].value == "--" else (words[1:2], words[2:])
    for word in form:
        is_option = word is words[1] and word.value != "" and (not word.begins or word.begins.startswith("-"))
        if not single(word) or is_option or (more and (word.value is None or not _FORMAT.fullmatch(word.value))):
            return opaque(words)
    return HARMLESS


@_own("read", "mapfile", "readarray", "unset", "getopts")
def _setter(words: Sequence[Word], variables: Variables) -> Effect:
    """The variable names must be literal, and must not affect the shell or other programs."""
    name = words[0].value or ""
    reading = read_options(PROGRAMS[name], words, variables)
    names = [word.value or "" for word in (reading.operands[1:2] if name == "getopts" else reading.operands)]
    if reading.offending is not None or not all(_NAME.fullmatch(name) for name in names):
        return opaque(words)
    return opaque(words) if any(special_variable(name) and name != "REPLY" for name in names) else HARMLESS


@_own("export")
def _export(words: Sequence[Word], variables: Variables) -> Effect:
    fine = all(
        word.value is not None and harmless_assignment(word.value.partition("=")[0], word.value.partition("=")[2])
        for word in words[1:]
    )
    return HARMLESS if fine and len(words) > 1 else opaque(words)


@_own("set")
def _set(words: Sequence[Word], variables: Variables) -> Effect:
    return HARMLESS if all(_SET_OPTION.fullmatch(word.value or "") for word in words[1:]) else opaque(words, 1)


@_own("command")
def _command(words: Sequence[Word], variables: Variables) -> Effect:
    if len(words) > 1 and words[1].value in ("-v", "-V"):
        return HARMLESS
    if len(words) > 1 and words[1].value is not None and not words[1].value.startswith("-"):
        return Effect(harmless=True, reads=(), commands=(tuple(words[1:]),))
    return opaque(words, 1)


@_own("wait")
def _wait(words: Sequence[Word], variables: Variables) -> Effect:
    return HARMLESS if not any(may_be_option(word, variables) for word in words[1:]) else opaque(words)
