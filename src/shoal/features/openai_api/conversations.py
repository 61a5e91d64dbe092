"""The settings that tell which thread a client's conversation is in, and when they are forgotten."""

from typing import TYPE_CHECKING

from shoal.store.retention import Walk

if TYPE_CHECKING:
    from shoal.app import App

SCOPE = "openai"
CONVERSATIONS = Walk("conversations", ("",), is_by_time=False)
"""Forgets those whose threads were not active for long."""


def attach(app: "App") -> None:
    """Let old conversations be forgotten."""
    app.store.bookkeeping.walks.append(CONVERSATIONS)
