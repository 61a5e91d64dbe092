"""Split a shell command into everything that it will run, read and write.

The structure is from tree-sitter's bash grammar, which accepts texts that bash reads differently. Therefore, every
result is checked:

- Every byte must belong to a node of a known kind, a known separator, or blanks between them.
- Words are parsed again, without the grammar (`words.py`).
- The start and the end of a here-document are found again without the grammar, and compared.

If any check fails, the text is unreadable and counts as one opaque action.
"""

import os
import re
import selectors
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from time import thread_time
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from shoal.shell.commands import INNER_MAX, Assignment, Part, Taken, command_parts, inner_commands, unique
from shoal.shell.options import HARMLESS, UNKNOWN
from shoal.shell.survey import ALL_SETTERS, BEFORE_WORD, IDENTIFIER, Survey, text_of
from shoal.shell.words import (
    RESERVED,
    Unreadable,
    Word,
    arithmetic_names,
    here_document,
    is_number,
    plain_expansion,
    special_variable,
)

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Tree

DEPTH_MAX = 40
PARTS_MAX = 1000
BASH_SECONDS_MAX = 2.0
PARSE_SECONDS_MAX = 0.5
"""Maximum CPU time for parsing a command. Unlike elapsed time, it does not depend on the load of the machine."""
NOWHERE = -1

_LINE = frozenset({";", "&", "\n"})
_CONTAINERS: dict[str, frozenset[str]] = {
    "program": _LINE,
    "list": frozenset({"&&", "||"}) | _LINE,
    "pipeline": frozenset({"|", "|&"}),
    "subshell": frozenset({"(", ")"}) | _LINE,
    "compound_statement": frozenset({"{", "}"}) | _LINE,
    "negated_command": frozenset({"!"}),
    "if_statement": frozenset({"if", "then", "fi"}) | _LINE,
    "elif_clause": frozenset({"elif", "then"}) | _LINE,
    "else_clause": frozenset({"else"}) | _LINE,
    "while_statement": frozenset({"while", "until"}) | _LINE,
    "do_group": frozenset({"do", "done"}) | _LINE,
    "command_substitution": frozenset({"$(", "`", ")"}) | _LINE,
    "process_substitution": frozenset({"<(", ">(", ")"}) | _LINE,
}
_CASE_ITEM = frozenset({";;", ";&", ";;&"}) | _LINE
_CLAUSES = frozenset({"elif_clause", "else_clause"})
_CLOSING = frozenset({"then", "fi", "else", "elif", "do", "done", "}"})
_OPENING = frozenset({"if", "then", "elif", "else", "while", "until", "do", "{", "("})
_LOOPS = frozenset({"while_statement", "for_statement", "function_definition"})
_NOWHERE: frozenset[int] = frozenset()
_LEAVES = re.compile(r"exit(?: [0-9]+)?")
BLANK = re.compile(rb"(?:[ \t]|\\\n)*")
SPACE = re.compile(rb"(?:[ \t\n]|\\\n)*")
REDIRECTS = frozenset({"file_redirect", "herestring_redirect", "heredoc_redirect"})

_DESCRIPTOR = re.compile(r"[0-9]+|'?\{.*")
_MOVES_ANYWHERE = frozenset({"pushd", "popd", "eval", "source", ".", "trap", "builtin", "alias", "shopt", "exec"})
_REGEX = re.compile(rb"(?:[A-Za-z0-9_.^*+?/:@%,=-]|\[[A-Za-z0-9_.:-]+\]|\((?:[A-Za-z0-9_.|*+?-])+\)|\$(?![\w({\[]))+")
_EVALUATES = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"})
_EXPRESSIONS = frozenset({"binary_expression", "unary_expression", "parenthesized_expression", "negation_expression"})
_TEST_TOKENS = frozenset({"&&", "||", "!", "(", ")", "<", ">", "[[", "]]"})
_DUPLICATES = re.compile(r"[0-9]+-?|-")
_EXPANDED_TWICE = re.compile(r"[A-Za-z0-9_./-]+")  # bash expands the target of >& twice
_UNQUOTED_ONLY = RESERVED - {"coproc"}
_REDIRECTIONS = frozenset({"<", ">", ">>", ">|", "&>", "&>>", ">&", "<&", "<>"})


