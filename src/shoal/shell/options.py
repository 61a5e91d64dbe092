"""Parse a program's arguments by its entry in the table of known programs (`programs.txt`), and derive the effect.

| syntax | how it is parsed |
|---|---|
| clusters (`-qu CMD`), attached values (`-nOCMD`, `--name=value`), values in the next word | supported |
| abbreviated long options | unknown options, because the table may not list all options |
| options after operands | supported, unless `style` is `posix`. In that style, the first operand ends the options |
| `--` | ends the options. All words after it are operands |
| one dash and many letters (`go`, `java`) | `style` is `words` |
| one dash and many letters, and values attached to one letter (`gcc -Idir`) | `style` is `compiler` |
| programs without options (`echo`) | `style` is `none` |

Parsing ends at the first word that is unknown, or that may become an unknown option. For `free` programs, where that
does not matter, the result is `unsure`, and the files that the program reads are unknown.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec

from shoal.shell.words import Piece, Variables, Word, after, expand, may_be_option, single

Kind: TypeAlias = Literal["pure", "change", "outside", "code"]
Style: TypeAlias = Literal["gnu", "posix", "words", "compiler", "none"]


class Program(msgspec.Struct, frozen=True, dict=True):
    """The facts that `programs.txt` lists about a program. The file describes the fields."""

    operands: str = ""
    options: str = ""
    kind: Kind = "pure"
    startup: str = ""
    free: bool = False
    here: bool = False
    rest: bool = False
    style: Style = "gnu"
    subs: "dict[str, Program]" = {}
    check: str = ""

    @cached_property
    def known(self) -> Mapping[str, str]:
        """Maps the name of each option to the role of its value, or to `flag` if it has no value."""
        roles: dict[str, str] = {}
        for token in self.options.split():
            name, equals, role = token.partition("=")
            role = role or ":" if equals else "flag"
            if name.startswith("--") or self.style in ("words", "compiler") or name == "-#":
                roles[name] = role
            else:
                roles |= {f"-{letter}": role for letter in name[1:]}
        return roles

    @cached_property
    def roles(self) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
        """The roles of the first, the middle and the last operands. If the middle role is empty, there can be no
        middle operands.
        """
        tokens = self.operands.split()
        star = next((place for place, token in enumerate(tokens) if token.endswith("*")), len(tokens))
        middle = tokens[star][:-1] if star < len(tokens) else ""
        return tuple(tokens[:star]), middle, tuple(tokens[star + 1 :])


class Reading(msgspec.Struct):
    """Parsed arguments.

    options: name, role and value of each option, in order.
    operands: arguments that are not options.
    places: position of each operand in the command.
    offending: position of the first unknown word.
    unsure: set if a word may expand to options, or to several words.
    """

    options: list[tuple[str, str, Word | None]] = []
    operands: list[Word] = []
    places: list[int] = []
    offending: int | None = None
    unsure: bool = False

    def values(self, *names: str) -> list[Word]:
        return [word for name, _, word in self.options if name in names and word is not None]

    def has(self, *names: str) -> bool:
        return any(name in names for name, _, _ in self.options)


def read_options(program: Program, words: Sequence[Word], variables: Variables, start: int = 1) -> Reading:
    reading = Reading()
    place = start
    ended = program.style == "none"
    while place < len(words):
        word = words[place]
        if word.value is not None:
            is_operand = word.value == "-" or not word.value.startswith("-")
        else:
            may_be = may_be_option(word, variables)
            is_operand = not may_be or (program.free and not word.begins.startswith("-"))
            if not ended and is_operand:
                reading.unsure |= may_be and expand(word, variables) is None
        if ended or is_operand:
            reading.operands.append(word)
            reading.places.append(place)
            ended |= program.style == "posix" or bool(program.subs)
        elif word.value == "--" and program.style not in ("words", "compiler"):
            ended = True
        else:
            taken = _option(program, words, place, reading)
            if not taken:
                reading.offending = place
                return reading
            place += taken - 1
        place += 1
    return reading


def _option(program: Program, words: Sequence[Word], place: int, reading: Reading) -> int:
    """Parse an option. Returns the number of words that the option takes up, or 0 if the option is unknown."""
    word, known = words[place], program.known
    if not single(word):
        reading.unsure = True
        if not program.free:
            return 0
    if program.style in ("words", "compiler") or word.begins.startswith("--"):
        return _long(program, words, place, reading)
    letters = word.begins[1:]
    if letters and word.value is not None and "-#" in known and letters.isdigit():
        return 1
    for number, letter in enumerate(letters):
        role = known.get(f"-{letter}")
        if role is None:
            return 0
        rest = after(word, number + 2)
        attached = bool(rest.begins) or rest.value is None
        if role in ("flag", "!"):
            reading.options.append((f"-{letter}", role, None))
        elif attached or role == "?":
            reading.options.append((f"-{letter}", role, rest if attached else None))
            return 1
        else:
            return _with_value(f"-{letter}", role, words, place, reading, free=program.free)
    return 1 if word.value is not None else 0


def _long(program: Program, words: Sequence[Word], place: int, reading: Reading) -> int:
    word, known = words[place], program.known
    name, equals, _ = word.begins.partition("=")
    role = known.get(name)
    if role is None and program.style == "compiler" and word.value is not None:
        name = word.begins[:2]
        role = known.get(name, "flag")
        if role != "flag":
            reading.options.append((name, role, after(word, 2)))
        return int(role != "flag")
    if role is None or (word.value is None and not equals):
        return 0
    if equals:
        if role in ("flag", "2"):
            return 0
        reading.options.append((name, role, after(word, len(name) + 1)))
        return 1
    if role not in ("flag", "?", "!"):
        return _with_value(name, role, words, place, reading, free=program.free)
    reading.options.append((name, role, None))
    return 1


def _with_value(name: str, role: str, words: Sequence[Word], place: int, reading: Reading, *, free: bool) -> int:
    count = 2 if role == "2" else 1
    values = words[place + 1 : place + 1 + count]
    sure = all(single(value) for value in values)
    if len(values) < count or not (sure or free):
        return 0
    reading.unsure |= not sure
    reading.options += [(name, ":" if role == "2" else role, value) for value in values]
    return 1 + count


class Effect(msgspec.Struct, frozen=True):
    naming: int | None = None
    """Number of leading words that an allow rule must name. None if all effects are known."""
    harmless: bool = False
    """True if the command runs no other program, writes only to `writes`, and creates only the folders in `makes`. This
    requires that no `startup` file exists and, for `git`, that the repository is inert.
    """
    reads: tuple[Word, ...] | None = None
    """Files that the command reads, or None if unknown."""
    writes: tuple[Word, ...] = ()
    makes: tuple[Word, ...] = ()
    runs: tuple[Word, ...] = ()
    runs_more: bool = False
    folders: tuple[Word, ...] = ()
    """Directories that the command changes to."""
    startup: tuple[Word, ...] = ()
    commands: tuple[tuple[Word, ...], ...] = ()
    """Commands that this command runs."""
    script: str | None = None
    """Bash script that the command's arguments contain."""
    git: str = ""


