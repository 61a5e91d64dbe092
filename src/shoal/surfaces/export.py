"""Exports a conversation as a document for people: Markdown, or one self-contained HTML file.

Both formats are written event by event, because a long thread may not fit in memory.
"""

import re
from functools import cached_property
from html import escape, unescape
from typing import TYPE_CHECKING, Literal, TypeAlias

from shoal.kernel import lazy_re
from shoal.kernel.events import (
    AssistantSaid,
    Cleared,
    Compacted,
    Event,
    Failed,
    LimitReached,
    Steered,
    ToolFinished,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Attachment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it import MarkdownIt
    from markdown_it.token import Token

ExportFormat: TypeAlias = Literal["markdown", "html", "json"]
EXTENSIONS: dict[ExportFormat, str] = {"markdown": "md", "html": "html", "json": "json"}
_ENDS = {"aborted": "The turn was stopped.", "failed": "The turn failed.", "limit": "The turn reached a limit."}

FORMULA_CHARS_MAX = 2000
"""Maximum length of a formula that is typeset. A longer formula is shown as source text."""
_MATHML = lazy_re.compile(r"m[a-z]{1,20}")
_MATHML_ATTRIBUTES = frozenset((
    "xmlns", "display", "stretchy", "fence", "form", "mathvariant", "accent", "accentunder", "columnalign",
    "columnspacing", "rowspacing", "columnlines", "rowlines", "linethickness", "lspace", "rspace", "width", "height",
    "depth", "voffset", "minsize", "maxsize", "movablelimits", "displaystyle", "scriptlevel", "symmetric", "largeop",
))  # fmt: skip

_STYLE = """
:root { color-scheme: light dark; }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { margin: 2rem 0 .3rem; font-size: 1rem; } h2 small { font-weight: 400; opacity: .7; }
pre { padding: .6rem .8rem; overflow-x: auto; background: color-mix(in srgb, currentcolor 7%, transparent); }
table { border-collapse: collapse; } th, td { padding: .2rem .6rem; border: 1px solid #8888; text-align: left; }
blockquote { margin-left: 0; padding-left: 1rem; border-left: 3px solid #8888; }
details { margin: .4rem 0; } summary { cursor: pointer; } .note { opacity: .75; font-style: italic; }
"""


class MarkdownWriter:
    """Writes a conversation as a Markdown document. Each method returns the next piece of the document."""

    def __init__(self, thread: ThreadId, title: str) -> None:
        self.thread = thread
        self.title = title
        self._agent = "agent"
        self._arguments: dict[tuple[str, str], str] = {}

    def event(self, event: Event) -> str:
        at = f"{event.at:%Y-%m-%d %H:%M} UTC"
        match event.data:
            case TurnStarted(agent=agent):
                self._agent = agent or self._agent
            case UserSaid(text=text, author=author, attachments=files):
                return self.said(author.name or author.id, at, text, files)
            case Steered(text=text, author=author):
                return self.said(f"{author.name or author.id}, sent during the turn", at, text, ())
            case AssistantSaid(text=text, tool_calls=calls):
                self._arguments |= {(event.turn, call.id): call.arguments for call in calls}
                return self.said(self._agent, at, text, ()) if text.strip() else ""
            case ToolFinished() as result:
                return self.called(result, self._arguments.pop((event.turn, result.call_id), ""))
            case Compacted(summary=summary) if summary:
                return self.note("Older messages were summarized for the model.")
            case Cleared():
                return self.note("The conversation was cleared here.")
            case LimitReached(detail=detail) if detail:
                return self.note(detail)
            case Failed(message=message):
                return self.note(message)
            case TurnFinished(outcome=outcome) if outcome in _ENDS:
                return self.note(_ENDS[outcome])
            case _:
                pass
        return ""

    def head(self) -> str:
        return f"# {_line(self.title or self.thread)}\n\nThread `{self.thread}`\n"

    def said(self, name: str, at: str, text: str, files: tuple[Attachment, ...]) -> str:
        listed = "".join(f"\n- file: {_line(file.name)}\n" for file in files)
        return f"\n## {_line(name)} · {at}\n\n{text.strip()}\n{listed}"

    def called(self, result: ToolFinished, arguments: str) -> str:
        what = f"**{_line(result.name)}**{_ending(result)}"
        return f"\n{what}\n\n{_fenced(arguments, 'json')}{_fenced(result.text)}"

    def note(self, text: str) -> str:
        return f"\n*{_line(text)}*\n"

    def tail(self) -> str:
        return ""


class HtmlWriter(MarkdownWriter):
    """Writes a conversation as an HTML file without scripts. Messages are rendered as Markdown, without raw HTML
    or images.
    """

    @cached_property
    def _markdown(self) -> "MarkdownIt":
        from markdown_it import MarkdownIt

        from shoal.markdown.parse import read_formulas

        parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
        read_formulas(parser.disable("image"))
        parser.add_render_rule("math", _formula)
        parser.add_render_rule("math_block", _formula)
        return parser

    def head(self) -> str:
        title = escape(self.title or self.thread)
        return (
            '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width">\n'
            "<meta http-equiv=\"content-security-policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n<h1>{title}</h1>\n<p>Thread {escape(self.thread)}</p>\n"
        )

    def said(self, name: str, at: str, text: str, files: tuple[Attachment, ...]) -> str:
        listed = "".join(f"<p>File: {escape(file.name)}</p>\n" for file in files)
        return f"<h2>{escape(name)} <small>{at}</small></h2>\n{self._markdown.render(text)}{listed}"

    def called(self, result: ToolFinished, arguments: str) -> str:
        what = f"{escape(result.name)}{_ending(result)}"
        asked = f"<pre>{escape(arguments)}</pre>" if arguments else ""
        return f"<details><summary>{what}</summary>{asked}<pre>{escape(result.text)}</pre></details>\n"

    def note(self, text: str) -> str:
        return f'<p class="note">{escape(text)}</p>\n'

    def tail(self) -> str:
        return "</html>\n"


def _formula(renderer: object, tokens: "Sequence[Token]", at: int, options: object, env: object) -> str:
    """Render a formula as MathML, which browsers show without scripts. Show the source of an invalid formula."""
    written = tokens[at].content
    marks = 1 if written.startswith("$") and not written.startswith("$$") else 2
    return formula_html(written[marks:-marks].strip(), is_block=tokens[at].type == "math_block") or (
        f"<code>{escape(written)}</code>"
    )


def formula_html(latex: str, *, is_block: bool) -> str:
    """Convert LaTeX to MathML with only MathML elements and allowed attributes.

    Returns an empty string if the text is too long or is not a valid formula.
    """
    if len(latex) > FORMULA_CHARS_MAX:
        return ""
    from xml.etree.ElementTree import tostring

    from latex2mathml import exceptions
    from latex2mathml.converter import convert_to_element

    kinds: list[object] = [*vars(exceptions).values()]
    unreadable = tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception))
    try:
        made = convert_to_element(latex, display="block" if is_block else "inline")
        for element in made.iter():
            if not _MATHML.fullmatch(element.tag):
                return ""
            element.text = unescape(element.text or "")  # latex2mathml writes operators as entities
            for name in element.attrib.keys() - _MATHML_ATTRIBUTES:
                del element.attrib[name]
        return tostring(made, encoding="unicode")
    except (*unreadable, ValueError, LookupError, RecursionError, TypeError, AttributeError):
        return ""


WRITERS: dict[str, type[MarkdownWriter]] = {"markdown": MarkdownWriter, "html": HtmlWriter}


def _ending(result: ToolFinished) -> str:
    if result.is_interrupted:
        return ", interrupted, outcome unknown"
    return ", stopped" if result.stopped else ", failed" if result.is_error else ""


def _line(text: str) -> str:
    return " ".join(text.split())


def _fenced(text: str, language: str = "") -> str:
    if not text.strip():
        return ""
    longest = max((len(fence) for fence in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"
