"""Discord's REST API: one call, its answer or the error it means. Source: docs.discord.com, API v10, rate limits."""

import mimetypes
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar, Union

import msgspec

from shoal.chat.connection import TRANSFER_SECONDS, Connection
from shoal.chat.kept import opened
from shoal.domain.backoff import retry_after
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.foreign import UNREADABLE

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

ROUTES_KEPT_MAX = 4096
"""Routes whose budget is remembered as spent; the longest unused are forgotten."""

UNKNOWN_CHANNEL = 10003
UNKNOWN_MESSAGE = 10008
CANNOT_MESSAGE_USER = 50007
THREAD_EXISTS = 160004

Value: TypeAlias = Union[str, int, float, bool, "list[Value]", "dict[str, Value]", None]
Body: TypeAlias = Mapping[str, Value]

_ID_IN_PATH = re.compile(r"(?<=/messages/)\d+")


class _Failure(msgspec.Struct, frozen=True):
    message: str = ""
    code: int = 0
    retry_after: float | None = None
    everywhere: bool = msgspec.field(name="global", default=False)


class Refused(PlatformError):
    """Discord refuses this call for good; `code` is its JSON error code, 0 where there is none."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"Discord refused: {reason} ({code})", permanent=True)
        self.code = code


class DiscordApi:
    """Calls of one bot."""

    def __init__(self, base: str, token: Callable[[], str], account: str, clock: Clock) -> None:
        self._base = base.rstrip("/")
        self._token = token
        self._account = account
        self._clock = clock
        self._spent: OrderedDict[str, float] = OrderedDict()
        self._connection = Connection("Discord", {"user-agent": "DiscordBot (Shoal, 1)"})

    async def call(
        self, method: str, path: str, kind: type[T], body: Body | list[Value] | None = None, *,
        file: Path | None = None, query: Mapping[str, str] | None = None,
    ) -> T:  # fmt: skip
        """Call a route; `file` is uploaded beside the body. Raises PlatformError, Refused for what cannot succeed.

        A route whose budget was used up is not called before it is full again.
        """
        route = _route(method, path)
        wait = self.wait_seconds(method, path)
        if wait > 0:
            raise PlatformError("Discord's limit of this route is used up for now.", retry_after_seconds=wait)
        headers = {} if path.startswith(("/interactions/", "/webhooks/")) else {"authorization": f"Bot {self._token()}"}
        url = f"{self._base}{path}"
        if file is not None:
            answer = await self._upload(method, url, headers, body, file)
        elif body is not None:
            answer = await self._connection.request(method, url, headers=headers, json=body)
        else:
            answer = await self._connection.request(method, url, headers=headers, params=query)
        self._note_budget(route, answer)
        return self._result(answer, kind)

    def wait_seconds(self, method: str, path: str) -> float:
        """How long a route's budget is still spent."""
        route = _route(method, path)
        wait = self._spent.get(route, 0.0) - self._clock.monotonic()
        if wait <= 0:
            self._spent.pop(route, None)
        return max(0.0, wait)

    async def fetch(self, url: str, bytes_max: int) -> bytes:
        """The content of an attachment. Raises PlatformError, also when it is longer than `bytes_max`."""
        return (await self._connection.fetch(url, bytes_max)).body

    async def close(self) -> None:
        """Give connections back."""
        await self._connection.close()

    async def _upload(
        self, method: str, url: str, headers: dict[str, str], body: Body | list[Value] | None, file: Path
    ) -> "httpx2.Response":
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        data = {"payload_json": msgspec.json.encode(body or {}).decode()}
        with opened(file) as content:
            files = {"files[0]": (file.name, content, kind)}
            return await self._connection.request(
                method, url, seconds=TRANSFER_SECONDS, headers=headers, data=data, files=files
            )

    def _note_budget(self, route: str, answer: "httpx2.Response") -> None:
        if answer.headers.get("x-ratelimit-remaining") == "0":
            seconds = _number(answer.headers.get("x-ratelimit-reset-after")) or 0.0
            self._spent[route] = self._clock.monotonic() + seconds
            self._spent.move_to_end(route)
            while len(self._spent) > ROUTES_KEPT_MAX:
                self._spent.popitem(last=False)

    def _result(self, answer: "httpx2.Response", kind: type[T]) -> T:
        status = answer.status_code
        if not 200 <= status < 300:
            raise self._error(answer)
        try:
            return msgspec.json.decode(answer.content or b"null", type=kind)
        except UNREADABLE as error:
            reason = f"Discord answered {status} with something else than its API's JSON."
            raise PlatformError(reason, outcome_unknown=True) from error

    def _error(self, answer: "httpx2.Response") -> PlatformError:
        status = answer.status_code
        try:
            failure = msgspec.json.decode(answer.content, type=_Failure)
        except UNREADABLE:
            failure = None
        if status == 429:
            said = failure.retry_after if failure is not None else None
            seconds = said or retry_after(answer.headers) or 1.0
            # Without JSON it is the network before Discord that blocks the whole address.
            everywhere = failure is None or failure.everywhere or "x-ratelimit-global" in answer.headers
            return PlatformError("Discord asks to slow down.", retry_after_seconds=seconds, everywhere=everywhere)
        if status == 401:
            return PlatformError(
                f"Discord refused the token for {self._account!r}. "
                "Set platforms.discord.token or DISCORD_TOKEN, then restart."
            )
        if 400 <= status < 500 and failure is not None:
            return Refused(failure.code, failure.message or f"status {status}")
        return PlatformError(f"Discord failed with {status}.", outcome_unknown=True)


def _route(method: str, path: str) -> str:
    return f"{method} {_ID_IN_PATH.sub('ID', path)}"


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
