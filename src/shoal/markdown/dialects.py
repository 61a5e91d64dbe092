"""Building blocks for platform dialects, and dialects that several platforms share."""

import re
from collections.abc import Mapping

from shoal.kernel import lazy_re
from shoal.kernel.markup import CODE_LINE, Dialect, Style, Wrap, fenced, indented, markdown_code

ZERO_WIDTH_SPACE = "\u200b"
HARD_SPACE = "\u00a0"
"""Character that indents lines for parsers that drop plain spaces or read them as code."""

_PAIR = lazy_re.compile(r"``(?=`)")
_MARKDOWN = lazy_re.compile(r"([\\*_~`|\[\]<]|&(?=#?\w))")
_MARKDOWN_START = lazy_re.compile(r"^([ \t]*)([>#+=-]|\d{1,9}[.)](?=\s|$))", re.MULTILINE)


def around(mark: str, end: str = "") -> Wrap:
    return lambda inner: f"{mark}{inner}{end or mark}"


def before_lines(mark: str) -> Wrap:
    """Return a wrapper that adds a prefix to each line except lines of code."""
    return lambda inner: "\n".join(line if line.startswith(CODE_LINE) else mark + line for line in inner.split("\n"))


def escaped(special: re.Pattern[str], text: str) -> str:
    return special.sub(r"\\\1", text)


def escaped_markdown(text: str) -> str:
    return _MARKDOWN_START.sub(_escape_start, escaped(_MARKDOWN, text))


def _escape_start(match: re.Match[str]) -> str:
    mark = match[2]
    return f"{match[1]}{mark[:-1]}\\{mark[-1]}"


def bare_fence(content: str, info: str) -> str:
    return f"```\n{without_fences(content.removesuffix(chr(10)))}\n```"


def without_fences(content: str) -> str:
    """Insert a zero-width space into runs of three backticks."""
    return _PAIR.sub(f"``{ZERO_WIDTH_SPACE}", content)


def markdown_link(label: str, url: str) -> str:
    """Return a Markdown link. Parentheses and spaces in the URL are percent-encoded, because they would otherwise end
    the URL.
    """
    for character, code in (("(", "%28"), (")", "%29"), ("<", "%3C"), (">", "%3E"), (" ", "%20"), ("\\", "%5C")):
        url = url.replace(character, code)
    return f"[{label}]({url})"


SINGLE_MARKS: Mapping[Style, Wrap] = {"strong": around("*"), "em": around("_"), "s": around("~")}
"""Emphasis marks that most chat platforms use."""
MARKDOWN_MARKS: Mapping[Style, Wrap] = {"strong": around("**"), "em": around("*"), "s": around("~~")}


def flat_markdown(text: Wrap, token: Wrap, silent: Wrap) -> Dialect:
    """Return a CommonMark dialect for chats that do not support indented lists. `silent` disables mentions in code."""
    return Dialect(
        text=text,
        token=token,
        styles=MARKDOWN_MARKS,
        edges="flanking",
        code=lambda code: markdown_code(silent(code)),
        fence=lambda content, info: fenced(silent(content), info),
        link=markdown_link,
        heading=lambda text, level: f"**{text}**",
        inner_quote=before_lines("\\> "),
        item=lambda text: indented(text, space=HARD_SPACE),
        continued=lambda item, marker, body: f"{HARD_SPACE * 2}{body}",
        counts=True,
    )


PLAIN = Dialect(
    text=str,
    styles={"strong": str, "em": str, "s": str},
    code=str,
    opens=lambda url: False,
    heading=lambda text, level: text,
    nests=True,
)
