"""HTTP client for platform APIs. Every failure becomes a PlatformError."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeAlias, TypedDict, TypeVar, Union

import msgspec

from shoal.kernel.clock import Clock, retry_after
from shoal.kernel.errors import PlatformError
from shoal.kernel.untrusted import UNREADABLE
from shoal.net.connections import default_tls, network_reason
from shoal.net.shared import SharedClient
from shoal.platforms.tokens import Granted

if TYPE_CHECKING:
    from typing import Unpack

    import httpx2

T = TypeVar("T")

CALL_SECONDS = 30.0
TRANSFER_SECONDS = 300.0
PATIENCE = 4
"""Timeout for a complete call, as a multiple of the timeout for each network operation."""
ANSWER_BYTES_MAX = 64 * 1024**2
"""Maximum size of a decompressed response, except for files. The first sync of a Matrix account can be several MB."""
REASON_BYTES_MAX = 65_536
REASON_CHARS_MAX = 300
RENEW_SECONDS = 300.0
"""An access token is renewed this many seconds before it expires, or halfway through its lifetime if that is later."""

Json: TypeAlias = Union[str, int, float, bool, "Mapping[str, Json]", "list[Json]", None]
Fields: TypeAlias = Mapping[str, Json]
Upload: TypeAlias = tuple[str, BinaryIO] | tuple[str, BinaryIO, str]


class RequestParts(TypedDict, total=False):
    headers: Mapping[str, str]
    params: Mapping[str, str] | None
    content: bytes
    json: object
    data: Mapping[str, str]
    files: Mapping[str, Upload]


class Download(NamedTuple):
    body: bytes
    media_type: str


class ApiAnswer(NamedTuple):
    """An API's response. Header names are case-insensitive."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes


