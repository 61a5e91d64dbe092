"""What a program does by the roles that its entry in the table gives its options and operands."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from shoal.permissions.expansion import Variables, may_be_option, single
from shoal.permissions.options import Program, Reading, read_options
from shoal.permissions.words import Piece, Word

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.@+=:, -]*")


class Effect(msgspec.Struct, frozen=True):
    """What a command does. `naming` is how many words an allow rule has to name, None where all of it is known.

    `harmless` says that it runs nothing and writes only `writes` and makes only the folders `makes`; provided that none
    of the `startup` files exists, and, for a subcommand of `git`, that the repository it works in runs nothing either.
    `reads` is None where that is not known. `folders` are those it changes to. `commands` are others that it runs,
    `script` is one that bash reads from its words.
    """

    naming: int | None = None
    harmless: bool = False
    reads: tuple[Word, ...] | None = None
    writes: tuple[Word, ...] = ()
    makes: tuple[Word, ...] = ()
    runs: tuple[Word, ...] = ()
    runs_more: bool = False
    folders: tuple[Word, ...] = ()
    startup: tuple[Word, ...] = ()
    commands: tuple[tuple[Word, ...], ...] = ()
    script: str | None = None
    git: str = ""


def literal(value: str) -> Word:
    """A word that is spelled out and needs no quotes."""
    return Word(value, value, value)


ARGUMENTS = Word('"$@"', None, "", splits=True, pieces=(Piece("unknown"),))
"""Words that a program appends to a command it runs."""

Check: TypeAlias = Callable[[Sequence[Word], Reading, Effect], Effect]
"""What a program's words say beside their roles: from the words, how they were read, and the effect by roles."""
NO_CHECKS: Mapping[str, Check] = {}


def opaque(words: Sequence[Word], naming: int, *, runs: Sequence[Word] = ()) -> Effect:
    """What is not known beyond the first words."""
    return Effect(min(naming, len(words)), runs=tuple(runs), runs_more=True)


def table_effect(
    program: Program, words: Sequence[Word], variables: Variables, checks: Mapping[str, Check] = NO_CHECKS
) -> Effect:
    """The effect of a program, or of its subcommand, and what the check that its entry names makes of it."""
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
    check = checks.get(program.check)
    reading.options[:0] = above
    found = _roles(program, words, reading, variables)
    if found.naming is None and startup:
        found = msgspec.structs.replace(found, startup=tuple(map(home_file, startup)))
    return found if check is None or found.naming is not None else check(words, reading, found)


def scripts_of(reading: Reading) -> list[Word]:
    """The files that options tell the program to run."""
    return [word for _, role, word in reading.options if role == "c" and word is not None]


def _roles(program: Program, words: Sequence[Word], reading: Reading, variables: Variables) -> Effect:
    """The effect by the roles of options and operands."""
    by_role = _by_role(program, words, reading)
    if by_role is None:
        return opaque(words, len(words))
    if reading.unsure and by_role.keys() & {"w", "m", "c", "d"}:
        return opaque(words, len(words))
    names = [word for role, found in by_role.items() if role != "r" for word in found if word.value is None]
    known = not reading.unsure and not any(may_be_option(word, variables) for word in names)
    known = known and not any(role == "!" for _, role, _ in reading.options)
    reads = [*by_role.get("r", ()), *by_role.get("c", ())]
    if program.here and not by_role.get("r"):
        reads.append(literal("."))
    return Effect(
        harmless=program.kind == "pure",
        reads=tuple(reads) if known and program.kind in ("pure", "change") else None,
        writes=tuple(by_role.get("w", ())),
        makes=tuple(by_role.get("m", ())),
        runs=tuple(by_role.get("c", ())),
        runs_more=program.kind == "code",
        folders=tuple(by_role.get("d", ())),
        commands=(tuple(by_role["rest"]),) if by_role.get("rest") else (),
    )


def _by_role(program: Program, words: Sequence[Word], reading: Reading) -> dict[str, list[Word]] | None:
    """The operands and the values of options by their role; None where an operand has none, or may have another."""
    first, middle, last = program.roles
    if reading.values("-e", "-f", "--regexp", "--file", "--from-file") and first[:1] == ("x",):
        first = first[1:]
    operands = list(reading.operands)
    found: dict[str, list[Word]] = {}
    if program.rest:
        found["rest"], operands = operands[len(first) :], operands[: len(first)]
    if program.style in ("words", "compiler") and any(word.begins.startswith("@") for word in words):
        return None  # a file of further options, wherever it stands
    roles = {*first, middle, *last} - {""}
    handed_on = program.kind == "outside" and program.style == "gnu"  # in `gh repo clone X -- OPTIONS` to git
    if len(roles) > 1 and not all(single(word) for word in operands):
        if roles & {"c", "d"}:
            return None
        found |= {role: list(operands) for role in roles}
        operands = []
    for number, word in enumerate(operands):
        left = len(operands) - number
        is_last = left <= len(last) and number >= len(first)
        role = first[number] if number < len(first) else last[-left] if is_last else middle
        if not role or (role == "+" and not word.begins.startswith("+")):
            return None
        if role == "c" and "://" in word.text:
            return None  # it is fetched
        if handed_on and word.begins.startswith("-") and word.value != "-":
            return None
        found.setdefault(role, []).append(word)
    for _, role, word in reading.options:
        if role == "n" and (word is None or word.value is None or not _PLAIN_NAME.fullmatch(word.value)):
            return None
        if word is not None and role not in (":", "?", "flag", "n"):
            found.setdefault(role, []).append(word)
    return found


def home_file(name: str) -> Word:
    """`~/NAME` as a word."""
    return Word(name, None, "", pieces=(Piece("tilde", "~"), Piece("text", name[1:])))
