"""Rebuild the requests of a thread's model calls from its journal with the current code and settings, and compare them.

Replay calls no model and runs no tools: answers, tool results and the chosen model are in the journal. Each call is
compared with its `RequestMark`. A difference has one of five kinds:

    kind            difference
    ------------    --------------------------------------------------------------------------------------------
    system          the text assembled from the stored instructions
    messages        a message, or the number of messages
    tools           the definition of a tool that was offered, or a tool that no longer exists
    options         the answer's maximum length, the temperature, or whether tools may be called
    instructions    the agent's current files and rules, except the channel, the workspace, and sections whose
                    changes are reported to turns: memory, notes, skills, USER.md, SYSTEM.md and the runtime

Tools, options and instructions are compared only if the caller passes `Today`.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from shoal.kernel.agents import AgentSpec
from shoal.kernel.errors import InvalidInput, NotFound
from shoal.kernel.events import (
    AssistantSaid,
    Branched,
    Event,
    LimitReached,
    RequestMark,
    RetryRequested,
    TurnStarted,
    UserSaid,
    spans_to,
)
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import ModelMessage, ToolSpec
from shoal.kernel.ports import Models, Route
from shoal.kernel.records import ThreadInfo
from shoal.kernel.transcript import Transcript, TranscriptEntry
from shoal.store.journal import Journal
from shoal.tools.offer import offer
from shoal.turn.context import ContextBuilder
from shoal.turn.digests import RequestDigests, digest_of, message_digest, stored_specs
from shoal.turn.fitting import Tally, TokenRoom, fit
from shoal.turn.prompt import SystemPrompt, decode_prompt
from shoal.turn.tokens import Meter


class RecordedStep(NamedTuple):
    """A completed model call in the journal."""

    turn: TurnId
    seq: int
    """Sequence number of the event with the model's response."""
    number: int
    """Number of the call in its turn, counted from 1."""
    agent: str
    asked: str
    """Text of the message that the turn answers."""
    started_at: datetime
    said: AssistantSaid
    entries: Sequence[TranscriptEntry]
    """Transcript before the call. Valid until the next step is read."""
    system: str
    """Digest of the system text."""
    tools: str
    """Digest of the tools."""


def recorded_steps(events: Sequence[Event]) -> Iterator[RecordedStep]:
    """Yield the completed calls of one branch, oldest first. `events` must begin with the first event of the branch."""
    answers: dict[int, tuple[Event, AssistantSaid, RequestMark]] = {}
    for event in events:
        data = event.data
        if isinstance(data, AssistantSaid) and event.turn and data.asked is not None and data.stop != "aborted":
            answers[data.asked.after] = event, data, data.asked
    transcript, started, began, tools, asked, number = Transcript(), TurnStarted("", ""), events[:1], "", "", 0
    for event in events:
        transcript.add(event)
        match event.data:
            case TurnStarted() as data:
                started, began, number = data, [event], 0
            case UserSaid(text=text, backfill=False) if event.turn:
                asked = text
            case AssistantSaid(asked=RequestMark(tools=now)):
                tools = now or tools
            case _:
                pass
        if event.seq not in answers:
            continue
        answer, message, mark = answers[event.seq]
        transcript.close_open_calls()
        number += 1
        entries = transcript.entries
        if not started.history:
            entries = [entry for entry in entries if entry.turn == answer.turn]
        system, tools_told = started.system, mark.tools or tools
        yield RecordedStep(
            answer.turn, answer.seq, number, started.agent, asked, began[0].at, message, entries, system, tools_told
        )


async def read_branch(journal: Journal, thread: ThreadId) -> tuple[ThreadInfo, list[Event]]:
    """Return a thread and the events of its current branch. Raises NotFound and StoreCorrupt."""
    info = await journal.thread(thread)
    if info is None:
        raise NotFound(f"Thread {thread} does not exist. `shoal threads list` shows all threads.")
    events: list[Event] = []
    while batch := await journal.along(thread, info.last_seq, events[-1].seq if events else 0, READ_AT_ONCE):
        events += batch
    return info, events


WIDE = TokenRoom(0, 0, 2**62, 2**62)
SHOWN_CHARS = 300
TOOL_CHARS = 60
READ_AT_ONCE = 2_000
PLACE = "identity"
"""Name of the section that describes the channel and the workspace. Changes to this section are ignored."""

DifferenceKind: TypeAlias = Literal["system", "messages", "tools", "options", "instructions"]

_encoder = msgspec.json.Encoder()


