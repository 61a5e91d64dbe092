"""Assemble a model's response from stream events, in all variants that servers send.

Text that has arrived is part of the response, or of the failure that ends it (`ModelFailed.partial`). Malformed
fields are skipped and logged once. odd_json.py decodes malformed events. markup.py extracts thinking and calls from
text.
"""

import logging
from collections.abc import Callable, Sequence, Set
from itertools import pairwise
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar  # noqa: TID251 - decoders of any record

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.ids import CallId
from shoal.kernel.messages import (
    AssistantMessage,
    ModelDone,
    ModelFailed,
    Opaque,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    Usage,
)
from shoal.kernel.untrusted import UNREADABLE
from shoal.models.arrange import nine_chars
from shoal.models.markup import MarkupFilter
from shoal.models.odd_json import JsonScan, documents, ends_in_half, raw_json, read_fields, whole_text

T = TypeVar("T")
_log = logging.getLogger(__name__)

Finish: TypeAlias = StopReason | Literal[""]
ODD_NAMES_MAX = 100
"""Maximum number of different malformed fields that are logged per provider."""
WORDS_CHARS_MAX = 300
HALF_CHARS_MAX = 3
"""Maximum number of surrogates at the end of a text that may belong to an incomplete character."""

_COUNTS = frozenset({"usage", "usagemetadata", "x_groq", "timings", "eval_count", "prompt_eval_count"})
"""Names of usage fields. If only these are malformed, the event's content is complete."""
_UNSAFE_ID = lazy_re.compile(r"[^A-Za-z0-9_-]")
_CALL_ID_CHARS_MAX = 40
"""Maximum length of a call id in OpenAI's Chat Completions API."""


def portable_call_id(call_id: str) -> str:
    """Rewrite a call id to fit the characters and the length that most providers accept.

    A long id ends in a digest of the original, because ids often differ only at the end.
    """
    portable = _UNSAFE_ID.sub("_", call_id)
    if len(portable) <= _CALL_ID_CHARS_MAX:
        return portable
    return f"{portable[: _CALL_ID_CHARS_MAX - 10]}_{nine_chars(call_id)}"


class AnswerContext(msgspec.Struct, frozen=True):
    """Facts from the request that a reader needs to decode the response."""

    provider: str
    opaque_kind: str
    call_ids: Set[str]
    """Call ids that are already used in the conversation."""
    new_id: Callable[[], str]
    odd: set[str] = msgspec.field(default_factory=set[str])
    secrets: Sequence[str] = ()
    """Values that are redacted in error messages."""
    offers_tools: bool = False
    reasoning_back: bool = False
    opens_thinking: bool = False


class CallParts(msgspec.Struct, eq=False):
    """A tool call whose pieces are still arriving."""

    id: str = ""
    name: str = ""
    arguments: list[str] = []
    scan: JsonScan = msgspec.field(default_factory=JsonScan)
    scanned: int = 0
    is_whole: bool = False

    @property
    def text(self) -> str:
        return whole_text("".join(self.arguments))

    @property
    def complete(self) -> bool:
        """Whether the arguments are a complete JSON object. Each piece is scanned only once."""
        while self.scanned < len(self.arguments):
            piece = self.arguments[self.scanned]
            self.scanned += 1
            self.is_whole = self.scan.feed(piece.encode("utf-8", "replace")) >= 0 or (
                self.is_whole and not piece.strip()
            )
        return self.is_whole

    @property
    def final(self) -> str:
        """Return the arguments with duplicates removed.

        Some servers send the arguments twice. Others repeat all previous pieces in each new piece.
        """
        pieces = [piece for piece in self.arguments if piece.strip()]
        if not pieces:
            return "{}"
        text = self.text
        if len(pieces) == 1 or is_json(text):
            return text
        last = whole_text(pieces[-1])
        is_repeated = "".join(pieces[:-1]).strip() == last.strip()
        if (is_repeated or all(later.startswith(earlier) for earlier, later in pairwise(pieces))) and is_json(last):
            return last
        rest = text.lstrip().removeprefix("{}")
        return rest if is_json(rest) else text


