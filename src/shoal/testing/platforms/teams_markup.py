"""Render Teams text as people see it. Tables are not supported, and only mentions may use HTML.

Source: learn.microsoft.com, Format your bot messages.
"""

import re

from shoal.testing.platforms import commonmark

_MENTION = re.compile(r"<at>(.*?)</at>")


def shown_text(text: str) -> str:
    """Return the visible text. A single line break becomes a space, and HTML tags are dropped."""
    return commonmark.shown_text(_MENTION.sub(r"@\1", text), html=True, break_=" ")


def shown_runs(text: str) -> list[commonmark.Run]:
    return commonmark.shown_runs(_MENTION.sub(r"@\1", text), html=True, break_=" ")
