"""The Bot API's wire: one call, its answer or the error it means. Source: core.telegram.org/bots/api, 10.1."""

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, Union

import msgspec

from shoal.domain.errors import PlatformError
from shoal.domain.foreign import UNREADABLE

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

CALL_SECONDS = 30.0
UPLOAD_SECONDS = 300.0

Value: TypeAlias = Union[str, int, bool, "list[Value]", "dict[str, Value]", None]
Parameters: TypeAlias = Mapping[str, Value]


class _Hints(msgspec.Struct, frozen=True):
    retry_after: float | None = None
    migrate_to_chat_id: int | None = None


class _Answer(msgspec.Struct, Generic[T], frozen=True):
    ok: bool
    result: T | msgspec.UnsetType = msgspec.UNSET
    error_code: int = 0
    description: str = ""
    parameters: _Hints = _Hints()


class BadRequest(PlatformError):
    """Telegram refuses this call for good; `description` is its reason."""

    def __init__(self, description: str) -> None:
        super().__init__(f"Telegram refused: {description}", permanent=True)
        self.description = description.lower()


class Moved(PlatformError):
    """A group became a supergroup and has another id now."""

    def __init__(self, chat: int) -> None:
        super().__init__(f"The group has become {chat}. Name that in platforms.telegram.channels.")
        self.chat = chat


class TelegramApi:
    """Calls of one bot. The client is made with the first call, and again after `close`."""

    def __init__(self, base: str, file_base: str, token: Callable[[], str], account: str) -> None:
        self._base = base.rstrip("/")
        self._file_base = file_base.rstrip("/") or f"{self._base}/file"
        self._token = token
        self._account = account
        self._http: httpx2.AsyncClient | None = None

    async def call(
        self, method: str, kind: type[T], parameters: Parameters, *, file: tuple[str, Path] | None = None,
        seconds: float = CALL_SECONDS,
    ) -> T:  # fmt: skip
        """Call a method; `file` is a field's name and the file to upload in it. Raises PlatformError."""
        import httpx2

        url = f"{self._base}/bot{self._token()}/{method}"
        given = {name: value for name, value in parameters.items() if value is not None}
        try:
            if file is None:
                answer = await self._client().post(url, json=given, timeout=seconds)
            else:
                answer = await self._upload(url, given, file)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise PlatformError(f"Telegram cannot be reached: {type(error).__name__}.") from error
        except httpx2.TransportError as error:
            reason = f"The connection to Telegram broke: {type(error).__name__}."
            raise PlatformError(reason, outcome_unknown=True) from error
        return self._result(answer.status_code, answer.content, kind)

    async def fetch(self, path: str, bytes_max: int) -> bytes:
        """The content of a file that getFile told of. Raises PlatformError."""
        import httpx2

        url = f"{self._file_base}/bot{self._token()}/{path}"
        content = bytearray()
        try:
            async with self._client().stream("GET", url, timeout=CALL_SECONDS) as answer:
                if answer.status_code != 200:
                    raise PlatformError(f"Telegram answered {answer.status_code} for a file.", permanent=True)
                async for part in _bounded(answer.aiter_bytes(), bytes_max):
                    content += part
        except httpx2.TransportError as error:
            raise PlatformError(f"The file did not come: {type(error).__name__}.") from error
        return bytes(content)

    async def close(self) -> None:
        """Give connections back."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    def _client(self) -> "httpx2.AsyncClient":
        if self._http is None:
            import httpx2

            self._http = httpx2.AsyncClient(timeout=CALL_SECONDS, follow_redirects=False)
        return self._http

    async def _upload(self, url: str, given: Parameters, file: tuple[str, Path]) -> "httpx2.Response":
        field, path = file
        data = {
            name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for name, value in given.items()
        }
        try:
            with path.open("rb") as content:
                return await self._client().post(
                    url, data=data, files={field: (path.name, content)}, timeout=UPLOAD_SECONDS
                )
        except OSError as error:
            reason = f"The file {path.name!r} cannot be read: {error.strerror}."
            raise PlatformError(reason, permanent=isinstance(error, FileNotFoundError)) from error

    def _result(self, status: int, body: bytes, kind: type[T]) -> T:
        try:
            answer = msgspec.json.decode(body, type=_Answer[kind])
        except UNREADABLE as error:
            reason = f"Telegram answered {status} with something else than the Bot API's JSON."
            raise PlatformError(reason, outcome_unknown=True) from error
        if answer.ok and answer.result is not msgspec.UNSET:
            return answer.result
        raise self._error(answer.error_code or status, answer.description, answer.parameters)

    def _error(self, code: int, description: str, hints: _Hints) -> PlatformError:
        if code == 429:
            return PlatformError("Telegram asks to slow down.", retry_after_seconds=hints.retry_after or 1.0)
        if code in (401, 404):
            return PlatformError(
                f"Telegram refused the token for {self._account!r}. "
                "Set platforms.telegram.token or TELEGRAM_BOT_TOKEN, then restart."
            )
        if code == 409:
            return PlatformError(
                f"Another program receives the updates of {self._account!r}. End it: a bot has one receiver."
            )
        if hints.migrate_to_chat_id is not None:
            return Moved(hints.migrate_to_chat_id)
        if 400 <= code < 500:
            return BadRequest(description)
        return PlatformError(f"Telegram failed with {code}: {description}", outcome_unknown=True)


async def _bounded(parts: AsyncIterator[bytes], bytes_max: int) -> AsyncIterator[bytes]:
    length = 0
    async for part in parts:
        length += len(part)
        if length > bytes_max:
            raise PlatformError(f"The file has more than {bytes_max} bytes.", permanent=True)
        yield part