HARMLESS = Effect(harmless=True, reads=())
UNKNOWN = Effect(naming=1, runs_more=True)
ARGUMENTS = Word('"$@"', None, "", splits=True, pieces=(Piece("unknown"),))
"""Unknown words that a program such as xargs appends to the command that it runs."""

Check: TypeAlias = Callable[[Sequence[Word], Reading, Effect], Effect]
"""Function that refines the effect derived from the roles of the arguments. Takes the words, the parsed arguments and
the derived effect.
"""

CHECKS: dict[str, Check] = {}


def check(name: str) -> Callable[[Check], Check]:
    return lambda check: CHECKS.setdefault(name, check)


def literal(value: str) -> Word:
    """Return a literal word. `value` must not need quotes."""
    return Word(value, value, value)


def opaque(words: Sequence[Word], naming: int | None = None, *, runs: Sequence[Word] = ()) -> Effect:
    """Return the effect of an unknown command. A rule must name its first `naming` words, or by default all of them."""
    return Effect(len(words) if naming is None else min(naming, len(words)), runs=tuple(runs), runs_more=True)


def scripts_of(reading: Reading) -> list[Word]:
    return [word for _, role, word in reading.options if role == "c" and word is not None]


def table_effect(program: Program, words: Sequence[Word], variables: Variables) -> Effect:
    start, above = 1, list[tuple[str, str, Word | None]]()
    startup = program.startup.split()
    reading = read_options(program, words, variables)
    while program.subs and reading.operands and reading.offending is None:
        start = reading.places[0] + 1
        chosen = program.subs.get(reading.operands[0].value or "")
        if chosen is None:
            return opaque(words, start)
        above += [(f"^{name}", role, word) for name, role, word in reading.options]
        program = chosen
        reading = read_options(program, words, variables, start)
    if reading.offending is not None:
        return opaque(words, reading.offending + 1, runs=scripts_of(reading))
    reading.options[:0] = above
    named = named_program(words, reading) if program.kind == "code" and not program.rest else None
    if named is not None and words[start - 1].value not in PACKAGE_VERBS:
        return opaque(words, named + 1)
    by_role = _by_role(program, words, reading)
    if by_role is None or (reading.unsure and by_role.keys() & {"w", "m", "c", "d"}):
        return opaque(words)
    names = [
        word for role, words_of_role in by_role.items() if role != "r" for word in words_of_role if word.value is None
    ]
    known = not reading.unsure and not any(may_be_option(word, variables) for word in names)
    known = known and not any(role == "!" for _, role, _ in reading.options)
    reads = [*by_role.get("r", ()), *by_role.get("c", ())]
    if program.here and not by_role.get("r"):
        reads.append(literal("."))
    effect = Effect(
        harmless=program.kind == "pure",
        reads=tuple(reads) if known and program.kind in ("pure", "change") else None,
        writes=tuple(by_role.get("w", ())),
        makes=tuple(by_role.get("m", ())),
        runs=tuple(by_role.get("c", ())),
        runs_more=program.kind == "code",
        folders=tuple(by_role.get("d", ())),
        startup=tuple(Word(name, None, "", pieces=(Piece("tilde", "~"), Piece("text", name[1:]))) for name in startup),
        commands=(tuple(by_role["rest"]),) if by_role.get("rest") else (),
    )
    return CHECKS[program.check](words, reading, effect) if program.check else effect


