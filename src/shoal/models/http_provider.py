"""Model providers over HTTP, for any API protocol: keys, streamed responses, and failures as ModelFailed.

`ModelEndpoint` sends requests to models that do not stream, such as those for embeddings and speech.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Literal

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.clock import Clock
from shoal.kernel.errors import ConfigError, ProviderDown, ProviderRefused
from shoal.kernel.messages import (
    RETRYABLE,
    AssistantMessage,
    ModelDone,
    ModelEvent,
    ModelFailed,
    ModelInfo,
    ModelMessage,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    ToolMessage,
)
from shoal.kernel.secret import Secret
from shoal.kernel.untrusted import UNREADABLE
from shoal.models.answers import AnswerContext, AnswerReader
from shoal.models.api_protocol import ApiProtocol, Images, encoded_sizes, load_images
from shoal.models.arrange import crowded_out, images_of, reasoned
from shoal.models.odd_json import JsonScan
from shoal.models.quirks import (
    Change,
    Changes,
    ProviderQuirks,
    QuirkMemory,
    Quirks,
    fault_of,
    fewer_images,
    is_about_schema,
    is_too_heavy,
    lesson,
    words_of,
)
from shoal.models.schema_dialects import NARROWER
from shoal.net.http import HttpClient, HttpFailed, HttpResponse, decoded, read_whole, readable

COMMAND_CACHE_SECONDS = 300.0
"""Seconds for which the output of a key command is cached. After a 401, the command runs again immediately."""
COMMAND_TIMEOUT_SECONDS = 30.0
KEY_BYTES_MAX = 65_536
EVENT_BYTES_MAX = 32 * 1024 * 1024
EVENT_SECONDS_MAX = 30.0
EVENT_BYTES_PER_SECOND = 1024
"""Minimum transfer rate of an event.

