"""The Web API's wire: one call, its answer or the error it means. Source: docs.slack.dev/apis/web-api.

Everything is sent as a form, which every method takes; lists and objects in it are JSON.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar, Union
from urllib.parse import urlsplit

import msgspec

from shoal.chat.connection import CALL_SECONDS, TRANSFER_SECONDS, Connection, Content, Given
from shoal.chat.kept import opened
from shoal.domain.backoff import retry_after
from shoal.domain.errors import PlatformError
from shoal.domain.foreign import UNREADABLE

if TYPE_CHECKING:
    from typing import Unpack

    import httpx2

T = TypeVar("T")

Value: TypeAlias = Union[str, int, bool, "list[Value]", "dict[str, Value]", None]
Parameters: TypeAlias = Mapping[str, Value]

TOKEN_ERRORS = frozenset(
    {
        "invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired", "not_allowed_token_type",
        "no_permission", "user_removed_from_team",
    }
)  # fmt: skip
PASSING_ERRORS = frozenset({"service_unavailable", "request_timeout", "team_added_to_org", "accesslimited"})
UNKNOWN_ERRORS = frozenset({"fatal_error", "internal_error"})
"""Slack says of these that the call may have been carried out in part."""
_ADVICE = {
    "channel_not_found": " The channel is gone, or the bot may not see it: invite it there.",
    "not_in_channel": " Invite the bot to that channel.",
    "is_archived": " The channel is archived.",
    "link_disabled": " Turn Socket Mode on in the app's settings.",
}


class _Outcome(msgspec.Struct, frozen=True):
    ok: bool = False
    error: str = ""
    needed: str = ""


class Refusal(PlatformError):
    """Slack refuses this call for good; `code` is its reason."""

    def __init__(self, method: str, code: str, needed: str = "") -> None:
        advice = f" Give the app the scope {needed} and install it again." if needed else _ADVICE.get(code, "")
        super().__init__(f"Slack refused {method}: {code}.{advice}", permanent=True)
        self.code = code


class SlackApi:
    """Calls of one app."""

    def __init__(self, base: str, token: Callable[[], str], account: str) -> None:
        self._base = base.rstrip("/")
        self._token = token
        self._account = account
        self._connection = Connection("Slack")

    async def call(self, method: str, kind: type[T], parameters: Parameters, *, token: str = "") -> T:
        """Call a method, with the bot's token unless another is given. Raises PlatformError."""
        headers = {"authorization": f"Bearer {token or self._token()}"}
        answer = await self._post(f"{self._base}/{method}", data=_form(parameters), headers=headers)
        return self._result(method, answer, kind)

    async def respond(self, url: str, content: Mapping[str, Value]) -> None:
        """Answer a command or a click at its response_url. Raises PlatformError."""
        answer = await self._post(
            url, content=msgspec.json.encode(content), headers={"content-type": "application/json"}
        )
        if answer.status_code != 200:
            raise PlatformError(f"Slack answered {answer.status_code} to a response.")

    async def upload(self, url: str, path: Path) -> None:
        """Send a file's content to where files.getUploadURLExternal said. Raises PlatformError."""
        with opened(path) as content:
            answer = await self._post(url, TRANSFER_SECONDS, files={"file": (path.name, content)})
        if answer.status_code != 200:
            raise PlatformError(f"Slack answered {answer.status_code} to the upload of {path.name!r}.")

    async def fetch(self, url: str, bytes_max: int) -> Content:
        """The content of a file and its media type. Raises PlatformError, also for addresses that are not Slack's."""
        if not self._is_slack(url):
            raise PlatformError("The file lies outside of Slack; it was not fetched.", permanent=True)
        return await self._connection.fetch(url, bytes_max, {"authorization": f"Bearer {self._token()}"})

    async def close(self) -> None:
        """Give connections back."""
        await self._connection.close()

    def _is_slack(self, url: str) -> bool:
        """Whether the bot's token may be shown there."""
        asked, own = urlsplit(url), urlsplit(self._base)
        if (asked.scheme, asked.netloc) == (own.scheme, own.netloc):
            return True
        host = asked.hostname or ""
        return asked.scheme == "https" and (host == "slack.com" or host.endswith((".slack.com", ".slack-files.com")))

    async def _post(self, url: str, seconds: float = CALL_SECONDS, **given: "Unpack[Given]") -> "httpx2.Response":
        answer = await self._connection.request("POST", url, seconds=seconds, **given)
        if answer.status_code == 429:
            raise _slow_down(retry_after(answer.headers))
        return answer

    def _result(self, method: str, answer: "httpx2.Response", kind: type[T]) -> T:
        try:
            outcome = msgspec.json.decode(answer.content, type=_Outcome)
            if outcome.ok:
                return msgspec.json.decode(answer.content, type=kind)
        except UNREADABLE as error:
            reason = f"Slack answered {method} with {answer.status_code} and something else than the API's JSON."
            raise PlatformError(reason, outcome_unknown=True) from error
        raise self._error(method, outcome)

    def _error(self, method: str, outcome: _Outcome) -> PlatformError:
        code = outcome.error
        if code == "ratelimited":
            return _slow_down(None)
        if code in TOKEN_ERRORS:
            which = "app token" if method == "apps.connections.open" else "bot token"
            key = "app_token or SLACK_APP_TOKEN" if which == "app token" else "bot_token or SLACK_BOT_TOKEN"
            return PlatformError(
                f"Slack refused the {which} of {self._account!r}: {code}. Set platforms.slack.{key}, then restart."
            )
        if code in PASSING_ERRORS:
            return PlatformError(f"Slack failed at {method}: {code}.")
        if code in UNKNOWN_ERRORS or not code:
            return PlatformError(f"Slack failed at {method}: {code}.", outcome_unknown=True)
        return Refusal(method, code, outcome.needed)


def _form(parameters: Parameters) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in parameters.items()
        if value is not None
    }


def _slow_down(asked_seconds: float | None) -> PlatformError:
    return PlatformError("Slack asks to slow down.", retry_after_seconds=max(asked_seconds or 0.0, 1.0))
