"""Reads words and expansions at the nodes of a parsed command, and gathers what the command will do.

The base of `shoal.permissions.shell`: what all kinds of nodes need.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from shoal.permissions.arithmetic import arithmetic_names, is_number, plain_expansion
from shoal.permissions.commands import Part
from shoal.permissions.effects import Effect
from shoal.permissions.expansion import Value
from shoal.permissions.variables import RESERVED, SETTERS
from shoal.permissions.words import Unreadable, Word, WordReader

if TYPE_CHECKING:
    from tree_sitter import Node

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
_PLAIN = frozenset(
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
_SETTERS = SETTERS | {"printf", "declare", "local", "typeset", "readonly", "let"}


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
            if (node.is_named and node.type not in _PLAIN) or node.type in _COMPOUND_TOKENS:
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
            first = next((place for place, word in enumerate(words) if word.value in _SETTERS), len(words))
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
                unknown = Effect(naming=1, runs_more=True)
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
        self.parts.append(Part(" ".join(text.split()), opaque=True, effect=Effect(naming=1, runs_more=True)))

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
        if name is None or name in _SETTERS:
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
