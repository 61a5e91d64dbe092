"""What simple commands do, from their words alone: what they run, read and write, and whether that is known.

Known is a list: a program counts by its bare name, with options that are each on its own list (`programs.py`). Whatever
is not known has to be named by whoever allows it (`Effect.naming`), is never harmless, and may read and run anything.
Here is what the table cannot say: scripts among the words, expressions, commands that run commands, the shell's own.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from shoal.permissions.checks import CHECKS
from shoal.permissions.effects import ARGUMENTS, Effect, literal, opaque, scripts_of, table_effect
from shoal.permissions.expansion import Variables, expand, may_be_option, numeric, single
from shoal.permissions.options import Program, read_options
from shoal.permissions.programs import PROGRAMS
from shoal.permissions.variables import harmless_variable, special_variable
from shoal.permissions.words import Piece, Word

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_FORMAT = re.compile(
    r"(?:[^%]|%%|%[-+ #0']*(?:\*|[0-9]+)?(?:\.(?:\*|[0-9]*))?(?:[hjlLtz]*[diouxXeEfFgGaAcsbqQ]|\([^()]*\)T))*",
    re.DOTALL,
)
_SET_OPTION = re.compile(r"[-+][euxfo]+|pipefail|errexit|nounset|xtrace")
_UNARY = re.compile(r"-[abcdefghknoprstuwxzGLNOSt]")
_BINARY = re.compile(r"-(?:eq|ne|lt|le|gt|ge|nt|ot|ef|a|o)|==?|!=|[<>]")
_SH_DIFFERS = re.compile(r"[\\{}\[\]()!`~]|\$['\"]|&>|\|&|<<|>&(?![12](?:\s|$))|<&")
_NO_FILE = re.compile(r"[-+]|/dev/|/proc/|$")  # what an interpreter is given instead of a script
_SAFE_VALUE = re.compile(r"(?![/:])(?!.*\.\.)[A-Za-z0-9_.,=+@/-]*")
_CLUSTER_WITH_C = re.compile(r"-[euxl]*c")


def effect_of(words: Sequence[Word], variables: Variables) -> Effect:
    """What a simple command does. Total: whatever is not known is opaque."""
    name = words[0].value
    if not name or not name.isascii() or name.startswith("-"):
        return opaque(words, len(words))
    if "/" in name:
        return opaque(words, 1, runs=words[:1])
    own = _OWN.get(name)
    if own is not None:
        return own(words, variables)
    program = PROGRAMS.get(name)
    if program is None:
        return opaque(words, 1)
    return table_effect(program, words, variables, CHECKS)


def harmless_assignment(name: str, value: str | None) -> bool:
    """Whether a program does the same with this variable: `TZ=:/FILE` would have it read a file."""
    return (
        harmless_variable(name) and value is not None and (name == "PYTHONPATH" or bool(_SAFE_VALUE.fullmatch(value)))
    )


def _python(words: Sequence[Word], variables: Variables) -> Effect:
    """An interpreter of Python: `-m MODULE` ends its options as a script does."""
    place = 1
    while place < len(words) and words[place].begins.startswith("-") and not words[place].begins.startswith("-m"):
        place += 2 if words[place].value in ("-W", "-X") else 1
    if place >= len(words) or not words[place].begins.startswith("-m"):
        return _interpreter(words, variables)
    if words[place].value != "-m" or read_options(PROGRAMS["python3"], words[:place], variables).offending is not None:
        return opaque(words, place + 1)
    found = table_effect(PROGRAMS["python3 -m"], words[place:], variables, CHECKS)
    return opaque(words, place + 1) if found.naming is not None else found


def _interpreter(words: Sequence[Word], variables: Variables) -> Effect:
    """A program that runs the file that its first operand names; without one it reads commands."""
    program = PROGRAMS[words[0].value or ""]
    reading = read_options(program, words, variables)
    if reading.offending is not None:
        return opaque(words, reading.offending + 1)
    if reading.has("--version", "-V", "-v", "--help", "-h") and len(words) == 2:
        return (
            Effect(harmless=True, reads=()) if (words[0].value or "").startswith("python") else Effect(runs_more=True)
        )
    if reading.has("--test") and all(word.value is not None for word in reading.operands):
        return Effect(runs=tuple(reading.operands), runs_more=True)
    script = reading.operands[0] if reading.operands else literal("-")
    named = script.value is not None or bool(expand(script, variables)) or not script.splits
    if not named or not single(script) or script.value in ("inspect", "watch") or _NO_FILE.match(script.begins):
        return opaque(words, reading.places[0] + 1 if reading.places else 1)
    return Effect(runs=(reading.operands[0], *scripts_of(reading)), runs_more=True)


def _shell(words: Sequence[Word], variables: Variables) -> Effect:
    """`bash FILE` runs a file, `bash -c TEXT` what the text says; `sh` only where every shell reads it alike."""
    if len(words) > 2 and words[1].value is not None and _CLUSTER_WITH_C.fullmatch(words[1].value):
        text = words[2].value
        if text is None or (words[0].value == "sh" and _SH_DIFFERS.search(text)) or "l" in words[1].value:
            return opaque(words, 1)
        return Effect(harmless=True, reads=(), script=text)
    found = _interpreter(words, variables)
    return found if found.naming is None else opaque(words, 1, runs=found.runs)


def _source(words: Sequence[Word], variables: Variables) -> Effect:
    """`source FILE` runs a file in the shell itself: known for the one that turns on a virtual environment."""
    file = words[1] if len(words) == 2 and single(words[1]) else None
    if file is not None and file.value is not None and re.fullmatch(r"([^-].*/)?bin/activate", file.value):
        return Effect(runs=(file,), runs_more=True)
    return opaque(words, 1, runs=words[1:2])


def _env(words: Sequence[Word], variables: Variables) -> Effect:
    """`env NAME=VALUE… COMMAND`: variables that change nothing but what the command shows."""
    reading = read_options(Program(options="-i -u= --ignore-environment --unset=", style="posix"), words, variables)
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


_XARGS = Program(
    style="posix",
    options="-0rtx -n= -P= -L= -I= -d= -s= --null --no-run-if-empty --max-args= --max-procs= --max-lines= --delimiter=",
)


def _xargs(words: Sequence[Word], variables: Variables) -> Effect:
    """`xargs COMMAND`: words that nobody knows are appended, or stand where `-I` says."""
    options = (
        "-0rtx -n= -P= -L= -I= -d= -s= --null --no-run-if-empty --max-args= --max-procs= --max-lines= --delimiter="
    )
    reading = read_options(Program(options=options, style="posix"), words, variables)
    if reading.offending is not None:
        return opaque(words, 1)
    inner = reading.operands or [literal("echo")]
    marks = [word.value for word in reading.values("-I")]
    if not marks or reading.has("-n", "-L", "--max-args", "--max-lines"):  # the last of them counts
        inner = [*inner, ARGUMENTS]
    for mark in marks:
        if not mark:
            return opaque(words, 1)
        inner = [_with_unknown(word, mark) for word in inner]
    return Effect(harmless=True, reads=(), commands=(tuple(inner),))


def _with_unknown(word: Word, mark: str, pieces: tuple[Piece, ...] = (Piece("unknown"),), begins: str = "") -> Word:
    """The word with a mark replaced by what is not known; as it is where it has none for sure."""
    if word.value is None:
        return Word(word.text, None, "", word.splits, pieces=(Piece("unknown"),))  # its value may have one
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


def _find(words: Sequence[Word], variables: Variables) -> Effect:
    """`find`: paths, then an expression of which every word is known; `-exec` runs a command for what it finds."""
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
            end = next((at for at in range(place, len(words)) if _ends_exec(words, at)), 0)
            if not end or any(_may_end_exec(word, variables) for word in words[place + 1 : end]):
                return opaque(words, place + 1)
            # What find names may be a link, and the command opens what that leads to, unless only files are asked for.
            plain = only_files and not _FIND_OTHERS & {*values}
            named = words[place + 1 : end]
            if words[end].value == "+":  # it names several, of which an option may take the first as its value
                named = [*named, named[-1]]
            commands.append(_found_by_find(named, paths if plain else [ARGUMENTS]))
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
    """Whether a word of find's can only be a path where it begins."""
    if word.value is not None:
        return word.value[:1] not in ("-", "(", ")", "!", ",")
    texts = expand(word, variables)
    if texts is None:
        return bool(word.begins) and word.begins[0] not in "-()!," and not word.splits
    return all(text[:1] not in ("-", "(", ")", "!", ",", "\0", "\1", "") for text in texts)


