"""What an interface is to the rest: pure translation of requests to bytes and of stream events to an answer."""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from shoal.domain.foreign import UNREADABLE
from shoal.domain.ids import CallId
from shoal.domain.messages import (
    AssistantMessage,
    ModelDone,
    ModelFailed,
    ModelInfo,
    ModelRequest,
    Opaque,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    Usage,
)
from shoal.providers.conversation import Conversations, Images

Finish: TypeAlias = StopReason | Literal[""]
_UNSAFE_ID = re.compile(r"[^A-Za-z0-9_-]")
_CALL_ID_CHARS_MAX = 64

encode = msgspec.json.Encoder().encode
_arguments_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Quirks(msgspec.Struct, frozen=True):
    """How one model or server departs from its interface's common form; rows of data, see `table.py`.

    `max_tokens` names the field for the limit (empty: none is sent); `cache_key` sends the thread's key for the
    provider's prompt cache; `reasoning_items` asks for encrypted reasoning.
    """

    max_tokens: str = "max_tokens"
    temperature: bool = True
    usage_option: bool = True
    cache_key: bool = False
    reasoning_items: bool = True


class Asked(msgspec.Struct, frozen=True):
    """What a reader needs to know of the request; `call_ids` are taken already, `new_id` gives others."""

    provider: str
    opaque_kind: str
    call_ids: frozenset[str] | set[str]
    new_id: "NewId"


class NewId(Protocol):
    """Gives a fresh unique id."""

    def __call__(self) -> str: ...


class Reader:
    """Collects one answer from a stream's events. `complete` turns true with the interface's own last event."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.complete = False
        self.failure: ModelFailed | None = None
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[CallSlot] = []
        self.stop: Finish = ""
        self.usage = Usage()
        self.model = ""
        self._texts_shown = 0
        self._thoughts_shown = 0

    def feed(self, data: bytes) -> None:
        """Take the data of one event in. Raises msgspec.DecodeError on what is not the interface's JSON."""
        raise NotImplementedError

    def opaque(self) -> str:
        """JSON that the provider wants back with this message; empty for none."""
        return ""

    def complaint(self, data: bytes) -> ModelFailed:
        """The failure that an error object in the stream means."""
        from shoal.providers.failures import failure_in_stream

        return failure_in_stream(data, self.asked.provider)

    def deltas(self) -> Sequence[TextDelta | ThinkingDelta]:
        """What came since the last time, joined."""
        out: list[TextDelta | ThinkingDelta] = []
        if len(self.thoughts) > self._thoughts_shown:
            out.append(ThinkingDelta("".join(self.thoughts[self._thoughts_shown :])))
            self._thoughts_shown = len(self.thoughts)
        if len(self.texts) > self._texts_shown:
            out.append(TextDelta("".join(self.texts[self._texts_shown :])))
            self._texts_shown = len(self.texts)
        return out

    def result(self) -> ModelDone | ModelFailed:
        """The answer, once the stream has ended."""
        if self.failure is not None:
            return self.failure
        who = self.asked.provider
        text = "".join(self.texts)
        calls = self._tool_calls()
        if not self.stop and not (self.complete and (text or calls or self.thoughts)):
            return ModelFailed("dropped", f"The connection to {who} ended before the answer was complete.")
        if self.stop == "refusal" and not text and not calls:
            return ModelFailed("content_filter", f"{who} declined to answer under its content policy.")
        stop: StopReason = self.stop or "end"
        if calls and stop == "end":
            stop = "tool_calls"
        elif stop == "tool_calls" and not calls:
            stop = "end"
        opaque = self.opaque()
        kept = Opaque(self.asked.opaque_kind, opaque) if opaque else None
        return ModelDone(AssistantMessage(text, calls, kept), stop, self.usage, "".join(self.thoughts), self.model)

    def _tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls with unique ids: one that is missing or taken already is replaced."""
        taken = self.asked.call_ids
        seen: set[str] = set()
        calls: list[ToolCall] = []
        for slot in self.calls:
            call_id = slot.id
            if not call_id or call_id in seen or call_id in taken:
                call_id = f"call_{self.asked.new_id()}"
            slot.id = call_id
            seen.add(call_id)
            calls.append(slot.tool_call())
        return tuple(calls)


class CallSlot:
    """A tool call while its pieces arrive."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self, call_id: str = "", name: str = "", arguments: str = "") -> None:
        self.id = call_id
        self.name = name
        self.arguments = [arguments] if arguments else []

    def tool_call(self) -> ToolCall:
        """The call; arguments that never came are an empty object."""
        return ToolCall(CallId(self.id), self.name, "".join(self.arguments) or "{}")


