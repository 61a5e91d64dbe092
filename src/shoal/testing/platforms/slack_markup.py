"""Slack's mrkdwn as people see it. Source: docs.slack.dev/messaging/formatting-message-text.

Slack refuses no markup: marks that do not pair are shown as they are.
"""

import re

_FENCE = re.compile(r"```\n?(.*?)\n?```", re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"<([^<>|]+)(?:\|([^<>]*))?>")
_STYLES = tuple(
    re.compile(
        rf"(?<![\w{re.escape(mark)}]){re.escape(mark)}(\S(?:[^\n]*?\S)?){re.escape(mark)}(?![\w{re.escape(mark)}])"
    )
    for mark in "*_~"
)


def shown_text(source: str) -> str:
    """The text without markup."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[1])
        return f"\x00{len(kept) - 1}\x00"

    text = _CODE.sub(keep, _FENCE.sub(keep, source))
    text = _LINK.sub(lambda found: found[2] or found[1], text)
    for style in _STYLES:
        text = style.sub(r"\1", text)
    text = re.sub(r"\x00(\d+)\x00", lambda found: kept[int(found[1])], text)
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