def _ends_exec(words: Sequence[Word], place: int) -> bool:
    return words[place].value == ";" or (words[place].value == "+" and words[place - 1].value == "{}")


def _may_end_exec(word: Word, variables: Variables) -> bool:
    if word.value is not None:
        return False
    texts = expand(word, variables)
    if texts is None:
        return not single(word) or any(mark.startswith(word.begins) for mark in _EXEC_MARKS)
    return not single(word) or not _EXEC_MARKS.isdisjoint(texts)


def _found_by_find(words: Sequence[Word], paths: Sequence[Word]) -> tuple[Word, ...]:
    """The command that find runs: a found name begins as one of the paths does, so it is no option."""
    start = paths[0].value if len(paths) == 1 else None
    if not paths:
        pieces, begins = (Piece("below", "."),), "./"
    elif start is not None:
        pieces, begins = (Piece("below", start),), start
    else:
        pieces, begins = (Piece("unknown"),), "./"
    return tuple(_with_unknown(word, "{}", pieces, begins) for word in words)


def _test(words: Sequence[Word], variables: Variables) -> Effect:
    """`test` and `[`: `-v` and `-R` evaluate their operand, also where a variable's value takes an operator's place."""
    inner = list(words[1:])
    if words[0].value == "[" and (not inner or inner.pop().value != "]"):
        return opaque(words, len(words))
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
    return Effect(harmless=True, reads=()) if fine else opaque(words, len(words))


