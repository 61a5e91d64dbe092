"""Reads simple commands at the nodes of a parsed command: words, assignments, tests, and redirections."""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from shoal.permissions.commands import INNER_MAX, Assignment, Part, command_parts, inner_commands
from shoal.permissions.documents import here_document
from shoal.permissions.effects import Effect
from shoal.permissions.reader import BLANK, REDIRECTS, SPACE, Reader, Taken, text_of
from shoal.permissions.variables import RESERVED, special_variable
from shoal.permissions.words import Unreadable, Word

if TYPE_CHECKING:
    from tree_sitter import Node

_REGEX = re.compile(rb"(?:[A-Za-z0-9_.^*+?/:@%,=-]|\[[A-Za-z0-9_.:-]+\]|\((?:[A-Za-z0-9_.|*+?-])+\)|\$(?![\w({\[]))+")
_EVALUATES = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"})
_EXPRESSIONS = frozenset({"binary_expression", "unary_expression", "parenthesized_expression", "negation_expression"})
_TEST_TOKENS = frozenset({"&&", "||", "!", "(", ")", "<", ">", "[[", "]]"})
_DUPLICATES = re.compile(r"[0-9]+-?|-")
_EXPANDED_TWICE = re.compile(r"[A-Za-z0-9_./-]+")  # bash expands the target of >& again after it was expanded
_BEFORE_DESCRIPTOR = (b"", b" ", b"\t", b"\n", b";", b"|", b"&", b"(", b")")
_UNQUOTED_ONLY = RESERVED - {"coproc"}
_NOTHING = Effect(harmless=True, reads=())
_OPERATORS = frozenset({"<", ">", ">>", ">|", "&>", "&>>", ">&", "<&", "<>"})


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
            effect = Effect(naming=1, runs_more=True) if special else _NOTHING
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
            unknown = Effect(naming=1, runs_more=True)
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
        effect = Effect(naming=1, runs_more=True) if opaque else _NOTHING
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
        if not items or operator not in _OPERATORS:
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
