"""Connects to addresses that were checked before, and to nothing else; imported when the first address is opened."""

from collections.abc import Iterable, Sequence

import httpcore2
from httpcore2 import AsyncNetworkBackend, AsyncNetworkStream, ConnectError, ConnectTimeout

SocketOption = tuple[int, int, int | bytes | bytearray] | tuple[int, int, None, int]


class PinnedBackend(AsyncNetworkBackend):
    """A network backend of httpcore that ignores the host's name: it tries the given addresses in order."""

    def __init__(self, addresses: Sequence[str], connect_seconds: float) -> None:
        self._addresses = tuple(addresses)
        self._connect_seconds = connect_seconds
        self._inner: AsyncNetworkBackend = httpcore2.AnyIOBackend()  # pyright: ignore[reportAttributeAccessIssue]

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> AsyncNetworkStream:
        """Connect to the first address that answers. Raises ConnectError or ConnectTimeout of the last."""
        failure: ConnectError | ConnectTimeout | None = None
        for address in self._addresses:
            try:
                return await self._inner.connect_tcp(address, port, self._connect_seconds)
            except (ConnectError, ConnectTimeout) as error:
                failure = error
        raise failure or ConnectError("no address")
