"""MarkdownV2 as Telegram reads it: the text without markup, or the refusal. Source: Bot API, formatting options."""

import re

RESERVED = frozenset("_*[]()~`>#+-=|{}.!")
_NAMES = {"*": "Bold", "_": "Italic", "__": "Underline", "~": "Strikethrough", "||": "Spoiler", "[": "TextUrl"}
_LANGUAGE = re.compile(r"[^\s`]*\n")


class BadMarkup(Exception):
    """The text does not parse; the message is Telegram's."""


class MarkdownV2:
    """One parse."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._open: list[str] = []
        self._text: list[str] = []

    def parse(self) -> str:
        """The text people see. Raises BadMarkup."""
        while self._at < len(self._source):
            self._step()
        if self._open:
            raise BadMarkup(f"Can't find end of {_NAMES[self._open[-1]]} entity at byte offset {self._at}")
        return "".join(self._text)

    def _step(self) -> None:
        source, at = self._source, self._at
        character = source[at]
        if character == "\\" and at + 1 < len(source) and 0 < ord(source[at + 1]) <= 126:
            self._take(source[at + 1], 2)
        elif character not in RESERVED:
            self._take(character, 1)
        elif character == "`":
            self._code()
        elif character == "]" and self._open and self._open[-1] == "[":
            self._link_end()
        elif character == ">" and (at == 0 or source[at - 1] == "\n"):
            self._at += 1
        else:
            self._mark(character)

    def _mark(self, character: str) -> None:
        doubled = character * 2
        mark = doubled if doubled in _NAMES and self._source.startswith(doubled, self._at) else character
        if mark not in _NAMES:
            raise BadMarkup(f"Character '{character}' is reserved and must be escaped with the preceding '\\'")
        if self._open and self._open[-1] == mark and mark != "[":
            self._open.pop()
        else:
            self._open.append(mark)
        self._at += len(mark)

    def _code(self) -> None:
        fence = "```" if self._source.startswith("```", self._at) else "`"
        self._at += len(fence)
        language = _LANGUAGE.match(self._source, self._at) if fence == "```" else None
        if language:
            self._at = language.end()
        while not self._source.startswith(fence, self._at):
            if self._at >= len(self._source):
                name = "Pre" if fence == "```" else "Code"
                raise BadMarkup(f"Can't find end of {name} entity at byte offset {self._at}")
            if self._source[self._at] == "\\" and self._at + 1 < len(self._source):
                self._at += 1
            self._take(self._source[self._at], 1)
        self._at += len(fence)

    def _link_end(self) -> None:
        self._open.pop()
        self._at += 1
        if not self._source.startswith("(", self._at):
            return
        while not self._source.startswith(")", self._at):
            if self._at >= len(self._source):
                raise BadMarkup("Can't find end of a URL")
            self._at += 2 if self._source[self._at] == "\\" else 1
        self._at += 1

    def _take(self, character: str, length: int) -> None:
        self._text.append(character)
        self._at += length


def shown_text(source: str) -> str:
    """The text of a MarkdownV2 source as people see it. Raises BadMarkup."""
    return MarkdownV2(source).parse()
