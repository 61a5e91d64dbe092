"""A scripted model. It is a `Provider` in process and a loopback server for four model APIs."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from shoal.kernel.clock import Clock, SystemClock
from shoal.kernel.ids import CallId
from shoal.kernel.messages import (
    AssistantMessage,
    ModelDone,
    ModelEvent,
    ModelFailed,
    ModelInfo,
    ModelRequest,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    UserMessage,
)
from shoal.models.failures import failure_of
from shoal.testing.model import embeddings, speech, tokens
from shoal.testing.model.answer import Answer, Wire
from shoal.testing.model.anthropic import AnthropicWire
from shoal.testing.model.gemini import GeminiWire
from shoal.testing.model.http import (
    LAST_CHUNK,
    Connection,
    Drop,
    Incoming,
    Plan,
    Send,
    chunk,
    document,
    head,
    stop_accepting,
)
from shoal.testing.model.openai import OpenAiWire
from shoal.testing.model.responses import ResponsesWire
from shoal.testing.model.script import (
    Call,
    Recorded,
    Refusal,
    Reply,
    Script,
    Seen,
    SeenMessage,
    Step,
    follow_directive,
    pairing_problem,
    pieces_of,
)

LOG_MAX = 10_000

_encode = msgspec.json.Encoder().encode


class FakeSettings(msgspec.Struct, frozen=True):
    """Settings of a fake model, apart from its script.

    - `latency_seconds`: delay before each answer.
    - `token_seconds`: delay between the chunks of an answer.
    - `chunks`: number of chunks for each text, or 0 for one chunk per word.
    - `context_tokens`: maximum length of a prompt, or 0 for no maximum.
    - `strict`: reject tool calls without results.
    - `api_key`: the only accepted key, or empty to accept any key.
    - `models`: names of the models to list.
    - `log_max`: number of recent requests to keep.
    - `words`: the transcript of recordings that `speech.recording` did not create.
    """

    latency_seconds: float = 0.0
    token_seconds: float = 0.0
    chunks: int = 0
    context_tokens: int = 0
    strict: bool = True
    api_key: str = ""
    models: tuple[str, ...] = ("fake-1",)
    log_max: int = LOG_MAX
    words: str = "What is the tide?"


class FakeModel:
    """A model that answers from a script.

    - `FakeModel("Hi.", Reply(calls=(Call("bash", "{}"),)))` answers with these steps in order and fails all later
      requests.
    - `FakeModel(script=function)` calls the function for each request.
    - `FakeModel()` follows directives in the user's message. See `follow_directive`.

    Pass it as a `Provider`, or call `serve` to run it as a server. Attributes:

    - `log`: the requests as the fake parsed them.
    - `calls`: the number of requests.
    - `audio`: the path and body of each speech or transcription request.
    - `audio_troubles`: errors for the next speech or transcription requests.
    """

    def __init__(
        self,
        *steps: Step | str,
        script: Script | None = None,
        name: str = "fake",
        settings: FakeSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings if settings is not None else FakeSettings()
        self.requests: deque[ModelRequest] = deque(maxlen=self.settings.log_max)
        self.log: deque[Seen] = deque(maxlen=self.settings.log_max)
        self.calls = 0
        self.accepted = 0
        self.embedded = 0
        self.audio: list[tuple[str, bytes]] = []
        self.audio_troubles: deque[Refusal] = deque()
        self.url = ""
        self._name = name
        self._steps = deque(steps)
        self._scripted = bool(steps)
        self._script = script
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._cache = tokens.PromptCache()
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._arrived = asyncio.Event()

    @property
    def name(self) -> str:
        return self._name

    def add(self, *steps: Step | str) -> None:
        self._scripted = True
        self._steps.extend(steps)

    def follow(self, script: Script) -> None:
        self._script = script

    async def wait_for_calls(self, count: int) -> None:
        """Wait until the model has received `count` requests in total."""
        while self.calls < count:
            self._arrived.clear()
            await self._arrived.wait()

    # ---- in process ----

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests.append(request)
        seen = _seen_in_process(request)
        step = self._step(seen)
        if self.settings.latency_seconds:
            await self._clock.sleep(self.settings.latency_seconds)
        if isinstance(step, Refusal):
            headers = {name.lower(): value for name, value in step.headers}
            yield failure_of(step.status, step.body or OpenAiWire().refuse(step), headers, self._name)
            return
        if isinstance(step, Recorded):
            yield ModelFailed("invalid_request", "Only the fake's HTTP server can send recorded bytes.")
            return
        async for event in self._play(step, seen):
            yield event

    async def _play(self, reply: Reply, seen: Seen) -> AsyncIterator[ModelEvent]:
        answer = self._answer(reply, seen)
        deltas: list[ModelEvent] = [ThinkingDelta(answer.thinking)] if answer.thinking else []
        deltas.extend(TextDelta(piece) for piece in answer.pieces)
        for index, delta in enumerate(deltas):
            if reply.gate is not None and index == reply.gate_at:
                await reply.gate.wait()
            if index == reply.drop_after:
                break
            if index and self.settings.token_seconds:
                await self._clock.sleep(self.settings.token_seconds)
            yield delta
        if reply.gate is not None and reply.gate_at >= len(deltas):
            await reply.gate.wait()
        if reply.drop_after is not None:
            failure_text = f"The connection to {self._name} broke before the answer was complete."
            yield ModelFailed("dropped", failure_text, partial="".join(answer.pieces[: reply.drop_after]))
            return
        calls = tuple(ToolCall(CallId(call.id), call.name, call.arguments) for call in answer.calls)
        message = AssistantMessage(answer.text, calls)
        yield ModelDone(message, answer.stop, answer.usage, answer.thinking, answer.model)

    async def models(self) -> list[ModelInfo]:
        return [ModelInfo(model, self.settings.context_tokens) for model in self.settings.models]

    async def close(self) -> None:
        await self.stop()

    # ---- HTTP server ----

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Start the server and return its URL without a path. Clients may append `/v1` or `/v1beta`."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, host, port)
        self.url = f"http://{host}:{self._server.sockets[0].getsockname()[1]}"
        return self.url

    def _connect(self) -> Connection:
        self.accepted += 1
        return Connection(self._respond, self._connections)

    async def stop(self) -> None:
        if self._server is not None:
            await stop_accepting(self._server.sockets)
            self._server.close()
            for connection in tuple(self._connections):
                connection.close()
            await self._server.wait_closed()
            self._server = None

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[str]:
        """Run the server while the block runs, and yield its URL."""
        try:
            yield await self.start()
        finally:
            await self.stop()

    def _respond(self, incoming: Incoming) -> Plan:
        path = incoming.path.partition("?")[0]
        if incoming.method == "GET" and "/models" in path:
            return self._list_models(incoming, path)
        if path.startswith("/__"):
            return self._control(incoming, path)
        if path.endswith(("/embeddings", ":batchEmbedContents")) and incoming.method == "POST":
            return self._embeddings(incoming, path)
        if path.endswith(("/audio/transcriptions", "/audio/speech", ":generateContent")) and incoming.method == "POST":
            plan = self._audio(incoming, path)
            if plan is not None:
                return plan
        wire = _wire_of(path)
        if wire is None or incoming.method != "POST":
            return _failed(OpenAiWire(), Refusal(404, f"Path not found: {path}"))
        refused = self._refused_key(incoming)
        if refused is not None:
            return _failed(wire, refused)
        try:
            seen = wire.read(incoming.body, path)
        except msgspec.DecodeError as error:
            return _failed(wire, Refusal(400, f"Malformed request: {error}"))
        seen.body, seen.headers, seen.path = incoming.body, incoming.headers, path
        return self._plan(wire, self._step(seen), seen)

    def _plan(self, wire: Wire, step: Step, seen: Seen) -> Plan:
        wait: list[Send] = [self.settings.latency_seconds] if self.settings.latency_seconds else []
        if isinstance(step, Recorded):
            sends: list[Send] = [head(step.status, step.content_type), *(chunk(data) for data in step.chunks)]
            return Plan([*wait, *_spread(sends), Drop() if step.drop else LAST_CHUNK], seen)
        if isinstance(step, Refusal) and not step.in_stream:
            plan = _failed(wire, step)
            return Plan([*wait, *plan.sends], seen)
        if isinstance(step, Refusal):
            frame = wire.refuse_in_stream(step)
            return Plan([*wait, head(200, "text/event-stream"), chunk(frame) + LAST_CHUNK], seen)
        answer = self._answer(step, seen)
        if not seen.stream:
            sends = [step.gate] if step.gate else []
            end: Send = Drop() if step.drop_after is not None else document(200, wire.whole(answer))
            return Plan([*wait, *sends, end], seen)
        return Plan([*wait, *self._streamed(wire.events(answer, seen), step)], seen)

    def _streamed(self, frames: Sequence[bytes], reply: Reply) -> list[Send]:
        sends: list[Send] = []
        opening = head(200, "text/event-stream", (("cache-control", "no-cache"),))
        pending = opening
        last = len(frames) if reply.drop_after is None else min(reply.drop_after, len(frames))
        gate_at = min(reply.gate_at, last)
        for index in range(last + 1):
            if reply.gate is not None and index == gate_at:
                sends.extend([pending, reply.gate] if index else [reply.gate])
                pending = b"" if index else pending
            if index == last:
                break
            if index and self.settings.token_seconds:
                sends.extend([pending, self.settings.token_seconds])
                pending = b""
            pending += chunk(frames[index])
        if reply.drop_after is None:
            sends.append(pending + LAST_CHUNK)
        else:
            sends.extend([pending, Drop()] if reply.drop_after else [Drop()])
        return sends

    def _list_models(self, incoming: Incoming, path: str) -> Plan:
        names = self.settings.models
        wire: Wire = AnthropicWire() if "anthropic-version" in incoming.headers else OpenAiWire()
        wire = GeminiWire() if "v1beta" in path else wire
        refused = self._refused_key(incoming)
        if refused is not None:
            return _failed(wire, refused)
        window = self.settings.context_tokens
        if isinstance(wire, GeminiWire):
            listed = [{"name": f"models/{name}", "inputTokenLimit": window} for name in names]
            return Plan([document(200, _encode({"models": listed}))])
        if isinstance(wire, AnthropicWire):
            rows = [
                {"id": name, "type": "model", "display_name": name, "created_at": "2026-01-01T00:00:00Z"}
                | {"max_input_tokens": window or None, "max_tokens": None, "lifecycle": "active"}
                for name in names
            ]
            return Plan([document(200, _encode({"data": rows, "has_more": False, "first_id": None, "last_id": None}))])
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "shoal"} for name in names]
        return Plan([document(200, _encode({"object": "list", "data": models}))])

    def _embeddings(self, incoming: Incoming, path: str) -> Plan:
        wire: Wire = OpenAiWire() if path.endswith("/embeddings") else GeminiWire()
        refused = self._refused_key(incoming)
        if refused is not None:
            return _failed(wire, refused)
        self.embedded += 1
        return Plan([document(200, embeddings.answer(incoming.body))])

    def _audio(self, incoming: Incoming, path: str) -> Plan | None:
        wire: Wire = GeminiWire() if path.endswith("Content") else OpenAiWire()
        refused, body, media_type = self._refused_key(incoming), incoming.body, "application/json"
        try:
            if path.endswith("/audio/speech"):
                answer, media_type = speech.speech(body)
            elif path.endswith("/audio/transcriptions"):
                answer = speech.transcription(incoming.headers.get("content-type", ""), body, self.settings.words)
            else:
                found = speech.gemini_answer(body, self.settings.words)
                if found is None:
                    return None
                answer = found
        except ValueError as error:
            refused = refused or Refusal(400, str(error))
        else:
            self.audio.append((path, body))
            refused = refused or (self.audio_troubles.popleft() if self.audio_troubles else None)
            if refused is None:
                return Plan([head(200, media_type, length=len(answer)) + answer])
        return _failed(wire, refused)

    def _control(self, incoming: Incoming, path: str) -> Plan:
        if path == "/__settings" and incoming.method == "POST":
            changes = msgspec.json.decode(incoming.body, type=dict[str, msgspec.Raw])
            known = msgspec.to_builtins(self.settings) | {
                name: msgspec.json.decode(value) for name, value in changes.items()
            }
            self.settings = msgspec.convert(known, FakeSettings, strict=False)
        cancelled = sum(seen.cancelled.is_set() for seen in self.log)
        stats = {
            "calls": self.calls,
            "connections": len(self._connections),
            "accepted": self.accepted,
            "cancelled": cancelled,
        }
        return Plan([document(200, _encode(stats))])

    def _refused_key(self, incoming: Incoming) -> Refusal | None:
        wanted = self.settings.api_key
        headers = incoming.headers
        given = headers.get("x-api-key") or headers.get("x-goog-api-key") or headers.get("authorization", "")
        if not wanted or given.removeprefix("Bearer ") == wanted:
            return None
        return Refusal(401, f"Incorrect API key provided: {given.removeprefix('Bearer ')}.", "")

    # ---- shared ----

    def _step(self, seen: Seen) -> Step:
        self.calls += 1
        self.log.append(seen)
        self._arrived.set()
        problem = seen.problem or (pairing_problem(seen.messages) if self.settings.strict else "")
        if problem:
            return Refusal(400, problem)
        size = len(seen.prompt) // tokens.BYTES_PER_TOKEN
        if self.settings.context_tokens and size > self.settings.context_tokens:
            return _overflow(seen, size, self.settings.context_tokens)
        if self._script is not None:
            step = self._script(seen)
        elif self._scripted:
            step = self._steps.popleft() if self._steps else Refusal(400, "The fake model's script has no more steps.")
        else:
            step = follow_directive(seen)
        return Reply(step) if isinstance(step, str) else step

    def _answer(self, reply: Reply, seen: Seen) -> Answer:
        calls = tuple(
            call if call.id else Call(call.name, call.arguments, f"call_{self.calls:06d}_{index}")
            for index, call in enumerate(reply.calls)
        )
        usage = reply.usage
        if usage is None:
            read = self._cache.explicit if seen.wire == "anthropic" else self._cache.implicit
            size, cached, *written = read(seen.key, seen.prompt)
            output = tokens.count(reply.text) + sum(tokens.count(call.name + call.arguments) for call in calls)
            usage = tokens.add_output(size, cached, sum(written), output, tokens.count(reply.thinking))
        stop: StopReason = reply.stop or ("tool_calls" if calls else "end")
        pieces = tuple(pieces_of(reply.text, self.settings.chunks))
        answer_id = f"answer_{self.calls:06d}"
        return Answer(answer_id, seen.model, pieces, calls, reply.thinking, reply.redacted_thinking, stop, usage)


def _wire_of(path: str) -> Wire | None:
    if path.endswith("/chat/completions"):
        return OpenAiWire()
    if path.endswith("/responses"):
        return ResponsesWire()
    if path.endswith("/messages"):
        return AnthropicWire()
    return GeminiWire() if path.endswith(("enerateContent",)) else None


def _failed(wire: Wire, refusal: Refusal) -> Plan:
    body = refusal.body if refusal.body is not None else wire.refuse(refusal)
    return Plan([document(refusal.status, body, refusal.headers)])


def _spread(sends: list[Send]) -> list[Send]:
    """Add pauses that let the client read between two writes."""
    spread: list[Send] = []
    for send in sends:
        spread.extend((send, 0.0))
    return spread


def _overflow(seen: Seen, size: int, window: int) -> Refusal:
    if seen.wire == "anthropic":
        return Refusal(400, f"prompt is too long: {size} tokens > {window} maximum")
    if seen.wire == "gemini":
        return Refusal(400, f"The input token count ({size}) exceeds the maximum number of tokens allowed ({window}).")
    text = f"This model's maximum context length is {window} tokens. However, your messages resulted in {size} tokens."
    return Refusal(400, text, "context_length_exceeded")


def _seen_in_process(request: ModelRequest) -> Seen:
    messages = [SeenMessage("system", request.system)]
    for message in request.messages:
        if isinstance(message, AssistantMessage):
            calls = tuple(Call(call.name, call.arguments, call.id) for call in message.tool_calls)
            messages.append(SeenMessage("assistant", message.text, calls))
        elif isinstance(message, UserMessage):
            messages.append(SeenMessage("user", message.text, images=len(message.images)))
        else:
            images = len(message.images)
            messages.append(SeenMessage("tool", message.text, call_id=message.call_id, images=images))
    offered = (*request.tools, *request.further) if request.tool_choice == "auto" else ()
    seen = Seen("process", request.model, tuple(messages), tuple(tool.name for tool in offered))
    seen.key = request.cache_key or repr(messages[1:2])
    seen.prompt = _encode(request.tools) + _encode(messages)[:-1]
    return seen
