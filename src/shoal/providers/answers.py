"""An answer collected from a stream's events, whatever form each field of them has.

Text that has arrived is in the answer, or in the failure that ends it (`ModelFailed.partial`). An odd field is left out
and logged once. See odd_json.py for how events are read, markup.py for what is read out of their text.
"""

import logging
import re
from collections.abc import Callable, Sequence, Set
from itertools import pairwise
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar  # noqa: TID251 - decoders of any record

import msgspec

from shoal.domain.ids import CallId
from shoal.domain.messages import (
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
from shoal.domain.untrusted import UNREADABLE
from shoal.providers.arrange import nine_chars
from shoal.providers.markup import MarkupFilter
from shoal.providers.odd_json import JsonScan, documents, ends_in_half, raw_json, read_fields, whole_text

T = TypeVar("T")
_log = logging.getLogger(__name__)

Finish: TypeAlias = StopReason | Literal[""]
ODD_NAMES_MAX = 100
"""Odd fields of one provider that the log tells of, each once."""
WORDS_CHARS_MAX = 300
HALF_CHARS_MAX = 3
"""Bytes of a character, but for the last."""

_COUNTS = frozenset({"usage", "usagemetadata", "x_groq", "timings", "eval_count", "prompt_eval_count"})
"""Fields that count tokens: in whatever form they are, nothing of the answer is in them."""
_UNSAFE_ID = re.compile(r"[^A-Za-z0-9_-]")
_CALL_ID_CHARS_MAX = 40
"""OpenAI's Chat Completions take no longer one."""


def portable_call_id(call_id: str) -> str:
    """A call id in the alphabet and length that most providers take, for calls that another provider named. A long one
    ends in its digest, as ids often differ at their end alone."""
    portable = _UNSAFE_ID.sub("_", call_id)
    if len(portable) <= _CALL_ID_CHARS_MAX:
        return portable
    return f"{portable[: _CALL_ID_CHARS_MAX - 10]}_{nine_chars(call_id)}"


class AnswerContext(msgspec.Struct, frozen=True):
    """What a reader needs to know of the request; `call_ids` are taken already, `new_id` gives others. `odd` has the
    odd fields that the log knows already, `secrets` are never shown, `offers_tools`: the model was told of tools. With
    `reasoning_back`, the reasoning's text is sent back as well; with `opens_thinking`, an answer begins with it."""

    provider: str
    opaque_kind: str
    call_ids: Set[str]
    new_id: Callable[[], str]
    odd: set[str] = msgspec.field(default_factory=set[str])
    secrets: Sequence[str] = ()
    offers_tools: bool = False
    reasoning_back: bool = False
    opens_thinking: bool = False


class CallParts(msgspec.Struct, eq=False):
    """A tool call while its pieces arrive."""

    id: str = ""
    name: str = ""
    arguments: list[str] = []
    scan: JsonScan = msgspec.field(default_factory=JsonScan)
    scanned: int = 0
    is_whole: bool = False

    @property
    def text(self) -> str:
        """The arguments so far."""
        return whole_text("".join(self.arguments))

    @property
    def complete(self) -> bool:
        """Whether the arguments are a whole object. Each piece is looked at once."""
        while self.scanned < len(self.arguments):
            piece = self.arguments[self.scanned]
            self.scanned += 1
            self.is_whole = self.scan.feed(piece.encode("utf-8", "replace")) >= 0 or (
                self.is_whole and not piece.strip()
            )
        return self.is_whole

    @property
    def final(self) -> str:
        """The arguments, where a server sent them twice, or all of them anew with each piece, once."""
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
    """Puts the pieces of calls together, in the notations of many servers.

    the piece                                               belongs to
    -----------------------------------------------------   ---------------------------------------------------
    has an index that nothing had, and a name               a new call
    has the id of a call                                    that call, unless it names another tool, or its own
                                                            object begins while that of the call is whole
    has another id, and a name or the start of an object,
    while the call at its index has begun its arguments     a new call
    has another name than the call at its index             a new call
    has the same name and begins with the unfinished
    arguments of the call at its index                      that call
    has the same name, and the arguments are whole          a new call
    has no name and no id                                   the call at its index; without one, the last call
    """

    def __init__(self, calls: list[CallParts]) -> None:
        self._calls = calls
        self._open: dict[int, CallParts] = {}
        self._by_id: dict[str, CallParts] = {}

    def add(self, index: int | None, call_id: str, name: str, arguments: str) -> None:
        """Take in a piece of a call; parts that the server left out are empty."""
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
        """The call that the piece goes on with; None for a new one."""
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
    """Whether a server that sends all of the arguments with each piece goes on with these."""
    return (
        bool(pieces)
        and len(arguments) > len(pieces[-1])
        and arguments.startswith(pieces[-1])
        and not is_json(pieces[-1])
    )


def _begins(arguments: str) -> bool:
    return arguments.lstrip()[:1] == "{"


class AnswerReader:
    """Collects one answer. `complete` turns true with the protocol's own last event."""

    record: ClassVar[type[msgspec.Struct]]
    """The type of an event."""
    decoder: ClassVar[msgspec.json.Decoder[Any]]

    def __init__(self, context: AnswerContext) -> None:
        self.context = context
        self._decode = self.decoder.decode
        self.complete: bool = False
        self.ended = False
        """Whether `[DONE]` has come, which some servers of any protocol send."""
        self.failure: ModelFailed | None = None
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[CallParts] = []
        self.stop: Finish = ""
        self.usage: Usage = Usage()
        self.model = ""
        self.unknown = b""
        """The first event that said nothing here."""
        self._markup = MarkupFilter(
            self.texts, self.thoughts, reads_calls=context.offers_tools, opens_thinking=context.opens_thinking
        )
        self._texts_shown = 0
        self._thoughts_shown = 0
        self._is_plain = self._has_halves = False
        self._half_text = self._half_thought = ""

    def feed(self, data: bytes) -> None:
        """Take in the data of one event."""
        try:
            event = self._decode(data)
        except UNREADABLE:
            self._feed_odd(data)
        else:
            self.take(event, data)

    def take(self, event: Any, data: bytes) -> None:
        """Take in one event; `data` is its JSON."""
        raise NotImplementedError

    def _feed_odd(self, data: bytes) -> None:
        bare = data.strip(b"\xef\xbb\xbf \t\r\n\x00")
        if bare.upper() == b"[DONE]":
            self.ended = True
            return
        self._is_plain, self._has_halves = False, True
        before = self.unknown
        found, is_whole = documents(data)
        if bare and not found:
            self.unknown = self.unknown or bare
            self.note("not JSON")
        for document in found:
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
            if not is_whole:  # a reason to stop, or a number, may be cut short
                self.stop, self.complete, self.usage, self.failure = known
        if self.unknown is not before:
            self.unknown = bare

    def part(self, data: bytes | msgspec.Raw, kind: type[T]) -> T:
        """A part of an event as a record."""
        try:
            return msgspec.json.decode(data, type=kind)
        except UNREADABLE:
            odd: list[str] = []
            found, _ = documents(bytes(data))
            part = read_fields(found[0] if found else {}, kind, odd)
            for name in odd:
                self.note(name)
            return part

    def note(self, what: str) -> None:
        """Log an oddity, once for each provider."""
        known = self.context.odd
        if what not in known and len(known) < ODD_NAMES_MAX:
            known.add(what)
            _log.warning("provider sent an odd field", extra={"provider": self.context.provider, "field": what})

    def say(self, text: str) -> None:
        """A piece of the answer's text."""
        if self._is_plain and "<" not in text and "[" not in text and "◁" not in text:
            self.texts.append(text)
            return
        if self._has_halves:
            text, self._half_text = _whole_so_far(self._half_text + text)
        self._markup.feed(text)
        self._is_plain = self._markup.is_plain and not self._has_halves

    def think(self, text: str) -> None:
        """A piece of thinking."""
        if self._has_halves:
            text, self._half_thought = _whole_so_far(self._half_thought + text)
        self.thoughts.append(text)

    def opaque(self) -> str:
        """JSON that the provider wants back with this message; empty for none."""
        return ""

    def failure_in(self, data: bytes) -> ModelFailed:
        """The failure that an error object in the stream means."""
        from shoal.providers.failures import failure_in_stream

        return failure_in_stream(data, self.context.provider, self.context.secrets)

    def complaint_in(self, data: bytes) -> ModelFailed | None:
        """The failure, where an event without a part of an answer tells of an error in another form."""
        from shoal.providers.failures import is_complaint

        if is_complaint(data):
            return self.failure_in(data)
        if data.strip() not in (b"{}", b"null"):
            self.unknown = self.unknown or data
        return None

    @property
    def pieces(self) -> int:
        """How many pieces of an answer have come, so that it can be told from a connection that is only kept open."""
        arguments = sum(1 + len(call.arguments) for call in self.calls)
        return len(self.texts) + len(self.thoughts) + self._markup.pieces + arguments

    def deltas(self) -> Sequence[TextDelta | ThinkingDelta]:
        """What came since the last time, joined."""
        out: list[TextDelta | ThinkingDelta] = []
        if len(self.thoughts) != self._thoughts_shown:
            if text := "".join(self.thoughts[self._thoughts_shown :]):
                out.append(ThinkingDelta(text))
            self._thoughts_shown = len(self.thoughts)
        if len(self.texts) != self._texts_shown:  # fewer where they turned out to be thinking
            if text := "".join(self.texts[min(self._texts_shown, len(self.texts)) :]):
                out.append(TextDelta(text))
            self._texts_shown = len(self.texts)
        return out

    def result(self) -> ModelDone | ModelFailed:
        """The answer, once the stream has ended. A call gets a new id where it has none, or one that is taken in the
        form in which it is sent back; arguments that never came are an empty object."""
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
            told = f"The connection to {provider} ended before the answer was complete."
            return ModelFailed("dropped", told, partial=text)
        if self.stop == "refusal" and not text and not calls:
            return ModelFailed("content_filter", f"{provider} declined to answer under its content policy.")
        stop: StopReason = self.stop or "end"
        if calls and stop == "end":
            stop = "tool_calls"
        elif stop == "tool_calls" and not calls:
            stop = "end"
        kept = self.opaque()
        message = AssistantMessage(text, tuple(calls), Opaque(self.context.opaque_kind, kept) if kept else None)
        return ModelDone(message, stop, self.usage, "".join(self.thoughts), whole_text(self.model))

    def _unknown_answer(self) -> ModelFailed:
        """The failure where all that came is in a form that is not known here: asking again would bring the same."""
        from shoal.providers.failures import redact

        words = redact(self.unknown[: 4 * WORDS_CHARS_MAX].decode("utf-8", "replace"), self.context.secrets)
        is_known_end = self.stop or self.complete or self.ended
        kind = "invalid_request" if is_known_end and is_json(self.unknown) else "dropped"
        told = f"{self.context.provider} sent something that is not an answer. Check its kind and base_url. It said:"
        return ModelFailed(kind, f"{told} {words}")


def _whole_so_far(text: str) -> tuple[str, str]:
    """The text with halves of characters joined, and the half at its end that may be completed by what follows."""
    at = len(text)
    while len(text) - at < HALF_CHARS_MAX and ends_in_half(text[:at]):
        at -= 1
    return whole_text(text[:at]), text[at:]