class PlatformHttp:
    """HTTP client for one account. Connects on the first call, and again on the next call after `close`.

    A call that is under way during `close` still gets its response. `name` is the service's name in error messages.
    """

    def __init__(self, name: str, headers: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._headers = dict(headers or {})
        self._shared: SharedClient[httpx2.AsyncClient] | None = None

    @property
    def _name_first(self) -> str:
        return self.name[:1].upper() + self.name[1:]

    async def request(
        self, method: str, url: str, *, seconds: float = CALL_SECONDS, **parts: "Unpack[RequestParts]"
    ) -> ApiAnswer:
        """Send a request and return the response, even if its status is an error. `seconds` limits each network
        operation.

        Raises PlatformError if the request fails or times out, or if the response exceeds ANSWER_BYTES_MAX. Unless the
        method is GET, the outcome may be unknown.
        """
        import httpx2

        content = bytearray()
        try:
            async with (
                asyncio.timeout(PATIENCE * seconds),
                self._client() as http,
                http.stream(method, url, timeout=seconds, **parts) as answer,
            ):
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > ANSWER_BYTES_MAX:
                        reason = f"{self._name_first} sent a response larger than {ANSWER_BYTES_MAX:,} bytes."
                        raise PlatformError(reason, outcome_unknown=method != "GET")
            return ApiAnswer(answer.status_code, answer.headers, bytes(content))
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise PlatformError(f"Cannot reach {self.name}: {network_reason(error)}.") from error
        except (httpx2.RequestError, TimeoutError) as error:
            reason = f"The connection to {self.name} failed: {network_reason(error)}."
            raise PlatformError(reason, outcome_unknown=method != "GET") from error
        except httpx2.InvalidURL as error:
            raise PlatformError(f"The configured URL of {self.name} is not valid.", permanent=True) from error
        except UnicodeEncodeError as error:
            reason = (
                f"A request to {self.name} contains characters that HTTP does not allow. Check the token and the URL."
            )
            raise PlatformError(reason, permanent=True) from error

    async def download(
        self, url: str, bytes_max: int, headers: Mapping[str, str] | None = None, *, follow: bool = False,
        refuse: Callable[[int, bytes], PlatformError] | None = None,
    ) -> Download:  # fmt: skip
        """Download a file of at most `bytes_max` bytes. Raises PlatformError. If `refuse` is set, it creates the error
        for a status other than 200.
        """
        import httpx2

        content = bytearray()
        try:
            async with (
                asyncio.timeout(PATIENCE * TRANSFER_SECONDS),
                self._client() as http,
                http.stream("GET", url, headers=headers, timeout=TRANSFER_SECONDS, follow_redirects=follow) as answer,
            ):
                read_max = bytes_max if answer.status_code == 200 else REASON_BYTES_MAX
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > read_max:
                        break
        except (httpx2.RequestError, httpx2.InvalidURL, TimeoutError) as error:
            raise PlatformError(f"Downloading the file failed: {network_reason(error)}.") from error
        status = answer.status_code
        if status != 200:
            if refuse is not None:
                raise refuse(status, bytes(content))
            passing = status == 429 or status >= 500
            raise PlatformError(f"{self._name_first} returned status {status} for a file.", permanent=not passing)
        if len(content) > bytes_max:
            raise PlatformError(f"The file is larger than {bytes_max:,} bytes.", permanent=True)
        return Download(bytes(content), answer.headers.get("content-type", ""))

    async def fetch(self, url: str, bytes_max: int) -> bytes:
        return (await self.download(url, bytes_max)).body

    def decode(self, status: int, body: bytes, kind: type[T]) -> T:
        """Decode an API's JSON response. Raises PlatformError if it is invalid. The outcome is unknown unless the
        status is 4xx.
        """
        try:
            return msgspec.json.decode(body, type=kind)
        except UNREADABLE as error:
            reason = f"{self._name_first} returned status {status} and a response in an unknown format."
            raise PlatformError(reason, outcome_unknown=not 400 <= status < 500) from error

    async def close(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.release()

    @asynccontextmanager
    async def _client(self) -> "AsyncGenerator[httpx2.AsyncClient]":
        if self._shared is None:
            import httpx2

            self._shared = SharedClient(
                httpx2.AsyncClient(
                    verify=default_tls(), timeout=CALL_SECONDS, follow_redirects=False, headers=self._headers
                )
            )
        shared = self._shared
        try:
            yield shared.use()
        finally:
            await shared.release()


PASSING_STATUSES = frozenset({408, 409, 423, 425})
"""Statuses of temporary errors: timeout, conflict with another call, locked, too early."""


class PlatformRefusal(PlatformError):
    """The platform rejected a call. Retrying does not help unless the chat is `closed`.

    - `code`: the platform's error code or the HTTP status.
    - `closed`: the chat accepts no posts for now.
    - `gone`: the chat no longer exists.
    """

    def __init__(self, message: str, code: str | int, *, closed: bool = False, gone: bool = False) -> None:
        super().__init__(message, permanent=not closed, barred=closed or gone)
        self.code = code


class Tolerating:
    """Context manager that suppresses a PlatformRefusal with one of the given codes."""

    def __init__(self, *codes: str | int) -> None:
        self._codes = codes

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        return isinstance(error, PlatformRefusal) and error.code in self._codes


class _ApiError(msgspec.Struct, frozen=True):
    code: str | int = ""
    message: str = ""


class _ApiErrorBody(msgspec.Struct, frozen=True):
    error: _ApiError = _ApiError()


class RestApi(PlatformHttp):
    """Client for a REST API that requires an access token from `_grant`. Never follows redirects."""

    def __init__(self, name: str, advice: str, clock: Clock) -> None:
        super().__init__(name)
        self._advice = advice
        self._clock = clock
        self._token = ""
        self._token_until = 0.0
        self._granting = asyncio.Lock()

    async def _grant(self) -> Granted:
        """Request a new access token. Raises PlatformError."""
        raise NotImplementedError

    async def token(self) -> str:
        """Return the cached access token, or request a new one if it expires soon. Raises PlatformError."""
        async with self._granting:
            if not self._token or self._clock.monotonic() >= self._token_until:
                granted = await self._grant()
                keep_seconds = max(granted.expires_in - RENEW_SECONDS, granted.expires_in / 2)
                self._token, self._token_until = granted.access_token, self._clock.monotonic() + keep_seconds
            return self._token

    async def call(
        self, method: str, url: str, kind: type[T], content: Fields | None = None, *, anonymous: bool = False,
        params: Mapping[str, str] | None = None, seconds: float = CALL_SECONDS,
    ) -> T:  # fmt: skip
        """Send a JSON request and decode the response. Includes the account's token unless `anonymous` is set.

        If the API rejects the token, the call is repeated once with a new token. Raises PlatformError, or its subclass
        PlatformRefusal if the API rejects the call.
        """
        body = b"" if content is None else msgspec.json.encode(content)
        for attempt in (1, 2):
            headers = {} if content is None else {"content-type": "application/json"}
            token = "" if anonymous else await self.token()
            if token:
                headers["authorization"] = f"Bearer {token}"
            answer = await self.send(method, url, body, headers, params=params, seconds=seconds)
            if answer.status_code != 401:
                break
            if token == self._token:
                self._token = ""
            if attempt == 2 or not token:
                raise PlatformError(f"{self.name} rejected the access token. {self._advice}")
        status = answer.status_code
        if 200 <= status < 300:
            return self.decode(status, answer.content or b"{}", kind)
        if status >= 500:
            raise PlatformError(f"{self.name} returned status {status}.", outcome_unknown=True)
        try:
            error = msgspec.json.decode(answer.content, type=_ApiErrorBody).error
            reason = f"{error.code} {error.message}"[:REASON_CHARS_MAX].strip()
        except UNREADABLE:
            reason = ""
        message = f"{self.name} returned status {status}: {reason or 'it gave no reason.'}"
        if status in PASSING_STATUSES:
            raise PlatformError(message)
        raise PlatformRefusal(message, status, closed=status == 403, gone=status == 404)

    async def request_token(self, url: str, form: Mapping[str, str]) -> Granted:
        """Request an access token from an authorization server. Raises PlatformError with advice on what to
        configure.
        """
        from urllib.parse import urlencode

        headers = {"content-type": "application/x-www-form-urlencoded"}
        try:
            answer = await self.send("POST", url, urlencode(form).encode(), headers)
        except PlatformError as error:  # a failed token request posts nothing, so its outcome is known
            raise PlatformError(str(error), retry_after_seconds=error.retry_after_seconds) from error
        status = answer.status_code
        if 400 <= status < 500:
            raise PlatformError(f"{self.name} did not issue an access token (status {status}). {self._advice}")
        if status != 200:
            raise PlatformError(f"{self.name} did not issue an access token (status {status}).")
        return self.decode(status, answer.content, Granted)

    async def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], *,
        params: Mapping[str, str] | None = None, seconds: float = CALL_SECONDS,
    ) -> ApiAnswer:  # fmt: skip
        """Send one request without an access token. Raises PlatformError if it fails or is rate limited."""
        answer = await self.request(method, url, seconds=seconds, content=body, headers=headers, params=params)
        if answer.status_code in (429, 503):
            wait_seconds = max(retry_after(answer.headers, self._clock) or 0.0, 1.0)
            raise PlatformError(f"{self.name}'s rate limit has been reached.", retry_after_seconds=wait_seconds)
        return answer

    async def fetch_own(self, url: str, bytes_max: int) -> bytes:
        return (await self.download(url, bytes_max, {"authorization": f"Bearer {await self.token()}"})).body