class Difference(msgspec.Struct, frozen=True):
    """The first difference between a rebuilt request and the recorded request that event `seq` answers."""

    turn: TurnId
    seq: int
    kind: DifferenceKind
    detail: str


class Sent(NamedTuple):
    """The recorded conditions of a model call."""

    agent: str
    model: str
    system: str
    """Digest of the system text."""
    tools: str
    """Digest of the tools."""
    options: str
    window_tokens: int
    """Window that was assumed after an overflow, or 0 for the model's known window."""
    is_limited: bool


class ReplayReport(msgspec.Struct, frozen=True):
    """The number of model calls in a journal, and the differences found.

    `alike` contains the turn, the event number and the conditions of each call without a difference.
    """

    calls: int = 0
    differences: tuple[Difference, ...] = ()
    alike: tuple[tuple[TurnId, int, Sent], ...] = ()

    @property
    def identical(self) -> int:
        return self.calls - len(self.differences)


def replay(events: Sequence[Event], prompts: Mapping[str, SystemPrompt], meter: Meter, turn: str = "") -> ReplayReport:
    """Rebuild and compare the requests on all branches of a journal, or only those of one turn.

    `prompts` contains the recorded prompts by digest. `meter` must count as it did during the turns.
    """
    branchings = [(event.seq, event.data.after) for event in events if isinstance(event.data, Branched)]
    ends = [seq - 1 for seq, _ in branchings] + [len(events)]
    texts = {digest: digest_of(prompt.text.encode()) for digest, prompt in prompts.items()}
    done = set[int]()
    calls = 0
    items: list[Difference | tuple[TurnId, int, Sent]] = []
    for end in ends:
        path = [event for span in spans_to(end, branchings) for event in events[span.first - 1 : span.last]]
        marks: dict[int, tuple[Event, RequestMark]] = {}
        for event in path:
            is_meant = event.turn and event.seq not in done and turn in ("", event.turn)
            if isinstance(event.data, AssistantSaid) and event.data.asked is not None and is_meant:
                calls += 1
                done.add(event.seq)
                marks[event.data.asked.after] = event, event.data.asked
        if marks:
            items += _rebuilt(path, marks, texts, meter)
    differences = tuple(item for item in items if isinstance(item, Difference))
    return ReplayReport(calls, differences, tuple(item for item in items if not isinstance(item, Difference)))


def _rebuilt(
    path: Sequence[Event], marks: Mapping[int, tuple[Event, RequestMark]], texts: Mapping[str, str], meter: Meter
) -> Iterator[Difference | tuple[TurnId, int, Sent]]:
    transcript, tally, digests = Transcript(), Tally(meter), RequestDigests()
    started, model, is_limited = TurnStarted("", ""), "", False
    system = tools = options = ""
    for event in path:
        transcript.add(event)
        match event.data:
            case TurnStarted() as data:
                started, model, is_limited = data, data.model, False
            case RetryRequested(model=other):
                model = other or model
            case LimitReached():
                is_limited = True
            case AssistantSaid(asked=RequestMark() as asked):
                system, tools, options = asked.system or system, asked.tools or tools, asked.options or options
            case _:
                pass
        if event.seq not in marks:
            continue
        answer, mark = marks[event.seq]
        transcript.close_open_calls()
        if texts.get(started.system) != (mark.system or system):
            detail = "the code now assembles a different system text"
            yield Difference(answer.turn, answer.seq, "system", detail)
            continue
        if started.history:
            room = TokenRoom(0, 0, *mark.room) if mark.room is not None else WIDE
            messages = fit(tally, transcript.entries, room).messages
        else:
            messages = transcript.messages_of(event.turn)
        if digests.digest(messages) != mark.digest:
            detail = _what_differs(transcript.entries, messages, mark)
            yield Difference(answer.turn, answer.seq, "messages", detail)
            continue
        sent = Sent(
            started.agent, model, started.system, mark.tools or tools, mark.options or options, mark.window_tokens,
            is_limited,
        )  # fmt: skip
        yield answer.turn, answer.seq, sent


def _what_differs(entries: Sequence[TranscriptEntry], messages: Sequence[ModelMessage], mark: RequestMark) -> str:
    for number, (entry, sent) in enumerate(zip(entries[-len(mark.added) :], mark.added, strict=False)):
        if mark.added and message_digest(entry.message) != sent:
            place = len(messages) - len(mark.added) + number + 1
            body = _encoder.encode(entry.message).decode()
            shown = f"{body[:SHOWN_CHARS]}…" if len(body) > SHOWN_CHARS else body
            return f"message {place} of {mark.count}, from event {entry.seq}, is now {shown}"
    if len(messages) != mark.count:
        return f"the request had {mark.count} messages, and would now have {len(messages)}"
    return "a message sent by an earlier call differs"


