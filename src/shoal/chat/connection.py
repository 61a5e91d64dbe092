"""One account's connection to a platform's HTTP API: what breaks on it becomes the error that delivery understands."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeAlias, TypedDict, Union

from shoal.domain.errors import PlatformError

if TYPE_CHECKING:
    from typing import Unpack

    import httpx2

CALL_SECONDS = 30.0
TRANSFER_SECONDS = 300.0
REASON_BYTES_MAX = 65_536
"""How much is read of the answer that refuses a file."""

Value: TypeAlias = Union[str, int, float, bool, "Mapping[str, Value]", "list[Value]", None]
Fields: TypeAlias = Mapping[str, Value]
File: TypeAlias = tuple[str, BinaryIO] | tuple[str, BinaryIO, str]


class Given(TypedDict, total=False):
    """What a call may carry."""

    headers: Mapping[str, str]
    params: Mapping[str, str] | None
    content: bytes
    json: object
    data: Mapping[str, str]
    files: Mapping[str, File]


class Content(NamedTuple):
    """A file that was fetched."""

    body: bytes
    media_type: str


class Connection:
    """Makes its client with the first call, and again after `close`. `name` is the other side's, for people."""

    def __init__(self, name: str, headers: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._headers = dict(headers or {})
        self._http: httpx2.AsyncClient | None = None

    async def request(
        self, method: str, url: str, *, seconds: float = CALL_SECONDS, **given: "Unpack[Given]"
    ) -> "httpx2.Response":
        """One call, whatever its status. Raises PlatformError when it broke; then a GET has changed nothing."""
        import httpx2

        try:
            return await self._client().request(method, url, timeout=seconds, **given)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise PlatformError(f"{_capital(self.name)} cannot be reached: {type(error).__name__}.") from error
        except httpx2.TransportError as error:
            reason = f"The connection to {self.name} broke: {type(error).__name__}."
            raise PlatformError(reason, outcome_unknown=method != "GET") from error
        except httpx2.InvalidURL as error:
            reason = f"{_capital(self.name)} was to be called at what is no address."
            raise PlatformError(reason, permanent=True) from error
        except UnicodeEncodeError as error:
            reason = f"{_capital(self.name)} was to be sent what is no text. Check the token and the addresses of it."
            raise PlatformError(reason, permanent=True) from error

    async def fetch(
        self, url: str, bytes_max: int, headers: Mapping[str, str] | None = None, *, follow: bool = False,
        refuse: Callable[[int, bytes], PlatformError] | None = None,
    ) -> Content:  # fmt: skip
        """A file of at most `bytes_max` bytes. Raises PlatformError; `refuse` makes it of a status that is not 200."""
        import httpx2

        client = self._client()
        try:
            async with client.stream(
                "GET", url, headers=headers, timeout=TRANSFER_SECONDS, follow_redirects=follow
            ) as answer:
                most = bytes_max if answer.status_code == 200 else REASON_BYTES_MAX
                content = await _read(answer.aiter_bytes(), most)
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise PlatformError(f"The file did not come: {type(error).__name__}.") from error
        if answer.status_code != 200:
            raise (refuse or self._refused)(answer.status_code, content)
        if len(content) > bytes_max:
            raise PlatformError(f"The file has more than {bytes_max:,} bytes.", permanent=True)
        return Content(content, answer.headers.get("content-type", ""))

    async def close(self) -> None:
        """Give the client's connections back."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    def _client(self) -> "httpx2.AsyncClient":
        if self._http is None:
            import httpx2

            self._http = httpx2.AsyncClient(timeout=CALL_SECONDS, follow_redirects=False, headers=self._headers)
        return self._http

    def _refused(self, status: int, _: bytes) -> PlatformError:
        passing = status == 429 or status >= 500
        return PlatformError(f"{_capital(self.name)} answered {status} for a file.", permanent=not passing)


async def _read(parts: AsyncIterator[bytes], most: int) -> bytes:
    """All of it; of what is longer than `most`, something that is longer too."""
    content = bytearray()
    async for part in parts:
        content += part
        if len(content) > most:
            break
    return bytes(content)


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]
