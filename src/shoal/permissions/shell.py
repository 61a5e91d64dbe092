"""Takes a shell command apart into everything it will run, read and write.

The structure comes from tree-sitter's bash grammar, which is lenient: it makes sense of texts that bash reads in
another way. So nothing is taken on trust. Every byte of the text has to belong to a node of a known kind, to a known
separator, or to blanks between them; words are read again by themselves (`words.py`); here-documents are found again
(`documents.py`). Wherever that fails, the whole text is unreadable, which makes it one opaque action.
"""

import os
import re
import selectors
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from shoal.permissions.commands import Part
from shoal.permissions.shell_reader import SPACE, SimpleReader, Taken, text_of
from shoal.permissions.shell_words import Unreadable, special_variable

if TYPE_CHECKING:
    from tree_sitter import Language, Node

DEPTH_MAX = 40
BASH_SECONDS_MAX = 2.0

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
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BEFORE_COMMENT = (b"", b" ", b"\t", b"\n", b";", b"|", b"&", b"(", b")")


class ShellReader(SimpleReader):
    """Reads a whole command."""

    def __init__(self, source: bytes, inner: int = 0) -> None:
        super().__init__(source, inner)
        self._depth = 0

    def take(self, root: "Node") -> Taken:
        """Take the command apart. Raises Unreadable."""
        if root.has_error or root.type != "program":
            raise Unreadable("it is not a complete shell command")
        self.survey(root)
        self._sequence(root.children, 0, len(self.source), _LINE)
        return self.finish()

    def script(self, text: str) -> Taken | None:
        """A script that stands in an argument, taken apart; None when it cannot be read."""
        try:
            return take_apart(text, self.inner + 1)
        except Unreadable:
            return None

    def inner_parts(self, text: str) -> Sequence[Part]:
        """The parts of a command that stands in an argument; empty when it cannot be read."""
        try:
            return take_apart(text, self.inner + 1).parts
        except Unreadable:
            return ()

    def visit(self, node: "Node") -> None:
        """Take a statement apart, and note in `succeeded` which changes of directory have worked when it has. Raises
        Unreadable."""
        first, before = self.moves, self.sure
        self.succeeded = _NOWHERE
        self._visit(node)
        if node.type == "command":
            self.succeeded = frozenset({first} & {self.changed})
        elif node.type != "list":
            self.succeeded = _NOWHERE
        self.sure = before

    def _visit(self, node: "Node") -> None:
        self.reached(node)
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise Unreadable(f"it is nested more than {DEPTH_MAX} levels deep")
        self.loops += node.type in _LOOPS
        visitor = self._VISITORS.get(node.type)
        if node.type == "compound_statement" and self.source.startswith(b"((", node.start_byte):
            self.add_sum(text_of(node), text_of(node)[2:-2])
        elif visitor is not None:
            visitor(self, node)
        elif node.type in _CONTAINERS:
            self._sequence(node.children, node.start_byte, node.end_byte, _CONTAINERS[node.type])
        else:
            raise Unreadable(f"a {node.type.replace('_', ' ')} is not followed")
        self.loops -= node.type in _LOOPS
        self._depth -= 1

    def _sequence(self, nodes: Sequence["Node"], start: int, end: int, allowed: frozenset[str]) -> bool:
        """Visit statements between two offsets, apart by `allowed` separators or a new line, before the closing word
        too. Returns whether a separator ends it."""
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
                    raise Unreadable("nothing stands where a command has to be")
                empty = operator in _OPENING or (empty and operator in _LINE)
                self.sure = before | (worked if operator == "&&" else _NOWHERE)
            elif not separated:
                raise Unreadable("two commands without a separator")
            elif node.type in _CLAUSES:
                if empty:
                    raise Unreadable("nothing stands where a command has to be")
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
            raise Unreadable("nothing stands where a command has to be")
        self.succeeded = worked
        return separated or _has_newline(self.gap(at, end, SPACE))

    def _comment(self, node: "Node") -> None:
        before = self.source[max(node.start_byte - 1, 0) : node.start_byte]
        after = self.source[node.end_byte : node.end_byte + 1]
        if before not in _BEFORE_COMMENT or after not in (b"", b"\n") or "\n" in text_of(node):
            raise Unreadable("a comment is not what it seems")

    def _function(self, node: "Node") -> None:
        for child in self.items(node, SPACE):
            if child.type == "file_redirect":
                self.lone_redirection(child)
            elif child.type == "word":
                if not _IDENTIFIER.fullmatch(text_of(child)):
                    raise Unreadable("a function with an unusual name")
            elif child.is_named:
                self.visit(child)
            elif text_of(child) not in ("(", ")", "function"):
                raise Unreadable("a function is not what it seems")

    def _for(self, node: "Node") -> None:
        """`for NAME in WORDS; do …; done`"""
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
                raise Unreadable("a loop of another kind")
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
                raise Unreadable("a case is not what it seems")

    def _case_item(self, node: "Node") -> None:
        """`PATTERN | PATTERN) statements ;;`"""
        children = node.children
        close = next((place for place, child in enumerate(children) if text_of(child) == ")"), -1)
        if close < 0:
            raise Unreadable("a case is not what it seems")
        at = node.start_byte
        for child in children[: close + 1]:
            self.gap(at, child.start_byte, SPACE)
            at = child.end_byte
            if child.is_named:
                self.word(child)
            elif text_of(child) not in ("(", "|", ")"):
                raise Unreadable("a case is not what it seems")
        if not self._sequence(children[close + 1 :], at, node.end_byte, _CASE_ITEM):
            following = self.source[node.end_byte :].lstrip(b" \t")
            if not following.startswith((b"\n", b"#")):
                raise Unreadable("a case is not what it seems")

    _VISITORS: ClassVar[Mapping[str, Callable[..., None]]] = {
        "command": SimpleReader.command,
        "variable_assignment": SimpleReader.assignments,
        "variable_assignments": SimpleReader.assignments,
        "declaration_command": SimpleReader.command,
        "unset_command": SimpleReader.command,
        "test_command": SimpleReader.test,
        "redirected_statement": SimpleReader.redirected,
        "file_redirect": SimpleReader.lone_redirection,
        "function_definition": _function,
        "for_statement": _for,
        "case_statement": _case,
    }