def _printf(words: Sequence[Word], variables: Variables) -> Effect:
    """`printf FORMAT WORDS…`: the format is no option, and has conversions that are known where there are words for
    them: `%n` and `%ln` set the variable that a word names."""
    form, more = (words[2:3], words[3:]) if len(words) > 2 and words[1].value == "--" else (words[1:2], words[2:])
    for word in form:
        is_option = word is words[1] and word.value != "" and (not word.begins or word.begins.startswith("-"))
        if not single(word) or is_option or (more and (word.value is None or not _FORMAT.fullmatch(word.value))):
            return opaque(words, len(words))
    return _NOTHING


_SETTING = {
    "read": Program(options="-rsea -p= -n= -N= -t= -d= -u=", style="posix"),
    "mapfile": Program(options="-t -n= -d= -s= -u=", style="posix"),
    "readarray": Program(options="-t -n= -d= -s= -u=", style="posix"),
    "unset": Program(options="-v", style="posix"),
    "getopts": Program(style="posix"),
}


def _setter(words: Sequence[Word], variables: Variables) -> Effect:
    """`read` and the like: the names of the variables they set are spelled out and mean nothing to programs."""
    name = words[0].value or ""
    reading = read_options(_SETTING[name], words, variables)
    names = [word.value or "" for word in (reading.operands[1:2] if name == "getopts" else reading.operands)]
    if reading.offending is not None or not all(_NAME.fullmatch(one) for one in names):
        return opaque(words, len(words))
    return opaque(words, len(words)) if any(special_variable(one) and one != "REPLY" for one in names) else _NOTHING


def _export(words: Sequence[Word], variables: Variables) -> Effect:
    """`export NAME=VALUE…` of variables that change nothing but what programs show."""
    fine = all(
        word.value is not None and harmless_assignment(word.value.partition("=")[0], word.value.partition("=")[2])
        for word in words[1:]
    )
    return _NOTHING if fine and len(words) > 1 else opaque(words, len(words))


_NOTHING = Effect(harmless=True, reads=())


def _set(words: Sequence[Word], variables: Variables) -> Effect:
    return _NOTHING if all(_SET_OPTION.fullmatch(word.value or "") for word in words[1:]) else opaque(words, 1)


def _command(words: Sequence[Word], variables: Variables) -> Effect:
    """`command -v NAME` looks a name up, `command NAME` runs it."""
    if len(words) > 1 and words[1].value in ("-v", "-V"):
        return _NOTHING
    if len(words) > 1 and words[1].value is not None and not words[1].value.startswith("-"):
        return Effect(harmless=True, reads=(), commands=(tuple(words[1:]),))
    return opaque(words, 1)


def _wait(words: Sequence[Word], variables: Variables) -> Effect:
    return _NOTHING if not any(may_be_option(word, variables) for word in words[1:]) else opaque(words, len(words))


_OWN: Mapping[str, Callable[[Sequence[Word], Variables], Effect]] = {
    **dict.fromkeys(("python", "python3", *(f"python3.{number}" for number in range(8, 16))), _python),
    **dict.fromkeys(("node", "ruby", "php", "Rscript", "julia", "lua", "tsx", "ts-node", "perl"), _interpreter),
    **dict.fromkeys(("bash", "sh"), _shell),
    **dict.fromkeys((".", "source"), _source),
    **dict.fromkeys(("test", "["), _test),
    **dict.fromkeys(_SETTING, _setter),
    "env": _env,
    "xargs": _xargs,
    "find": _find,
    "printf": _printf,
    "export": _export,
    "set": _set,
    "command": _command,
    "wait": _wait,
}
