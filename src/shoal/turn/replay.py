"""The requests of a thread's model calls, built again from its journal by today's code and compared.

Nothing is asked and no tool runs: what models answered and tools returned is in the journal. An answer's `RequestMark`
has digests of what the model was sent: of a message over its JSON, with the names of its images and attachments and not
where they lie; of a request over its messages in order.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal.domain.branches import spans_to
from shoal.domain.events import AssistantSaid, Branched, Event, RequestMark, TurnStarted
from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.messages import AssistantMessage, Image, ModelMessage, ModelRequest, ToolSpec
from shoal.domain.transcript import Transcript, TranscriptEntry
from shoal.store.journal import Journal
from shoal.turn.budget import Meter, Tally, TokenRoom, fit
from shoal.turn.prompt import SystemPrompt, decode_prompt

DIGEST_BYTES = 8
WIDE = TokenRoom(0, 0, 2**62, 2**62)
"""Room for any conversation."""
SHOWN_CHARS = 300
"""How much of a message that differs is shown."""

TOOL_CHARS = 60

_encoder = msgspec.json.Encoder()
_ATTACHMENTS = re.compile(rb'/data/[^/\s"]+/[^/\s"]+/[^/\s"]+/attachments/')
"""Where the files of a thread lie, as a sandbox that maps nothing names it: of a copy that is another place."""
_Described = tuple[str, str, str]
"""What a model is told of a tool: its name, its description and its parameters."""
_tools = msgspec.json.Decoder(tuple[_Described, ...])


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


def _message_digest(message: ModelMessage) -> str:
    if not isinstance(message, AssistantMessage) and message.images:
        images = tuple(Image(image.path.rpartition("/")[2], image.media_type) for image in message.images)
        message = msgspec.structs.replace(message, images=images)
    return _digest(_ATTACHMENTS.sub(b"/attachments/", _encoder.encode(message)))


def stored_tools(tools: Sequence[ToolSpec]) -> tuple[str, bytes]:
    """Tools as the journal keeps them: their digest and their JSON."""
    body = _encoder.encode([_described(tool) for tool in tools])
    return _digest(body), body


def _described(tool: ToolSpec) -> _Described:
    return tool.name, tool.description, tool.parameters


class RequestDigests:
    """Marks the requests of one thread, each for the cost of what was added since the one before."""

    __slots__ = ("_after", "_hash", "_head", "_messages", "_system")

    def __init__(self) -> None:
        self._messages: tuple[ModelMessage, ...] = ()
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._after = 0
        self._head = ("", "", "")
        self._system = ("", "")

    def note(self, said: AssistantSaid) -> None:
        """An answer is in the journal, with what was sent for it."""
        if said.asked is not None:
            asked, (system, tools, options) = said.asked, self._head
            self._after = asked.after
            self._head = (asked.system or system, asked.tools or tools, asked.options or options)

    def mark(
        self, request: ModelRequest, system: str, tools: str, transcript: Transcript, room: TokenRoom | None
    ) -> RequestMark:
        """The mark of a request made of this transcript, in so much room if not all of it fit.

        `system` is the whole text and `tools` the digest of all tools, however little a small window takes of them.
        """
        if system is not self._system[0]:
            self._system = system, _digest(system.encode())
        warmth = "" if request.temperature is None else f", temperature {request.temperature:g}"
        options = f"{request.model}, {request.max_output_tokens} tokens, tools {request.tool_choice}{warmth}"
        known, added = self._head, list[str]()
        for entry in reversed(transcript.entries):
            if entry.seq <= self._after:
                break
            added.append(_message_digest(entry.message))
        return RequestMark(
            after=transcript.last_seq,
            count=len(request.messages),
            digest=self.digest(request.messages),
            added=tuple(reversed(added)),
            system="" if self._system[1] == known[0] else self._system[1],
            tools="" if tools == known[1] else tools,
            options="" if options == known[2] else options,
            room=(room.events, room.artifacts) if room is not None else None,
        )

    def digest(self, messages: tuple[ModelMessage, ...]) -> str:
        """The digest of a request's messages."""
        known = len(self._messages)
        if messages[:known] != self._messages:
            known, self._hash = 0, hashlib.blake2b(digest_size=DIGEST_BYTES)
        for message in messages[known:]:
            self._hash.update(_message_digest(message).encode())
        self._messages = messages
        return self._hash.hexdigest()


class Difference(msgspec.Struct, frozen=True):
    """The first thing in which a request is not what was sent, of the call that event `seq` answers."""

    turn: TurnId
    seq: int
    detail: str


class ReplayReport(msgspec.Struct, frozen=True):
    """How many model calls a journal has, how many of them it has no mark of, and where the others differ."""

    calls: int = 0
    unmarked: int = 0
    differences: tuple[Difference, ...] = ()

    @property
    def identical(self) -> int:
        """How many requests are what was sent."""
        return self.calls - self.unmarked - len(self.differences)


class Kept(NamedTuple):
    """What a journal names by digest: system prompts, and in which way tools are others by now (empty: in none).
    `meter` counts as the turns did."""

    prompts: Mapping[str, SystemPrompt]
    changed_tools: Mapping[str, str]
    meter: Meter


