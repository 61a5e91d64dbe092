"""Parses JSON as models write it, if it has only one sensible reading and no part is missing.

Accepts trailing commas, raw newlines in strings, single quotes, bare keys, Python's True, False and None, an
unnecessary backslash before a character, comments between values, and a code fence around everything. Rejects
unclosed values and values that other text follows, because half a command is a different command.
"""

import ast
import re
from typing import cast

from shoal.kernel import lazy_re

DEPTH_MAX = 100
_SPACE = lazy_re.compile(r"(?:[\s\ufeff]|//[^\n]*+(?:\n|\Z)|/\*(?:[^*]|\*(?!/))*+\*/)*+")  # white space and comments
_PLAIN = {'"': re.compile(r'[^"\\]*+'), "'": re.compile(r"[^'\\]*+")}
_NUMBER = lazy_re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?(?![\w.])")
_WORD = lazy_re.compile(r"[A-Za-z_$][\w$-]*+")
_FENCE = lazy_re.compile(r"```[\w-]{0,20}[ \t]*+\r?\n")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""}
_HEX = lazy_re.compile(r"[0-9a-fA-F]{4}")
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_AFTER = lazy_re.compile(r"(?:\s|<\|[^|<>]{1,40}\|>|</[\w:]{1,40}>|[}\]])*+")
"""Matches text that may follow the value: white space, a special token or closing tag of the model's format, or an
extra bracket.
"""


def loose_value(text: str) -> object:
    """Parse text that contains one value. Raises ValueError."""
    text = text.strip()
    if text.startswith("```"):
        fence = _FENCE.match(text)
        if fence is None or not text.endswith("```", fence.end()):
            raise ValueError("the code fence is not closed")
        text = text[fence.end() : -3]
    reader = _LooseReader(text)
    value = reader.value(0)
    if _AFTER.fullmatch(text, reader.at) is not None:
        return value
    if reader.value(0) != value or _AFTER.fullmatch(text, reader.at) is None:  # some servers send the value twice
        raise ValueError("unexpected text after the value")
    return value


class _LooseReader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def _skip(self) -> str:
        """Skip white space and comments. Return the next character, which is not consumed, or an empty string at
        the end.
        """
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match is not None else self.at
        return self.text[self.at : self.at + 1]

    def value(self, depth: int) -> object:
        if depth > DEPTH_MAX:
            raise ValueError("nested too deeply")
        mark = self._skip()
        if mark == "{":
            return self._object(depth)
        if mark == "[":
            return self._list(depth)
        if mark and mark in "\"'":
            return self._string(mark)
        if (number := _NUMBER.match(self.text, self.at)) is not None:
            self.at = number.end()
            digits = number[0]
            return int(digits) if digits.lstrip("-").isdigit() else float(digits)
        word = _WORD.match(self.text, self.at)
        if word is None or word[0] not in _WORDS:
            raise ValueError("no value")
        self.at = word.end()
        return _WORDS[word[0]]

    def _object(self, depth: int) -> dict[str, object]:
        self.at += 1
        fields: dict[str, object] = {}
        while (mark := self._skip()) != "}":
            if mark and mark in "\"'":
                key = self._string(mark)
            elif (word := _WORD.match(self.text, self.at)) is not None:
                key, self.at = word[0], word.end()
            else:
                raise ValueError("no key")
            if self._skip() != ":":
                raise ValueError("no colon")
            self.at += 1
            if key in fields:
                raise ValueError("a key twice")
            fields[key] = self.value(depth + 1)
            self._comma("}")
        self.at += 1
        return fields

    def _list(self, depth: int) -> list[object]:
        self.at += 1
        items: list[object] = []
        while self._skip() != "]":
            items.append(self.value(depth + 1))
            self._comma("]")
        self.at += 1
        return items

    def _comma(self, end: str) -> None:
        mark = self._skip()
        if mark == ",":
            self.at += 1
        elif mark != end:
            raise ValueError("no comma")

    def _string(self, quote: str) -> str:
        self.at += 1
        parts: list[str] = []
        while True:
            plain = _PLAIN[quote].match(self.text, self.at)
            if plain is not None:
                parts.append(plain[0])
                self.at = plain.end()
            mark, after = self.text[self.at : self.at + 1], self.text[self.at + 1 : self.at + 2]
            if mark == quote:
                self.at += 1
                return _joined_halves("".join(parts))
            if not after:
                raise ValueError("a string is not closed")
            self.at += 2
            if after == "u" and (digits := _HEX.match(self.text, self.at)) is not None:
                self.at += 4
                parts.append(chr(int(digits[0], 16)))
            elif after in "\"'\\/":
                parts.append(after)
            else:
                parts.append(_ESCAPES.get(after, "\\" + after))


def _joined_halves(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


CALLS_CHARS_MAX = 65_536


def python_calls(text: str) -> list[tuple[str, dict[str, object]]]:
    """Parse a call in Python syntax, such as `name(key="value")`, or a list of such calls. Raises ValueError."""
    if len(text) > CALLS_CHARS_MAX:
        raise ValueError("too long")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("no expression") from error
    calls: list[tuple[str, dict[str, object]]] = []
    for node in tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]:
        if not isinstance(node, ast.Call) or node.args:
            raise ValueError("not a call with keyword arguments")
        arguments: dict[str, object] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise ValueError("no name")
            try:
                arguments[keyword.arg] = cast("object", ast.literal_eval(keyword.value))
            except (TypeError, RecursionError, MemoryError) as error:
                raise ValueError("not a literal value") from error
        calls.append((ast.unparse(node.func), arguments))
    if not calls:
        raise ValueError("no call")
    return calls
