"""Fit a conversation into its share of the model's window. A cut never separates a tool result from its call.

Running sums over the transcript keep the cost of a turn proportional to its new messages and its request, in threads
of any length. When messages must be omitted, a quarter of the budget is freed at once. The beginning of the request
then stays the same for many turns, and the provider can cache it.

The steps, in order:

1. If everything fits, send everything.
2. If the conversation is too long, omit complete turns, oldest first, but keep a summary at the beginning.
3. If the newest turn alone is too long, omit its oldest steps, but keep its request and the newest message from a
   person.
4. If excerpts of stored results exceed their share, replace the oldest with a line that names the artifact.
5. If a single message is too long, cut the middle of the longest texts from people and tools.
"""

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from shoal.kernel.errors import InvalidInput
from shoal.kernel.messages import AssistantMessage, ModelMessage, ToolMessage, UserMessage
from shoal.kernel.settings import ContextSettings
from shoal.kernel.transcript import SUMMARY_HEAD, TranscriptEntry
from shoal.turn.text_files import cut_middle
from shoal.turn.tokens import MESSAGE_UNITS, Count, Meter

WINDOW_TOKENS_DEFAULT = 128_000
"""Window that is assumed for an unknown model until its provider rejects a request."""
WINDOW_TOKENS_MIN = 1024
"""Minimum plausible window. Smaller values that a provider states are ignored."""
ROOM_UNITS_MIN = 256
"""Minimum token budget for the conversation, in units. With a smaller budget, no request is made."""


class TokenRoom(msgspec.Struct, frozen=True):
    """A request's token budget, in units.

    - `total`: all input.
    - `prefix`: instructions and tools, which precede the conversation.
    - `events`: the conversation without excerpts of stored results.
    - `artifacts`: the excerpts.
    """

    total: int
    prefix: int
    events: int
    artifacts: int

    def within(self, units: int) -> "TokenRoom":
        share = min(1.0, units / (self.events + self.artifacts))
        return msgspec.structs.replace(self, events=int(self.events * share), artifacts=int(self.artifacts * share))


class Fitted(msgspec.Struct, frozen=True, eq=False):
    """The messages to send.

    `units` includes the prefix. `dropped` counts the omitted messages, and `stubbed` the messages without their
    excerpts.
    """

    messages: tuple[ModelMessage, ...]
    units: int
    dropped: int = 0
    stubbed: int = 0
    shortened: bool = False


