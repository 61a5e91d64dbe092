"""HttpProvider: the Provider over any wire. Connects, streams, and turns every way of failing into one ModelFailed."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TypeAlias

import msgspec

from shoal.domain.clock import Clock
from shoal.domain.errors import ProviderDown, ProviderRefused
from shoal.domain.foreign import UNREADABLE
from shoal.domain.messages import ModelEvent, ModelFailed, ModelInfo, ModelRequest
from shoal.providers.conversation import Images, load_images
from shoal.providers.http import HttpClient, HttpFailed, HttpResponse, read_whole
from shoal.providers.keys import Key
from shoal.providers.sse import EventParser, EventTooLarge
from shoal.providers.wire import Asked, Quirks, Reader, Wire, learn

_log = logging.getLogger(__name__)

DRAIN_SECONDS = 0.5
"""How long to wait for the end of a stream whose answer is complete, so that its connection can be used again."""
EVENT_SECONDS_MAX = 30.0
EVENT_BYTES_PER_SECOND = 1024
"""An event that has begun is complete within that time, and a large one as fast as that: servers write each at once, so
one that drips does not answer."""
ATTEMPTS_MAX = 4
"""Requests for one call while a refusal teaches something: a fresh key once, then one quirk a request."""
NO_IMAGES: Images = {}

QuirksOf: TypeAlias = Callable[[str], Quirks]


class Keys(msgspec.Struct, frozen=True):
    """The key, and further headers whose values are looked up like keys."""

    key: Key
    headers: tuple[tuple[bytes, Key], ...] = ()


class HttpProvider:
    """A provider behind HTTP. Opens nothing before its first call."""

    def __init__(
        self,
        name: str,
        wire: Wire,
        http: HttpClient,
        keys: Keys,
        *,
        clock: Clock,
        quirks_of: QuirksOf | None = None,
    ) -> None:
        self._name = name
        self._wire = wire
        self._http = http
        self._keys = keys
        self._clock = clock
        self._quirks_of: QuirksOf = quirks_of if quirks_of is not None else lambda model: Quirks()
        self._learned: dict[str, Quirks] = {}
        self._opaque_kind = f"{wire.kind}:{name}"

    @property
    def name(self) -> str:
        """See the port."""
        return self._name

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """See the port."""
        try:
            response, call_ids = await self._ask(request, asyncio.get_running_loop().time())
        except HttpFailed as error:
            yield ModelFailed(error.kind, str(error), error.retry_after_seconds)
            return
        except ProviderRefused as error:
            yield ModelFailed("auth", str(error))
            return
        if isinstance(response, ModelFailed):
            yield response
            return
        reader = self._wire.reader(Asked(self._name, self._opaque_kind, call_ids, self._clock.new_id))
        parser = EventParser()
        chunks = response.chunks()
        drip = _Drip(self._name)
        try:
            async for chunk in chunks:
                self._take(reader, events := parser.feed(chunk))
                reader.failure = reader.failure or drip.failure(parser, bool(events))
                for delta in reader.deltas():
                    yield delta
                if reader.complete or reader.failure is not None:
                    await _drain(chunks)
                    break
            self._take(reader, parser.finish())
        except HttpFailed as error:
            reader.failure = reader.failure or ModelFailed(error.kind, str(error))
        except EventTooLarge:
            reader.failure = ModelFailed("invalid_request", f"{self._name} sent an event too large to be an answer.")
        finally:
            await chunks.aclose()
            await response.close()
        for delta in reader.deltas():
            yield delta
        yield reader.result()

    async def models(self) -> list[ModelInfo]:
        """See the port."""
        try:
            key, headers = await self._headers()
            response = await self._http.request("GET", self._wire.models_path, headers)
            try:
                body = await read_whole(response)
            finally:
                await response.close()
        except HttpFailed as error:
            raise ProviderDown(str(error)) from error
        if response.status != 200:
            from shoal.providers.failures import failure_of

            failed = failure_of(response.status, body, response.headers, self._name, (key,), self._clock)
            raise (ProviderRefused if failed.kind in ("auth", "quota") else ProviderDown)(failed.message)
        try:
            return self._wire.models(body)
        except UNREADABLE as error:
            raise ProviderDown(f"{self._name} did not list its models in a known form. Is base_url right?") from error

    async def close(self) -> None:
        """See the port."""
        await self._http.close()

    async def _ask(self, request: ModelRequest, asked_at: float) -> tuple[HttpResponse | ModelFailed, set[str]]:
        """Send the request until it is taken, or refused for good."""
        images = NO_IMAGES
        if new := self._wire.conversations.new_images(request):
            images = await asyncio.to_thread(load_images, new)
        model = request.model
        path = self._wire.path(model)
        fresh_key = False
        failed = ModelFailed("invalid_request", "")
        for _ in range(ATTEMPTS_MAX):
            quirks = self._learned.get(model) or self._quirks_of(model)
            body = self._wire.encode(request, quirks, images)
            key, headers = await self._headers()
            response = await self._http.request("POST", path, headers, body.content, asked_at)
            if response.status == 200 and "json" not in response.headers.get("content-type", ""):
                return response, body.call_ids
            failed = await self._refusal(response, key)
            learned = learn(quirks, failed.message) if failed.kind == "invalid_request" else None
            if learned is not None:
                self._learned[model] = learned
            elif response.status == 401 and self._keys.key.refreshable and not fresh_key:
                self._keys.key.forget()
                fresh_key = True
            else:
                return failed, set()
        return failed, set()

    async def _headers(self) -> tuple[str, list[tuple[bytes, bytes]]]:
        key = await self._keys.key.get()
        headers = self._wire.headers(key)
        for name, value in self._keys.headers:
            headers.append((name, (await value.get()).encode()))
        return key, headers

    async def _refusal(self, response: HttpResponse, key: str) -> ModelFailed:
        from shoal.providers.failures import failure_in_stream, failure_of

        try:
            body = await read_whole(response)
        finally:
            await response.close()
        if response.status != 200:
            return failure_of(response.status, body, response.headers, self._name, (key,), self._clock)
        if b'"error"' in body[:200]:
            return failure_in_stream(body, self._name, (key,))
        try:
            msgspec.json.decode(body, type=msgspec.Raw)
        except UNREADABLE:
            return ModelFailed("dropped", f"{self._name} sent a part of an answer.")
        return ModelFailed("invalid_request", f"{self._name} answered without streaming. Is base_url right?")

    def _take(self, reader: Reader, events: Iterable[bytes]) -> None:
        for data in events:
            if reader.failure is not None:
                return
            try:
                reader.feed(data)
            except UNREADABLE as error:
                _log.warning("provider sent an unreadable event", extra={"provider": self._name, "error": str(error)})
                from shoal.providers.failures import redact

                words = redact(data.decode("utf-8", "replace"))
                reader.failure = ModelFailed("dropped", f"{self._name} sent what is no answer: {words}")


class _Drip:
    """Watches how long the event takes that is on its way."""

    __slots__ = ("_begun_at", "_clock", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._clock = asyncio.get_running_loop().time
        self._begun_at: float | None = None

    def failure(self, parser: EventParser, completed: bool) -> ModelFailed | None:
        """What is wrong after a piece of the stream, which completed an event or not."""
        partial_bytes = parser.partial_bytes
        if not partial_bytes:
            self._begun_at = None
        elif completed or self._begun_at is None:
            self._begun_at = self._clock()
        elif self._clock() - self._begun_at > EVENT_SECONDS_MAX + partial_bytes / EVENT_BYTES_PER_SECOND:
            return ModelFailed("timeout", f"{self._name} sends its answer too slowly to be read.")
        return None


async def _drain(chunks: AsyncGenerator[bytes]) -> None:
    with contextlib.suppress(TimeoutError, HttpFailed):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in chunks:
                pass
