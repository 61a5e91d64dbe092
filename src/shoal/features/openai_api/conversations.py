"""The settings that tell which thread a client's conversation is in, and when they are forgotten."""

from typing import TYPE_CHECKING

from shoal.store.retention import Walk
from shoal.store.store import Store

if TYPE_CHECKING:
    from shoal.services import Services

SCOPE = "openai"
CONVERSATIONS = Walk("conversations", ("",), is_by_time=False)
"""Forgets those whose threads were not active for long."""


def attach(services: "Services") -> None:
    """Let old conversations be forgotten."""
    services[Store].bookkeeping.walks.append(CONVERSATIONS)