# ---- comparison with today ----


class Today(NamedTuple):
    """The current configuration that recorded calls are compared with.

    `tools` contains all tools. `spec_of` returns None for a deleted agent.
    """

    context: ContextBuilder
    models: Models
    tools: Sequence[ToolSpec]
    spec_of: Callable[[str], AgentSpec | None]

    async def difference(
        self, thread: ThreadId, sent: Sent, prompt: SystemPrompt, described: bytes | None
    ) -> tuple[DifferenceKind, str] | None:
        """Return the first difference between a recorded call and the same call made now.

        `described` contains the stored definitions of the call's tools. Raises InvalidInput if the agent's file is
        broken.
        """
        specs = stored_specs(described) if described is not None else ()
        if detail := changed_tools(specs, {tool.name: tool for tool in self.tools}):
            return "tools", detail
        agent = self.spec_of(sent.agent)
        if agent is None:
            return "instructions", f"the agent {sent.agent} no longer exists"
        routes: list[Route] = []
        for name in (sent.model, *agent.fallback):
            with suppress(InvalidInput):  # The provider may no longer be configured.
                routes.append(self.models.route(name))
        if not routes:
            return "options", f"no provider offers the model {sent.model} any longer"
        asked = sent.options.partition(", ")[0]
        route = next((route for route in routes if route.model == asked), routes[0])
        options = self.context.options(agent, route, sent.window_tokens, tools=not sent.is_limited)
        if options != sent.options:
            was, now = sent.options.split(", "), options.split(", ")
            before = ", ".join(wa for wa in was if wa not in now) or "no temperature"
            after = ", ".join(name for name in now if name not in was) or "no temperature"
            return "options", f"the request had {before}, and would now have {after}"
        now = await self.context.instructions(thread, agent, offer(specs, ()))
        names = changed_sections(prompt, now) if described is not None else ()
        return ("instructions", f"the instructions have changed since then: {', '.join(names)}") if names else None


def changed_tools(sent: Sequence[ToolSpec], now: Mapping[str, ToolSpec]) -> str:
    """Describe the first difference between the recorded tools and the current ones. Returns an empty string if they
    match.
    """
    for tool in sent:
        today = now.get(tool.name)
        if today is None:
            return f"the {tool.name} tool no longer exists"
        was, reads = (f"{spec.description}\n{spec.parameters}" for spec in (tool, today))
        if was != reads:
            at = next((place for place, (a, b) in enumerate(zip(was, reads, strict=False)) if a != b), len(was))
            old_part, says = was[at : at + TOOL_CHARS], reads[at : at + TOOL_CHARS]
            return f"the {tool.name} tool has a different description: {says!r} instead of {old_part!r}"
    return ""


def changed_sections(was: SystemPrompt, now: SystemPrompt) -> tuple[str, ...]:
    """Return the names of changed sections, except live ones and `PLACE`."""
    texts = [{section.name: section.text for section in prompt.sections if not section.live} for prompt in (was, now)]
    names = dict.fromkeys(name for of in texts for name in of if name != PLACE)
    return tuple(name for name in names if texts[0].get(name, "") != texts[1].get(name, ""))


async def replay_thread(
    journal: Journal, thread: ThreadId, meter: Meter, today: Today | None, turn: str = ""
) -> ReplayReport:
    """Replay a thread from its journal. Compare it with `today` if given.

    Raises StoreNewer, StoreCorrupt, and InvalidInput if an agent's file is broken.
    """
    events: list[Event] = []
    while batch := await journal.events(thread, len(events), READ_AT_ONCE):
        events += batch
    prompts: dict[str, SystemPrompt] = {}
    for event in events:
        if isinstance(event.data, TurnStarted) and event.data.system not in prompts:
            body = await journal.prompt(event.data.system)
            if body is not None:
                prompts[event.data.system] = decode_prompt(body)
    report = await asyncio.to_thread(replay, events, prompts, meter, turn)
    if today is None:
        return report
    differences, others = list(report.differences), dict[Sent, tuple[DifferenceKind, str] | None]()
    for of, seq, sent in report.alike:
        if sent not in others:
            described = await journal.prompt(sent.tools)
            others[sent] = await today.difference(thread, sent, prompts[sent.system], described)
        if (other := others[sent]) is not None:
            differences.append(Difference(of, seq, *other))
    return msgspec.structs.replace(
        report, differences=tuple(sorted(differences, key=lambda difference: difference.seq)), alike=()
    )
