"""Convert Markdown to text that can be read aloud."""

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
    """Return plain text for speech, without markup, link URLs, code or tables.

    A long text ends at the last paragraph, sentence or word before `chars_max` characters.
    """
    text = render_markup(markdown, _SPEAKABLE).replace("• ", "").strip()
    if len(text) <= chars_max:
        return text
    for end in ("\n\n", ". ", "! ", "? ", "。", " "):
        at = text.rfind(end, chars_max // 3, chars_max)
        if at >= 0:
            return text[: at + len(end)].strip()
    return text[:chars_max]