def _has_newline(gap: bytes) -> bool:
    """Whether a new line stands in the blanks, other than one that is joined."""
    return b"\n" in gap.replace(b"\\\n", b"")


@lru_cache(maxsize=1)
def _language() -> "Language":
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Language(tree_sitter_bash.language())


def take_apart(command: str, inner: int = 0) -> Taken:
    """Take a command apart. Raises Unreadable when what bash would do is not beyond doubt."""
    from tree_sitter import Parser

    try:
        source = command.encode()
    except UnicodeEncodeError as error:
        raise Unreadable("it is no text") from error
    if b"\0" in source:
        raise Unreadable("it has a NUL byte")
    tree = Parser(_language()).parse(source)
    reader = ShellReader(source, inner)
    try:
        taken = reader.take(tree.root_node)
    except RecursionError as error:
        raise Unreadable("it is nested too deeply") from error
    if reader.compound and not bash_accepts(source):
        raise Unreadable("bash does not accept it")
    return taken


def bash_accepts(source: bytes) -> bool:
    """Whether bash itself finds the text complete and right. It runs nothing of it, and takes a millisecond.

    Bash reads a text line by line and has run the first ones when it finds a later one wrong, so no text counts as read
    that it would refuse. Where there is no bash, none does.
    """
    command = ("/bin/bash", "--norc", "-n", "-c", "--", source)
    try:
        bash = subprocess.Popen(
            command, env={}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
    except OSError:
        return False
    # It writes a complaint, or nothing until it ends. `Popen.wait` with a timeout would look for the end in steps.
    with bash, selectors.DefaultSelector() as selector:
        assert bash.stderr is not None
        selector.register(bash.stderr, selectors.EVENT_READ)
        if not selector.select(BASH_SECONDS_MAX) or os.read(bash.stderr.fileno(), 1):
            bash.kill()
            return False
        return bash.wait() == 0
