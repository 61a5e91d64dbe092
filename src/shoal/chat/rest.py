"""Calls of a platform's REST API with a bearer token: one call, its answer, or the error it means for delivery."""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from shoal.chat.connection import CALL_SECONDS, Connection, Fields
from shoal.chat.tokens import Granted, TokenCache
from shoal.domain.backoff import retry_after
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.foreign import UNREADABLE

T = TypeVar("T")

REASON_CHARS_MAX = 300


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: bytes


class Refusal(PlatformError):
    """The platform refuses this call for good, with this status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, permanent=True)
        self.status = status


class _Error(msgspec.Struct, frozen=True):
    code: str | int = ""
    message: str = ""


class _Failed(msgspec.Struct, frozen=True):
    error: _Error = _Error()


class RestClient:
    """Calls of one account, which follow no redirect."""

    def __init__(
        self, name: str, grant: Callable[["RestClient"], Awaitable[Granted]], advice: str, clock: Clock
    ) -> None:
        self._name = name
        self._advice = advice
        self._clock = clock
        self._tokens = TokenCache(lambda: grant(self), clock)
        self._connection = Connection(name)

    async def call(
        self, method: str, url: str, kind: type[T], content: Fields | None = None, *, anonymous: bool = False,
        params: Mapping[str, str] | None = None, seconds: float = CALL_SECONDS,
    ) -> T:  # fmt: skip
        """Call with JSON and the account's token, unless `anonymous`. Raises PlatformError.

        A refused token is renewed and the call made once more, since nothing of it was done.
        """
        body = b"" if content is None else msgspec.json.encode(content)
        for attempt in (1, 2):
            headers = {} if content is None else {"content-type": "application/json"}
            token = "" if anonymous else await self._tokens.token()
            if token:
                headers["authorization"] = f"Bearer {token}"
            answer = await self.send(method, url, body, headers, params=params, seconds=seconds)
            if answer.status != 401:
                break
            self._tokens.drop(token)
            if attempt == 2 or not token:
                raise PlatformError(f"{self._name} refused the access token. {self._advice}")
        return self._result(answer, kind)

    async def ask(self, url: str, form: Mapping[str, str], kind: type[T]) -> T:
        """Send a form without a token, for a grant. Raises PlatformError; a refusal names what to set."""
        from urllib.parse import urlencode

        headers = {"content-type": "application/x-www-form-urlencoded"}
        try:
            answer = await self.send("POST", url, urlencode(form).encode(), headers)
        except PlatformError as error:  # asking for a token has posted nothing
            raise PlatformError(str(error), retry_after_seconds=error.retry_after_seconds) from error
        if 400 <= answer.status < 500:
            raise PlatformError(f"{self._name} gave no access token ({answer.status}). {self._advice}")
        if answer.status != 200:
            raise PlatformError(f"{self._name} gave no access token: it failed with {answer.status}.")
        return self._result(answer, kind)

    async def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], *,
        params: Mapping[str, str] | None = None, seconds: float = CALL_SECONDS,
    ) -> Answer:  # fmt: skip
        """Make a call as it stands. Raises PlatformError when it broke, or when it is asked to slow down."""
        given = dict(headers)
        answer = await self._connection.request(
            method, url, seconds=seconds, content=body, headers=given, params=params
        )
        if answer.status_code in (429, 503):
            seconds = max(retry_after(answer.headers, self._clock) or 0.0, 1.0)
            raise PlatformError(f"{self._name} asks to slow down.", retry_after_seconds=seconds)
        return Answer(answer.status_code, answer.content)

    async def fetch(self, url: str, bytes_max: int, *, anonymous: bool = True) -> bytes:
        """The content of a file, at most so many bytes of it. Raises PlatformError."""
        headers = {} if anonymous else {"authorization": f"Bearer {await self._tokens.token()}"}
        return (await self._connection.fetch(url, bytes_max, headers)).body

    async def token(self) -> str:
        """The account's access token. Raises PlatformError."""
        return await self._tokens.token()

    async def close(self) -> None:
        """Give connections back."""
        await self._connection.close()

    def _result(self, answer: Answer, kind: type[T]) -> T:
        if 200 <= answer.status < 300:
            try:
                return msgspec.json.decode(answer.body or b"{}", type=kind)
            except UNREADABLE as error:
                reason = f"{self._name} answered {answer.status} with something else than its API's JSON."
                raise PlatformError(reason, outcome_unknown=True) from error
        if answer.status >= 500:
            raise PlatformError(f"{self._name} failed with {answer.status}.", outcome_unknown=True)
        raise Refusal(f"{self._name} refused it with {answer.status}: {_reason(answer.body)}", answer.status)


def _reason(body: bytes) -> str:
    try:
        error = msgspec.json.decode(body, type=_Failed).error
    except UNREADABLE:
        return "it gave no reason."
    return f"{error.code} {error.message}"[:REASON_CHARS_MAX].strip() or "it gave no reason."
