"""Which part of a conversation a request carries: the newest that fits, cut only where no call loses its result.

Sums over the transcript are kept as it grows, so that a turn costs what is new in it and what it sends, however long
the thread is. When something has to go, a quarter of the room goes at once: the beginning of the request then stays the
same for many turns, and providers' caches hit. What happens, in this order:

1. everything fits: everything is sent
2. too much conversation: whole turns leave, the oldest first; a summary at the head stays
3. the newest turn alone is too much: its request and the newest message of a person stay, its oldest steps leave
4. excerpts of stored results take more than their share: the oldest become a line that names the artifact
5. still too much (one vast message): the longest texts of people and tools are cut in the middle
"""

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from shoal.domain.errors import InvalidInput
from shoal.domain.messages import AssistantMessage, ModelMessage, ToolMessage, UserMessage
from shoal.domain.transcript import SUMMARY_HEAD, Entry
from shoal.turn.shorten import shorten
from shoal.turn.tokens import Meter

WINDOW_TOKENS_DEFAULT = 32_768
"""Taken for a model whose window nobody knows."""
ROOM_UNITS_MIN = 256
"""Least room for the conversation beside the instructions; with less, no request is made."""


class BudgetLimits(msgspec.Struct, frozen=True):
    """See [context] in the configuration."""

    reserve_tokens: int = 16_384
    keep_recent_tokens: int = 20_000
    events_share: float = 0.7
    artifacts_share: float = 0.2


class Room(msgspec.Struct, frozen=True):
    """A request's room in units: for all input, for what stands before the conversation, and for its two parts."""

    total: int
    prefix: int
    events: int
    artifacts: int

    def within(self, units: int) -> "Room":
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


def room_for(
    limits: BudgetLimits, *, window_tokens: int, output_tokens: int, prefix_units: int, factor: float = 1.0
) -> Room:
    """Share out a model's window: what is left after the reserve and the prefix, by the configured shares.

    The reserve is at most a quarter of a small window, or what the answer may take. `factor` is tokens a unit. Raises
    InvalidInput when the prefix leaves no room.
    """
    window = window_tokens or WINDOW_TOKENS_DEFAULT
    reserve = min(limits.reserve_tokens, max(output_tokens, window // 4))
    total = int((window - reserve) / factor)
    left = total - prefix_units
    if left < ROOM_UNITS_MIN:
        raise InvalidInput(
            f"The instructions, documents and tools take about {int(prefix_units * factor)} tokens of a window of "
            f"{window} with {reserve} kept for the answer. Shorten the agent's files, give it fewer tools, or take a "
            "model with a larger window."
        )
    return Room(total, prefix_units, int(left * limits.events_share), int(left * limits.artifacts_share))


class Tally:
    """Running sums over one transcript's entries. `update` costs what was added, unless the window began anew."""

    __slots__ = (
        "_entries",
        "_stubs",
        "excerpts",
        "head",
        "meter",
        "newest_step",
        "newest_user",
        "plain",
        "steps",
        "turns",
    )

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._begin([])

    def _begin(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._stubs: dict[int, ToolMessage] = {}
        self.head = 1 if entries and _is_summary(entries[0].message) else 0
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

    def update(self, entries: Sequence[Entry]) -> None:
        """Take in what was added. `entries` is the transcript's own list: another one after a clear or compaction."""
        if entries is not self._entries or len(entries) < len(self) or not len(self):
            self._begin(entries)
        for index in range(len(self), len(entries)):
            self._add(index, entries[index])

    def __len__(self) -> int:
        return len(self.plain) - 1

    def _add(self, index: int, entry: Entry) -> None:
        message = entry.message
        units, excess = self.meter.message(message), 0
        if isinstance(message, ToolMessage) and message.artifact:
            stub = _stub(message)
            excess = units - self.meter.message(stub)
            if excess > 0:
                self._stubs[index] = stub
            excess = max(0, excess)
        self.plain.append(self.plain[-1] + units - excess)
        self.excerpts.append(self.excerpts[-1] + excess)
        if isinstance(message, ToolMessage) or index < self.head:
            return
        self.steps.append(index)
        if isinstance(message, AssistantMessage):
            self.newest_step = index
            return
        self.newest_user = index
        if entry.opens:
            self.turns.append(index)

    def units(self, start: int = 0, end: int | None = None) -> int:
        """Units of the entries from `start` to before `end`, excerpts whole."""
        last = len(self) if end is None else end
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


def fit(tally: Tally, entries: Sequence[Entry], room: Room) -> Fitted:
    """Choose what a request carries; see the head of this file. Never takes more than the room's two parts together.

    `entries` is the list of the thread's Transcript with every call answered, `tally` the one kept beside it.
    """
    tally.update(entries)
    start, pins = _start(tally, room)
    stub_end = _stub_end(tally, start, room)
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


def _start(tally: Tally, room: Room) -> tuple[int, tuple[int, ...]]:
    """Where the kept part begins, and which entries before it are kept nevertheless."""
    head = tuple(range(tally.head))
    allowed = room.events - tally.plain[tally.head]
    needed = tally.plain[-1] - tally.plain[tally.head] - allowed
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
        start = tally.steps[-1] if tally.steps else len(tally)
    return start, head + tuple(index for index in kept if index < start)


def _stub_end(tally: Tally, start: int, room: Room) -> int:
    """Up to where excerpts are left out, counted from `start`; the newest step keeps its own."""
    needed = tally.excerpts[-1] - tally.excerpts[start] - room.artifacts
    if needed <= 0:
        return start
    quarter = max(1, room.artifacts // 4)
    target = tally.excerpts[start] + -(-needed // quarter) * quarter
    found = bisect_left(tally.excerpts, target, lo=start, hi=len(tally))
    return max(start, min(found, tally.newest_step))


def _stub(message: ToolMessage) -> ToolMessage:
    text = f"[Left out to save room. The whole result is stored as artifact {message.artifact}.]"
    return msgspec.structs.replace(message, text=text, images=())


def _is_summary(message: ModelMessage) -> bool:
    return isinstance(message, UserMessage) and message.text.startswith(SUMMARY_HEAD)
