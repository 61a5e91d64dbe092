"""The port to the web for everything that opens an address a model or a stranger chose."""

from typing import Protocol

import msgspec

FETCH_BYTES_MAX = 5_000_000
FETCH_SECONDS_MAX = 30.0
REDIRECTS_MAX = 5


class FetchRequest(msgspec.Struct, frozen=True):
    """One request. Headers go to the first origin only, never along a redirect to another one."""

    url: str
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    bytes_max: int = FETCH_BYTES_MAX
    seconds_max: float = FETCH_SECONDS_MAX
    redirects_max: int = REDIRECTS_MAX


class Fetched(msgspec.Struct, frozen=True):
    """An answer, with the address it came from in the end. `cut`: the body went on after `bytes_max`."""

    url: str
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    cut: bool = False

    def header(self, name: str) -> str:
        """The first header of this (lower-case) name; empty when there is none."""
        return next((value for key, value in self.headers if key == name), "")


class Fetcher(Protocol):
    """Opens addresses of the public web, and no others."""

    async def fetch(self, request: FetchRequest) -> Fetched:
        """Send it and read the answer, whatever its status. Cancelling closes the connection.

        Raises FetchError when the address may not be opened or does not answer within the limits.
        """
        ...