def reserved(settings: ContextSettings, window_tokens: int, output_tokens: int) -> int:
    return min(settings.reserve_tokens, max(output_tokens, window_tokens // 4))


def room_for(
    settings: ContextSettings, *, window_tokens: int, output_tokens: int, prefix_units: int, factor: float = 1.0
) -> TokenRoom:
    """Divide the window that remains after the reserve and the prefix by the configured shares.

    The reserve is at most `output_tokens` or a quarter of the window, whichever is larger. `factor` is tokens per
    unit. Raises InvalidInput if the prefix leaves too little space.
    """
    reserve = reserved(settings, window_tokens, output_tokens)
    total = int((window_tokens - reserve) / factor)
    left = total - prefix_units
    if left < ROOM_UNITS_MIN:
        raise InvalidInput(
            f"The instructions, documents and tools take about {int(prefix_units * factor)} of the {window_tokens} "
            f"tokens in the context window, and {reserve} tokens are reserved for the answer. Shorten the agent's "
            "files, give it fewer tools, or use a model with a larger window."
        )
    return TokenRoom(total, prefix_units, int(left * settings.events_share), int(left * settings.artifacts_share))


class Tally:
    """Running sums over one transcript's entries."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._begin([])

    def _begin(self, entries: Sequence[TranscriptEntry]) -> None:
        first = entries[0].message if entries else None
        self._entries = entries
        self._stubs: dict[int, ToolMessage] = {}
        self.head = int(isinstance(first, UserMessage) and first.text.startswith(SUMMARY_HEAD))
        """Number of summary entries at the beginning: 0 or 1."""
        self.plain = [0]
        """Total units before each index. A result with an excerpt counts as its stub."""
        self.excerpts = [0]
        """Running totals: units saved before each index if stubs replace the excerpts."""
        self.turns: list[int] = []
        """Indexes of the first message of each turn."""
        self.steps: list[int] = []
        """Indexes at which a cut does not separate a tool result from its call."""
        self.newest_step = 0
        self.newest_user = -1
        """Index of the last message from a person or trigger, or -1."""

    def update(self, entries: Sequence[TranscriptEntry]) -> None:
        """Count new entries. If `entries` is another list, as after a clear or a compaction, start again."""
        known = len(self.plain) - 1
        if entries is not self._entries or len(entries) < known or not known:
            known = 0
            self._begin(entries)
        for index in range(known, len(entries)):
            entry = entries[index]
            message = entry.message
            units, excess = self.meter.message(message), 0
            if isinstance(message, ToolMessage) and message.artifact:
                text = f"[Omitted to save space. The complete result is stored as artifact {message.artifact}.]"
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
        """Return the units of the entries in [start, end), including their complete excerpts."""
        last = -1 if end is None else end
        return self.plain[last] - self.plain[start] + self.excerpts[last] - self.excerpts[start]

    def cut(self, places: Sequence[int], needed: int, room: int) -> int | None:
        """Return the first of `places` that frees `needed` units, rounded up to quarters of `room`.

        Does not round if that would keep less than half of `room`. Returns None if no place frees enough.
        """
        quarter = max(1, room // 4)
        rounded = self._place(places, -(-needed // quarter) * quarter)
        if rounded is not None and self.plain[-1] - self.plain[rounded] >= room // 2:
            return rounded
        return self._place(places, needed)

    def _place(self, places: Sequence[int], needed: int) -> int | None:
        index = bisect_left(places, self.plain[self.head] + needed, key=self.plain.__getitem__)
        return places[index] if index < len(places) else None

    def stub(self, index: int) -> ModelMessage:
        """Return the entry's message without its excerpt. Repeated calls return the same object."""
        return self._stubs.get(index) or self._entries[index].message


def fit(tally: Tally, entries: Sequence[TranscriptEntry], room: TokenRoom) -> Fitted:
    """Choose a request's messages according to the steps in the module docstring.

    Every call in `entries` must have a result. `tally` must count the same list.
    """
    tally.update(entries)
    start, pins = _start(tally, room)
    stub_end, excess = start, tally.excerpts[-1] - tally.excerpts[start] - room.artifacts
    if excess > 0:  # The newest step keeps its excerpts.
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
    head = tuple(range(tally.head))
    needed = tally.plain[-1] - room.events
    if needed <= 0:
        return tally.head, head
    start = tally.cut(tally.turns, needed, room.events)
    if start is not None:
        return start, head
    starts = sorted({*tally.turns[-1:], tally.newest_user} - {-1})
    steps = tally.steps[bisect_left(tally.steps, starts[0]) :] if starts else tally.steps
    needed += sum(tally.units(index, index + 1) for index in starts)
    start = tally.cut(steps, needed, room.events)
    if start is None:
        start = tally.steps[-1] if tally.steps else len(tally.plain) - 1
    return start, head + tuple(index for index in starts if index < start)


SHARE_UNITS_MIN = 16
"""Minimum size of a shortened message, in units. If the limit would be lower, only messages from people are sent."""

_NOTICE_CHARS = 70
_IMAGE_LEFT_OUT = "[an image was omitted here]"


def shorten(messages: Sequence[ModelMessage], units_max: int, meter: Meter) -> tuple[ModelMessage, ...]:
    """Reduce the messages to `units_max` by cutting the longest texts from people and tools.

    The model's own text is never cut. If it alone is too long, only people's messages are kept.
    """
    share = _share(messages, units_max, meter)
    if share < SHARE_UNITS_MIN:
        messages = [message for message in messages if isinstance(message, UserMessage)]
        share = _share(messages, units_max, meter)
    messages_found: list[ModelMessage] = []
    for message in messages:
        if isinstance(message, AssistantMessage) or meter.message(message) <= share:
            messages_found.append(message)
            continue
        whole = "\n".join([message.text, *[_IMAGE_LEFT_OUT] * len(message.images)])
        text = cut_to(whole, share - MESSAGE_UNITS, meter.count)
        cut = msgspec.structs.replace(message, text=text, images=())
        messages_found.append(msgspec.structs.replace(cut, found=()) if isinstance(cut, ToolMessage) else cut)
    return tuple(messages_found)


def cut_to(whole: str, units_max: int, count: Count) -> str:
    """Shorten text to `units_max` by omitting its middle. If almost nothing fits, keep only its beginning."""
    text, chars = whole, len(whole)
    while (units := count(text)) > units_max and chars > 0:
        chars = min(chars - 1, int(chars * units_max / units))
        text = cut_middle(whole, chars - _NOTICE_CHARS) if chars > 4 * _NOTICE_CHARS else whole[: max(chars, 0)]
    return text


def _share(messages: Sequence[ModelMessage], units_max: int, meter: Meter) -> int:
    left = units_max - sum(meter.message(message) for message in messages if isinstance(message, AssistantMessage))
    sizes = [meter.message(message) for message in messages if not isinstance(message, AssistantMessage)]
    return level_of(sizes, left) if sizes else (SHARE_UNITS_MIN if left >= 0 else left)


def level_of(sizes: Sequence[int], left: int) -> int:
    """Return the largest limit per item that keeps the total within `left`."""
    ordered = sorted(sizes)
    for filled, size in enumerate(ordered):
        level = left // (len(ordered) - filled)
        if size > level:
            return level
        left -= size
    return ordered[-1] if ordered else left
