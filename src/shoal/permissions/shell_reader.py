"""Reads simple commands at the nodes of a parsed command, and gathers what the whole command will do.

Words, expansions, assignments, tests, redirections and here-documents; the base of `shoal.permissions.shell`, which
reads the statements around them. Where the shell will see a here-document begin and end is found without the grammar
and compared with it.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from shoal.permissions.commands import INNER_MAX, Assignment, Part, command_parts, inner_commands
from shoal.permissions.options import HARMLESS, UNKNOWN
from shoal.permissions.shell_words import (
    RESERVED,
    SETTERS,
    Unreadable,
    Value,
    Word,
    WordReader,
    arithmetic_names,
    is_number,
    plain_expansion,
    special_variable,
)

if TYPE_CHECKING:
    from tree_sitter import Node


_DELIMITER = re.compile(
    rb"'(?P<single>[A-Za-z0-9_.+-]+)'|\"(?P<double>[A-Za-z0-9_.+-]+)\"|(?P<back>\\?)(?P<bare>[A-Za-z0-9_.+-]+)"
)
_REST_OF_LINE = re.compile(
    rb"(?:[^'\"`\\\n$#<]|<(?!<)|(?<![\s;&|()])#|'[^'\n]*'|\"[^\"`\\$\n]*\"|\$(?=[A-Za-z_])|\\.)*"
)


class HereDocument(msgspec.Struct, frozen=True):
    """Byte offsets of the text and of the end of its closing line; `expands` when the shell looks into the text."""

    begin: int
    end: int
    closed: int
    expands: bool


def here_document(source: bytes, start: int, stop: int, *, tabs: bool) -> HereDocument:
    """The here-document whose delimiter stands between two offsets; `tabs` for `<<-`. Raises Unreadable if in doubt."""
    found = _DELIMITER.fullmatch(source, start, stop)
    if found is None:
        raise Unreadable("a here-document with an unusual delimiter")
    delimiter = found["single"] or found["double"] or found["bare"]
    expands = found["bare"] is not None and not found["back"]
    rest = _REST_OF_LINE.match(source, stop)
    begin = (rest.end() if rest else stop) + 1
    if source[begin - 1 : begin] != b"\n":
        raise Unreadable("a here-document on a line that cannot be followed")
    at = begin
    while at < len(source):
        newline = source.find(b"\n", at)
        line_end = len(source) if newline < 0 else newline
        line = source[at:line_end]
        if (line.lstrip(b"\t") if tabs else line) == delimiter:
            return HereDocument(begin, at, line_end, expands)
        if expands and line.endswith(b"\\"):
            raise Unreadable("a here-document with a joined line")
        at = line_end + 1
    raise Unreadable("a here-document without an end")


PARTS_MAX = 1000
NOWHERE = -1

BLANK = re.compile(rb"(?:[ \t]|\\\n)*")
SPACE = re.compile(rb"(?:[ \t\n]|\\\n)*")
REDIRECTS = frozenset({"file_redirect", "herestring_redirect", "heredoc_redirect"})

_NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIMPLE_EXPANSION = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_OPERATOR = re.compile(rb"[;&|<>]{2,}")
_OPERATORS = frozenset({b"&&", b"||", b">>", b">&", b"&>"})
_DESCRIPTOR = re.compile(r"[0-9]+|'?\{.*")
_EXPANSIONS = frozenset(
    {"simple_expansion", "expansion", "command_substitution", "process_substitution", "arithmetic_expansion"}
)
_COUNTED = (_EXPANSIONS - {"simple_expansion"}) | {
    "command", "variable_assignment", "declaration_command", "unset_command", "test_command", "file_redirect",
    "heredoc_redirect", "herestring_redirect", "compound_statement", "function_definition", "for_statement",
}  # fmt: skip
_MOVES_ANYWHERE = frozenset({"pushd", "popd", "eval", "source", ".", "trap", "builtin", "alias", "shopt", "exec"})
_BEFORE_RESERVED = (b"", b" ", b"\t", b"\n", b";", b"|", b"&", b"(", b")")
_AFTER_RESERVED = (*_BEFORE_RESERVED, b"<", b">")
_SET_BY_EXPANSION = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*):?=")
# What a plain line is made of: where there is nothing else, there is nothing that bash could read differently.
_PLAIN_NODES = frozenset(
    """
    program list pipeline command command_name word string string_content raw_string ansi_c_string number concatenation
    simple_expansion variable_name special_variable_name command_substitution variable_assignment redirected_statement
    file_redirect file_descriptor comment subshell test_command binary_expression unary_expression test_operator
    parenthesized_expression extglob_pattern test_operator declaration_command unset_command variable_assignments
    for_statement while_statement do_group if_statement else_clause elif_clause herestring_redirect process_substitution
    heredoc_redirect heredoc_start heredoc_body heredoc_end heredoc_content
    """.split()  # noqa: SIM905
)
_SETTING = frozenset(
    {"variable_assignment", "for_statement", "command", "declaration_command", "unset_command", "file_redirect",
     "heredoc_redirect"}
)  # fmt: skip
_COMPOUND_TOKENS = frozenset({"`", "[[", "((", '$"', "!", "|&"})
_NOT_RESERVED_IN = frozenset({"expansion", "brace_expression", "string", "concatenation"})
_WORD_LIKE = frozenset({"command_name", "word", "string", "raw_string", "ansi_c_string", "concatenation", "number"})
_ALL_SETTERS = SETTERS | {"printf", "declare", "local", "typeset", "readonly", "let"}


class Taken(msgspec.Struct, frozen=True):
    """A command taken apart: its parts, the directories it changes to in turn (None: no telling where), and what its
    variables may hold."""

    parts: tuple[Part, ...]
    moves: tuple[Word | None, ...] = ()
    variables: Mapping[str, tuple[Value, ...] | None] = {}


class Reader(ABC):
    """Gathers the parts of one command. `inner` counts how deep this is a command inside a command's argument.

    `compound` tells that bash itself has to be asked whether it accepts the text: all but plain lines of commands,
    where there is nothing that the grammar and bash could read differently.
    """

    def __init__(self, source: bytes, inner: int = 0) -> None:
        self.source = source
        self.inner = inner
        self.spans: dict[int, int] = {}
        self.words = WordReader(source, self.spans)
        self.parts: list[Part] = []
        self.variables: dict[str, tuple[Value, ...] | None] = {}
        self.spelled: list[tuple[int, int, str]] = []
        self.loops = 0
        self.compound = False
        self._functions: set[str] = set()
        self._moves: list[Word | None] = []
        self._lost = False
        self.sure: frozenset[int] = frozenset()
        self.succeeded: frozenset[int] = frozenset()
        self.changed = NOWHERE
        self._sums: list[tuple[str, frozenset[str]]] = []
        self._unsafe: set[str] = set()
        self._unvisited: set[tuple[str, int]] = set()

    @abstractmethod
    def visit(self, node: "Node") -> None:
        """Take a statement apart. Raises Unreadable."""

    def survey(self, root: "Node") -> None:
        """Note where expansions begin and end, and which functions are defined anywhere. Raises Unreadable."""
        self.compound = any(found not in _OPERATORS for found in _OPERATOR.findall(self.source))
        nodes, setting = [root], list["Node"]()
        while nodes:
            node = nodes.pop()
            if node.is_missing or node.is_error:
                raise Unreadable("it is not a complete shell command")
            if (node.is_named and node.type not in _PLAIN_NODES) or node.type in _COMPOUND_TOKENS:
                self.compound = self.compound or not _SIMPLE_EXPANSION.fullmatch(text_of(node))
            if node.type in _COUNTED:
                self._unvisited.add((node.type, node.start_byte))
            if node.type in _EXPANSIONS:
                self.spans[node.start_byte] = node.end_byte
            elif node.type == "function_definition":
                self._functions.add(text_of(node.child_by_field_name("name")))
            elif node.type in _SETTING:
                setting.append(node)
            elif node.type == "arithmetic_expansion" or self.source.startswith(b"((", node.start_byte):
                self.variables |= dict.fromkeys(_NAMES.findall(text_of(node)), None)
            elif not node.is_named and text_of(node) in RESERVED and node.parent is not None:
                self._check_reserved(node)
            nodes.extend(node.children)
        for node in sorted(setting, key=lambda one: one.start_byte):
            self._note_setting(node)
        for name in _SET_BY_EXPANSION.findall(self.source.decode()):
            self.variables[name] = None

    def _check_reserved(self, node: "Node") -> None:
        """A reserved word stands alone: `{a,b}` is none, whatever the grammar thinks. Raises Unreadable."""
        before = self.source[max(node.start_byte - 1, 0) : node.start_byte]
        after = self.source[node.end_byte : node.end_byte + 1]
        if node.parent is not None and node.parent.type in _NOT_RESERVED_IN:
            return
        if before not in _BEFORE_RESERVED or after not in _AFTER_RESERVED:
            raise Unreadable("a reserved word is not where it seems")

    def _note_setting(self, node: "Node") -> None:
        """Note what a variable is set to, in an assignment or by a loop; what a command sets cannot be known."""
        children = node.children
        if node.type not in ("variable_assignment", "for_statement"):
            words = [
                self.words.word(child.start_byte, child.end_byte) for child in children if child.type in _WORD_LIKE
            ]
            # `time -p read X` sets as well, and so may others with a word before; whatever follows counts. The grammar
            # hangs the `X` of `read < FILE X` on the redirection.
            first = next((place for place, word in enumerate(words) if word.value in _ALL_SETTERS), len(words))
            first = -1 if node.type != "command" else first
            self.variables |= dict.fromkeys([word.begins.split("=")[0] for word in words[first + 1 :]], None)
            return
        name = text_of(children[0] if node.type == "variable_assignment" else children[1])
        listed = node.type == "for_statement"
        values = [child for child in (children[2:] if not listed else children[3:]) if child.is_named]
        if listed:
            values = [child for child in values if child.type not in ("do_group", "comment")]
        plain = all(child.type != "array" for child in values) and (listed or text_of(children[1]) == "=")
        known = self.variables.get(name, ())
        if not plain or known is None or (listed and not values):
            self.variables[name] = None
            return
        words = [
            self.words.word(child.start_byte, child.end_byte) for child in values if child.start_byte < child.end_byte
        ]
        self.variables[name] = (*known, *(Value(word, listed) for word in words))

    def finish(self) -> Taken:
        """What was gathered. Raises Unreadable when anything that runs, reads or writes was not visited."""
        if self._unvisited:
            raise Unreadable("a part of it was not reached")
        for place, part in enumerate(self.parts):
            if part.command in self._functions:
                unknown = UNKNOWN
                naming = part.naming or part.command
                self.parts[place] = msgspec.structs.replace(part, opaque=True, naming=naming, effect=unknown)
        for raw, names in self._sums:
            if names & self._unsafe:
                self.add_opaque(raw)
        if self._lost or (self._functions and self._moves):
            self.parts = [msgspec.structs.replace(part, moves=NOWHERE) for part in self.parts]
        self.parts.append(Part(self._respelled(), view=True))
        if len(self.parts) > PARTS_MAX:
            raise Unreadable(f"it has more than {PARTS_MAX} parts")
        return Taken(tuple(unique(self.parts)), tuple(self._moves), self.variables)

    def _respelled(self) -> str:
        """The whole text with every simple command in its canonical spelling."""
        pieces: list[bytes] = []
        at = 0
        for start, stop, text in sorted(self.spelled):
            pieces += [self.source[at:start], text.encode()]
            at = stop
        return b"".join([*pieces, self.source[at:]]).decode()

    def spell(self, node: "Node", text: str) -> None:
        """Note how a simple command is spelled; commands inside it are part of its text."""
        start, stop = node.start_byte, node.end_byte
        self.spelled = [item for item in self.spelled if not start <= item[0] < stop]
        self.spelled.append((start, stop, text))

    def reached(self, node: "Node") -> None:
        """Note that a node which can run, read or write something was visited."""
        self._unvisited.discard((node.type, node.start_byte))

    # ---- bytes and words ----

    def gap(self, start: int, end: int, allowed: re.Pattern[bytes]) -> bytes:
        """The bytes between two nodes, which may only be blanks. A joined line alone would join words as well."""
        gap = self.source[start:end]
        if start > end or not allowed.fullmatch(gap) or (gap and not gap.replace(b"\\\n", b"")):
            raise Unreadable("something stands where nothing should")
        return gap

    def items(self, node: "Node", allowed: re.Pattern[bytes] = BLANK) -> list["Node"]:
        """The children of a node, which lie side by side with nothing but blanks between them."""
        at = node.start_byte
        for child in node.children:
            self.gap(at, child.start_byte, allowed)
            at = child.end_byte
        self.gap(at, node.end_byte, allowed)
        return node.children

    def word(self, node: "Node") -> Word:
        """The word at a node; what it substitutes is visited."""
        word = self.words.word(node.start_byte, node.end_byte)
        if self.source[node.end_byte : node.end_byte + 1] in (b"<", b">") and _DESCRIPTOR.fullmatch(word.text):
            raise Unreadable("a word that belongs to a redirection")
        self.visit_expansions(node)
        return word

    def visit_expansions(self, node: "Node") -> None:
        """Visit the commands that expansions run, and note expansions that hide what they do."""
        self.reached(node)
        match node.type:
            case "command_substitution" | "process_substitution":
                raw = text_of(node)
                if raw.startswith("`") and any(char in raw for char in '\\"\n{'):
                    raise Unreadable("a backtick substitution with quotes, lines or groups")
                self.visit(node)
                return
            case "arithmetic_expansion":
                raw = text_of(node)
                if not raw.startswith("$(("):
                    raise Unreadable("arithmetic of another kind")
                self.add_sum(raw, raw[3:-2])
            case "expansion":
                plain, sets = plain_expansion(self.source, node.start_byte, node.end_byte, self.spans)
                if not plain:
                    self.add_opaque(text_of(node))
                if sets:
                    self._unsafe.add(sets)
            case _:
                pass
        for child in node.children:
            self.visit_expansions(child)

    # ---- what the command does ----

    def add_opaque(self, text: str) -> None:
        """Something that only a rule that spells it out may allow."""
        self.parts.append(Part(" ".join(text.split()), opaque=True, effect=UNKNOWN))

    def add_sum(self, raw: str, inside: str) -> None:
        """Arithmetic: opaque unless its variables can only be numbers, which is known at the end."""
        names = arithmetic_names(inside)
        if names is None:
            self.add_opaque(raw)
        else:
            self._sums.append((raw, names))

    def set_variable(self, name: str, value: str | None, raw: str) -> None:
        """A variable gets a value; anything but a number makes it unsafe in arithmetic."""
        if value != "" and not is_number(raw if value is None else value):
            self._unsafe.add(name)
        if name == "CDPATH":
            self._move(None)

    def _move(self, target: Word | None) -> None:
        self._moves.append(target)
        self._lost = self._lost or self.loops > 0

    def add_moves(self, moves: Sequence[Word | None]) -> None:
        """Changes of directory by a script: what comes later may count with them, though it stays where it was."""
        for target in moves:
            self._move(target)

    @property
    def moves(self) -> int:
        """How many times the directory may have changed so far."""
        return len(self._moves)

    def note_effects(self, words: list[Word]) -> None:
        """What a command changes for those after it: the directory, and variables."""
        name = words[0].value
        if name is None or name in _MOVES_ANYWHERE:
            self._move(None)
        elif name == "cd":
            target = words[1] if len(words) == 2 else None
            self.changed = len(self._moves)
            self._move(target if target and target.value != "" and not target.begins.startswith("-") else None)
        elif name in ("time", "command"):
            rest = [word for place, word in enumerate(words) if place and not (place < 3 and word.begins[:1] == "-")]
            self.note_effects(rest or [Word("", "true", "true")])
        if name is None or name in _ALL_SETTERS:
            self._unsafe |= {word.begins.split("=")[0] for word in words[1:]}


def unique(parts: list[Part]) -> list[Part]:
    """The parts without those that say the same in the same place."""
    found: dict[tuple[object, ...], Part] = {}
    for part in parts:
        target = "" if part.target is None else part.target.text
        found.setdefault(
            (part.text, part.opaque, part.view, part.operator, target, part.naming, part.moves, part.sure), part
        )
    return list(found.values())


def text_of(node: "Node | None") -> str:
    """The text of a node; empty for none."""
    return "" if node is None or node.text is None else node.text.decode(errors="replace")


_REGEX = re.compile(rb"(?:[A-Za-z0-9_.^*+?/:@%,=-]|\[[A-Za-z0-9_.:-]+\]|\((?:[A-Za-z0-9_.|*+?-])+\)|\$(?![\w({\[]))+")
_EVALUATES = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"})
_EXPRESSIONS = frozenset({"binary_expression", "unary_expression", "parenthesized_expression", "negation_expression"})
_TEST_TOKENS = frozenset({"&&", "||", "!", "(", ")", "<", ">", "[[", "]]"})
_DUPLICATES = re.compile(r"[0-9]+-?|-")
_EXPANDED_TWICE = re.compile(r"[A-Za-z0-9_./-]+")  # bash expands the target of >& again after it was expanded
_BEFORE_DESCRIPTOR = (b"", b" ", b"\t", b"\n", b";", b"|", b"&", b"(", b")")
_UNQUOTED_ONLY = RESERVED - {"coproc"}
_REDIRECTIONS = frozenset({"<", ">", ">>", ">|", "&>", "&>>", ">&", "<&", "<>"})


class SimpleReader(Reader):
    """Reads what has no statements inside, but for substitutions."""

    def __init__(self, source: bytes, inner: int = 0) -> None:
        super().__init__(source, inner)
        self._documents: set[int] = set()

    @abstractmethod
    def script(self, text: str) -> Taken | None:
        """A script that stands in an argument, taken apart; None when it cannot be read."""

    @abstractmethod
    def inner_parts(self, text: str) -> Sequence[Part]:
        """The parts of a command that stands in an argument; empty when it cannot be read."""

    # ---- commands and assignments ----

    def command(self, node: "Node", extra: Sequence["Node"] = ()) -> None:
        """A simple command or a declaration; `extra` are words of it that stand behind a redirection."""
        self.reached(node)
        assignments: list[Assignment] = []
        words: list[Word] = []
        before = -1
        for child in [*self.items(node), *extra]:
            if child.start_byte == before:
                raise Unreadable("a word is not where it seems")
            before = child.end_byte
            if child.type in REDIRECTS:
                words += [self.word(item) for item in self.redirection(child)]
            elif child.type != "variable_assignment":
                words.append(self.word(child))
            elif words:
                assignment = self._assignment(child)
                words.append(Word(assignment.text, _spelled_value(assignment), f"{assignment.name}="))
            else:
                assignments.append(self._assignment(child))
        if words:
            self._add_command(None if extra else node, assignments, words)
        else:
            self._add_assignments(assignments)

    def assignments(self, node: "Node") -> None:
        """Assignments without a command."""
        nodes = [node] if node.type == "variable_assignment" else self.items(node)
        self._add_assignments([self._assignment(item) for item in nodes])

    def _add_assignments(self, assignments: Sequence[Assignment]) -> None:
        for item in assignments:
            special = special_variable(item.name)
            effect = UNKNOWN if special else HARMLESS
            self.parts.append(Part(item.text, special, f"{item.name}=", moves=self.moves, effect=effect))

    def _add_command(self, node: "Node | None", assignments: list[Assignment], words: list[Word]) -> None:
        if words[0].value in _UNQUOTED_ONLY and words[0].bare:
            raise Unreadable("a reserved word where a command should be")
        if words[0].value == "time" and any(word.bare and word.value in RESERVED for word in words[1:4]):
            raise Unreadable("a reserved word where a command should be")
        self.compound = self.compound or words[0].value in ("time", "coproc")
        moves = self.moves
        self.note_effects(words)
        parts = command_parts(assignments, words, self.variables, moves, tuple(sorted(self.sure)))
        for part in list(parts):
            if part.effect.script is not None:
                parts = self._with_script(parts, part)
        self.parts += parts
        if parts[0].opaque and self.inner < INNER_MAX:
            for text in inner_commands(words):
                self.parts += [Part(part.text, view=True) for part in self.inner_parts(text)]
        if node is not None:
            self.spell(node, parts[0].text)

    def _with_script(self, parts: list[Part], part: Part) -> list[Part]:
        """The parts with those of a script in a command's words; the command is opaque where that cannot be read."""
        taken = self.script(part.effect.script or "") if self.inner < INNER_MAX else None
        if taken is None:
            unknown = UNKNOWN
            hidden = msgspec.structs.replace(part, opaque=True, naming=part.naming or part.command, effect=unknown)
            return [hidden if one is part else one for one in parts]
        known = {one: None for one in taken.variables}
        moved = [self._in_script(one, known) for one in taken.parts if not one.view]
        self.add_moves(taken.moves)
        return [*parts, *moved, *(one for one in taken.parts if one.view)]

    def _in_script(self, part: Part, known: Mapping[str, None]) -> Part:
        """A part of a script: it begins where the command is, and its variables are its own."""
        self.variables.update(known)
        moves = part.moves + self.moves if part.moves >= 0 else -1
        return msgspec.structs.replace(part, moves=moves, sure=())

    def _assignment(self, node: "Node") -> Assignment:
        self.reached(node)
        name_node, equals, *values = self.items(node)
        name = text_of(name_node)
        if name_node.type != "variable_name" or equals.type not in ("=", "+=") or len(values) > 1:
            raise Unreadable("an assignment to an element of an array")
        if not values or values[0].start_byte == values[0].end_byte:
            self.set_variable(name, "", "")
            return Assignment(name, f"{name}{equals.type}", "")
        if values[0].type == "array":
            nodes = [item for item in self.items(values[0], SPACE) if item.is_named]
            if any(self.source.startswith(b"[", item.start_byte) for item in nodes):
                raise Unreadable("an array with a subscript, which the shell evaluates")
            items = [self.word(item) for item in nodes]
            self.set_variable(name, None, "")
            return Assignment(name, f"{name}{equals.type}({' '.join(item.text for item in items)})", None)
        if equals.end_byte != values[0].start_byte:
            raise Unreadable("an assignment is not what it seems")
        word = self.word(values[0])
        self.set_variable(name, word.value, text_of(values[0]))
        return Assignment(name, f"{name}{equals.type}{word.text}", word.value)

    # ---- tests ----

    def test(self, node: "Node") -> None:
        """`[ … ]` is a command like others; `[[ … ]]` and `((…))` are the shell's own."""
        first = text_of(node.children[0])
        if first == "((":
            self.add_sum(text_of(node), text_of(node)[2:-2])
            return
        words = [self._test_word(leaf, own=first == "[[") for leaf in self._leaves(node, own=first == "[[")]
        if first == "[":
            self._add_command(node, [], words)
            return
        text = " ".join(word.text for word in words)
        opaque = any(
            word.value in _EVALUATES and not _compares_numbers(words, place) for place, word in enumerate(words)
        )
        effect = UNKNOWN if opaque else HARMLESS
        self.parts.append(Part(text, opaque=opaque, moves=self.moves, effect=effect))

    def _leaves(self, node: "Node", *, own: bool) -> list["Node"]:
        found: list[Node] = []
        for child in self.items(node, SPACE if own else BLANK):
            if child.type in _EXPRESSIONS:
                found += self._leaves(child, own=own)
            else:
                found.append(child)
        return found

    def _test_word(self, leaf: "Node", *, own: bool) -> Word:
        raw = text_of(leaf)
        if own and not leaf.is_named and raw in _TEST_TOKENS:
            return Word(raw, raw, raw)
        if own and leaf.type == "regex":
            if not _REGEX.fullmatch(self.source, leaf.start_byte, leaf.end_byte):
                raise Unreadable("a regular expression that cannot be followed")
            return Word(raw, raw, raw)
        return self.word(leaf)

    # ---- redirections ----

    def redirected(self, node: "Node") -> None:
        """A statement with redirections; words behind a redirection belong to the command before it."""
        body: Node | None = None
        extra: list[Node] = []
        first = len(self.parts)
        for child in self.items(node):
            if child.type in REDIRECTS:
                extra += self.redirection(child)
            elif body is None and child.is_named:
                body = child
            else:
                raise Unreadable("a redirection is not what it seems")
        if extra and (body is None or body.type != "command"):
            raise Unreadable("words after a redirection that belong to no command")
        last = len(self.parts)
        if body is not None and extra:
            self.command(body, extra)
        elif body is not None:
            self.visit(body)
        # The grammar hangs the redirection of a list's last command on the list, so a `cd` in the list may come before.
        for place in range(first, last):
            self.parts[place] = msgspec.structs.replace(self.parts[place], moves=self.moves, sure=())

    def lone_redirection(self, node: "Node") -> None:
        """A redirection without a command."""
        if self.redirection(node):
            raise Unreadable("words after a redirection that belong to no command")

    def redirection(self, node: "Node") -> list["Node"]:
        """Any redirection; returns the words after its target."""
        self.reached(node)
        if node.type == "heredoc_redirect":
            return self._here_document(node)
        if node.type == "file_redirect":
            return self._file(node)
        operator, *words = self.items(node)
        if text_of(operator) != "<<<" or len(words) != 1:
            raise Unreadable("a here-string is not what it seems")
        self.word(words[0])
        return []

    def _file(self, node: "Node") -> list["Node"]:
        items = list(self.items(node))
        if items[0].type == "file_descriptor":
            if not text_of(items[0]).isdigit() or items[0].end_byte != items[1].start_byte:
                raise Unreadable("a redirection of an unusual descriptor")
            if self.source[items[0].start_byte - 1 : items[0].start_byte] not in _BEFORE_DESCRIPTOR:
                raise Unreadable("a redirection's number belongs to a word")
            items.pop(0)
        operator = text_of(items.pop(0))
        if any(one.end_byte == other.start_byte for one, other in pairwise(items)):
            raise Unreadable("a word is not where it seems")
        if operator in ("<&-", ">&-"):
            return items
        if not items or operator not in _REDIRECTIONS:
            raise Unreadable("a redirection is not what it seems")
        if operator in (">&", "<&") and text_of(items[0]).startswith("-") and text_of(items[0]) != "-":
            raise Unreadable("a word that bash reads as - and another")
        word = self.word(items[0])
        if operator in (">&", "<&") and not _EXPANDED_TWICE.fullmatch(word.text):
            raise Unreadable("a target that bash expands twice")
        if operator not in (">&", "<&") or not _DUPLICATES.fullmatch(word.text):
            kind = "<" if operator in ("<", "<&") else ">"
            self.parts.append(
                Part(
                    word.text,
                    operator=kind,
                    keeps=operator in (">>", "&>>", "<>"),
                    target=word,
                    moves=self.moves,
                    sure=tuple(sorted(self.sure)),
                )
            )
        return items[1:]

    def _here_document(self, node: "Node") -> list["Node"]:
        """A here-document, and what stands after it on its line."""
        start = next(child for child in node.children if child.type == "heredoc_start")
        tabs = text_of(node.children[0]) == "<<-"
        document = here_document(self.source, start.start_byte, start.end_byte, tabs=tabs)
        if document.begin in self._documents or node.end_byte != document.closed:
            raise Unreadable("here-documents that cannot be told apart")
        self._documents.add(document.begin)
        extra: list[Node] = []
        at = node.start_byte
        for child in node.children:
            if child.type not in ("heredoc_body", "heredoc_end"):
                self.gap(at, child.start_byte, BLANK)
                at = child.end_byte
                extra += self._beside_document(child)
        if at >= document.begin or self.source[at : document.begin].strip(b" \t") != b"\n":
            raise Unreadable("a here-document is not what it seems")
        if document.expands:
            self.words.document(document.begin, document.end)
            for child in node.children:
                if child.type == "heredoc_body":
                    self.visit_expansions(child)
        return extra

    def _beside_document(self, node: "Node") -> list["Node"]:
        if node.type in REDIRECTS:
            return self.redirection(node)
        if node.type == "pipeline":
            self._rest_of_pipeline(node)
        elif node.is_named and node.type != "heredoc_start":
            self.visit(node)
        elif not node.is_named and text_of(node) not in ("<<", "<<-", "|", "&&", "||", "|&"):
            raise Unreadable("a here-document is not what it seems")
        return []

    def _rest_of_pipeline(self, node: "Node") -> None:
        """`| COMMAND…` behind a here-document."""
        for child in self.items(node):
            if child.is_named:
                self.visit(child)
            elif text_of(child) not in ("|", "|&"):
                raise Unreadable("a here-document is not what it seems")


def _compares_numbers(words: Sequence[Word], place: int) -> bool:
    """Whether both sides of an operator that evaluates are numbers for sure."""
    beside = (*words[max(place - 1, 0) : place], *words[place + 1 : place + 2])
    return len(beside) == 2 and all(
        (word.value or "").isdigit() or [piece.kind for piece in word.pieces] == ["number"] for word in beside
    )


def _spelled_value(assignment: Assignment) -> str | None:
    return None if assignment.value is None else f"{assignment.name}={assignment.value}"