OTHER_PROGRAMS = frozenset(
    """
    git gh glab hub jj hg svn npm npx pnpm pnpx yarn bun bunx deno cargo gem poetry uv uvx flit hatch pdm pixi pip
    pip3 pipx twine helm kubectl oc docker docker-compose podman buildah nerdctl skopeo crane oras terraform tofu
    pulumi ansible ansible-playbook aws gcloud az gsutil s3cmd rclone doctl hcloud linode-cli heroku flyctl vercel
    netlify wrangler firebase ssh scp sftp rsync mosh telnet ftp lftp nc ncat netcat socat rsh rcp curl wget xh
    httpie mailx mutt sendmail msmtp swaks sudo su doas pkexec runuser systemctl mount umount sh bash dash zsh ksh
    fish busybox eval exec env xargs nohup setsid timeout python python3 node ruby perl php lua tox nox osascript
    powershell pwsh crontab
    """.split()  # noqa: SIM905
)
"""Programs that run other programs or reach beyond the workspace, and whose names are rarely used as ordinary words."""
PACKAGE_VERBS = frozenset(
    """
    add install i ci require download wheel get remove rm un uninstall update up upgrade show list ls info view why
    search outdated init new
    """.split()  # noqa: SIM905
)
"""Subcommands whose operands are packages. A package may have the same name as a program."""
_WORD_IN_TEXT = re.compile(r"[A-Za-z0-9_.-]+")


def named_program(words: Sequence[Word], reading: Reading) -> int | None:
    """Return the position of the first operand that may be a command for the program to run, as in `tox exec -- git
    push`.

    The task runner or a file in the workspace determines whether operands are names, arguments or a command. Therefore,
    an operand counts as a command if it is the name of a program and words follow it, or if it is a text that contains
    such a name.
    """
    for place, word in zip(reading.places, reading.operands, strict=True):
        names = _WORD_IN_TEXT.findall(word.text)
        is_text = len(names) > 1 and any(mark in word.text for mark in " \t;|&(`$=")
        if (is_text or place + 1 < len(words)) and not OTHER_PROGRAMS.isdisjoint(
            names if is_text else [word.text.rpartition("/")[2]]
        ):
            return place
    return None


