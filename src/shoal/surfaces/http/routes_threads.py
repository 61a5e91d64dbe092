"""Calls about threads: sending to them, reading and following their journals."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shoal.domain.errors import Conflict, InvalidInput
from shoal.domain.events import Event, encode_event
from shoal.domain.ids import OWN_PLATFORMS, ThreadId
from shoal.domain.messages import Abort, Attachment, Prompt, Receipt, Retry, Steer
from shoal.domain.records import StoredStep, ThreadInfo
from shoal.domain.store import Journal
from shoal.surfaces.http.attachments import AttachmentRef, take_attachments
from shoal.surfaces.http.core import Web
from shoal.surfaces.http.endpoints import (
    ADMINS,
    EVERYONE,
    JSON,
    READERS,
    TALKERS,
    Answer,
    Endpoint,
    caller,
    json_answer,
)
from shoal.surfaces.http.errors import ApiError
from shoal.surfaces.http.parse import (
    checked_text,
    parse_moment,
    path_part,
    path_thread,
    read_json,
    read_query,
    wants_event_stream,
)
from shoal.surfaces.http.principal import HOME_TOKEN, Principal, may_use, no_such_thread
from shoal.surfaces.http.streams import REPLAY_EVENTS_MAX, Allowed, EventStream, all_frames, thread_frames

EVENTS_MAX = 5000
THREADS_MAX = 1000
SEQ_MAX = 2**62
MESSAGE_ID_CHARS_MAX = 200

MessageId = Annotated[str, msgspec.Meta(max_length=MESSAGE_ID_CHARS_MAX)]
Seq = Annotated[int, msgspec.Meta(ge=0, le=SEQ_MAX)]


class NewMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message for a thread. The same `message_id` again, in the same thread, is the same message."""

    text: str = ""
    message_id: MessageId = ""
    attachments: Annotated[list[AttachmentRef], msgspec.Meta(max_length=10)] = []
    agent: str = ""


class Accepted(msgspec.Struct, frozen=True):
    """The message is stored and will be answered."""

    accepted: bool
    message_id: str
    duplicate: bool


class NewSteer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message for the running turn."""

    text: str
    message_id: MessageId = ""


class AbortRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """End the running turn; `all_queued` also empties the mailbox."""

    all_queued: bool = False


class RetryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Have the turn that waits for its model ask again now: only `turn` if given, with `model` that one."""

    turn: Annotated[str, msgspec.Meta(max_length=100)] = ""
    model: Annotated[str, msgspec.Meta(max_length=200)] = ""


class Delivered(msgspec.Struct, frozen=True):
    """Whether a turn was running to take it."""

    delivered: bool


class ChannelMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message that opens a thread in a channel."""

    text: str
    agent: str = ""


class Opened(msgspec.Struct, frozen=True):
    """The thread that was opened."""

    thread: str


class ClearedView(msgspec.Struct, frozen=True):
    """The model's window starts anew."""

    cleared: bool


class ThreadView(msgspec.Struct, frozen=True):
    """A thread. `open_turn` is empty when none runs; `queued` messages wait for theirs."""

    thread: str
    agent: str
    title: str
    last_seq: int
    open_turn: str
    queued: int
    parent: str
    created_at: datetime
    updated_at: datetime


class StepView(msgspec.Struct, frozen=True):
    """What a turn spent its time on."""

    turn: str
    number: int
    description: str
    started_at: datetime
    duration_ms: int


class ThreadsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which threads: at most `limit`, last active before `before`, of one agent."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=THREADS_MAX)] = 200
    agent: str = ""
    before: Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})] | None = None


class EventsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which events: numbers above `after` and, unless 0, below `before`; at most `limit` (a stream has no limit)."""

    after: Seq = 0
    before: Seq = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=EVENTS_MAX)] = 1000


def thread_view(info: ThreadInfo) -> ThreadView:
    """A thread as the API shows it."""
    return ThreadView(
        thread=info.thread,
        agent=info.agent,
        title=info.title,
        last_seq=info.last_seq,
        open_turn=info.open_turn,
        queued=info.queued,
        parent=info.parent,
        created_at=info.created_at,
        updated_at=info.updated_at,
    )


def check_agent(web: Web, by: Principal, agent: str) -> str:
    """An agent's name, or empty for the thread's own; a token's own agent answers in any case.

    Raises InvalidInput naming those that exist, ApiError 403 for another than the token's.
    """
    own = by.token.agent
    if own and agent not in ("", own):
        raise ApiError(403, "confined", f"The token {by.token.name!r} is for agent {own} only: name that one, or none.")
    agent = agent or own
    if agent and agent not in web.core.agents.names():
        known = ", ".join(sorted(web.core.agents.names()))
        raise InvalidInput(f"There is no agent {agent[:80]!r}. There are: {known}.")
    return agent


def check_intake(web: Web) -> None:
    """Refuse messages that nothing here would answer any more. Raises ApiError 503."""
    if web.core.state == "draining":
        message = "Shoal is stopping: the message was not taken. Send it again when it is back."
        raise ApiError(503, "stopping", message, {"Retry-After": "5"})


def still_allowed(web: Web, by: Principal, thread: ThreadId | None = None) -> Allowed | None:
    """What a live stream asks about its reader now and then; None for the home's token, which cannot be revoked."""
    if by.token is HOME_TOKEN:
        return None

    async def allowed() -> bool:
        return await web.gate.stands(by) and (thread is None or await may_use(by, web.core.store.journal, thread))

    return allowed


async def submit(web: Web, prompt: Prompt) -> Receipt:
    """Send a prompt. Raises ApiError 429 when the mailbox is full, and 503 when Shoal is stopping."""
    check_intake(web)
    receipt = await web.core.orchestrator.send(prompt)
    if receipt.status == "busy":
        message = "The thread's mailbox is full. Wait for an answer, or steer the running turn."
        raise ApiError(429, "busy", message, {"Retry-After": "5"})
    return receipt


def make_prompt(
    web: Web,
    by: Principal,
    thread: ThreadId,
    text: str,
    message_id: str,
    *,
    agent: str = "",
    attachments: tuple[Attachment, ...] = (),
) -> Prompt:
    """A prompt of the caller's, from a person where they use the page.

    Its key holds the thread: a message id counts within its thread only.
    """
    return Prompt(
        thread=thread,
        key=f"api/{thread}/{message_id}",
        text=text,
        author=by.author,
        at=web.core.clock.now(),
        attachments=attachments,
        agent=agent,
        message_id=message_id,
        origin="person" if by.by_cookie else "api",
        direct=thread.partition(":")[0] in OWN_PLATFORMS,
    )


async def _send_message(web: Web, request: Request) -> Response:
    thread = path_thread(request)
    body = await read_json(request, NewMessage, seconds=web.options.body_seconds)
    text = body.text if body.attachments and not body.text else checked_text(body.text)
    by = caller(request)
    agent = check_agent(web, by, body.agent)
    message_id = _checked_id(body.message_id) or web.core.clock.new_id()
    attachments = await take_attachments(web.core, by.author, thread, body.attachments, message_id)
    prompt = make_prompt(web, by, thread, text, message_id, agent=agent, attachments=attachments)
    receipt = await submit(web, prompt)
    return json_answer(Accepted(True, message_id, receipt.status == "duplicate"), 202)


def _checked_id(message_id: str) -> str:
    return checked_text(message_id, "message_id") if message_id else ""


async def _steer(web: Web, request: Request) -> Response:
    thread = path_thread(request)
    body = await read_json(request, NewSteer, seconds=web.options.body_seconds)
    message_id = _checked_id(body.message_id) or web.core.clock.new_id()
    text, author = checked_text(body.text), caller(request).author
    steer = Steer(thread, f"api/{thread}/{message_id}", text, author, web.core.clock.now())
    receipt = await web.core.orchestrator.send(steer)
    return json_answer(Delivered(receipt.status in ("delivered", "duplicate")), 202)


