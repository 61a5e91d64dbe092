"""A mapping that remembers the last entries only."""

from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """At most `size` entries; the longest unused are forgotten."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[str, V] = OrderedDict()

    def put(self, key: str, value: V) -> None:
        """Remember an entry."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def get(self, key: str) -> V | None:
        """The entry, if it is remembered."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]
