"""Random Markdown as models write it, with matching and unmatched markup."""

import random
from collections.abc import Callable, Sequence

WORDS = ("kelp", "tide", "Tür", "x1", "7", "潮汐", "标题", "こと", "한국", "🦈", "é", "a", "и")
SIGNS = (
    ".",
    ",",
    "!",
    "?",
    ":",
    ";",
    "(",
    ")",
    '"',
    "'",
    "-",
    "+",
    "=",
    "/",
    "&",
    "%",
    "$",
    "：",
    "。",
    "「",
    "」",
    "“",
    "”",
)
MARKS = (
    "*",
    "**",
    "***",
    "_",
    "__",
    "~",
    "~~",
    "`",
    "``",
    "[",
    "]",
    "](",
    "![",
    "<",
    ">",
    "|",
    "||",
    "#",
    "\\",
    "^",
    "{",
    "}",
)
ESCAPES = (*tuple(f"\\{sign}" for sign in "*_~`[]()<>#|!-+.\\&"), "&amp;", "&lt;b&gt;", "&#42;", "&copy;")
ADDRESSES = (
    "https://kelp.example/a_b_c",
    "https://kelp.example/wiki/Kelp_(alga)",
    "https://kelp.example/?q=a*b&r=__c__",
    "http://x.example",
    "mailto:a_b@kelp.example",
    "ann_b@kelp.example",
    "src/pkg/__init__.py",
    "docs/**/*.md",
    "C:\\a_b\\c",
)
MENTIONS = (
    "@anna", "@kelp_bot", "@everyone", "@here", "@room", "<@123>", "<@&45>", "<#678>", "<@U0AB>", "<!channel>",
    "<!subteam^S1>", "<users/all>", "<users/12>", "<at>Ann</at>", "<:kelp:12>", ":smile:", "@ann:kelp.example",
    "</tide:12>", "<t:1700000000:R>", "<b>", "</b>", "<script>", "<!-- x -->", "<https://kelp.example/x_y>",
)  # fmt: skip


def soup(source: random.Random) -> str:
    return "\n\n".join(_block(source, 0) for _ in range(source.randint(1, 5)))


def _some(source: random.Random, least: int, most: int, part: Callable[[], str], between: str = "") -> str:
    return between.join(part() for _ in range(source.randint(least, most)))


def spans(source: random.Random, depth: int = 0) -> str:
    gap = source.choice(("", " ", " ", " "))
    return _some(source, 1, 6 if depth < 2 else 2, lambda: _span(source, depth) + source.choice((gap, gap, "", " ")))


def _span(source: random.Random, depth: int) -> str:
    kind = source.randrange(20)
    if kind < 7 or depth > 3:
        return source.choice(WORDS)
    if kind < 9:
        return source.choice(SIGNS)
    if kind < 11:
        return source.choice(MARKS)
    if kind < 12:
        return source.choice(ESCAPES)
    if kind < 13:
        return source.choice(ADDRESSES)
    if kind < 14:
        return source.choice(MENTIONS)
    if kind < 17:
        mark = source.choice(("*", "**", "***", "_", "__", "~~"))
        return f"{mark}{spans(source, depth + 1).strip()}{mark}"
    if kind < 18:
        mark = source.choice(("`", "`", "``"))
        return f"{mark}{source.choice((*WORDS, *MARKS, *ADDRESSES, *MENTIONS, 'a b', ' a ', '$x'))}{mark}"
    if kind < 19:
        label = spans(source, depth + 1).strip()
        title = source.choice(("", "", ' "a title"'))
        return f"[{label}]({source.choice((*ADDRESSES[:5], 'docs/a_b.md', '#part', ''))}{title})"
    return source.choice(("\n", "\\\n", "  \n"))


def _indented(text: str, mark: str) -> str:
    return "\n".join((mark if not at else " " * len(mark)) + line for at, line in enumerate(text.split("\n")))


def _block(source: random.Random, depth: int) -> str:
    kind = source.randrange(12 if depth < 3 else 6)
    if kind < 5:
        return spans(source)
    if kind < 6:
        return f"{'#' * source.randint(1, 6)} {spans(source)}"
    if kind < 7:
        lines: Sequence[str] = [
            source.choice((*WORDS, *MARKS, *MENTIONS, "", "  x", "**b**", "- i", "> q")) for _ in range(3)
        ]
        mark = source.choice(("```", "```", "~~~", "````"))
        return f"{mark}{source.choice(('', 'py', 'c++'))}\n{chr(10).join(lines)}\n{mark}"
    if kind < 8:
        inner = _some(source, 1, 2, lambda: _block(source, depth + 1), "\n\n")
        return "\n".join(f"> {line}".rstrip() for line in inner.split("\n"))
    if kind < 10:
        marks = source.choice(
            (("- ",) * 3, ("* ",) * 3, ("1. ", "2. ", "3. "), ("7) ", "8) ", "9) "), ("- [ ] ", "- [x] ", "- "))
        )
        gap = source.choice(("\n", "\n", "\n\n"))
        return gap.join(_indented(_block(source, depth + 1), mark) for mark in marks[: source.randint(1, 3)])
    if kind < 11:
        columns = source.randint(1, 3)
        rows = [[_cell(source) for _ in range(columns)] for _ in range(source.randint(2, 4))]
        rows.insert(1, ["---"] * columns)
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return source.choice(("---", "***", "<b>x</b>", "    code *x*", "Title\n=====", "[1]: https://kelp.example"))


def _cell(source: random.Random) -> str:
    return spans(source, 2).replace("\n", " ").replace("|", "\\|").strip()