class Encoded(msgspec.Struct, frozen=True):
    """A request's body, and the call ids that its conversation already has."""

    content: bytes
    call_ids: set[str]


class Wire(Protocol):
    """One interface. Holds encoded messages between requests, nothing else; does no I/O."""

    @property
    def kind(self) -> str:
        """Its name in the configuration."""
        ...

    @property
    def conversations(self) -> Conversations:
        """The encoded messages."""
        ...

    @property
    def models_path(self) -> str:
        """Where models are listed, below the base address."""
        ...

    def path(self, model: str) -> str:
        """Where a request for this model goes, below the base address."""
        ...

    def headers(self, key: str) -> list[tuple[bytes, bytes]]:
        """Headers besides host and length."""
        ...

    def encode(self, request: ModelRequest, quirks: Quirks, images: Images) -> Encoded:
        """The request's body. `images` has what `conversations.new_images` asked for."""
        ...

    def reader(self, asked: Asked) -> Reader:
        """A collector for the answer."""
        ...

    def models(self, body: bytes) -> list[ModelInfo]:
        """Read a list of models. Raises msgspec.DecodeError."""
        ...


def wire_id(call_id: str) -> str:
    """A call id in the alphabet and length that every provider takes, for calls that another provider named."""
    return _UNSAFE_ID.sub("_", call_id)[:_CALL_ID_CHARS_MAX]


def arguments_object(arguments: str) -> bytes:
    """A call's arguments as a JSON object; what the model wrote malformed goes back as `{"malformed": text}`."""
    try:
        _arguments_decoder.decode(arguments)
    except UNREADABLE:
        return b'{"malformed":' + encode(arguments) + b"}"
    return arguments.encode()


class Lesson(msgspec.Struct, frozen=True):
    """A refusal whose words match `complaint` (anywhere, any case) teaches these fields of `Quirks`."""

    complaint: str
    changes: Mapping[str, str | bool]


_NOT_TAKEN = r"(unknown|unsupported|not support|unrecognized|not permitted|deprecated|only the default|extra)"
_LESSONS = (
    Lesson(r"max_tokens.{0,80}max_completion_tokens", {"max_tokens": "max_completion_tokens"}),
    Lesson(rf"max_completion_tokens.{{0,60}}{_NOT_TAKEN}", {"max_tokens": "max_tokens"}),
    Lesson(rf"temperature.{{0,80}}{_NOT_TAKEN}|{_NOT_TAKEN}.{{0,40}}temperature", {"temperature": False}),
    Lesson(r"stream_options", {"usage_option": False}),
    Lesson(r"prompt_cache_key", {"cache_key": False}),
    Lesson(r"reasoning\.encrypted_content|encrypted content is not supported", {"reasoning_items": False}),
)


def learn(quirks: Quirks, complaint: str) -> Quirks | None:
    """What a refusal of one field teaches; None when it is about something else, or was known already."""
    for lesson in _LESSONS:
        if re.search(lesson.complaint, complaint, re.DOTALL | re.IGNORECASE):
            learned = msgspec.structs.replace(quirks, **lesson.changes)
            if learned != quirks:
                return learned
    return None