async def _abort(web: Web, request: Request) -> Response:
    thread = path_thread(request)
    body = await read_json(request, AbortRequest, seconds=web.options.body_seconds, optional=True)
    receipt = await web.core.orchestrator.send(Abort(thread, caller(request).author, body.all_queued))
    return json_answer(Delivered(receipt.delivered), 202)


async def _retry(web: Web, request: Request) -> Response:
    thread = path_thread(request)
    body = await read_json(request, RetryRequest, seconds=web.options.body_seconds, optional=True)
    receipt = await web.core.orchestrator.send(Retry(thread, caller(request).author, body.turn, body.model))
    if not receipt.delivered:
        raise Conflict("No turn of this thread waits for its model.")
    return json_answer(Delivered(True), 202)


async def _clear(web: Web, request: Request) -> Response:
    thread = path_thread(request)
    await _known_thread(web, thread)
    await web.core.orchestrator.clear(thread, caller(request).author.id)
    return json_answer(ClearedView(True))


async def _send_to_channel(web: Web, request: Request) -> Response:
    body = await read_json(request, ChannelMessage, seconds=web.options.body_seconds)
    check_intake(web)
    platform, channel = path_part(request, "platform"), path_part(request, "channel")
    by, text = caller(request), checked_text(body.text)
    agent = check_agent(web, by, body.agent)
    thread = await web.core.orchestrator.send_to_channel(platform, channel, text, by.author, agent)
    return json_answer(Opened(thread), 202)


async def _threads(web: Web, request: Request) -> Response:
    query = read_query(request, ThreadsQuery)
    before = None if query.before is None else parse_moment(query.before, "before")
    by = caller(request)
    agent = by.token.agent or query.agent
    if query.agent not in ("", agent):
        return json_answer(list[ThreadView]())
    found = await web.core.store.journal.threads(query.limit, agent=agent, before=before, channels=by.channels)
    return json_answer([thread_view(info) for info in found])


async def _known_thread(web: Web, thread: ThreadId) -> ThreadInfo:
    info = await web.core.store.journal.thread(thread)
    if info is None:
        raise no_such_thread(thread)
    return info


async def _thread(web: Web, request: Request) -> Response:
    return json_answer(thread_view(await _known_thread(web, path_thread(request))))


async def _steps(web: Web, request: Request) -> Response:
    info = await _known_thread(web, path_thread(request))
    return json_answer([_step_view(step) for step in await web.core.store.journal.steps(info.thread)])


def _step_view(stored: StoredStep) -> StepView:
    step = stored.step
    return StepView(stored.turn, step.number, step.description, step.started_at, step.duration_ms)


async def _events(web: Web, request: Request) -> Response:
    thread, query = path_thread(request), read_query(request, EventsQuery)
    if wants_event_stream(request):
        after = _resume_after(request, query.after)
        admitted = web.streams.admit()
        frames = thread_frames(web.core, web.streams, thread, after)
        return EventStream(frames, web.streams, admitted, allowed=still_allowed(web, caller(request), thread))
    journal, at_once = web.core.store.journal, min(query.limit, REPLAY_EVENTS_MAX)
    first = await journal.events(thread, query.after, at_once, before=query.before)
    return StreamingResponse(_event_list(journal, thread, query, first), media_type=JSON)


async def _event_list(
    journal: Journal, thread: ThreadId, query: EventsQuery, events: Sequence[Event]
) -> AsyncIterator[bytes]:
    """A JSON list that begins with these events; the others are read while it is sent, so that few are in memory."""
    yield b"[" + b",".join(map(encode_event, events))
    left = query.limit
    while events and (left := left - len(events)):
        events = await journal.events(thread, events[-1].seq, min(left, REPLAY_EVENTS_MAX), before=query.before)
        yield b"".join(b"," + encode_event(event) for event in events)
    yield b"]"


