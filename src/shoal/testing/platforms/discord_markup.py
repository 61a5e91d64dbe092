"""Render Discord's markup as people see it.

At each position, the first matching rule applies. A backslash escapes only punctuation, and has no effect in URLs
and code. Code fences have exactly three backticks. Adjacent letters matter only for `_`.

Sources: docs.discord.com/developers/reference#message-formatting, Discord's guide to text formatting, and the npm
packages discord-markdown-parser and simple-markdown, which match the observed behavior of Discord's clients.
"""

import re

_BLOCKS = (
    ("fence", re.compile(r"```(?:[a-z0-9_+\-.#]+?\n)?\n*([^\n].*?)\n*```", re.DOTALL | re.IGNORECASE)),
    ("autolink", re.compile(r"<(https?://[^\s>]+)>")),
    ("url", re.compile(r"https?://[^\s<]+[^<.,:;\"'\]\s]")),
    ("native", re.compile(r"<(?:@[!&]?\d+|#\d+|a?:\w+:\d+|/[^<>:]+:\d+|t:-?\d+(?::[a-zA-Z])?|id:\w+)>")),
    (
        "link",
        re.compile(r"\[((?:\\.|\[[^\[\]]*\]|[^\[\]\\])+)\]\(<?(https?://(?:[^\s\\()<>]|\([^\s()]*\))+)>?\)"),
    ),
    ("escape", re.compile(r"\\([^0-9A-Za-z\s])")),
    ("code", re.compile(r"(`+)(.*?[^`])\1(?!`)", re.DOTALL)),
    ("marked", re.compile(r"\*\*((?:\\.|[^\\])+?)\*\*(?!\*)", re.DOTALL)),
    ("marked", re.compile(r"__((?:\\.|[^\\])+?)__(?!_)", re.DOTALL)),
    ("marked", re.compile(r"~~(.+?)~~(?!_)", re.DOTALL)),
    ("marked", re.compile(r"\|\|(.+?)\|\|", re.DOTALL)),
    ("marked", re.compile(r"\*(?=\S)((?:\*\*|\\.|\s+(?:\\.|[^\s*\\]|\*\*)|[^\s*\\])+?)\*(?!\*)", re.DOTALL)),
    ("word", re.compile(r"\b_((?:__|\\.|[^\\_])+?)_\b", re.DOTALL)),
)
_STARTS = (
    ("quote", re.compile(r" *>>> (.*)", re.DOTALL)),
    ("lines", re.compile(r"(?: *> [^\n]*(?:\n|$))+")),
    ("heading", re.compile(r" *#{1,3} +([^\n]+)")),
    ("heading", re.compile(r" *-# +([^\n]+)")),
    ("item", re.compile(r" *[*-] +(?=\S)")),
)
_QUOTED = re.compile(r"^ *> ", re.MULTILINE)
_ADDRESS = re.compile(r"https?://")


def shown_text(source: str) -> str:
    out: list[str] = []
    at = 0
    while at < len(source):
        is_start = at == 0 or source[at - 1] == "\n"
        for kind, rule in (*(_STARTS if is_start else ()), *_BLOCKS):
            match = rule.match(source, at)
            if match is None or (kind == "link" and _ADDRESS.search(match[1])):
                continue
            if kind == "word" and at and (source[at - 1].isalnum() or source[at - 1] == "_"):
                continue
            out.append(_shown(kind, match))
            at = match.end()
            break
        else:
            out.append(source[at])
            at += 1
    return "".join(out)


def _shown(kind: str, match: re.Match[str]) -> str:
    match kind:
        case "fence" | "autolink" | "escape":
            return match[1]
        case "code":
            inner = match[2]
            return inner[1:-1] if inner.startswith(" ") and inner.endswith(" ") and "`" in inner else inner
        case "url" | "native":
            return match[0]
        case "lines":
            return shown_text(_QUOTED.sub("", match[0]))
        case "item":
            return "• "
        case _:
            return shown_text(match[1])
