"""Settings that map a client's conversation to a thread, and their expiry."""

from typing import TYPE_CHECKING

from shoal.store.retention import Walk
from shoal.store.store import Store

if TYPE_CHECKING:
    from shoal.services import Services

SCOPE = "openai"
CONVERSATIONS = Walk("conversations", ("",), is_by_time=False)
"""Deletes the mappings of threads that have long been inactive."""


def attach(services: "Services") -> None:
    """Delete old mappings while Shoal runs."""
    services[Store].bookkeeping.walks.append(CONVERSATIONS)