def _resume_after(request: Request, after: int) -> int:
    last = request.headers.get("last-event-id", "").strip()
    if not last:
        return after
    if not (last.isascii() and last.isdecimal() and int(last) <= SEQ_MAX):
        raise InvalidInput("Last-Event-ID must be the number of the last event seen; leave it out to start anew.")
    return int(last)


async def _all_events(web: Web, request: Request) -> Response:
    if not wants_event_stream(request):
        raise ApiError(406, "not_acceptable", "This is a live stream only: send Accept: text/event-stream.")
    frames = all_frames(web.core, web.streams)
    return EventStream(frames, web.streams, web.streams.admit(), allowed=still_allowed(web, caller(request)))


ENDPOINTS = (
    Endpoint(
        method="POST", path="/api/threads/{thread}/messages", handler=_send_message, scopes=TALKERS, body=NewMessage,
        summary="Send a message to a thread; an agent answers it in a turn.",
        answer=Answer("Stored; the answer comes as events.", Accepted, 202),
    ),
    Endpoint(
        method="POST", path="/api/threads/{thread}/steer", handler=_steer, scopes=TALKERS, body=NewSteer,
        summary="Hand a message to the running turn.", answer=Answer("Whether a turn took it.", Delivered, 202),
    ),
    Endpoint(
        method="POST", path="/api/threads/{thread}/abort", handler=_abort, scopes=TALKERS,
        body=AbortRequest, body_optional=True,
        summary="End the running turn.", answer=Answer("Whether a turn was running.", Delivered, 202),
    ),
    Endpoint(
        method="POST", path="/api/threads/{thread}/retry", handler=_retry, scopes=TALKERS,
        body=RetryRequest, body_optional=True,
        summary="Have a turn that waits for its model ask again now; 409 when none waits.",
        answer=Answer("It asks again.", Delivered, 202),
    ),
    Endpoint(
        method="POST", path="/api/threads/{thread}/clear", handler=_clear,
        scopes=TALKERS,
        summary="Start the model's window anew; nothing is deleted.", answer=Answer("Done.", ClearedView),
    ),
    Endpoint(
        method="POST", path="/api/channels/{platform}/{channel}/messages", handler=_send_to_channel, scopes=ADMINS,
        body=ChannelMessage, summary="Post to a channel, which opens a thread, and let its agent answer.",
        answer=Answer("The thread.", Opened, 202),
    ),
    Endpoint(
        method="GET", path="/api/threads", handler=_threads, scopes=EVERYONE, narrows=True, query=ThreadsQuery,
        summary="Threads, the last active first.", answer=Answer("Threads.", list[ThreadView]),
    ),
    Endpoint(
        method="GET", path="/api/threads/{thread}", handler=_thread, scopes=EVERYONE,
        summary="One thread.", answer=Answer("The thread.", ThreadView),
    ),
    Endpoint(
        method="GET", path="/api/threads/{thread}/steps", handler=_steps, scopes=EVERYONE,
        summary="What the thread's turns spent their time on.", answer=Answer("Steps, oldest first.", list[StepView]),
    ),
    Endpoint(
        method="GET", path="/api/threads/{thread}/events", handler=_events, scopes=EVERYONE, query=EventsQuery,
        summary="The thread's journal; with Accept: text/event-stream a live stream, resumable by Last-Event-ID.",
        answer=Answer("Events, oldest first.", list[Event]),
    ),
    Endpoint(
        method="GET", path="/api/events", handler=_all_events, scopes=READERS,
        summary="What happens in all threads from now on, as a live stream.",
        answer=Answer("Server-sent events.", None, 200, "text/event-stream"),
    ),
)  # fmt: skip