def replay(events: Sequence[Event], kept: Kept, turn: str = "") -> ReplayReport:
    """Build the requests of a whole journal again, on each of its branches, or those of one turn alone."""
    branchings = [(event.seq, event.data.after) for event in events if isinstance(event.data, Branched)]
    ends = [seq - 1 for seq, _ in branchings] + [len(events)]
    done = set[int]()
    calls = unmarked = 0
    differences: list[Difference] = []
    for end in ends:
        path = [event for span in spans_to(end, branchings) for event in events[span.first - 1 : span.last]]
        marks: dict[int, tuple[Event, RequestMark]] = {}
        for event in path:
            if (
                isinstance(event.data, AssistantSaid)
                and event.turn
                and event.seq not in done
                and turn in ("", event.turn)
            ):
                calls += 1
                done.add(event.seq)
                if event.data.asked is None:
                    unmarked += 1
                else:
                    marks[event.data.asked.after] = event, event.data.asked
        if marks:
            differences += _differences(path, marks, kept)
    return ReplayReport(calls, unmarked, tuple(differences))


def _differences(
    path: Sequence[Event], marks: Mapping[int, tuple[Event, RequestMark]], kept: Kept
) -> Iterator[Difference]:
    transcript, tally, digests = Transcript(), Tally(kept.meter), RequestDigests()
    started, system, tools = TurnStarted("", ""), "", ""
    for event in path:
        transcript.add(event)
        match event.data:
            case TurnStarted() as data:
                started = data
            case AssistantSaid(asked=RequestMark() as asked):
                system, tools = asked.system or system, asked.tools or tools
            case _:
                pass
        if event.seq not in marks:
            continue
        answer, mark = marks[event.seq]
        transcript.settle()
        prompt, sent_system = kept.prompts.get(started.system), mark.system or system
        if started.history:
            room = TokenRoom(0, 0, *mark.room) if mark.room is not None else WIDE
            messages = fit(tally, transcript.entries, room).messages
        else:
            messages = transcript.messages_of(event.turn)
        detail = kept.changed_tools.get(mark.tools or tools, "")
        if prompt is None or _digest(prompt.text.encode()) != sent_system:
            detail = "the system text is put together in another way than it was"
        elif not detail and digests.digest(messages) != mark.digest:
            detail = _what_differs(transcript.entries, messages, mark)
        if detail:
            yield Difference(answer.turn, answer.seq, detail)


def _what_differs(entries: Sequence[TranscriptEntry], messages: Sequence[ModelMessage], mark: RequestMark) -> str:
    for number, (entry, sent) in enumerate(zip(entries[-len(mark.added) :], mark.added, strict=False)):
        if mark.added and _message_digest(entry.message) != sent:
            place = len(messages) - len(mark.added) + number + 1
            body = _encoder.encode(entry.message).decode()
            shown = f"{body[:SHOWN_CHARS]}…" if len(body) > SHOWN_CHARS else body
            return f"message {place} of {mark.count}, from event {entry.seq}, is another one; today it is {shown}"
    if len(messages) != mark.count:
        return f"there were {mark.count} messages, today there are {len(messages)}"
    return "a message before those that this call was the first to send is another one"


def changed_tools(body: bytes, now: Mapping[str, ToolSpec]) -> str:
    """In which way stored tools are others by now; empty in none. Raises msgspec.MsgspecError for a damaged body."""
    for sent in _tools.decode(body):
        name, today = sent[0], now.get(sent[0])
        if today is None:
            return f"there is no tool {name} any more"
        if _described(today) != sent:
            was, reads = "\n".join(sent), "\n".join(_described(today))
            at = next((place for place, (a, b) in enumerate(zip(was, reads, strict=False)) if a != b), len(was))
            said, says = was[at : at + TOOL_CHARS], reads[at : at + TOOL_CHARS]
            return f"the tool {name} is described in another way: {says!r} where it said {said!r}"
    return ""


async def replay_thread(
    journal: Journal, thread: ThreadId, meter: Meter, tools: Mapping[str, ToolSpec] | None, turn: str = ""
) -> ReplayReport:
    """Read a thread's journal and what it names, and replay it. Without `tools` those are not compared."""
    events: list[Event] = []
    while batch := await journal.events(thread, len(events)):
        events += batch
    prompts: dict[str, SystemPrompt] = {}
    changed: dict[str, str] = {}
    for event in events:
        if isinstance(event.data, TurnStarted) and event.data.system not in prompts:
            body = await journal.prompt(event.data.system)
            if body is not None:
                prompts[event.data.system] = decode_prompt(body)
        elif isinstance(event.data, AssistantSaid) and event.data.asked is not None and tools is not None:
            digest = event.data.asked.tools
            if digest and digest not in changed:
                body = await journal.prompt(digest)
                changed[digest] = changed_tools(body, tools) if body is not None else ""
    return await asyncio.to_thread(replay, events, Kept(prompts, changed, meter), turn)
