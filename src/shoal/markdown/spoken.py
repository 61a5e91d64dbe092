"""A text as it is read aloud."""

from shoal.kernel.markup import Dialect
from shoal.markdown.dialects import PLAIN
from shoal.markdown.render import render_markup

_SPEAKABLE = Dialect(
    text=PLAIN.text,
    styles=PLAIN.styles,
    code=PLAIN.code,
    fence=lambda content, info: "",
    link=lambda label, url: label,
    heading=lambda text, level: text if text.endswith((".", "!", "?", ":")) else f"{text}.",
    quote=PLAIN.text,
    rule="",
)


def speakable(markdown: str, chars_max: int) -> str:
    """What is read aloud of a text: no marks, addresses, code or tables, and at most `chars_max` characters, cut at the
    end of a paragraph or sentence."""
    text = render_markup(markdown, _SPEAKABLE).replace("• ", "").strip()
    if len(text) <= chars_max:
        return text
    for end in ("\n\n", ". ", "! ", "? ", "。", " "):
        at = text.rfind(end, chars_max // 3, chars_max)
        if at >= 0:
            return text[: at + len(end)].strip()
    return text[:chars_max]
