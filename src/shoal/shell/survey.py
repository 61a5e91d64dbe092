"""Collect facts about a complete shell command before it is parsed: expansions, functions and variable values."""

import re
from typing import TYPE_CHECKING

from shoal.shell.words import RESERVED, SETTERS, Unreadable, Value, WordReader

if TYPE_CHECKING:
    from tree_sitter import Node

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIMPLE_EXPANSION = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_OPERATOR = re.compile(rb"[;&|<>]{2,}")
_OPERATORS = frozenset({b"&&", b"||", b">>", b">&", b"&>"})
_EXPANSIONS = frozenset(
    {"simple_expansion", "expansion", "command_substitution", "process_substitution", "arithmetic_expansion"}
)
_COUNTED = (_EXPANSIONS - {"simple_expansion"}) | {
    "command", "variable_assignment", "declaration_command", "unset_command", "test_command", "file_redirect",
    "heredoc_redirect", "herestring_redirect", "compound_statement", "function_definition", "for_statement",
}  # fmt: skip
BEFORE_WORD = (b"", b" ", b"\t", b"\n", b";", b"|", b"&", b"(", b")")
_AFTER_WORD = (*BEFORE_WORD, b"<", b">")
_SET_BY_EXPANSION = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*):?=")
# Node types of a simple command line. Bash and this parser agree on texts that contain only these nodes.
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
ALL_SETTERS = SETTERS | {"printf", "declare", "local", "typeset", "readonly", "let"}


class Survey:
    """Facts from the syntax tree of a command.

    spans: end of each expansion, by its start.
    functions: names of the functions that the command defines.
    variables: possible values of each variable that the command sets. None means unknown.
    unvisited: nodes that can run, read or write something, and must be visited.
    compound: False only for plain lines of commands, which the grammar and bash read alike. For other texts, bash
    must confirm that it accepts them.
    """

    def __init__(self, source: bytes, root: "Node") -> None:
        self.source = source
        self.spans: dict[int, int] = {}
        self.words = WordReader(source, self.spans)
        self.variables: dict[str, tuple[Value, ...] | None] = {}
        self.functions: set[str] = set()
        self.unvisited: set[tuple[str, int]] = set()
        self.compound = any(operator not in _OPERATORS for operator in _OPERATOR.findall(self.source))
        nodes, setting = [root], list["Node"]()
        while nodes:
            node = nodes.pop()
            if node.is_missing or node.is_error:
                raise Unreadable("it is not a complete shell command")
            if (node.is_named and node.type not in _PLAIN_NODES) or node.type in _COMPOUND_TOKENS:
                self.compound = self.compound or not _SIMPLE_EXPANSION.fullmatch(text_of(node))
            if node.type in _COUNTED:
                self.unvisited.add((node.type, node.start_byte))
            if node.type in _EXPANSIONS:
                self.spans[node.start_byte] = node.end_byte
            elif node.type == "function_definition":
                self.functions.add(text_of(node.child_by_field_name("name")))
            elif node.type in _SETTING:
                setting.append(node)
            elif node.type == "arithmetic_expansion" or self.source.startswith(b"((", node.start_byte):
                self.variables |= dict.fromkeys(IDENTIFIER.findall(text_of(node)), None)
            elif not node.is_named and text_of(node) in RESERVED and node.parent is not None:
                # A brace opens a group only as a separate word: `{a,b}` is not a group, even if the grammar says so.
                before = self.source[max(node.start_byte - 1, 0) : node.start_byte]
                after = self.source[node.end_byte : node.end_byte + 1]
                is_alone = before in BEFORE_WORD and after in _AFTER_WORD
                if node.parent.type not in _NOT_RESERVED_IN and not is_alone:
                    raise Unreadable("an unexpected reserved word")
            nodes.extend(node.children)
        for node in sorted(setting, key=lambda node: node.start_byte):
            self._note_setting(node)
        for name in _SET_BY_EXPANSION.findall(self.source.decode()):
            self.variables[name] = None

    def _note_setting(self, node: "Node") -> None:
        children = node.children
        if node.type not in ("variable_assignment", "for_statement"):
            words = [
                self.words.word(child.start_byte, child.end_byte) for child in children if child.type in _WORD_LIKE
            ]
            # `time -p read X` also sets X, and so may other commands with a prefix, so all later words count. The
            # grammar attaches the `X` of `read < FILE X` to the redirection.
            first = next((place for place, word in enumerate(words) if word.value in ALL_SETTERS), len(words))
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


def text_of(node: "Node | None") -> str:
    return "" if node is None or node.text is None else node.text.decode(errors="replace")
