"""A model that is asked by plain calls and answers whole: for vectors of texts, and for speech."""

from collections.abc import Sequence

from shoal.domain.clock import Clock
from shoal.domain.errors import ProviderDown, ProviderRefused
from shoal.domain.messages import RETRYABLE
from shoal.providers.http import HttpClient, HttpFailed, read_whole
from shoal.providers.http_provider import ApiKey


class ModelEndpoint:
    """The calls for one model of a provider; opens nothing before the first."""

    def __init__(
        self, provider: str, model: str, http: HttpClient, key: ApiKey, clock: Clock, *, is_gemini: bool = False,
        headers: Sequence[tuple[str, ApiKey]] = (),
    ) -> None:  # fmt: skip
        self.provider = provider
        self.model = model
        self.is_gemini = is_gemini
        self._http = http
        self._key = key
        self._clock = clock
        self._further_headers = headers

    @property
    def name(self) -> str:
        """As settings name it: PROVIDER/MODEL."""
        return f"{self.provider}/{self.model}"

    async def post(self, path: str, body: bytes, content_type: str = "application/json") -> tuple[bytes, str]:
        """The content of the answer and its media type. Raises ProviderDown where the same call may succeed later,
        and ProviderRefused."""
        key = await self._key.get()
        named = (b"x-goog-api-key", key.encode()) if self.is_gemini else (b"authorization", b"Bearer " + key.encode())
        headers = [(b"content-type", content_type.encode()), *([named] if key else [])]
        headers += [(name.lower().encode(), (await value.get()).encode()) for name, value in self._further_headers]
        try:
            response = await self._http.request("POST", path, headers, body)
            try:
                content = await read_whole(response)
            finally:
                await response.close()
        except HttpFailed as error:
            raise ProviderDown(str(error)) from error
        if response.status != 200:
            from shoal.providers.failures import failure_of

            if response.status == 401 and self._key.refreshable:
                self._key.forget()
            failed = failure_of(response.status, content, response.headers, self.provider, (key,), self._clock)
            raise (ProviderDown if failed.kind in RETRYABLE else ProviderRefused)(failed.message)
        return content, response.headers.get("content-type", "").partition(";")[0]

    def nonsense(self, what: str) -> ProviderDown:
        """What to raise where the answer is no such thing."""
        return ProviderDown(f"{self.provider} did not answer with {what}. Check base_url and the model {self.model!r}.")

    async def close(self) -> None:
        """Close connections."""
        await self._http.close()