_SLOW_WHEN_OPEN = (b"|", b"=(", b"<<")
OPERATORS_MAX = 2_000
"""Maximum number of `|`, `=(` and `<<` in a command. If they are left unfinished, the parser takes quadratic time."""


class ShellReader:
    """Collects the parts of one command. `inner` counts the commands that contain this one in an argument."""

    def __init__(self, source: bytes, root: "Node", inner: int = 0) -> None:
        if root.has_error or root.type != "program":
            raise Unreadable("it is not a complete shell command")
        survey = Survey(source, root)
        self.source = source
        self.inner = inner
        self.spans, self.words, self.variables = survey.spans, survey.words, survey.variables
        self.compound = survey.compound
        self.parts: list[Part] = []
        self.spelled: list[tuple[int, int, str]] = []
        self.loops = 0
        self.sure: frozenset[int] = frozenset()
        self.succeeded: frozenset[int] = frozenset()
        self.changed = NOWHERE
        self._root = root
        self._functions, self._unvisited = survey.functions, survey.unvisited
        self._moves: list[Word | None] = []
        self._lost = False
        self._sums: list[tuple[str, frozenset[str]]] = []
        self._unsafe: set[str] = set()
        self._documents: set[int] = set()
        self._depth = 0

    def take(self) -> Taken:
        self._sequence(self._root.children, 0, len(self.source), _LINE)
        return self.finish()

    def finish(self) -> Taken:
        """Return the collected parts. Raises Unreadable if a node that can run, read or write something was not
        visited.
        """
        if self._unvisited:
            raise Unreadable("a part of it was not analyzed")
        for place, part in enumerate(self.parts):
            if part.command in self._functions:
                self.parts[place] = replace(part, opaque=True, naming=part.naming or part.command, effect=UNKNOWN)
        for raw, names in self._sums:
            if names & self._unsafe:
                self.add_opaque(raw)
        if self._lost or (self._functions and self._moves):
            self.parts = [replace(part, moves=NOWHERE) for part in self.parts]
        pieces: list[bytes] = []  # the complete text, with simple commands in canonical spelling
        at = 0
        for start, stop, text in sorted(self.spelled):
            pieces += [self.source[at:start], text.encode()]
            at = stop
        self.parts.append(Part(b"".join([*pieces, self.source[at:]]).decode(), view=True))
        if len(self.parts) > PARTS_MAX:
            raise Unreadable(f"it has more than {PARTS_MAX} parts")
        return Taken(tuple(unique(self.parts)), tuple(self._moves), self.variables)

    def reached(self, node: "Node") -> None:
        """Record a visit to a node that can run, read or write something."""
        self._unvisited.discard((node.type, node.start_byte))

    # ---- bytes and words ----

    def gap(self, start: int, end: int, allowed: re.Pattern[bytes]) -> bytes:
        """Return the bytes between two nodes, which must be blanks.

        A line continuation alone is not a separator, because it joins words.
        """
        gap = self.source[start:end]
        if start > end or not allowed.fullmatch(gap) or (gap and not gap.replace(b"\\\n", b"")):
            raise Unreadable("unexpected text between two parts")
        return gap

    def items(self, node: "Node", allowed: re.Pattern[bytes] = BLANK) -> list["Node"]:
        at = node.start_byte
        for child in node.children:
            self.gap(at, child.start_byte, allowed)
            at = child.end_byte
        self.gap(at, node.end_byte, allowed)
        return node.children

    def word(self, node: "Node") -> Word:
        word = self.words.word(node.start_byte, node.end_byte)
        if self.source[node.end_byte : node.end_byte + 1] in (b"<", b">") and _DESCRIPTOR.fullmatch(word.text):
            raise Unreadable("a word that belongs to a redirection")
        self.visit_expansions(node)
        return word

    def visit_expansions(self, node: "Node") -> None:
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
                    raise Unreadable("unsupported arithmetic")
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

    # ---- effects ----

    def add_opaque(self, text: str) -> None:
        """Add an action that only a rule with exactly this text may allow."""
        self.parts.append(Part(" ".join(text.split()), opaque=True, effect=UNKNOWN))

    def add_sum(self, raw: str, inside: str) -> None:
        """Add an arithmetic expression. The expression is opaque unless all its variables are numbers, which `finish`
        checks.
        """
        names = arithmetic_names(inside)
        if names is None:
            self.add_opaque(raw)
        else:
            self._sums.append((raw, names))

    def set_variable(self, name: str, value: str | None, raw: str) -> None:
        if value != "" and not is_number(raw if value is None else value):
            self._unsafe.add(name)
        if name == "CDPATH":
            self._move(None)

    def _move(self, target: Word | None) -> None:
        self._moves.append(target)
        self._lost = self._lost or self.loops > 0

    def note_effects(self, words: list[Word]) -> None:
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
        if name is None or name in ALL_SETTERS:
            self._unsafe |= {word.begins.split("=")[0] for word in words[1:]}

    # ---- statements ----

    def visit(self, node: "Node") -> None:
        """Analyze a statement. Raises Unreadable.

        Afterwards, `succeeded` contains the directory changes that must have worked if the statement succeeded.
        """
        first, before = len(self._moves), self.sure
        self.succeeded = _NOWHERE
        self.reached(node)
        if len(self.parts) > PARTS_MAX:
            raise Unreadable(f"it has more than {PARTS_MAX} parts")
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise Unreadable(f"it has more than {DEPTH_MAX} levels of nesting")
        self.loops += node.type in _LOOPS
        visitor = self._VISITORS.get(node.type)
        if node.type == "compound_statement" and self.source.startswith(b"((", node.start_byte):
            self.add_sum(text_of(node), text_of(node)[2:-2])
        elif visitor is not None:
            visitor(self, node)
        elif node.type in _CONTAINERS:
            self._sequence(node.children, node.start_byte, node.end_byte, _CONTAINERS[node.type])
        else:
            raise Unreadable(f"a {node.type.replace('_', ' ')} is not supported")
        self.loops -= node.type in _LOOPS
        self._depth -= 1
        if node.type == "command":
            self.succeeded = frozenset({first} & {self.changed})
        elif node.type != "list":
            self.succeeded = _NOWHERE
        self.sure = before

    def _sequence(self, nodes: Sequence["Node"], start: int, end: int, allowed: frozenset[str]) -> bool:
        """Visit the statements between two offsets. Returns True if a separator follows the last one.

        Statements are separated by new lines or by one of the `allowed` separators. A closing word must also follow a
        separator.
        """
        separated = True
        at = start
        before, worked, operator = self.sure, _NOWHERE, ""
        empty = False
        for node in nodes:
            gap = self.gap(at, node.start_byte, SPACE)
            at = node.end_byte
            separated = separated or _has_newline(gap)
            self.compound = self.compound or (separated and (_has_newline(gap) or text_of(node) == "\n"))
            if node.type == "comment":
                self._comment(node)
            elif not node.is_named:
                if text_of(node) not in allowed or (text_of(node) in _CLOSING and not separated):
                    raise Unreadable(f"{text_of(node)!r} is not expected here")
                separated, operator = True, text_of(node)
                if empty and (operator in _CLOSING or operator == ")"):
                    raise Unreadable("a command is missing")
                empty = operator in _OPENING or (empty and operator in _LINE)
                self.sure = before | (worked if operator == "&&" else _NOWHERE)
            elif not separated:
                raise Unreadable("two commands without a separator")
            elif node.type in _CLAUSES:
                if empty:
                    raise Unreadable("a command is missing")
                separated = self._sequence(node.children, node.start_byte, node.end_byte, _CONTAINERS[node.type])
            else:
                self.visit(node)
                separated = empty = False
                if operator == "||":
                    worked = worked if _LEAVES.fullmatch(text_of(node)) else _NOWHERE
                else:
                    worked = self.succeeded | (worked if operator == "&&" else _NOWHERE)
                if node.type == "list" and text_of(node.children[1]) == "||" and operator not in ("&&", "||"):
                    before |= worked
                    self.sure = before
        if empty:
            raise Unreadable("a command is missing")
        self.succeeded = worked
        return separated or _has_newline(self.gap(at, end, SPACE))

    def _comment(self, node: "Node") -> None:
        before = self.source[max(node.start_byte - 1, 0) : node.start_byte]
        after = self.source[node.end_byte : node.end_byte + 1]
        if before not in BEFORE_WORD or after not in (b"", b"\n") or "\n" in text_of(node):
            raise Unreadable("an unsupported comment")

    def _function(self, node: "Node") -> None:
        for child in self.items(node, SPACE):
            if child.type == "file_redirect":
                self.lone_redirection(child)
            elif child.type == "word":
                if not IDENTIFIER.fullmatch(text_of(child)):
                    raise Unreadable("a function with an unusual name")
            elif child.is_named:
                self.visit(child)
            elif text_of(child) not in ("(", ")", "function"):
                raise Unreadable("an unsupported function")

    def _for(self, node: "Node") -> None:
        name = ""
        separated = False
        for child in self.items(node, SPACE):
            separated = separated or _has_newline(self.source[child.start_byte - 1 : child.start_byte])
            if child.type == "variable_name":
                name = text_of(child)
            elif child.type == "do_group" and separated:
                self.visit(child)
            elif child.type == "comment":
                self._comment(child)
            elif child.is_named:
                self.set_variable(name, self.word(child).value, text_of(child))
            elif text_of(child) not in ("for", "in", ";", "\n"):
                raise Unreadable("an unsupported loop")
            separated = text_of(child) in (";", "\n")
        if special_variable(name) or not name:
            self.add_opaque(f"for {name}")

    def _case(self, node: "Node") -> None:
        for child in self.items(node, SPACE):
            if child.type == "case_item":
                self._case_item(child)
            elif child.type == "comment":
                self._comment(child)
            elif child.is_named:
                self.word(child)
            elif text_of(child) not in ("case", "in", "esac", ";", "\n"):
                raise Unreadable("an unsupported case")

    def _case_item(self, node: "Node") -> None:
        children = node.children
        close = next((place for place, child in enumerate(children) if text_of(child) == ")"), -1)
        if close < 0:
            raise Unreadable("an unsupported case")
        at = node.start_byte
        for child in children[: close + 1]:
            self.gap(at, child.start_byte, SPACE)
            at = child.end_byte
            if child.is_named:
                self.word(child)
            elif text_of(child) not in ("(", "|", ")"):
                raise Unreadable("an unsupported case")
        if not self._sequence(children[close + 1 :], at, node.end_byte, _CASE_ITEM):
            following = self.source[node.end_byte :].lstrip(b" \t")
            if not following.startswith((b"\n", b"#")):
                raise Unreadable("an unsupported case")

    # ---- commands and assignments ----

    def command(self, node: "Node", extra: Sequence["Node"] = ()) -> None:
        """Analyze a simple command or a declaration. `extra` contains the words that follow a redirection."""
        self.reached(node)
        assignments: list[Assignment] = []
        words: list[Word] = []
        before = -1
        for child in [*self.items(node), *extra]:
            if child.start_byte == before:
                raise Unreadable("an unexpected word")
            before = child.end_byte
            if child.type in REDIRECTS:
                words += [self.word(item) for item in self.redirection(child)]
            elif child.type != "variable_assignment":
                words.append(self.word(child))
            elif words:
                assignment = self._assignment(child)
                value = None if assignment.value is None else f"{assignment.name}={assignment.value}"
                words.append(Word(assignment.text, value, f"{assignment.name}="))
            else:
                assignments.append(self._assignment(child))
        if words:
            self._add_command(None if extra else node, assignments, words)
        else:
            self._add_assignments(assignments)

    def assignments(self, node: "Node") -> None:
        nodes = [node] if node.type == "variable_assignment" else self.items(node)
        self._add_assignments([self._assignment(item) for item in nodes])

    def _add_assignments(self, assignments: Sequence[Assignment]) -> None:
        for item in assignments:
            special = special_variable(item.name)
            effect = UNKNOWN if special else HARMLESS
            self.parts.append(Part(item.text, special, f"{item.name}=", moves=len(self._moves), effect=effect))

    def _add_command(self, node: "Node | None", assignments: list[Assignment], words: list[Word]) -> None:
        if words[0].value in _UNQUOTED_ONLY and words[0].bare:
            raise Unreadable("a reserved word where a command should be")
        if words[0].value == "time" and any(word.bare and word.value in RESERVED for word in words[1:4]):
            raise Unreadable("a reserved word where a command should be")
        self.compound = self.compound or words[0].value in ("time", "coproc")
        moves = len(self._moves)
        self.note_effects(words)
        parts = command_parts(assignments, words, self.variables, moves, tuple(sorted(self.sure)))
        for part in list(parts):
            if part.effect.script is not None:
                parts = self._with_script(parts, part, part.effect.script)
        self.parts += parts
        if parts[0].opaque:
            for text in inner_commands(words):
                taken = self._script(text)
                self.parts += [Part(part.text, view=True) for part in (() if taken is None else taken.parts)]
        if node is not None:  # The text of the node already includes inner commands.
            start, stop = node.start_byte, node.end_byte
            self.spelled = [item for item in self.spelled if not start <= item[0] < stop]
            self.spelled.append((start, stop, parts[0].text))

    def _script(self, text: str) -> Taken | None:
        try:
            return take_apart(text, self.inner + 1) if self.inner < INNER_MAX else None
        except Unreadable:
            return None

    def _with_script(self, parts: list[Part], part: Part, script: str) -> list[Part]:
        taken = self._script(script)
        if taken is None:
            hidden = replace(part, opaque=True, naming=part.naming or part.command, effect=UNKNOWN)
            return [hidden if piece is part else piece for piece in parts]
        # The script starts in the command's directory and has its own variables. Its directory changes do not affect
        # later commands, but assuming that they do is safe.
        self.variables.update(dict.fromkeys(taken.variables))
        before = len(self._moves)
        inner = [
            part if part.view else replace(part, moves=part.moves + before if part.moves >= 0 else NOWHERE, sure=())
            for part in sorted(taken.parts, key=lambda part: part.view)
        ]
        for target in taken.moves:
            self._move(target)
        return [*parts, *inner]

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
            raise Unreadable("an unsupported assignment")
        word = self.word(values[0])
        self.set_variable(name, word.value, text_of(values[0]))
        return Assignment(name, f"{name}{equals.type}{word.text}", word.value)

    # ---- tests ----

    def test(self, node: "Node") -> None:
        """Analyze `[ … ]`, which is a command, or `[[ … ]]` and `((…))`, which are syntax."""
        first = text_of(node.children[0])
        if first == "((":
            self.add_sum(text_of(node), text_of(node)[2:-2])
            return
        words: list[Word] = []
        for leaf in self._leaves(node, own=first == "[["):
            raw = text_of(leaf)
            is_token = not leaf.is_named and raw in _TEST_TOKENS
            if first == "[[" and (is_token or leaf.type == "regex"):
                if not is_token and not _REGEX.fullmatch(self.source, leaf.start_byte, leaf.end_byte):
                    raise Unreadable("an unsupported regular expression")
                words.append(Word(raw, raw, raw))
            else:
                words.append(self.word(leaf))
        if first == "[":
            self._add_command(node, [], words)
            return
        text = " ".join(word.text for word in words)
        opaque = False
        for place, word in enumerate(words):
            if word.value in _EVALUATES:  # The shell evaluates both sides, so both must be numbers.
                beside = (*words[max(place - 1, 0) : place], *words[place + 1 : place + 2])
                opaque |= len(beside) != 2 or not all(
                    (word.value or "").isdigit() or [piece.kind for piece in word.pieces] == ["number"]
                    for word in beside
                )
        self.parts.append(Part(text, opaque=opaque, moves=len(self._moves), effect=UNKNOWN if opaque else HARMLESS))

    def _leaves(self, node: "Node", *, own: bool) -> list["Node"]:
        leaves: list[Node] = []
        for child in self.items(node, SPACE if own else BLANK):
            if child.type in _EXPRESSIONS:
                leaves += self._leaves(child, own=own)
            else:
                leaves.append(child)
        return leaves

    # ---- redirections ----

    def redirected(self, node: "Node") -> None:
        body: Node | None = None
        extra: list[Node] = []
        first = len(self.parts)
        for child in self.items(node):
            if child.type in REDIRECTS:
                extra += self.redirection(child)
            elif body is None and child.is_named:
                body = child
            else:
                raise Unreadable("an unsupported redirection")
        if extra and (body is None or body.type != "command"):
            raise Unreadable("words after a redirection that do not belong to a command")
        last = len(self.parts)
        if body is not None and extra:
            self.command(body, extra)
        elif body is not None:
            self.visit(body)
        # The grammar attaches the redirection of a list's last command to the whole list. An earlier command in the
        # list may change directory, so resolve the target after all directory changes.
        for place in range(first, last):
            self.parts[place] = replace(self.parts[place], moves=len(self._moves), sure=())

    def lone_redirection(self, node: "Node") -> None:
        if self.redirection(node):
            raise Unreadable("words after a redirection that do not belong to a command")

    def redirection(self, node: "Node") -> list["Node"]:
        """Analyze a redirection, and return the words after its target. These words belong to the command before the
        redirection.
        """
        self.reached(node)
        if node.type == "heredoc_redirect":
            return self._here_document(node)
        items = list(self.items(node))
        if node.type == "herestring_redirect":
            if text_of(items[0]) != "<<<" or len(items) != 2:
                raise Unreadable("an unsupported here-string")
            self.word(items[1])
            return []
        if items[0].type == "file_descriptor":
            if not text_of(items[0]).isdigit() or items[0].end_byte != items[1].start_byte:
                raise Unreadable("a redirection of an unusual descriptor")
            if self.source[items[0].start_byte - 1 : items[0].start_byte] not in BEFORE_WORD:
                raise Unreadable("a redirection's number belongs to a word")
            items.pop(0)
        operator = text_of(items.pop(0))
        if any(item.end_byte == other.start_byte for item, other in pairwise(items)):
            raise Unreadable("an unexpected word")
        if operator in ("<&-", ">&-"):
            return items
        if not items or operator not in _REDIRECTIONS:
            raise Unreadable("an unsupported redirection")
        if operator in (">&", "<&") and text_of(items[0]).startswith("-") and text_of(items[0]) != "-":
            raise Unreadable("a word that bash parses as `-` followed by another word")
        word = self.word(items[0])
        if operator in (">&", "<&") and not _EXPANDED_TWICE.fullmatch(word.text):
            raise Unreadable("a target that bash expands twice")
        if operator not in (">&", "<&") or not _DUPLICATES.fullmatch(word.text):
            kind, keeps = "<" if operator in ("<", "<&") else ">", operator in (">>", "&>>", "<>")
            moves, sure = len(self._moves), tuple(sorted(self.sure))
            self.parts.append(Part(word.text, operator=kind, keeps=keeps, target=word, moves=moves, sure=sure))
        return items[1:]

    def _here_document(self, node: "Node") -> list["Node"]:
        start = next(child for child in node.children if child.type == "heredoc_start")
        tabs = text_of(node.children[0]) == "<<-"
        document = here_document(self.source, start.start_byte, start.end_byte, tabs=tabs)
        if document.begin in self._documents or node.end_byte != document.closed:
            raise Unreadable("ambiguous here-documents")
        self._documents.add(document.begin)
        extra: list[Node] = []
        at = node.start_byte
        for child in node.children:
            if child.type not in ("heredoc_body", "heredoc_end"):
                self.gap(at, child.start_byte, BLANK)
                at = child.end_byte
                if child.type in REDIRECTS:
                    extra += self.redirection(child)
                elif child.type == "pipeline":  # `| COMMAND…` follows the delimiter.
                    for item in self.items(child):
                        if item.is_named:
                            self.visit(item)
                        elif text_of(item) not in ("|", "|&"):
                            raise Unreadable("an unsupported here-document")
                elif child.is_named and child.type != "heredoc_start":
                    self.visit(child)
                elif not child.is_named and text_of(child) not in ("<<", "<<-", "|", "&&", "||", "|&"):
                    raise Unreadable("an unsupported here-document")
        if at >= document.begin or self.source[at : document.begin].strip(b" \t") != b"\n":
            raise Unreadable("an unsupported here-document")
        if document.expands:
            self.words.document(document.begin, document.end)
            for child in node.children:
                if child.type == "heredoc_body":
                    self.visit_expansions(child)
        return extra

    _VISITORS: ClassVar[Mapping[str, Callable[..., None]]] = {
        "command": command,
        "variable_assignment": assignments,
        "variable_assignments": assignments,
        "declaration_command": command,
        "unset_command": command,
        "test_command": test,
        "redirected_statement": redirected,
        "file_redirect": lone_redirection,
        "function_definition": _function,
        "for_statement": _for,
        "case_statement": _case,
    }


