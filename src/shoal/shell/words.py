"""Words of a shell command: quoting, expansions, and constructs that can hide a command.

A word is parsed byte by byte, independently of the grammar. Every expansion must begin exactly where the grammar
found one, and characters that separate commands must be quoted. If the two disagree, the command is unreadable.

In `$((a))`, the shell evaluates the value of `a`, so a value of `x[$(rm y)]` runs `rm y`. The same applies to
`${!a}`, `${a@P}` and `[[ $a -eq 1 ]]`. Arithmetic is plain only if the command sets its variables to numbers or does
not set them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

RESERVED = frozenset(
    "! { } [[ ]] if then elif else fi for while until do done case esac in function select coproc".split()  # noqa: SIM905
)

# Builtins whose arguments name the variables they set.
SETTERS = frozenset({"read", "mapfile", "readarray", "getopts", "unset", "export"})

_SPECIAL_VARIABLES = re.compile(
    r"(?:PATH|IFS|ENV|BASH.*|LD_.*|DYLD_.*|PS[0-4]|PROMPT_.*|SHELL.*|CDPATH|OLDPWD|PWD|GLOBIGNORE|HOME|.*EDITOR|VISUAL"
    r"|.*PAGER|BROWSER|GIT_.*|PYTHON.*|NODE_.*|NPM_.*|PERL.*|RUBY.*|_?JAVA.*|.*_?PROXY|LESS.*|MAN.*|TAR_.*|.*_COMMAND"
    r"|.*OPTIONS|.*OPTS?|.*FLAGS|TMPDIR|TEMP|TMP|XDG_.*|SSH_.*|.*ASKPASS|CC|CXX|LD|AR|AS|MAKE.*|OPENSSL.*|SSL_.*|CURL.*"
    r"|WGET.*|RSYNC_.*|ZIP.*|GZIP|BZIP.*|XZ_.*|COMP_.*|FCEDIT|HIST.*|EXECIGNORE|POSIXLY_CORRECT|TIMEFORMAT|INPUTRC"
    r"|MAIL.*|GCONV_PATH|LOCPATH|NLSPATH|HOSTALIASES|MALLOC_.*|GLIBC_.*|TERM.*|DOCKER_.*|KUBE.*|AWS_.*|GO[A-Z]*|RUST.*"
    r"|CARGO.*|NIX.*|PIP_.*|UV_.*|VIRTUAL_ENV|CONDA.*|GEM_.*|BUNDLE_.*|COMPOSER_.*|PHP.*|LUA.*|R_.*|GREP_.*|POSIX.*"
    r"|USER|LOGNAME|LANGUAGE|CONFIG_.*|ACLOCAL.*|AUTOMAKE.*|PKG_.*|CMAKE.*|DEBUGINFOD.*|SYSTEMD_.*|SUDO_.*|QT_.*|GTK_.*"
    r"|.*_proxy|npm_config_.*|histchars|auto_resume|FUNCNEST|OPTIND|OPTARG|REPLY|MAPFILE|RANDOM|SECONDS|LINENO|DIRSTACK|_"
    r"|EUID|UID|PPID|GROUPS|CHILD_MAX|COLUMNS|LINES)"
)
# Variables that do not change what a program runs.
_HARMLESS_VARIABLES = re.compile(
    r"LC_[A-Z]+|LANG|TZ|(NO|FORCE|CLI)_?COLOR|CI|DEBIAN_FRONTEND|COLUMNS|LINES|VERBOSE|NODE_ENV|RUST_BACKTRACE|RUST_LOG"
    r"|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE|PYTHONIOENCODING|PYTHONUTF8|PYTHONHASHSEED|PYTHONPATH|PYTHONWARNINGS"
    r"|DJANGO_SETTINGS_MODULE|FLASK_(APP|ENV|DEBUG)|CGO_ENABLED|GOOS|GOARCH|CARGO_TERM_COLOR|GIT_TERMINAL_PROMPT|DEBUG"
    r"|APP_ENV|RAILS_ENV|PORT|HOST|LOG_LEVEL"
)


def special_variable(name: str) -> bool:
    """Return True if the shell or common programs act on a variable with this name."""
    return _SPECIAL_VARIABLES.fullmatch(name) is not None


def harmless_variable(name: str) -> bool:
    """Return True if this variable never makes a program run anything else."""
    return _HARMLESS_VARIABLES.fullmatch(name) is not None


_SAFE = re.compile(r"[A-Za-z0-9@%+:,./_^=-]+")
_NAME_BYTES = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE = re.compile(r"\$\w+")
_PLAIN_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_A_NUMBER = re.compile(r"\$[#?$]|\$\{#[A-Za-z_][A-Za-z0-9_]*(?:\[[@*]\])?\}")
_SPECIAL = b"0123456789*@#?$!-"
_ENDS_WORD = b" \t\n|&;()<>"
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}
_ANSI_QUOTED = {"'": "\\'", "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
_ANSI_ESCAPE = re.compile(
    r"\\(?:([abeEfnrtv])|(['\"\\?])|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|)"
)
_DIRECTED = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


class Unreadable(Exception):
    """Raised if the text is ambiguous or unsupported. The message is the reason."""


class Piece(msgspec.Struct, frozen=True):
    """A part of a word: literal text or an expansion. `text` depends on the kind.

    text: the literal text.
    glob: one of `*?[`.
    brace: one of `{,}`.
    variable: the name of the variable.
    number: `$?` or a similar expansion.
    process: `<(…)`.
    below: the folder in which a search found the file.
    unknown: could be any text.
    """

    kind: Literal["text", "glob", "brace", "tilde", "variable", "number", "process", "below", "unknown"]
    text: str = ""
    quoted: bool = False


class Word(msgspec.Struct, frozen=True):
    """A word as the shell will see it."""

    text: str
    """Canonical spelling."""
    value: str | None
    """Value after expansion, or None if only the shell knows it (variables, substitutions, globs, braces, a tilde)."""
    begins: str
    """Known beginning of the value."""
    splits: bool = False
    """Whether the shell may split the word into several words."""
    bare: bool = False
    """True if no part of the word is quoted, escaped or expanded by `$` or a backtick."""
    pieces: tuple[Piece, ...] = ()
    """Parts of the word. Empty if the value is known."""

    @property
    def certain(self) -> bool:
        """Whether the word stays one argument and cannot become an option."""
        return self.value is not None or bool(self.begins and self.begins[0] != "-" and not self.splits)


def quote(text: str, *, force: bool = False) -> str:
    """Spell a literal word canonically, always on one line. It is quoted if it has special characters."""
    if (_SAFE.fullmatch(text) or text in ("[", "]")) and not force:
        return text
    if all(char.isprintable() and char not in _DIRECTED for char in text):
        return "'" + text.replace("'", "'\\''") + "'"
    shown: list[str] = []
    for char in text:
        code = ord(char)
        if char in _ANSI_QUOTED:
            shown.append(_ANSI_QUOTED[char])
        elif char.isprintable() and char not in _DIRECTED:
            shown.append(char)
        else:
            shown.append(f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return "$'" + "".join(shown) + "'"


class _Reading:
    """A word that is being parsed. Collects literal text until another piece begins."""

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
        marks = {part.text for part in self.parts if part.kind == "brace"}
        value = "".join(part.text for part in self.parts)
        if all(part.kind in ("text", "brace") for part in self.parts) and not (
            marks >= {"{", "}"} and ("," in marks or ".." in value)
        ):  # Braces alone, as in `{}` and `{x`, are literal.
            return Word(quote(value), value, value, bare=self.bare)
        return Word("".join(self.pieces), None, self.begins, self.splits, self.bare, tuple(self.parts))


class WordReader:
    """Parses the words of a command. `spans` maps the start of each expansion in the syntax tree to its end."""

    def __init__(self, source: bytes, spans: Mapping[int, int]) -> None:
        self._source = source
        self._spans = spans

    def word(self, start: int, end: int) -> Word:
        reading = _Reading()
        raw = self._source[start:end]
        braces = b"{" in raw and (b"," in raw or b".." in raw)  # The shell does not expand a lone `{}`.
        reading.bare = not any(char in raw for char in (b"\\", b"'", b'"', b"$", b"`"))
        at = start
        while at < end:
            at = self._piece(reading, at, end, braces=braces, first=at == start)
        if at != end or start == end:
            raise Unreadable("a word with an unclear end")
        return reading.word()

    def _piece(self, reading: _Reading, at: int, end: int, *, braces: bool, first: bool) -> int:
        char = self._source[at : at + 1]
        if at in self._spans or char in b"$`":
            return self._expansion(reading, at, end, quoted=False)
        if char == b"\\":
            if at + 1 >= end:
                raise Unreadable("a backslash ends a word")
            if self._source[at + 1 : at + 2] == b"\n":
                raise Unreadable("a line is joined inside a word")
            return self._plain(reading, at + 1, end)
        if char == b"'":
            close = self._source.find(b"'", at + 1, end)
            if close < 0:
                raise Unreadable("a quote is not closed")
            reading.add(_decode(self._source[at + 1 : close]))
            return close + 1
        if char == b'"':
            reading.add("")
            at += 1
            while at < end and self._source[at : at + 1] != b'"':
                at = self._inside(reading, at, end, escapes=b'$`"\\')
            if at >= end:
                raise Unreadable("a quote is not closed")
            return at + 1
        if char in _ENDS_WORD or (char == b"#" and first):
            raise Unreadable("a separator inside a word")
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
        stop = at + 1
        while stop < end and self._source[stop] & 0xC0 == 0x80:
            stop += 1
        reading.add(_decode(self._source[at:stop]))
        return stop

    def _inside(self, reading: _Reading, at: int, end: int, escapes: bytes) -> int:
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
        reading = _Reading()
        while start < end:
            start = self._inside(reading, start, end, escapes=b"$`\\")
        if start != end:
            raise Unreadable("a here-document with an unclear end")

    def _expansion(self, reading: _Reading, at: int, end: int, *, quoted: bool) -> int:
        """Parse `$…`, a backtick or a process substitution. The grammar must have found an expansion at the same
        offset.
        """
        stop = self._spans.get(at)
        following = self._source[at + 1 : at + 2]
        if stop is None:
            # A dollar sign without an expansion is literal, and `$'…'` is a form of quoting.
            if self._source[at : at + 1] != b"$":
                raise Unreadable("an unexpected substitution")
            if following == b"'" and not quoted and at + 1 < end:
                begin = close = at + 2
                while close < end and self._source[close : close + 1] != b"'":
                    close += 2 if self._source[close : close + 1] == b"\\" else 1
                if close >= end:
                    raise Unreadable("a quote is not closed")
                reading.add(_ANSI_ESCAPE.sub(_ansi_char, _decode(self._source[begin:close])))
                return close + 1
            inside = at + 1 < end
            if inside and (following in b"({[" or following in _SPECIAL or _NAME_BYTES.match(following)):
                raise Unreadable("an unexpected expansion")
            if inside and following in b"'\"" and not quoted:
                raise Unreadable("a translated string")
            reading.add("$")
            return at + 1
        if stop > end:
            raise Unreadable("an expansion that extends beyond its word")
        raw = self._source[at:stop]
        if raw[:1] == b"$" and following not in b"({":
            name = _NAME_BYTES.match(self._source, at + 1)
            if (name.end() if name else at + 2) != stop or (not name and following not in _SPECIAL):
                raise Unreadable("an unsupported variable name")
        text = _decode(raw)
        shown = text.replace("\n", " ")
        if (variable := _PLAIN_VARIABLE.fullmatch(text)) is not None:
            piece = Piece("variable", variable[1] or variable[2], quoted)
        elif _A_NUMBER.fullmatch(text) or text.startswith("$(("):
            piece = Piece("number", quoted=quoted)
        else:
            piece = Piece("process" if text.startswith(("<(", ">(")) else "unknown", quoted=quoted)
        # `"$@"` and `"${a[@]}"` become several words despite the quotes.
        splits = (
            (not quoted and piece.kind not in ("number", "process"))
            or raw.startswith(b"$@")
            or (raw.startswith(b"${") and b"@" in raw)
        )
        reading.uncertain(f'"{shown}"' if quoted else shown, piece, splits=splits)
        return stop


def _ansi_char(match: re.Match[str]) -> str:
    letter, itself, byte, short, long, octal = match.groups()
    if not any(match.groups()):
        raise Unreadable("an unknown escape")
    if letter:
        return _ANSI[letter]
    if itself:
        return str(itself)
    code = int(octal, 8) if octal else int(byte or short or long, 16)
    if code == 0 or code > 0x10FFFF or 0xD800 <= code < 0xE000 or (code > 0x7F and (byte or octal)):
        raise Unreadable("an escape sequence for an invalid character")
    return chr(code)


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Unreadable("bytes that are not text") from error


_ARITHMETIC = re.compile(r"[A-Za-z0-9_\s+\-*/%<>=!&|^~?:,()$#]*")
_NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACE = re.compile(r"\$(?![A-Za-z_#?$!])")
_NUMBER = re.compile(r"-?[0-9]+|\$\(\([^\[]*\)\)|\$\{#[A-Za-z_][A-Za-z0-9_]*\}|\$[#?$!]")
_BRACED_NUMBERS = re.compile(r"\{[0-9]+\.\.[0-9]+(\.\.[0-9]+)?\}")
_PLAIN_EXPANSION = re.compile(
    r"\$\{#?(?:[A-Za-z_][A-Za-z0-9_]*|[@*#?$!0-9-]|[0-9]+)(?:\[[@*0-9]+\])?\}"
    r"|\$\{[A-Za-z_][A-Za-z0-9_]*:\s*[0-9]+(?::[0-9]+)?\}"
    r"|\$\{#[A-Za-z_][A-Za-z0-9_]*\[[@*]\]\}"
)
_WITH_WORD = re.compile(
    rb"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*])(?P<how>:?[-+?=]|##?|%%?|/[/#%]?|\^\^?|,,?)(?P<word>.*)\}",
    re.DOTALL,
)


def is_number(raw: str) -> bool:
    return _NUMBER.fullmatch(raw) is not None or _BRACED_NUMBERS.fullmatch(raw) is not None


def arithmetic_names(raw: str) -> frozenset[str] | None:
    """Return the variables of an arithmetic expression, or None if it is not plain arithmetic."""
    if not _ARITHMETIC.fullmatch(raw) or _PLACE.search(raw):
        return None
    names = frozenset(_NAMES.findall(re.sub(r"0[xX][0-9A-Fa-f]+", "0", raw)))
    if any(special_variable(name) for name in names):
        return None
    return names


def plain_expansion(source: bytes, start: int, stop: int, spans: Mapping[int, int]) -> tuple[bool, str]:
    """Analyze `${…}` between two offsets. Returns whether it only expands to text, and the variable that it sets or "".

    Inner expansions must be where the grammar found them (`spans`). Quotes inside are not supported.
    """
    raw = source[start:stop]
    if _PLAIN_EXPANSION.fullmatch(raw.decode(errors="replace")):
        return True, ""
    match = _WITH_WORD.fullmatch(raw)
    if match is None:
        return False, ""
    name, how = match["name"].decode(), match["how"]
    sets = name if how.endswith(b"=") else ""
    if sets and special_variable(name):
        return False, sets
    at, end = start + match.start("word"), start + match.end("word")
    while at < end:
        if at in spans:
            at = spans[at]
        elif source[at : at + 1] in b"$`'\"\\{}<>":
            return False, sets
        else:
            at += 1
    return at == end, sets


ANY = "\0"
"""Placeholder for any text within a path component (`*` and `?`)."""
REST = "\1"
"""Placeholder for any text from here to the end of the path component (after `[`)."""
HOME, HERE = "\2", "\3"
"""Placeholders for the home directory and the working directory."""
SPLIT = "\4"
"""Precedes an unquoted `HOME` or `HERE`. If the directory's path contains a blank, the shell splits it into several
words.
"""
ALTERNATIVES_MAX = 64
DEPTH_MAX = 4

_CONTROL = re.compile(r"[\x00-\x04]")
_SEQUENCE = re.compile(r"(-?[0-9]{1,6})\.\.(-?[0-9]{1,6})")


class Value(msgspec.Struct, frozen=True):
    """A value of a variable. `listed` is set for words of a `for` loop, in which the shell expands patterns."""

    word: Word
    listed: bool = False


Variables = Mapping[str, Sequence[Value] | None]
"""All values that a command may assign to each variable, or None if they are unknown."""

NONE: Variables = {}


def expand(word: Word, variables: Variables = NONE, depth: int = 0) -> tuple[str, ...] | None:
    """Return all texts to which the word may expand, or None if they are unknown."""
    if word.value is not None:
        return None if _CONTROL.search(word.value) else (word.value,)
    if depth > DEPTH_MAX or any(piece.kind in ("unknown", "below") for piece in word.pieces):
        return None
    texts_found: list[str] = []
    for alternative in _braces(word.pieces, bare=word.bare):
        texts = None if alternative is None else _filled(alternative, variables, depth)
        if texts is None or len(texts_found) > ALTERNATIVES_MAX:
            return None
        texts_found += texts
    return tuple(dict.fromkeys(texts_found))


def may_be_option(word: Word, variables: Variables = NONE) -> bool:
    texts = expand(word, variables)
    if texts is None:
        return word.splits or not word.begins or word.begins.startswith("-")
    return any(text[:1] in ("-", ANY, REST) or SPLIT in text for text in texts)


def single(word: Word) -> bool:
    return word.value is not None or not (word.splits or any(piece.kind in ("glob", "brace") for piece in word.pieces))


def numeric(word: Word, variables: Variables) -> bool:
    """Return True if the word can only be a number, or empty if a variable is not set."""
    pieces = (Piece("text", word.value),) if word.value is not None else word.pieces
    for piece in pieces:
        # The command may set the variable only to literal or calculated numbers.
        values = variables.get(piece.text) if piece.kind == "variable" else ()
        is_number = piece.kind == "number" or (piece.kind == "text" and piece.text.isdecimal())
        if not is_number and not (
            values
            and all(
                (value.word.value or "").isdecimal() or {piece.kind for piece in value.word.pieces} == {"number"}
                for value in values
            )
        ):
            return False
    return bool(pieces)


def after(word: Word, count: int) -> Word:
    if word.value is not None:
        return Word(word.text, word.value[count:], word.value[count:])
    pieces = list(word.pieces)
    left = count
    while left and pieces and pieces[0].kind == "text":
        first = pieces.pop(0)
        if len(first.text) > left:
            pieces.insert(0, Piece("text", first.text[left:]))
        left = max(0, left - len(first.text))
    return Word(word.text, None, word.begins[count:], word.splits, word.bare, tuple(pieces))


def _braces(pieces: Sequence[Piece], *, bare: bool) -> Iterator[list[Piece] | None]:
    """Expand the braces of a word. Yields None if an expansion is unknown.

    For example, a sequence in a word that is not `bare` is unknown, because its dots may be quoted.
    """
    opening = next((place for place, piece in enumerate(pieces) if piece.kind == "brace"), -1)
    if opening < 0:
        yield list(pieces)
        return
    depth, commas = 0, [opening]
    for place in range(opening, len(pieces)):
        mark = pieces[place].text if pieces[place].kind == "brace" else ""
        depth += (mark == "{") - (mark == "}")
        if mark == "," and depth == 1:
            commas.append(place)
        if depth == 0:
            commas.append(place)
            break
    else:
        yield None
        return
    head, tail = list(pieces[:opening]), list(pieces[commas[-1] + 1 :])
    options = [pieces[start + 1 : end] for start, end in pairwise(commas)]
    if len(options) == 1:
        options = list(_sequence(options[0])) if bare else []
    if not options:
        yield None
    for option in options:
        yield from _braces([*head, *option, *tail], bare=bare)


def expanded_braces(words: Sequence[Word]) -> list[Word] | None:
    """Expand the braces in words, which the shell does first. Returns None if the words contain no braces or the result
    is unknown.
    """
    if not any(piece.kind == "brace" for word in words for piece in word.pieces):
        return None
    expanded: list[Word] = []
    for word in words:
        for alternative in _braces(word.pieces, bare=word.bare) if word.pieces else [[Piece("text", word.text)]]:
            if alternative is None or len(expanded) > ALTERNATIVES_MAX:
                return None
            if not word.pieces:
                expanded.append(word)
            elif all(piece.kind == "text" for piece in alternative):
                text = "".join(piece.text for piece in alternative)
                expanded.append(Word(quote(text), text, text))
            else:
                shown = "".join(f"${piece.text}" if piece.kind == "variable" else piece.text for piece in alternative)
                expanded.append(Word(shown, None, word.begins, word.splits))
    return expanded


def _sequence(inside: Sequence[Piece]) -> Iterator[list[Piece]]:
    match = _SEQUENCE.fullmatch("".join(piece.text for piece in inside))
    if match is None or any(piece.kind != "text" for piece in inside):
        return
    first, last = int(match[1]), int(match[2])
    if abs(last - first) > ALTERNATIVES_MAX or match[1][:1] == "0" or match[2][:1] == "0":
        return
    for number in range(first, last + 1) if first <= last else range(first, last - 1, -1):
        yield [Piece("text", str(number))]


def _filled(pieces: Sequence[Piece], variables: Variables, depth: int) -> list[str] | None:
    texts_so_far = [""]
    for place, piece in enumerate(pieces):
        texts: list[str] | None = None
        match piece.kind:
            case "text" if not _CONTROL.search(piece.text):
                texts = [piece.text]
            case "glob":
                texts = [REST if piece.text == "[" else ANY]
            case "variable":
                texts = _variable(piece, variables, depth)
            case "number":
                texts = [ANY]
            case "tilde":
                rest = "".join(other.text for other in pieces[place + 1 :] if other.kind == "text")
                texts = [HOME] if len(pieces) == 1 or rest.startswith("/") else None
            case "process" if len(pieces) == 1:
                return []
            case _:
                pass
        if texts is None or len(texts_so_far) * len(texts) > ALTERNATIVES_MAX:
            return None
        texts_so_far = [prefix + text for prefix in texts_so_far for text in texts]
    return texts_so_far


def _variable(piece: Piece, variables: Variables, depth: int) -> list[str] | None:
    """Return all values that the command assigns to a variable, and the empty string, or None if a value is unknown."""
    if piece.text not in variables:
        known = {"HOME": HOME, "PWD": HERE}.get(piece.text)
        return None if known is None else [known if piece.quoted else SPLIT + known]
    texts_so_far = [""]
    for value in variables[piece.text] or ():
        word = value.word
        if not value.listed:  # After `NAME=`, patterns and braces are literal.
            pieces = [Piece("text", piece.text) if piece.kind in ("glob", "brace") else piece for piece in word.pieces]
            word = msgspec.structs.replace(word, pieces=tuple(pieces))
        texts = expand(word, variables, depth + 1)
        if texts is None:
            return None
        if not piece.quoted:
            # Blanks split the word, and the names of files may contain blanks. Patterns in the value are expanded, too.
            if any(mark in text for mark in (" ", "\t", "\n", ANY, REST, HOME, HERE, SPLIT) for text in texts):
                return None
            texts = tuple(re.sub(r"[*?]", ANY, text).replace("[", REST) for text in texts)
        texts_so_far += texts
    return None if variables[piece.text] is None else texts_so_far


_DELIMITER = re.compile(
    rb"'(?P<single>[A-Za-z0-9_.+-]+)'|\"(?P<double>[A-Za-z0-9_.+-]+)\"|(?P<back>\\?)(?P<bare>[A-Za-z0-9_.+-]+)"
)
_REST_OF_LINE = re.compile(
    rb"(?:[^'\"`\\\n$#<]|<(?!<)|(?<![\s;&|()])#|'[^'\n]*'|\"[^\"`\\$\n]*\"|\$(?=[A-Za-z_])|\\.)*"
)


class HereDocument(msgspec.Struct, frozen=True):
    """Byte offsets of a here-document's text and of the end of its closing line. `expands` is set if the shell
    expands the text.
    """

    begin: int
    end: int
    closed: int
    expands: bool


def here_document(source: bytes, start: int, stop: int, *, tabs: bool) -> HereDocument:
    """Find the here-document whose delimiter is between two offsets. `tabs` is set for `<<-`. Raises Unreadable."""
    match = _DELIMITER.fullmatch(source, start, stop)
    if match is None:
        raise Unreadable("a here-document with an unusual delimiter")
    delimiter = match["single"] or match["double"] or match["bare"]
    expands = match["bare"] is not None and not match["back"]
    rest = _REST_OF_LINE.match(source, stop)
    begin = (rest.end() if rest else stop) + 1
    if source[begin - 1 : begin] != b"\n":
        raise Unreadable("a here-document on an unsupported line")
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