_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.@+=:, -]*")


def _by_role(program: Program, words: Sequence[Word], reading: Reading) -> dict[str, list[Word]] | None:
    first, middle, last = program.roles
    if reading.values("-e", "-f", "--regexp", "--file", "--from-file") and first[:1] == ("x",):
        first = first[1:]
    operands = list(reading.operands)
    by_role: dict[str, list[Word]] = {}
    if program.rest:
        by_role["rest"], operands = operands[len(first) :], operands[: len(first)]
    if program.style in ("words", "compiler") and any(word.begins.startswith("@") for word in words):
        return None  # `@FILE` contains further options.
    roles = {*first, middle, *last} - {""}
    # For example, `gh repo clone X -- OPTIONS` passes the options to git.
    handed_on = program.kind == "outside" and program.style == "gnu"
    if len(roles) > 1 and not all(single(word) for word in operands):
        if roles & {"c", "d"}:
            return None
        by_role |= {role: list(operands) for role in roles}
        operands = []
    for number, word in enumerate(operands):
        left = len(operands) - number
        is_last = left <= len(last) and number >= len(first)
        role = first[number] if number < len(first) else last[-left] if is_last else middle
        if not role or (role == "+" and not word.begins.startswith("+")):
            return None
        if role == "c" and "://" in word.text:
            return None  # The program would download this file.
        if handed_on and word.begins.startswith("-") and word.value != "-":
            return None
        by_role.setdefault(role, []).append(word)
    for _, role, word in reading.options:
        if role == "n" and (word is None or word.value is None or not _PLAIN_NAME.fullmatch(word.value)):
            return None
        if word is not None and role not in (":", "?", "flag", "n"):
            by_role.setdefault(role, []).append(word)
    return by_role


# ---- known programs ----

_ENTRY = re.compile(r"^(?:@(?P<list>\w+)|\[(?P<paths>[^\]]+)\]) *(?P<words>.*(?:\n[ ]+.*)*)", re.MULTILINE)


def _programs(text: str) -> Mapping[str, Program]:
    """Parse the table and return the programs by name. The programs of one entry share an object, and therefore their
    subcommands.
    """
    lists: dict[str, list[str]] = {}
    top = Program()
    entries: list[tuple[list[str], Program]] = []
    for entry in _ENTRY.finditer(text):
        words: list[str] = []
        for word in entry["words"].split():
            words += lists[word[1:]] if word.startswith("@") else [word]
        if entry["list"]:
            lists[entry["list"]] = words
            continue
        first, *others = " ".join(entry["paths"].split()).split(" | ")
        texts: dict[str, list[str]] = {"operands": [], "options": [], "startup": []}
        fields: dict[str, object] = {"kind": _above(top, first).kind}
        for word in words:
            if word.startswith("-"):
                texts["options"].append(word)
            elif word.startswith("~"):
                texts["startup"].append(word)
            elif word.startswith("check="):
                fields["check"] = word.removeprefix("check=")
            elif word in ("free", "here", "rest"):
                fields[word] = True
            elif word in get_args(Kind):
                fields["kind"] = word
            elif word in get_args(Style):
                fields["style"] = word
            else:
                texts["operands"].append(word)
        program = msgspec.convert(fields | {name: " ".join(text) for name, text in texts.items()}, Program)
        _above(top, first).subs.update(dict.fromkeys(first.split(" / ")[-1].split(), program))
        entries.append((others, program))
    for others, program in entries:  # A subcommand may precede its program.
        for path in others:
            _above(top, path).subs.update(dict.fromkeys(path.split(" / ")[-1].split(), program))
    return top.subs


def _above(program: Program, path: str) -> Program:
    for names in path.split(" / ")[:-1]:
        program = program.subs[names.split()[0]]
    return program


PROGRAMS = _programs(Path(__file__).with_name("programs.txt").read_text("utf-8"))
