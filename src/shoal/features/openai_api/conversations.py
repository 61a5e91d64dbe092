"""Stored mappings from a client's conversation to a thread, and their expiry."""

from typing import TYPE_CHECKING

from shoal.store.retention import Walk
from shoal.store.store import Store

if TYPE_CHECKING:
    from shoal.services import Services

SCOPE = "openai"
CONVERSATIONS = Walk("conversations", ("",), is_by_time=False)
"""Bookkeeping job that deletes the mappings of threads inactive for a long time."""


def attach(services: "Services") -> None:
    """Delete old mappings while Shoal runs."""
    services[Store].bookkeeping.walks.append(CONVERSATIONS)
