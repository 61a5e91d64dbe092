"""Matrix' client-server API: one call, its answer or the error it means. Source: spec.matrix.org, v1.15."""

import asyncio
import mimetypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar, Union
from urllib.parse import quote

import msgspec

from shoal.chat.connection import CALL_SECONDS, TRANSFER_SECONDS, Connection
from shoal.domain.backoff import retry_after
from shoal.domain.errors import PlatformError
from shoal.domain.foreign import UNREADABLE
from shoal.domain.store import Settings

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

CLIENT = "/_matrix/client/v3"
MEDIA = "/_matrix/media/v3"
AUTHENTICATED_MEDIA = "/_matrix/client/v1/media"

Value: TypeAlias = Union[str, int, float, bool, "list[Value]", "dict[str, Value]", None]
Body: TypeAlias = Mapping[str, Value]


class _Failure(msgspec.Struct, frozen=True):
    errcode: str = ""
    error: str = ""
    retry_after_ms: float | None = None


class _Uploaded(msgspec.Struct, frozen=True):
    content_uri: str


class Session(msgspec.Struct, frozen=True):
    """Who we are to the homeserver."""

    user_id: str
    device_id: str = ""
    access_token: str = ""


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """What an account logs in with; secrets are asked for when they are needed."""

    account: str
    user: str
    access_token: Callable[[], str]
    password: Callable[[], str]


