"""Expiry of the stored mappings from clients' conversations to threads."""

from typing import TYPE_CHECKING

from shoal.store.retention import Walk
from shoal.store.store import Store

if TYPE_CHECKING:
    from shoal.services import Services

SCOPE = "openai"
CONVERSATIONS = Walk("conversations", ("",), is_by_time=False)
"""Bookkeeping job that deletes mappings from clients' conversations to threads that have been inactive for a long time.
"""


def attach(services: "Services") -> None:
    services[Store].bookkeeping.walks.append(CONVERSATIONS)
