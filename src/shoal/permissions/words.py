"""Words of a shell command: what quoting hides is made plain, and what only the shell will know is marked as such.

A word is read byte by byte, beside the grammar: every expansion must begin exactly where the grammar saw one, and no
character that separates commands may stand unquoted. Where the two disagree, the command counts as unreadable.
"""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

_SAFE = re.compile(r"[A-Za-z0-9@%+:,./_^=-]+")
_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE = re.compile(r"\$\w+")
_PLAIN_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_A_NUMBER = re.compile(r"\$[#?$]|\$\{#[A-Za-z_][A-Za-z0-9_]*(?:\[[@*]\])?\}")
_SPECIAL = b"0123456789*@#?$!-"
_ENDS_WORD = b" \t\n|&;()<>"
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}
_ANSI_ESCAPE = re.compile(
    r"\\(?:([abeEfnrtv])|(['\"\\?])|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3}))"
)
_DIRECTED = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


class Unreadable(Exception):
    """The text is not, or may not be, what it seems; the message says where reading ended."""


class Piece(msgspec.Struct, frozen=True):
    """A part of a word: literal text, or something that the shell replaces.

    A `glob` is one of `*?[`, a `brace` one of `{,}`, a `variable` has its name, a `number` is `$?` and the like,
    `process` is `<(…)`, `below` a file that a search found in the folder of this name; of what is `unknown` nothing can
    be told.
    """

    kind: Literal["text", "glob", "brace", "tilde", "variable", "number", "process", "below", "unknown"]
    text: str = ""
    quoted: bool = False


class Word(msgspec.Struct, frozen=True):
    """A word as the shell will see it.

    `text` is its canonical spelling. `value` is what it becomes, None when only the shell knows (variables,
    substitutions, globs, braces, a tilde). `begins` is what it surely begins with. `splits` marks a word that may
    become several, `bare` one without any quoting. `pieces` tell how an uncertain one comes about.
    """

    text: str
    value: str | None
    begins: str
    splits: bool = False
    bare: bool = False
    pieces: tuple[Piece, ...] = ()

    @property
    def certain(self) -> bool:
        """Whether it stays one argument that cannot turn into an option."""
        return self.value is not None or bool(self.begins and self.begins[0] != "-" and not self.splits)


def quote(text: str, *, force: bool = False) -> str:
    """Spell a literal word in one way: bare when nothing in it is special, else in quotes, never over two lines."""
    if (_SAFE.fullmatch(text) or text in ("[", "]")) and not force:
        return text
    if any(not char.isprintable() or char in _DIRECTED for char in text):
        return "$'" + "".join(_ansi(char) for char in text) + "'"
    return "'" + text.replace("'", "'\\''") + "'"


