"""Render Slack's mrkdwn as people see it.

Style marks apply only at word boundaries. A zero-width space counts as a word boundary. The wide forms of `*`, `_`, ``
` `` and `>` also work. Marks cannot be escaped, but the fallback text of an invalid time is shown literally. A soft
hyphen prevents `>` from starting a quote. Slack accepts all markup and shows unpaired marks literally.

Sources: docs.slack.dev/messaging/formatting-message-text and, for its gaps, yhatt/jsx-slack,
docs/about-escape-and-exact-mode.md.
"""

import re
from html import unescape

_WHOLE = re.compile(
    r"```\n?(.*?)\n?```|`([^`\n]+)`|\uff40([^\uff40\n]+)\uff40|<!date\^0+\^[^|<>]*\|([^<>]*)>"
    r"|(<(?:[@#][A-Z0-9]+(?:\|[^<>]*)?|!date\^[1-9][^<>]*)>)|<((?:https?|mailto|tel)[^<>|]+)(?:\|([^<>]*))?>",
    re.DOTALL,
)
"""Matches code, invalid times, mentions and links. Style marks have no effect inside them."""
_QUOTE = re.compile("^(?:&gt;|>|\uff1e) ?", re.MULTILINE)
"""Matches the characters that start a quote: `>`, `&gt;` and U+FF1E. Source: yhatt/jsx-slack,
about-escape-and-exact-mode.md, Leading quotes.
"""
_KEPT = re.compile(r"\x00(\d+)\x00")
_STYLES = tuple(
    re.compile(rf"(?<![^\W_])(?<!{mark}){mark}([^\s](?:[^\n]*?[^\s])??){mark}(?![^\W_])(?!{mark})")
    for mark in (r"\*", "_", "~", "\uff0a", "\uff3f")
)
_INVISIBLE = str.maketrans("", "", "\u200b\u00ad")


def shown_text(source: str) -> str:
    pieces: list[str] = []

    def keep(text: str) -> str:
        pieces.append(text)
        return f"\x00{len(pieces) - 1}\x00"

    text = _WHOLE.sub(lambda match: keep(next(text for text in match.groups()[::-1] if text is not None)), source)
    text = _QUOTE.sub("", text)
    for _ in _STYLES:  # style marks may be nested
        for style in _STYLES:
            text = style.sub(r"\1", text)
    while _KEPT.search(text):
        text = _KEPT.sub(lambda match: pieces[int(match[1])], text)
    return unescape(text).translate(_INVISIBLE)
