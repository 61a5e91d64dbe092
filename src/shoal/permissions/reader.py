"""Reads words and expansions at the nodes of a parsed command, and gathers what the command will do.

The base of `shoal.permissions.shell`: what all kinds of nodes need.
"""

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import msgspec

from shoal.permissions.arithmetic import arithmetic_names, is_number, plain_expansion
from shoal.permissions.commands import Part
from shoal.permissions.opaque import SETTERS
from shoal.permissions.words import Unreadable, Word, WordReader

if TYPE_CHECKING:
    from tree_sitter import Node

PARTS_MAX = 1000
NOWHERE = -1

BLANK = re.compile(rb"(?:[ \t]|\\\n)*")
SPACE = re.compile(rb"(?:[ \t\n]|\\\n)*")
REDIRECTS = frozenset({"file_redirect", "herestring_redirect", "heredoc_redirect"})

_DESCRIPTOR = re.compile(r"[0-9]+|'?\{.*")
_EXPANSIONS = frozenset(
    {"simple_expansion", "expansion", "command_substitution", "process_substitution", "arithmetic_expansion"}
)
_COUNTED = (_EXPANSIONS - {"simple_expansion"}) | {
    "command", "variable_assignment", "declaration_command", "unset_command", "test_command", "file_redirect",
    "heredoc_redirect", "herestring_redirect", "compound_statement", "function_definition", "for_statement",
}  # fmt: skip
_MOVES_ANYWHERE = frozenset({"pushd", "popd", "eval", "source", ".", "trap", "builtin", "command", "alias", "shopt"})
_SETTERS = SETTERS | {"printf", "declare", "local", "typeset", "readonly", "let"}


class Taken(msgspec.Struct, frozen=True):
    """A command taken apart: its parts, and the directories it changes to in turn (None: no telling where)."""

    parts: tuple[Part, ...]
    moves: tuple[str | None, ...] = ()


class Reader(ABC):
    """Gathers the parts of one command. `inner` counts how deep this is a command inside a command's argument."""

    def __init__(self, source: bytes, inner: int = 0) -> None:
        self.source = source
        self.inner = inner
        self.spans: dict[int, int] = {}
        self.words = WordReader(source, self.spans)
        self.parts: list[Part] = []
        self.called: list[tuple[int, str]] = []
        self.spelled: list[tuple[int, int, str]] = []
        self.loops = 0
        self._functions: set[str] = set()
        self._moves: list[str | None] = []
        self._lost = False
        self._sums: list[tuple[str, frozenset[str]]] = []
        self._unsafe: set[str] = set()
        self._unvisited: set[tuple[str, int]] = set()

    @abstractmethod
    def visit(self, node: "Node") -> None:
        """Take a statement apart. Raises Unreadable."""

    def survey(self, root: "Node") -> None:
        """Note where expansions begin and end, and which functions are defined anywhere. Raises Unreadable."""
        nodes = [root]
        while nodes:
            node = nodes.pop()
            if node.is_missing or node.is_error:
                raise Unreadable("it is not a complete shell command")
            if node.type in _COUNTED:
                self._unvisited.add((node.type, node.start_byte))
            if node.type in _EXPANSIONS:
                self.spans[node.start_byte] = node.end_byte
            elif node.type == "function_definition":
                self._functions.add(text_of(node.child_by_field_name("name")))
            nodes.extend(node.children)

    def finish(self) -> Taken:
        """What was gathered. Raises Unreadable when anything that runs, reads or writes was not visited."""
        if self._unvisited:
            raise Unreadable("a part of it was not reached")
        for place, name in self.called:
            if name in self._functions:
                part = self.parts[place]
                self.parts[place] = msgspec.structs.replace(part, opaque=True, naming=part.naming or name)
        for raw, names in self._sums:
            if names & self._unsafe:
                self.add_opaque(raw)
        if self._lost or (self._functions and self._moves):
            self.parts = [msgspec.structs.replace(part, moves=NOWHERE) for part in self.parts]
        self.parts.append(Part(self._respelled(), view=True))
        if len(self.parts) > PARTS_MAX:
            raise Unreadable(f"it has more than {PARTS_MAX} parts")
        return Taken(tuple(dict.fromkeys(self.parts)), tuple(self._moves))

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
                if raw.startswith("`") and ("\\" in raw or '"' in raw):
                    raise Unreadable("a backtick substitution with quotes")
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
        self.parts.append(Part(" ".join(text.split()), opaque=True))

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

    def _move(self, target: str | None) -> None:
        self._moves.append(target)
        self._lost = self._lost or target is None or self.loops > 0

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
            target = words[1].value if len(words) == 2 else None
            self._move(target if target and not target.startswith("-") else None)
        if name is None or name in _SETTERS:
            self._unsafe |= {word.begins.split("=")[0] for word in words[1:]}


def text_of(node: "Node | None") -> str:
    """The text of a node; empty for none."""
    return "" if node is None or node.text is None else node.text.decode(errors="replace")
