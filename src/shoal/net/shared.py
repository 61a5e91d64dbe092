"""A client that its owner may close while calls are under way."""

from typing import Generic, Protocol, TypeVar

import anyio


class Closable(Protocol):
    async def aclose(self) -> None: ...


C = TypeVar("C", bound=Closable)


class SharedClient(Generic[C]):
    """Closes `client` when the owner and all calls have released it. The owner holds it from the start."""

    def __init__(self, client: C) -> None:
        self._client = client
        self._users = 1

    def use(self) -> C:
        """Return the client for one call. Call `release` after the call."""
        self._users += 1
        return self._client

    async def release(self) -> None:
        self._users -= 1
        if not self._users:
            with anyio.CancelScope(shield=True):
                await self._client.aclose()
