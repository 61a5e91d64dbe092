"""Slack's mrkdwn as people see it.

Sources: docs.slack.dev/messaging/formatting-message-text; for what the documentation leaves out, yhatt/jsx-slack,
docs/about-escape-and-exact-mode.md: marks count at the ends of words alone, for which a zero-width space is enough;
the wide forms of `*`, `_`, `` ` `` and `>` count as well; none can be escaped, but the fallback of a time that is none
is shown as it is; a soft hyphen keeps `>` from being a quote.

Slack refuses no markup: marks that do not pair are shown as they are.
"""

import re
from html import unescape

_WHOLE = re.compile(
    r"```\n?(.*?)\n?```|`([^`\n]+)`|\uff40([^\uff40\n]+)\uff40|<!date\^0+\^[^|<>]*\|([^<>]*)>"
    r"|(<(?:[@#][A-Z0-9]+(?:\|[^<>]*)?|!date\^[1-9][^<>]*)>)|<((?:https?|mailto|tel)[^<>|]+)(?:\|([^<>]*))?>",
    re.DOTALL,
)
"""Fences, code, times that are none, mentions and links, in which no mark counts."""
_QUOTE = re.compile("^(?:&gt;|>|\uff1e) ?", re.MULTILINE)
"""`>` and `&gt;`, and U+FF1E, begin a quote alike: yhatt/jsx-slack, about-escape-and-exact-mode.md, Leading quotes."""
_KEPT = re.compile(r"\x00(\d+)\x00")
_STYLES = tuple(
    re.compile(rf"(?<![^\W_])(?<!{mark}){mark}([^\s](?:[^\n]*?[^\s])??){mark}(?![^\W_])(?!{mark})")
    for mark in (r"\*", "_", "~", "\uff0a", "\uff3f")
)
_INVISIBLE = str.maketrans("", "", "\u200b\u00ad")


def shown_text(source: str) -> str:
    """The text without markup."""
    kept: list[str] = []

    def keep(text: str) -> str:
        kept.append(text)
        return f"\x00{len(kept) - 1}\x00"

    text = _WHOLE.sub(lambda found: keep(next(text for text in found.groups()[::-1] if text is not None)), source)
    text = _QUOTE.sub("", text)
    for _ in _STYLES:  # one may be within another
        for style in _STYLES:
            text = style.sub(r"\1", text)
    while _KEPT.search(text):
        text = _KEPT.sub(lambda found: kept[int(found[1])], text)
    return unescape(text).translate(_INVISIBLE)