class Refused(PlatformError):
    """The homeserver refuses this call for good; `code` is its error code, e.g. M_FORBIDDEN."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"Matrix refused: {reason} ({code})", permanent=True)
        self.code = code


def path_of(*parts: str, base: str = CLIENT) -> str:
    """A path of the API; ids are escaped."""
    return "/".join((base, *(quote(part, safe="") for part in parts)))


class MatrixApi:
    """Calls of one account. It logs in with the first call."""

    def __init__(self, homeserver: str, credentials: Credentials, store: Settings, scope: str) -> None:
        self._base = homeserver.rstrip("/")
        self._credentials = credentials
        self._store = store
        self._scope = scope
        self._session: Session | None = None
        self._logging_in = asyncio.Lock()
        self._connection = Connection("the homeserver")

    async def session(self) -> Session:
        """Who we are; logs in when that is not known. Raises PlatformError, ConfigError and StoreError."""
        async with self._logging_in:
            if self._session is None:
                self._session = await self._log_in()
            return self._session

    async def call(
        self, method: str, path: str, kind: type[T], body: Body | None = None, *,
        query: Mapping[str, str] | None = None, seconds: float = CALL_SECONDS,
    ) -> T:  # fmt: skip
        """Call a path. Raises PlatformError, Refused for what cannot succeed."""
        token = (await self.session()).access_token
        return self._result(await self._send(method, path, token, body, query, seconds), kind)

    async def upload(self, name: str, media_type: str, content: bytes) -> str:
        """Put a file into the homeserver's media; returns its mxc address. Raises PlatformError."""
        headers = {"content-type": media_type, **await self._authorization()}
        url = f"{self._base}{path_of('upload', base=MEDIA)}"
        try:
            answer = await self._connection.request(
                "POST", url, seconds=TRANSFER_SECONDS, params={"filename": name}, content=content, headers=headers
            )
        except PlatformError as error:  # nothing is posted yet, so it can be tried again without a doubt
            raise PlatformError(f"The file {name!r} could not be uploaded. {error}") from error
        return self._result(answer, _Uploaded).content_uri

    async def fetch(self, address: str, bytes_max: int) -> bytes:
        """The content behind an mxc address. Raises PlatformError, also when it is longer than `bytes_max`."""
        server, _, media = address.removeprefix("mxc://").partition("/")
        if not address.startswith("mxc://") or not server or not media:
            raise PlatformError("The file's address is none of Matrix'.", permanent=True)
        try:
            return await self._fetch(path_of("download", server, media, base=AUTHENTICATED_MEDIA), bytes_max)
        except Refused as error:
            if error.code != "M_UNRECOGNIZED":
                raise
        return await self._fetch(path_of("download", server, media, base=MEDIA), bytes_max)  # before Matrix 1.11

    async def close(self) -> None:
        """Give connections back."""
        await self._connection.close()

    # ---- parts ----

    async def _authorization(self) -> dict[str, str]:
        return {"authorization": f"Bearer {(await self.session()).access_token}"}

    async def _log_in(self) -> Session:
        """With the token, else with the password: always as the same device, so that encrypted rooms know it."""
        given = self._credentials
        token = given.access_token()
        if token:
            answer = await self._send("GET", path_of("account", "whoami"), token, None, None, CALL_SECONDS)
            found = self._result(answer, Session)
            return msgspec.structs.replace(found, access_token=token)
        known = await self._store.get(self._scope, "device")
        body: dict[str, Value] = {
            "type": "m.login.password",
            "identifier": {"type": "m.id.user", "user": given.user},
            "password": given.password(),
            "initial_device_display_name": "Shoal",
            **({"device_id": known} if known else {}),
        }
        found = self._result(await self._send("POST", path_of("login"), "", body, None, CALL_SECONDS), Session)
        if found.device_id != known:
            await self._store.put(self._scope, "device", found.device_id)
        return found

    async def _send(
        self, method: str, path: str, token: str, body: Body | None, query: Mapping[str, str] | None, seconds: float
    ) -> "httpx2.Response":
        headers = {"authorization": f"Bearer {token}"} if token else {}
        url = f"{self._base}{path}"
        if body is None:
            return await self._connection.request(method, url, seconds=seconds, headers=headers, params=query)
        return await self._connection.request(method, url, seconds=seconds, headers=headers, params=query, json=body)

    async def _fetch(self, path: str, bytes_max: int) -> bytes:
        headers = await self._authorization()
        url = f"{self._base}{path}"
        return (await self._connection.fetch(url, bytes_max, headers, follow=True, refuse=self._error)).body

    def _result(self, answer: "httpx2.Response", kind: type[T]) -> T:
        if answer.status_code != 200:
            is_login = answer.request.url.path.endswith("/login")
            raise self._error(answer.status_code, answer.content, retry_after(answer.headers), is_login=is_login)
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except UNREADABLE as error:
            reason = "The homeserver answered with something else than its API's JSON."
            raise PlatformError(reason, outcome_unknown=True) from error

    def _error(
        self, status: int, body: bytes, asked_seconds: float | None = None, *, is_login: bool = False
    ) -> PlatformError:
        try:
            failure = msgspec.json.decode(body, type=_Failure)
        except UNREADABLE:
            failure = _Failure()
        if status == 429:
            asked = failure.retry_after_ms / 1000 if failure.retry_after_ms is not None else None
            seconds = asked if asked is not None else asked_seconds or 1.0
            return PlatformError("The homeserver asks to slow down.", retry_after_seconds=seconds, everywhere=True)
        if status == 401 or failure.errcode in ("M_UNKNOWN_TOKEN", "M_MISSING_TOKEN"):
            self._session = None
            return self._refused_login()
        if 400 <= status < 500 and failure.errcode:
            if failure.errcode == "M_FORBIDDEN" and is_login:
                return self._refused_login()
            return Refused(failure.errcode, failure.error or f"status {status}")
        return PlatformError(f"The homeserver failed with {status}.", outcome_unknown=True)

    def _refused_login(self) -> PlatformError:
        return PlatformError(
            f"The homeserver refused the access token or password for {self._credentials.account!r}. "
            "Set platforms.matrix.access_token (or MATRIX_ACCESS_TOKEN) or password, then restart."
        )


def media_type_of(path: Path) -> str:
    """What kind of file a name promises."""
    return mimetypes.guess_type(path.name)[0] or "application/octet-stream"
