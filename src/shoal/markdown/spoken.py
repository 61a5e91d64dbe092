"""Convert a text for reading aloud."""

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
    """Return a text for reading aloud, without marks, addresses, code and tables.

    Cuts it to `chars_max` characters at the end of a paragraph or sentence.
    """
    text = render_markup(markdown, _SPEAKABLE).replace("• ", "").strip()
    if len(text) <= chars_max:
        return text
    for end in ("\n\n", ". ", "! ", "? ", "。", " "):
        at = text.rfind(end, chars_max // 3, chars_max)
        if at >= 0:
            return text[: at + len(end)].strip()
    return text[:chars_max]
