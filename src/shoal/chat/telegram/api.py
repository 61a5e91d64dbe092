"""The Bot API's wire: one call, its answer or the error it means. Source: core.telegram.org/bots/api, 10.1."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, Union

import msgspec

from shoal.chat.connection import CALL_SECONDS, TRANSFER_SECONDS, Connection
from shoal.chat.kept import opened
from shoal.domain.errors import PlatformError
from shoal.domain.foreign import UNREADABLE

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

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
    """Calls of one bot."""

    def __init__(self, base: str, file_base: str, token: Callable[[], str], account: str) -> None:
        self._base = base.rstrip("/")
        self._file_base = file_base.rstrip("/") or f"{self._base}/file"
        self._token = token
        self._account = account
        self._connection = Connection("Telegram")

    async def call(
        self, method: str, kind: type[T], parameters: Parameters, *, file: tuple[str, Path] | None = None,
        seconds: float = CALL_SECONDS,
    ) -> T:  # fmt: skip
        """Call a method; `file` is a field's name and the file to upload in it. Raises PlatformError."""
        url = f"{self._base}/bot{self._token()}/{method}"
        given = {name: value for name, value in parameters.items() if value is not None}
        if file is None:
            answer = await self._connection.request("POST", url, seconds=seconds, json=given)
        else:
            answer = await self._upload(url, given, file)
        return self._result(answer.status_code, answer.content, kind)

    async def fetch(self, path: str, bytes_max: int) -> bytes:
        """The content of a file that getFile told of. Raises PlatformError."""
        url = f"{self._file_base}/bot{self._token()}/{path}"
        return (await self._connection.fetch(url, bytes_max)).body

    async def close(self) -> None:
        """Give connections back."""
        await self._connection.close()

    async def _upload(self, url: str, given: Parameters, file: tuple[str, Path]) -> "httpx2.Response":
        field, path = file
        data = {
            name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for name, value in given.items()
        }
        with opened(path) as content:
            files = {field: (path.name, content)}
            return await self._connection.request("POST", url, seconds=TRANSFER_SECONDS, data=data, files=files)

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