def _ansi(char: str) -> str:
    if char in "'\\":
        return "\\" + char
    if char == "\n":
        return "\\n"
    if char == "\t":
        return "\\t"
    if char.isprintable() and char not in _DIRECTED:
        return char
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class _Reading:
    """A word while it is read: literal text gathers until something else comes."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.literal: list[str] = []
        self.values: list[str] = []
        self.begins: str | None = None
        self.splits = False
        self.bare = False
        self.parts: list[Piece] = []

    def add(self, text: str) -> None:
        self.literal.append(text)
        self.values.append(text)
        self.parts.append(Piece("text", text))

    def flush(self, *, always: bool = False) -> None:
        if always or any(self.literal):
            text = quote("".join(self.literal))
            if self.pieces and _VARIABLE.fullmatch(self.pieces[-1]) and (text[0].isalnum() or text[0] == "_"):
                self.pieces[-1] = f"${{{self.pieces[-1][1:]}}}"
            self.pieces.append(text)
            self.literal = []

    def uncertain(self, shown: str, piece: Piece, *, splits: bool) -> None:
        """A piece that the shell replaces."""
        self.parts.append(piece)
        if self.begins is None:
            self.begins = "".join(self.values)
        self.flush()
        self.pieces.append(shown)
        self.splits = self.splits or splits

    def word(self) -> Word:
        self.flush(always=not self.pieces)
        if self.begins is None:
            value = "".join(self.values)
            return Word("".join(self.pieces), value, value, bare=self.bare)
        if self._braces_are_text():
            value = "".join(part.text for part in self.parts)
            return Word(quote(value), value, value, bare=self.bare)
        return Word("".join(self.pieces), None, self.begins, self.splits, self.bare, tuple(self.parts))

    def _braces_are_text(self) -> bool:
        """Whether nothing but braces was uncertain, and these are none that the shell expands: `{}` and `{x`."""
        marks = {part.text for part in self.parts if part.kind == "brace"}
        text = "".join(part.text for part in self.parts)
        return not (
            any(part.kind not in ("text", "brace") for part in self.parts)
            or (marks >= {"{", "}"} and ("," in marks or ".." in text))
        )


class WordReader:
    """Reads words out of a command. `spans` maps where the grammar saw an expansion to where that ends."""

    def __init__(self, source: bytes, spans: Mapping[int, int]) -> None:
        self._source = source
        self._spans = spans

    def word(self, start: int, end: int) -> Word:
        """The word between two byte offsets. Raises Unreadable unless it is exactly one word there."""
        reading = _Reading()
        raw = self._source[start:end]
        braces = _has_braces(raw)
        reading.bare = not any(char in raw for char in (b"\\", b"'", b'"', b"$", b"`"))
        at = start
        while at < end:
            at = self._piece(reading, at, end, braces=braces, first=at == start)
        if at != end or start == end:
            raise Unreadable("a word ends elsewhere than it seems")
        return reading.word()

    def _piece(self, reading: _Reading, at: int, end: int, *, braces: bool, first: bool) -> int:
        """Read one piece outside quotes and return where the next one begins."""
        char = self._source[at : at + 1]
        if at in self._spans or char in b"$`":
            return self._expansion(reading, at, end, quoted=False)
        if char == b"\\":
            return self._escape(reading, at, end)
        if char == b"'":
            return self._single(reading, at, end)
        if char == b'"':
            return self._double(reading, at, end)
        if char in _ENDS_WORD or (char == b"#" and first):
            raise Unreadable("a separator stands inside a word")
        if (
            (char in b"*?[" and not (char == b"[" and first and at + 1 == end))
            or (braces and char in b"{},")
            or (char == b"~" and first)
        ):
            shown = char.decode()
            kind = "glob" if char in b"*?[" else "tilde" if char == b"~" else "brace"
            reading.uncertain(shown, Piece(kind, shown), splits=char in b"{},")
            return at + 1
        return self._plain(reading, at, end)

    def _plain(self, reading: _Reading, at: int, end: int) -> int:
        """Read ordinary characters, whole UTF-8 sequences at once."""
        stop = at + 1
        while stop < end and self._source[stop] & 0xC0 == 0x80:
            stop += 1
        reading.add(_decode(self._source[at:stop]))
        return stop

    def _escape(self, reading: _Reading, at: int, end: int) -> int:
        if at + 1 >= end:
            raise Unreadable("a backslash ends a word")
        if self._source[at + 1 : at + 2] == b"\n":
            raise Unreadable("a line is joined inside a word")
        return self._plain(reading, at + 1, end)

    def _single(self, reading: _Reading, at: int, end: int) -> int:
        close = self._source.find(b"'", at + 1, end)
        if close < 0:
            raise Unreadable("a quote is not closed")
        reading.add(_decode(self._source[at + 1 : close]))
        return close + 1

    def _double(self, reading: _Reading, at: int, end: int) -> int:
        """Read a double-quoted piece."""
        reading.add("")
        at += 1
        while at < end:
            char = self._source[at : at + 1]
            if char == b'"':
                return at + 1
            at = self._inside(reading, at, end, escapes=b'$`"\\')
        raise Unreadable("a quote is not closed")

    def _inside(self, reading: _Reading, at: int, end: int, escapes: bytes) -> int:
        """Read one piece of a double-quoted text or of a here-document."""
        char = self._source[at : at + 1]
        if char == b"\\":
            following = self._source[at + 1 : at + 2]
            if following == b"\n":
                raise Unreadable("a line is joined inside a word")
            if following and following in escapes:
                reading.add(following.decode())
                return at + 2
        elif at in self._spans or char in b"$`":
            return self._expansion(reading, at, end, quoted=True)
        return self._plain(reading, at, end)

    def document(self, start: int, end: int) -> None:
        """Check the body of a here-document in which the shell expands. Raises Unreadable."""
        reading = _Reading()
        while start < end:
            start = self._inside(reading, start, end, escapes=b"$`\\")
        if start != end:
            raise Unreadable("a here-document ends elsewhere than it seems")

    def _expansion(self, reading: _Reading, at: int, end: int, *, quoted: bool) -> int:
        """Read `$…`, a backtick or a process substitution; it has to be where the grammar saw one."""
        stop = self._spans.get(at)
        following = self._source[at + 1 : at + 2]
        if stop is None:
            return self._lone_dollar(reading, at, end, quoted=quoted)
        if stop > end:
            raise Unreadable("an expansion leaves its word")
        raw = self._source[at:stop]
        if raw[:1] == b"$" and following not in b"({":
            self._check_name(at, stop)
        shown = _decode(raw).replace("\n", " ")
        piece = _expanded(_decode(raw), quoted=quoted)
        # `"$@"` and `"${a[@]}"` become several words although they are quoted.
        splits = (
            (not quoted and piece.kind not in ("number", "process"))
            or raw.startswith(b"$@")
            or (raw.startswith(b"${") and b"@" in raw)
        )
        reading.uncertain(f'"{shown}"' if quoted else shown, piece, splits=splits)
        return stop

    def _lone_dollar(self, reading: _Reading, at: int, end: int, *, quoted: bool) -> int:
        """A dollar sign that expands to nothing stands for itself; `$'…'` is a kind of quotes."""
        char, following = self._source[at : at + 1], self._source[at + 1 : at + 2]
        if char != b"$":
            raise Unreadable("a substitution is not where it seems")
        if following == b"'" and not quoted and at + 1 < end:
            return self._ansi_quoted(reading, at + 2, end)
        inside = at + 1 < end
        if inside and (following in b"({[" or following in _SPECIAL or _NAME.match(following)):
            raise Unreadable("an expansion is not where it seems")
        if inside and following in b"'\"" and not quoted:
            raise Unreadable("a translated string")
        reading.add("$")
        return at + 1

    def _check_name(self, at: int, stop: int) -> None:
        """The name after a dollar sign is as long as the grammar thinks."""
        name = _NAME.match(self._source, at + 1)
        length = name.end() if name else at + 2
        if length != stop or (not name and self._source[at + 1 : at + 2] not in _SPECIAL):
            raise Unreadable("a variable's name is not what it seems")

    def _ansi_quoted(self, reading: _Reading, at: int, end: int) -> int:
        """Read the inside of `$'…'`."""
        stop = at
        while stop < end and self._source[stop : stop + 1] != b"'":
            stop += 2 if self._source[stop : stop + 1] == b"\\" else 1
        if stop >= end:
            raise Unreadable("a quote is not closed")
        reading.add(_ansi_decoded(_decode(self._source[at:stop])))
        return stop + 1


def _expanded(raw: str, *, quoted: bool) -> Piece:
    """What kind of expansion this is."""
    variable = _PLAIN_VARIABLE.fullmatch(raw)
    if variable is not None:
        return Piece("variable", variable[1] or variable[2], quoted)
    if _A_NUMBER.fullmatch(raw) or raw.startswith("$(("):
        return Piece("number", quoted=quoted)
    return Piece("process" if raw.startswith(("<(", ">(")) else "unknown", quoted=quoted)


def _ansi_decoded(text: str) -> str:
    pieces: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\\":
            pieces.append(text[at])
            at += 1
            continue
        found = _ANSI_ESCAPE.match(text, at)
        if found is None:
            raise Unreadable("an escape of unknown meaning")
        pieces.append(_ansi_char(found))
        at = found.end()
    return "".join(pieces)


def _ansi_char(found: re.Match[str]) -> str:
    letter, itself, byte, short, long, octal = found.groups()
    if letter:
        return _ANSI[letter]
    if itself:
        return str(itself)
    code = int(octal, 8) if octal else int(byte or short or long, 16)
    if code == 0 or code > 0x10FFFF or 0xD800 <= code < 0xE000 or (code > 0x7F and (byte or octal)):
        raise Unreadable("an escape that is no character")
    return chr(code)


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Unreadable("bytes that are no text") from error


def _has_braces(raw: bytes) -> bool:
    """Whether the shell may expand braces in this word; `{}` alone it leaves as it is."""
    return b"{" in raw and (b"," in raw or b".." in raw)
