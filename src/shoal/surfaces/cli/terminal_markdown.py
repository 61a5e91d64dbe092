"""Renders Markdown for a terminal: styled with escape sequences, and wrapped between words."""

import re
from functools import lru_cache

from prompt_toolkit.utils import get_cwidth

from shoal.kernel.markup import Dialect, Wrap
from shoal.markdown.dialects import around, before_lines
from shoal.markdown.parse import block_starts
from shoal.markdown.render import render_markup
from shoal.surfaces.cli.output import printable

BAR = "│ "
CODE_INDENT = 2
_AS_IT_IS = "\0"
"""Marks a line that must not be wrapped. Normal text never contains this character."""
_ENDS = {"1": "22", "3": "23", "4": "24", "9": "29", "31": "39", "32": "39", "36": "39", "90": "39"}
"""Codes that end a style, by the code that starts it."""
_STYLE = re.compile(r"\x1b\[\d+m")
_TOKEN = re.compile(r"\x1b\[(\d+)m|( +)|[^ \x1b]+")
_LEAD = re.compile(rf"(?:{BAR}| )*(?:(?:[•☐☑]|\d{{1,9}}\.) )?")


def styled(number: str) -> Wrap:
    return around(f"\x1b[{number}m", f"\x1b[{_ENDS[number]}m")


def rows(markdown: str, width: int, *, colour: bool) -> list[str]:
    return wrapped(render_markup(markdown, dialect(colour, width)), width)


def whole_blocks(markdown: str) -> int:
    """Return the length of the leading Markdown blocks that later text cannot change."""
    starts = block_starts(markdown)
    return starts[-1] if starts else 0


@lru_cache(4)
def dialect(colour: bool, width: int) -> Dialect:
    def code(text: str) -> str:
        return styled("36" if colour else "1")(printable(text))

    def link(label: str, url: str) -> str:
        where = f" ({printable(url)})" if label != printable(url) else ""
        return styled("4")(label) + (styled("90")(where) if colour else where)

    def fence(content: str, info: str) -> str:
        lines = printable(content).rstrip("\n").expandtabs(4).split("\n")
        return "\n".join(f"{' ' * CODE_INDENT}{_AS_IT_IS}{styled('36')(line) if colour else line}" for line in lines)

    return Dialect(
        text=printable,
        styles={"strong": styled("1"), "em": styled("3"), "s": styled("9")},
        code=code,
        link=link,
        heading=lambda text, level: styled("1")(styled("4")(text) if level == 1 else text),
        fence=fence,
        quote=before_lines(BAR),
        item=lambda text: text.replace(
            "\n", "\n" + " " * (text.find(" ") + 1)
        ),  # later lines align with the first word
        columns_max=max(1, width - CODE_INDENT),
        nests=True,
        rule="─────",
    )


def wrapped(text: str, width: int) -> list[str]:
    """Wrap styled text to `width` columns. Each line sets and resets its own styles, and continuation lines align
    with the text.
    """
    active: dict[str, str] = {}
    lines: list[str] = []
    for line in text.split("\n"):
        lead = _LEAD.match(line)
        assert lead is not None, "it matches anything"
        hang = re.sub(r"[^│ ]", " ", lead[0])
        is_fixed = _AS_IT_IS in line
        row, used, space, is_bare = "".join(active.values()) + lead[0], get_cwidth(lead[0]), "", True
        for token in _TOKEN.finditer(line.replace(_AS_IT_IS, ""), lead.end()):
            if (number := token[1]) is not None:
                row += space + token[0]
                used, space = used + len(space), ""
                if number in _ENDS:
                    active[_ENDS[number]] = token[0]
                else:
                    active.pop(number, None)
                continue
            if token[2] is not None:
                space += token[2]
                continue
            taken = get_cwidth(token[0])
            if used + len(space) + taken > width and not is_bare and not is_fixed:
                lines.append(row.rstrip() + _ended(active))
                row, used, space = hang + "".join(active.values()), get_cwidth(hang), ""
            row, used, space, is_bare = row + space + token[0], used + len(space) + taken, "", False
        lines.append(row.rstrip() + _ended(active))
    return lines


def _ended(active: dict[str, str]) -> str:
    return "".join(f"\x1b[{end}m" for end in active)


def styled_width(line: str) -> int:
    return get_cwidth(_STYLE.sub("", line))


def cropped(text: str, width: int) -> str:
    if get_cwidth(text) <= width:
        return text
    text = text[:width]
    while text and get_cwidth(text) > width - 1:
        text = text[:-1]
    return f"{text}…"


def pieces(text: str, width: int) -> list[str]:
    lines, used = [""], 0
    for character in text:
        used += get_cwidth(character)
        if used > width and lines[-1]:
            lines.append("")
            used = get_cwidth(character)
        lines[-1] += character
    return lines