An event times out after EVENT_SECONDS_MAX plus its size divided by this rate. Servers send each event in one piece.
"""
ANSWER_CHARS_MAX = 1_000_000
"""Maximum number of characters in a response. This is twice the limit of the largest models."""
ANSWER_BYTES_PER_TOKEN = 2048
"""Maximum size of a stream, in bytes per output token that the request allows. Framing takes a few hundred bytes per
token.
"""
SILENCES_MAX = 5
"""Maximum time for which pings and comments alone keep a connection open, as a multiple of the silence limit."""
DRAIN_SECONDS = 0.5
"""Seconds to wait for the end of a stream after a complete response. If the stream ends in time, the connection can be
reused.
"""
ATTEMPTS_MAX = 8
"""Maximum number of requests per call, including retries in a different format after a rejection."""
TOOLLESS_MAX = 256
"""Maximum number of cached tool sets that a model rejected. A full cache is cleared."""
NO_IMAGES: Images = {}
NO_PICTURES = "{model} does not accept images, so it did not see yours."
FEWER_PICTURES = "{model} accepts fewer images per request, so it did not see {count} of yours."
NO_TOOLS = "{model} does not support tools, so it answers without them."
TOOLS_REFUSED = "{provider} rejected the request with my tools, so {model} answered without them. See `shoal doctor`."
HISTORY_REFUSED = (
    "{provider} rejected this conversation, so {model} now receives it without images or earlier reasoning."
)
"""Shown once per thread, like the notices above, because the model did not receive part of the request."""
IMAGE_SIZES_MAX = 4096
HEAVY_BYTES_MIN = 500_000
"""Minimum total size of images, in bytes, that can make a request too large."""
STRAY_BYTES_MAX = 1_000
_NAME = lazy_re.compile(rb"[a-z_.]{1,100}")
_FIELD = lazy_re.compile(rb"(?::|event|data|id|retry)")
"""Matches the start of a line in an event stream."""


class ApiKey:
    """An API key. A file or variable is read for each call. The output of a command is cached."""

    def __init__(self, secret: Secret, provider: str, clock: Clock) -> None:
        self._secret = secret
        self._provider = provider
        self._clock = clock
        self._cached = ""
        self._cached_until = 0.0
        self._lock = asyncio.Lock()

    @property
    def refreshable(self) -> bool:
        """Whether reading the key again after a 401 may return a different key."""
        return self._secret.source in ("file", "command")

    async def get(self) -> str:
        """Return the key, or an empty string if none is configured. Raises ProviderRefused if the configured key
        is missing.
        """
        if self._secret.source == "command":
            async with self._lock:
                if self._clock.monotonic() >= self._cached_until:
                    self._cached = await self._run_command()
                    self._cached_until = self._clock.monotonic() + COMMAND_CACHE_SECONDS
                key = self._cached
        else:
            try:
                key = self._secret.reveal().strip()
            except ConfigError as error:
                raise ProviderRefused(f"Shoal cannot read the API key of {self._provider}. {error}") from error
        self._secret.announce(key)
        return key

    def forget(self) -> None:
        self._cached_until = 0.0

    async def _run_command(self) -> str:
        """Run the key command. Unlike in `Secret.reveal`, cancellation kills the command."""
        _, detail = self._secret.parts()
        command = (detail,) if isinstance(detail, str) else detail
        what = f"The key command {command[0]!r} of {self._provider}"
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            raise ProviderRefused(f"{what} failed to start: {error.strerror}.") from error
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_SECONDS):
                output, _ = await process.communicate()
        except TimeoutError as error:
            raise ProviderRefused(f"{what} did not finish within {COMMAND_TIMEOUT_SECONDS:.0f} s.") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        key = output[:KEY_BYTES_MAX].decode("utf-8", "replace").strip()
        if process.returncode or not key:
            raise ProviderRefused(f"{what} ended with exit code {process.returncode} and returned no key.")
        return key


class EventTooLarge(Exception):
    """Raised if an event exceeds EVENT_BYTES_MAX, or if the response exceeds its size limit."""


class EventParser:
    """Parse the events of a response from bytes as they arrive, for any content type.

    Accepted forms:
    - server-sent events with any line ending, comments, and data in several lines
    - one or more JSON objects, in lines or in a list
    - lines of JSON without `data:`, and events without an empty line between them, which some proxies send

    Only the `data` of a server-sent event is used, because providers repeat the event's name in it as `type`. A
    missing `type` is added. Source: the event stream format in the HTML standard.
    """

    __slots__ = ("_data", "_form", "_name", "_object_from", "_rest", "_scan", "stray")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._name = b""
        self._form: Literal["", "events", "json"] = ""
        self._scan = JsonScan()
        self._object_from = -1
        self.stray = b""
        """The first bytes that are neither an event nor JSON."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the events that this chunk completes, oldest first. Raises EventTooLarge."""
        if self._form != "events":
            chunk, self._rest = self._rest + chunk if self._form == "" else chunk, self._rest if self._form else b""
            if self._form == "" and not self._begin(chunk):
                self._rest = chunk
                return []
            if self._form == "json":
                return self._feed_json(chunk)
        buffer = self._rest + chunk if self._rest else chunk
        held = b""
        if b"\r" in buffer:
            if buffer.endswith(b"\r"):
                buffer, held = buffer[:-1], b"\r"  # A `\n` may follow in the next chunk.
            buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = buffer.split(b"\n")
        self._rest = lines.pop() + held if held else lines.pop()
        if len(self._rest) > EVENT_BYTES_MAX:
            raise EventTooLarge
        events: list[bytes] = []
        data = self._data
        for line in lines:
            if not line:
                if len(data) == 1:
                    events.append(self._named(data.pop()) if self._name else data.pop())
                elif data:
                    self._end_event(events)
                self._name = b""
            elif line.startswith(b"data:"):
                content = line[6:] if line[5:6] == b" " else line[5:]
                if data and content[:1] == b"{" and data[-1].rstrip()[-1:] == b"}":
                    self._end_event(events)
                data.append(content)
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
            elif line[:1] in b'{}[]" \t' or _FIELD.match(line) is None:
                self._feed_odd(line, events)
        if len(data) > 1 and sum(map(len, data)) > EVENT_BYTES_MAX:
            raise EventTooLarge
        return events

    def _named(self, data: bytes) -> bytes:
        if data[:1] != b"{" or b'"type"' in data or not _NAME.fullmatch(self._name):
            return data
        return b'{"type":"%b"%b%b' % (self._name, b"" if data[1:].strip() == b"}" else b",", data[1:])

    def _begin(self, chunk: bytes) -> bool:
        begun = chunk.lstrip(b"\xef\xbb\xbf \t\r\n\0")
        if begun:
            self._form = "json" if begun[:1] in b"{[" else "events"
        return bool(begun)

    def _end_event(self, events: list[bytes]) -> None:
        events.append(b"\n".join(self._data))
        self._data.clear()

    def _feed_odd(self, line: bytes, events: list[bytes]) -> None:
        bare = line.strip(b"\xef\xbb\xbf \t\0")
        if bare[:5].lower() == b"data:":
            self._data.append(bare[5:].lstrip())
            if bare[5:].strip()[:1] == b"{" and bare.endswith(b"}"):
                self._end_event(events)
        elif bare[:1] == b"{" and (not self._data or self._data[-1].rstrip()[-1:] == b"}"):
            if self._data:
                self._end_event(events)
            self._data.append(bare)
        elif self._data:
            self._data.append(line)
        elif len(self.stray) < STRAY_BYTES_MAX:
            self.stray += bare[:STRAY_BYTES_MAX] + b" "

    def _feed_json(self, chunk: bytes) -> list[bytes]:
        events: list[bytes] = []
        buffer, at = self._rest + chunk, len(self._rest)
        while True:
            if self._object_from < 0:
                start = buffer.find(b"{", at)
                if start < 0:
                    self._rest = b""
                    return events
                self._object_from, at, self._scan = start, start, JsonScan()
            end = self._scan.feed(buffer, at)
            if end < 0:
                self._rest = buffer[self._object_from :]
                self._object_from = 0
                if len(self._rest) > EVENT_BYTES_MAX:
                    raise EventTooLarge
                return events
            events.append(buffer[self._object_from : end])
            self._object_from, at = -1, end

    @property
    def is_json(self) -> bool:
        return self._form == "json"

    @property
    def partial_bytes(self) -> int:
        return len(self._rest) + sum(map(len, self._data))

    def finish(self) -> list[bytes]:
        """Return the last event, even if it was cut off or the empty line after it is missing."""
        if self._form == "json":
            rest, self._rest = self._rest, b""
            return [rest] if rest else []
        if self._form == "":
            rest, self._rest, self._form = self._rest, b"", "events"
            return []
        return self.feed(b"\n\n") if self._rest or self._data else []