def is_json(text: str | bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except UNREADABLE:
        return False
    return True


class CallCollector:
    """Assemble tool calls from streamed pieces, in the forms that different servers use.

    if a piece has                                          it belongs to
    -----------------------------------------------------   ---------------------------------------------------
    an unused index and a name                              a new call
    the id of a known call                                  that call, unless the piece names another tool, or
                                                            starts an object after that call's arguments are complete
    a different id, and a name or the start of an object,
    if the call at its index already has arguments          a new call
    a different name from the call at its index             a new call
    the same name, and arguments that begin with the
    unfinished arguments of the call at its index           that call
    the same name, if the arguments are complete            a new call
    no name and no id                                       the call at its index, or the last call without an index
    """

    def __init__(self, calls: list[CallParts]) -> None:
        self._calls = calls
        self._open: dict[int, CallParts] = {}
        self._by_id: dict[str, CallParts] = {}

    def add(self, index: int | None, call_id: str, name: str, arguments: str) -> None:
        call = self._of_piece(index, call_id, name, arguments)
        if call is None:
            if not (name or call_id or arguments):
                return
            call = CallParts(call_id, name)
            self._calls.append(call)
        else:
            call.id = call.id or call_id
            call.name = call.name or name
        if index is not None:
            self._open[index] = call
        if call.id:
            self._by_id.setdefault(call.id, call)
        if arguments and not (call.complete and arguments == call.text and call_id == call.id):
            call.arguments.append(arguments)

    def _of_piece(self, index: int | None, call_id: str, name: str, arguments: str) -> CallParts | None:
        last = self._calls[-1] if self._calls else None
        at_index = self._open.get(index) if index is not None else last
        by_id = self._by_id.get(call_id) if call_id else None
        if by_id is not None and (index is None or at_index is not None or not name):
            is_again = not name or by_id.name in ("", name)
            if is_again and not (name and by_id.complete and _begins(arguments) and arguments != by_id.text):
                return by_id
            if is_again and not name:
                return by_id
        if at_index is None:
            return last if not name and not call_id and index is not None else None
        if not name and not call_id:
            return at_index
        is_other = bool(call_id and at_index.id and call_id != at_index.id)
        if not is_other and name == at_index.name and _grows(at_index.arguments, arguments):
            return at_index
        if name and at_index.name and name != at_index.name:
            return None
        if is_other and (at_index.complete or not at_index.arguments or _begins(arguments)):
            return None if name or at_index.complete else at_index
        if name and at_index.name and at_index.complete and (_begins(arguments) or is_other):
            is_repeated = bool(call_id) and not is_other and arguments == at_index.text
            return at_index if is_repeated else None
        return at_index


def _grows(pieces: list[str], arguments: str) -> bool:
    """Return True if the server repeats all arguments in each piece, and this piece extends the previous one."""
    return (
        bool(pieces)
        and len(arguments) > len(pieces[-1])
        and arguments.startswith(pieces[-1])
        and not is_json(pieces[-1])
    )


def _begins(arguments: str) -> bool:
    return arguments.lstrip()[:1] == "{"


class AnswerReader:
    """Reads one response. The protocol's final event sets `complete`."""

    record: ClassVar[type[msgspec.Struct]]
    decoder: ClassVar[msgspec.json.Decoder[Any]]

    def __init__(self, context: AnswerContext) -> None:
        self.context = context
        self._decode = self.decoder.decode
        self.complete: bool = False
        self.ended = False
        """True if `[DONE]` has arrived. Servers of any protocol may send it."""
        self.failure: ModelFailed | None = None
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[CallParts] = []
        self.stop: Finish = ""
        self.usage: Usage = Usage()
        self.model = ""
        self.unknown = b""
        """The first event whose content has an unknown format."""
        self._markup = MarkupFilter(
            self.texts, self.thoughts, reads_calls=context.offers_tools, opens_thinking=context.opens_thinking
        )
        self._texts_shown = 0
        self._thoughts_shown = 0
        self._is_plain = self._has_halves = False
        self._half_text = self._half_thought = ""

    def feed(self, data: bytes) -> None:
        try:
            event = self._decode(data)
        except UNREADABLE:
            self._feed_odd(data)
        else:
            self.take(event, data)

    def take(self, event: Any, data: bytes) -> None:
        raise NotImplementedError

    def _feed_odd(self, data: bytes) -> None:
        bare = data.strip(b"\xef\xbb\xbf \t\r\n\x00")
        if bare.upper() == b"[DONE]":
            self.ended = True
            return
        self._is_plain, self._has_halves = False, True
        before = self.unknown
        values, is_whole = documents(data)
        if bare and not values:
            self.unknown = self.unknown or bare
            self.note("not JSON")
        for document in values:
            if self.failure is not None or self.complete:
                break
            odd: list[str] = []
            event = read_fields(document, self.record, odd)
            for name in odd:
                self.note(name)
            if any(_COUNTS.isdisjoint(name.lower().split(".")) for name in odd):
                self.unknown = self.unknown or bare
            known = self.stop, self.complete, self.usage, self.failure
            self.take(event, raw_json(document))
            if not is_whole:  # A truncated event may contain half a stop reason or number.
                self.stop, self.complete, self.usage, self.failure = known
        if self.unknown is not before:
            self.unknown = bare

    def part(self, data: bytes | msgspec.Raw, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except UNREADABLE:
            odd: list[str] = []
            values, _ = documents(bytes(data))
            part = read_fields(values[0] if values else {}, kind, odd)
            for name in odd:
                self.note(name)
            return part

    def note(self, what: str) -> None:
        known = self.context.odd
        if what not in known and len(known) < ODD_NAMES_MAX:
            known.add(what)
            _log.warning("provider sent a malformed field", extra={"provider": self.context.provider, "field": what})

    def say(self, text: str) -> None:
        if self._is_plain and "<" not in text and "[" not in text and "◁" not in text:
            self.texts.append(text)
            return
        if self._has_halves:
            text, self._half_text = _whole_so_far(self._half_text + text)
        self._markup.feed(text)
        self._is_plain = self._markup.is_plain and not self._has_halves

    def think(self, text: str) -> None:
        if self._has_halves:
            text, self._half_thought = _whole_so_far(self._half_thought + text)
        self.thoughts.append(text)

    def opaque(self) -> str:
        """Return JSON that must be sent back to the provider with this message, or an empty string."""
        return ""

    def failure_in(self, data: bytes) -> ModelFailed:
        from shoal.models.failures import failure_in_stream

        return failure_in_stream(data, self.context.provider, self.context.secrets)

    def complaint_in(self, data: bytes) -> ModelFailed | None:
        from shoal.models.failures import is_complaint

        if is_complaint(data):
            return self.failure_in(data)
        if data.strip() not in (b"{}", b"null"):
            self.unknown = self.unknown or data
        return None

    @property
    def pieces(self) -> int:
        """The number of pieces received. Keep-alives do not count."""
        arguments = sum(1 + len(call.arguments) for call in self.calls)
        return len(self.texts) + len(self.thoughts) + self._markup.pieces + arguments

    def deltas(self) -> Sequence[TextDelta | ThinkingDelta]:
        """Return the text and the thinking that arrived since the previous call, with adjacent pieces joined."""
        out: list[TextDelta | ThinkingDelta] = []
        if len(self.thoughts) != self._thoughts_shown:
            if text := "".join(self.thoughts[self._thoughts_shown :]):
                out.append(ThinkingDelta(text))
            self._thoughts_shown = len(self.thoughts)
        if len(self.texts) != self._texts_shown:  # Texts that turn out to be thinking are removed.
            if text := "".join(self.texts[min(self._texts_shown, len(self.texts)) :]):
                out.append(TextDelta(text))
            self._texts_shown = len(self.texts)
        return out

    def result(self) -> ModelDone | ModelFailed:
        """Return the response after the stream has ended.

        A call gets a new id if its id is missing or already used. Missing arguments become an empty object.
        """
        if self._half_text:
            self._markup.feed(whole_text(self._half_text))
        for call in self._markup.finish(has_calls=bool(self.calls), is_cut_off=self.stop == "max_tokens"):
            self.calls.append(CallParts("", call.name, [call.arguments]))
        text = "".join(self.texts)
        if self.failure is not None:
            return msgspec.structs.replace(self.failure, partial=text)
        provider = self.context.provider
        calls: list[ToolCall] = []
        seen: set[str] = set()
        for call in self.calls:
            sent = portable_call_id(call.id)
            if not sent or sent in seen or sent in self.context.call_ids:
                call.id = sent = f"call_{self.context.new_id()}"
            seen.add(sent)
            calls.append(ToolCall(CallId(whole_text(call.id)), whole_text(call.name), call.final))
        if calls and not text.strip():
            text = ""
        has_content = bool(text or calls or any(self.thoughts))
        if not has_content and self.unknown:
            return self._unknown_answer()
        if not self.stop and not ((self.complete or self.ended) and has_content):
            failure_text = f"The connection to {provider} ended before the response was complete."
            return ModelFailed("dropped", failure_text, partial=text)
        if self.stop == "refusal" and not text and not calls:
            return ModelFailed("content_filter", f"{provider} declined to answer under its content policy.")
        stop: StopReason = self.stop or "end"
        if calls and stop == "end":
            stop = "tool_calls"
        elif stop == "tool_calls" and not calls:
            stop = "end"
        opaque = self.opaque()
        message = AssistantMessage(text, tuple(calls), Opaque(self.context.opaque_kind, opaque) if opaque else None)
        return ModelDone(message, stop, self.usage, "".join(self.thoughts), whole_text(self.model))

    def _unknown_answer(self) -> ModelFailed:
        """Return the failure for a response in an unknown format.

        A complete response is not retried, because a retry would return the same format.
        """
        from shoal.models.failures import redact

        words = redact(self.unknown[: 4 * WORDS_CHARS_MAX].decode("utf-8", "replace"), self.context.secrets)
        is_known_end = self.stop or self.complete or self.ended
        kind = "invalid_request" if is_known_end and is_json(self.unknown) else "dropped"
        message = f"{self.context.provider} sent a response in an unknown format. Check its kind and base_url. It said:"
        return ModelFailed(kind, f"{message} {words}")


def _whole_so_far(text: str) -> tuple[str, str]:
    at = len(text)
    while len(text) - at < HALF_CHARS_MAX and ends_in_half(text[:at]):
        at -= 1
    return whole_text(text[:at]), text[at:]