def _has_newline(gap: bytes) -> bool:
    return b"\n" in gap.replace(b"\\\n", b"")


@lru_cache(maxsize=1)
def _language() -> "Language":
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Language(tree_sitter_bash.language())


def _parse(source: bytes) -> "Tree":
    """Parse a text within PARSE_SECONDS_MAX of CPU time. Raises Unreadable.

    A valid text takes a few milliseconds. Error recovery takes quadratic time.
    """
    from tree_sitter import Parser

    ends_at = thread_time() + PARSE_SECONDS_MAX
    try:
        return Parser(_language()).parse(
            lambda offset, _: source[offset:], progress_callback=lambda _, __: thread_time() > ends_at
        )
    except ValueError as error:
        raise Unreadable("parsing it takes too long") from error


def take_apart(command: str, inner: int = 0) -> Taken:
    """Split a command into parts. Raises Unreadable unless it is certain how bash interprets the command."""
    try:
        source = command.encode()
    except UnicodeEncodeError as error:
        raise Unreadable("it is not text") from error
    if b"\0" in source:
        raise Unreadable("it contains a NUL byte")
    if sum(map(source.count, _SLOW_WHEN_OPEN)) > OPERATORS_MAX:
        raise Unreadable("it has too many operators")
    try:
        reader = ShellReader(source, _parse(source).root_node, inner)
        taken = reader.take()
    except RecursionError as error:
        raise Unreadable("it is nested too deeply") from error
    if reader.compound and not bash_accepts(source):
        raise Unreadable("bash does not accept it")
    return taken


def bash_accepts(source: bytes) -> bool:
    """Return True if bash accepts the text as complete and valid. Bash only checks the syntax, which takes a
    millisecond.

    Bash reads a text line by line and runs the first lines before it rejects a later one. Therefore, a text that bash
    would reject is unreadable. Without bash, the result is False.
    """
    command = ("/bin/bash", "--norc", "-n", "-c", "--", source)
    try:
        bash = subprocess.Popen(
            command, env={}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
    except OSError:
        return False
    # Bash writes only errors, so wait until it writes something or exits. `Popen.wait` with a timeout would poll.
    with bash, selectors.DefaultSelector() as selector:
        assert bash.stderr is not None
        selector.register(bash.stderr, selectors.EVENT_READ)
        if not selector.select(BASH_SECONDS_MAX) or os.read(bash.stderr.fileno(), 1):
            bash.kill()
            return False
        return bash.wait() == 0