class HttpProvider:
    """A model provider over HTTP. Connects on the first call.

    `headers` are sent with every request. Their values are read like keys.
    """

    def __init__(
        self,
        name: str,
        protocol: ApiProtocol,
        http: HttpClient,
        key: ApiKey,
        *,
        clock: Clock,
        silence_seconds: float = math.inf,
        headers: Iterable[tuple[str, ApiKey]] = (),
        quirks: ProviderQuirks | None = None,
        address: str = "",
    ) -> None:
        self.name = name
        self._protocol = protocol
        self._http = http
        self._key = key
        self._further_headers = [(name.lower().encode(), value) for name, value in headers]
        self._clock = clock
        self._silence_seconds = silence_seconds
        self._quirks = quirks or ProviderQuirks(
            name, address, lambda address, model: Quirks(), QuirkMemory(None, clock)
        )
        self._origin = f"{protocol.kind}:{name}:{address.partition('://')[2]}"
        self._seen_images: set[str] = set()
        self._image_bytes: dict[str, int] = {}
        self._toolless: dict[tuple[str, int], None] = {}
        self._failing: dict[str, int] = {}
        self._odd: set[str] = set()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """Send the request. If the provider rejects it, retry it in the form that the error suggests (see
        quirks.py).
        """
        healing, asked_at = self._healing(request), asyncio.get_running_loop().time()
        while True:
            failed, is_shown = None, False
            async with contextlib.aclosing(self._attempt(healing, asked_at)) as events:
                async for event in events:
                    if isinstance(event, ModelFailed):
                        failed = event
                        break
                    is_shown = True
                    yield self._noted(event, healing) if isinstance(event, ModelDone) else event
            if failed is None:
                return
            if is_shown or not self._heals(healing, failed):
                yield failed if healing.first is None or failed.kind != "invalid_request" else healing.first
                return

    def _healing(self, request: ModelRequest) -> "_Healing":
        quirks = self._quirks.of(request.model)
        if self._toolless and (request.model, hash(request.tools)) in self._toolless:
            quirks = quirks.changed({"tools": False})
        return _Healing(request, quirks, f"{self._origin}:{request.model}")

    def _heals(self, healing: "_Healing", failed: ModelFailed) -> bool:
        if failed.kind not in HEALED or healing.attempts >= ATTEMPTS_MAX:
            return False
        if failed.kind == "server_error" and not self._fails_again(healing.request.cache_key):
            return False
        healing.attempts += 1
        request, quirks, words = healing.request, healing.quirks, healing.words or failed.message
        healing.words = ""
        if fewer := self._fewer_images(healing, words):
            healing.first = healing.first or failed
            healing.learns(fewer, words)
            return True
        is_about_image = healing.status == 413 and fault_of(words) == "images"
        if failed.kind == "context_overflow" and not is_about_image:
            return False
        healing.first = healing.first or failed
        healing.is_guess = healing.is_guess or failed.kind == "server_error"
        pictured, thinking = self._refusable(healing)
        match fault_of(words):
            case "images" if pictured and "images" not in healing.faults:
                healing.faults.add("images")
                self._protocol.conversations.refuse(request.cache_key, pictured)
                return True
            case "thinking" if thinking and "thinking" not in healing.faults:
                healing.faults.add("thinking")
                self._protocol.conversations.refuse(request.cache_key, thinking)
                return True
            case _:
                pass
        changes = dict(lesson(quirks, words)) or self._narrower(healing, words)
        is_placed = quirks.images == self._protocol.images == "all" and "images" in changes
        if is_placed and any(isinstance(message, ToolMessage) for message in pictured):
            changes["images"] = "user"  # More models accept images in user messages than in results.
        if changes:
            healing.learns(changes, words)
        elif healing.status not in REFUSES:
            return False
        elif (pictured or thinking) and not healing.is_bare:
            healing.is_bare = True
            healing.learns(
                {**({"images": "none"} if pictured else {}), **({"thinking": False} if thinking else {})}, words
            )
        elif request.tools and quirks.tools:
            healing.is_toolless = True
            healing.changes.pop("schema_dialect", None)
            healing.quirks = quirks.changed({"tools": False})
        else:
            return False
        return True

    def _fails_again(self, thread: str) -> bool:
        """Count a server error. Return True if the conversation should be retried in another form.

        Some servers return the same error for a conversation every time. Only the first FORMS repetitions are retried.
        """
        count = self._failing.get(thread, 0) + 1
        if len(self._failing) >= FAILING_MAX:
            self._failing.clear()
        self._failing[thread] = count
        return bool(thread) and FAILURES_MIN <= count < FAILURES_MIN + FORMS

    def _narrower(self, healing: "_Healing", words: str) -> dict[str, Change]:
        dialect = NARROWER.get(self._protocol.dialect(healing.quirks))
        is_sent = healing.request.tools and healing.quirks.tools
        if dialect is None or not is_sent or healing.status not in REFUSES or not is_about_schema(words):
            return {}
        return {"schema_dialect": dialect}

    def _refusable(self, healing: "_Healing") -> tuple[list[ModelMessage], list[ModelMessage]]:
        messages, refused, quirks = healing.request.messages, self._protocol.conversations.refused, healing.quirks
        pictured = [image for image in images_of(messages) if image not in refused] if quirks.images != "none" else []
        thinking = (
            [thought for thought in reasoned(messages, healing.origin) if thought not in refused]
            if quirks.thinking
            else []
        )
        return [*pictured], [*thinking]

    def _noted(self, done: ModelDone, healing: "_Healing") -> ModelDone:
        request, quirks, notes = healing.request, healing.quirks, list[str]()
        self._failing.pop(request.cache_key, None)
        model, changes = request.model, healing.changes
        if healing.is_toolless and healing.is_guess:
            notes.append(TOOLS_REFUSED.format(provider=self.name, model=model))
        elif healing.is_toolless:
            if len(self._toolless) >= TOOLLESS_MAX:
                self._toolless.clear()
            self._toolless[model, hash(request.tools)] = None
            notes.append(TOOLS_REFUSED.format(provider=self.name, model=model))
        elif request.tools and not quirks.tools:
            notes.append(NO_TOOLS.format(model=model))
        refused = self._protocol.conversations.refused
        if healing.is_bare:
            notes.append(HISTORY_REFUSED.format(provider=self.name, model=model))
            self._protocol.conversations.refuse(request.cache_key, request.messages)
            if (
                healing.is_guess or healing.is_toolless or (model in self._seen_images and "images" in changes)
            ):  # Another cause is possible, so learn nothing.
                changes = {}
        elif quirks.images == "none" and any(image not in refused for image in images_of(request.messages)):
            notes.append(NO_PICTURES.format(model=model))
        elif quirks.images != "none" and any(True for _ in images_of(request.messages)):
            self._seen_images.add(model)
        if unseen := self._unseen(healing):
            notes.append(FEWER_PICTURES.format(model=model, count=unseen))
        if changes:
            self._quirks.remember(model, changes, healing.taught)
        return msgspec.structs.replace(done, notes=tuple(notes)) if notes else done

    def _unseen(self, healing: "_Healing") -> int:
        if not healing.left_out:
            return 0
        messages, newest = healing.request.messages, 0
        for message in reversed(messages):
            if isinstance(message, AssistantMessage):
                break
            newest += len(message.images)
        total = sum(map(len, healing.image_sizes))
        return max(0, healing.left_out - (total - newest))

    async def _attempt(self, healing: "_Healing", asked_at: float) -> AsyncGenerator[ModelEvent]:
        try:
            sent = await self._send(healing, asked_at)
        except HttpFailed as error:
            yield ModelFailed(error.kind, str(error), error.retry_after_seconds)
            return
        except ProviderRefused as error:
            yield ModelFailed("auth", str(error))
            return
        if isinstance(sent, ModelFailed):
            yield sent
            return
        response, context = sent
        reader = self._protocol.reader(context)
        async for delta in self._read(response, reader, healing.request):
            yield delta
        result = reader.result()
        healing.status = REFUSED_IN_STREAM if reader.failure is not None else response.status
        for delta in reader.deltas():
            yield delta
        yield result

    async def _read(
        self, response: HttpResponse, reader: AnswerReader, request: ModelRequest
    ) -> AsyncGenerator[TextDelta | ThinkingDelta]:
        parser = EventParser()
        chunks = decoded(response)
        left = EVENT_BYTES_MAX + ANSWER_BYTES_PER_TOKEN * request.max_output_tokens
        chars_left = ANSWER_CHARS_MAX
        pace = _Pace(self.name, self._silence_seconds * SILENCES_MAX)
        try:
            async for chunk in chunks:
                left -= len(chunk)
                if left < 0:
                    raise EventTooLarge
                self._feed(reader, events := parser.feed(chunk))
                if parser.is_json and not reader.pieces and events and events[-1] != b"{}":
                    reader.unknown = events[-1]
                reader.failure = reader.failure or pace.failure(parser, reader, bool(events))
                for delta in reader.deltas():
                    chars_left -= len(delta.text)
                    yield delta
                if chars_left < 0:
                    raise EventTooLarge
                if reader.complete or reader.failure is not None:
                    break
            with contextlib.suppress(TimeoutError, HttpFailed):
                async with asyncio.timeout(DRAIN_SECONDS):
                    async for _ in chunks:
                        pass
            is_whole = parser.is_json and not parser.partial_bytes
            self._feed(reader, parser.finish())
            reader.complete = reader.complete or is_whole
        except HttpFailed as error:
            self._feed(reader, parser.finish())
            reader.failure = reader.failure or ModelFailed(error.kind, str(error))
        except EventTooLarge:
            reader.failure = ModelFailed("too_large", f"{self.name} sent a response above the size limit.")
        finally:
            await chunks.aclose()
            await response.close()
        reader.unknown = reader.unknown or parser.stray

    async def models(self) -> list[ModelInfo]:
        try:
            key, headers = await self._headers()
            response = await self._http.request("GET", self._protocol.models_path, headers)
            body = await read_whole(response)
        except HttpFailed as error:
            raise ProviderDown(str(error)) from error
        if response.status != 200:
            from shoal.models.failures import failure_of

            failed = failure_of(response.status, body, response.headers, self.name, (key,), self._clock)
            raise (ProviderRefused if failed.kind in ("auth", "quota") else ProviderDown)(failed.message)
        try:
            return self._protocol.models(body)
        except UNREADABLE as error:
            raise ProviderDown(f"{self.name} listed its models in an unknown format. Check base_url.") from error

    async def close(self) -> None:
        await self._http.close()

    async def _send(self, healing: "_Healing", asked_at: float) -> tuple[HttpResponse, AnswerContext] | ModelFailed:
        """Send the request. After a 401, send it once more with a fresh key."""
        request, quirks, images = healing.request, healing.quirks, NO_IMAGES
        healing.left_out = await self._crowded_out(healing)
        form = self._protocol.form(request, quirks, healing.origin, healing.left_out)
        if new := self._protocol.conversations.new_images(request, form):
            images = await asyncio.to_thread(load_images, new)
        body = self._protocol.encode(request, quirks, images, healing.origin, healing.left_out)
        path = self._protocol.path(request.model)
        while True:
            key, headers = await self._headers()
            response = await self._http.request("POST", path, headers, body.content, asked_at)
            is_page = "html" in response.headers.get("content-type", "")
            if response.status == 200 and readable(response) and not is_page:
                return response, AnswerContext(
                    self.name,
                    healing.origin,
                    body.call_ids,
                    self._clock.new_id,
                    odd=self._odd,
                    secrets=(key,),
                    offers_tools=bool(request.tools) and quirks.tools and request.tool_choice == "auto",
                    reasoning_back=bool(quirks.reasoning_field),
                    opens_thinking=quirks.opens_thinking,
                )
            from shoal.models.failures import failure_of

            content = await read_whole(response)
            if response.status == 401 and self._key.refreshable and not healing.fresh_key:
                self._key.forget()
                healing.fresh_key = True
                continue
            healing.status, healing.words = response.status, words_of(content)
            if response.status != 200:
                return failure_of(response.status, content, response.headers, self.name, (key,), self._clock)
            if is_page:
                return ModelFailed("dropped", f"{self.name} sent a web page instead of a response. Check base_url.")
            message = f"{self.name} sent a response with an unsupported compression. Check base_url."
            return ModelFailed("invalid_request", message)

    async def _crowded_out(self, healing: "_Healing") -> int:
        quirks, refused = healing.quirks, self._protocol.conversations.refused
        pictured = [*images_of(healing.request.messages)] if quirks.images != "none" else []
        if not pictured:
            healing.image_sizes = []
            return 0
        paths = [image.path for message in pictured for image in message.images]
        if new := [path for path in paths if path not in self._image_bytes]:
            if len(self._image_bytes) + len(new) > IMAGE_SIZES_MAX:
                self._image_bytes.clear()
                new = paths
            self._image_bytes.update(await asyncio.to_thread(encoded_sizes, new))
        healing.image_sizes = [
            [0 if message in refused else self._image_bytes[image.path] for image in message.images]
            for message in pictured
        ]
        return crowded_out(healing.image_sizes, quirks.images_max, quirks.image_bytes_max)

    def _fewer_images(self, healing: "_Healing", words: str) -> dict[str, Change]:
        """Return a lower limit if the provider rejected the number or the size of the images. The newest image is
        always sent.
        """
        sent = [size for message in healing.image_sizes for size in message][healing.left_out :]
        if count := fewer_images(words, len(sent)):
            return {"images_max": count}
        if len(sent) > 1 and sum(sent) >= HEAVY_BYTES_MIN and is_too_heavy(healing.status, words):
            return {"image_bytes_max": sum(sent) // 2}
        return {}

    async def _headers(self) -> tuple[str, list[tuple[bytes, bytes]]]:
        key = await self._key.get()
        further = [(name, (await value.get()).encode()) for name, value in self._further_headers]
        return key, [*self._protocol.headers(key), *further]

    def _feed(self, reader: AnswerReader, events: Iterable[bytes]) -> None:
        for data in events:
            if reader.failure is not None or reader.complete:
                return
            reader.feed(data)


HEALED = frozenset({"invalid_request", "context_overflow", "server_error"})
"""Kinds of failures after which the request may succeed in another form."""
FAILURES_MIN, FORMS = 2, 3
"""Number of server errors in a conversation after which other forms are tried, and maximum number of these attempts."""
FAILING_MAX = 1_000
REFUSED_IN_STREAM = 0
REFUSES = frozenset({REFUSED_IN_STREAM, 400, 405, 406, 415, 417, 422, 424, 500, 501})
"""Statuses that may mean the provider rejected the conversation itself.

A 404 is excluded, because it concerns the model. A 200 in an unknown format is excluded, because a retry would not
help.
"""


class _Healing:
    """The current form of a request, and the quirks learned from its refusals."""

    __slots__ = (
        "attempts", "changes", "faults", "first", "fresh_key", "image_sizes", "is_bare", "is_guess", "is_toolless",
        "left_out", "origin", "quirks", "request", "status", "taught", "words",
    )  # fmt: skip

    def __init__(self, request: ModelRequest, quirks: Quirks, origin: str) -> None:
        self.request = request
        self.quirks = quirks
        self.origin = origin
        self.attempts = 1
        self.changes: dict[str, Change] = {}
        self.faults: set[str] = set()
        self.first: ModelFailed | None = None
        self.image_sizes: list[list[int]] = []
        self.left_out = 0
        self.fresh_key = self.is_bare = self.is_guess = self.is_toolless = False
        self.status = 0
        self.taught = self.words = ""

    def learns(self, changes: Changes, words: str) -> None:
        self.quirks = self.quirks.changed(changes)
        self.changes |= changes
        self.taught = self.taught or words


class _Pace:
    """Measures how long the current event has been arriving, and the time since the last part of the response."""

    __slots__ = ("_begun_at", "_clock", "_name", "_pieces", "_said_at", "_silence_seconds")

    def __init__(self, name: str, silence_seconds: float) -> None:
        self._name = name
        self._silence_seconds = silence_seconds
        self._clock = asyncio.get_running_loop().time
        self._begun_at: float | None = None
        self._said_at = self._clock()
        self._pieces = 0

    def failure(self, parser: EventParser, reader: AnswerReader, completed: bool) -> ModelFailed | None:
        partial_bytes = parser.partial_bytes
        if reader.pieces != self._pieces or reader.complete:
            self._pieces, self._said_at = reader.pieces, self._clock()
        elif self._clock() - self._said_at > self._silence_seconds:
            return ModelFailed("timeout", f"{self._name} keeps the connection open without sending anything.")
        if not partial_bytes:
            self._begun_at = None
        elif completed or self._begun_at is None:
            self._begun_at = self._clock()
        elif self._clock() - self._begun_at > EVENT_SECONDS_MAX + partial_bytes / EVENT_BYTES_PER_SECOND:
            return ModelFailed("timeout", f"{self._name} sends its response too slowly.")
        return None


# ---- models that respond in one piece ----


class ModelEndpoint:
    """Sends requests for one model of a provider. Connects on the first request."""

    def __init__(
        self, provider: str, model: str, http: HttpClient, key: ApiKey, clock: Clock, *, is_gemini: bool = False,
        headers: Sequence[tuple[str, ApiKey]] = (),
    ) -> None:  # fmt: skip
        self.provider = provider
        self.model = model
        self.name = f"{provider}/{model}"
        self.is_gemini = is_gemini
        self._http = http
        self._key = key
        self._clock = clock
        self._further_headers = headers

    async def post(self, path: str, body: bytes, content_type: str = "application/json") -> tuple[bytes, str]:
        """Return the body of the response and its media type.

        Raises ProviderDown if a retry may succeed, otherwise ProviderRefused.
        """
        key = await self._key.get()
        named = (b"x-goog-api-key", key.encode()) if self.is_gemini else (b"authorization", b"Bearer " + key.encode())
        headers = [(b"content-type", content_type.encode()), *([named] if key else [])]
        headers += [(name.lower().encode(), (await value.get()).encode()) for name, value in self._further_headers]
        try:
            response = await self._http.request("POST", path, headers, body)
            content = await read_whole(response)
        except HttpFailed as error:
            raise ProviderDown(str(error)) from error
        if response.status != 200:
            from shoal.models.failures import failure_of

            if response.status == 401 and self._key.refreshable:
                self._key.forget()
            failed = failure_of(response.status, content, response.headers, self.provider, (key,), self._clock)
            raise (ProviderDown if failed.kind in RETRYABLE else ProviderRefused)(failed.message)
        return content, response.headers.get("content-type", "").partition(";")[0]

    def nonsense(self, what: str) -> ProviderDown:
        return ProviderDown(f"{self.provider} did not return {what}. Check base_url and the model {self.model!r}.")

    async def close(self) -> None:
        await self._http.close()
