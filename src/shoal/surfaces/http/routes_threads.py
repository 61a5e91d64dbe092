"""Calls about threads: sending messages, branching and copying conversations, reading and following journals, and
running commands.
"""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Annotated

import anyio.lowlevel
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shoal.agents.registry import AgentRegistry
from shoal.connections import Connections
from shoal.kernel.clock import Clock
from shoal.kernel.commands import CommandRequest, CommandSpec
from shoal.kernel.errors import Conflict, Forbidden, InvalidInput
from shoal.kernel.events import Event, UserSaid, encode_event
from shoal.kernel.files import Folders
from shoal.kernel.home import Home
from shoal.kernel.ids import (
    OWN_PLATFORMS,
    WHOLE_CHANNEL,
    ThreadId,
    channel_of,
    make_thread_id,
    parse_thread_id,
    thread_address,
)
from shoal.kernel.messages import Abort, Attachment, Author, Prompt, Receipt, Retry, Steer
from shoal.kernel.ports import Models, channel_names
from shoal.kernel.records import Step, ThreadInfo
from shoal.models.catalog import existing_model
from shoal.running import Runtime
from shoal.store.store import Store
from shoal.surfaces.http.endpoints import (
    ADMINS,
    EVERYONE,
    JSON,
    READERS,
    TALKERS,
    Callers,
    Routes,
    Text200,
    checked_text,
    view,
    wants_event_stream,
)
from shoal.surfaces.http.errors import ApiError
from shoal.surfaces.http.routes_files import AttachmentRef, take_attachments
from shoal.surfaces.http.streams import REPLAY_EVENTS_MAX, EventStream, LiveStreams, all_frames, thread_frames
from shoal.surfaces.http.thread_views import EVENTS_MAX, THREADS_MAX, Accepted, OpenedThread, ThreadSummary
from shoal.text.order import natural
from shoal.threads.commands import CommandRouter, agent_here
from shoal.threads.forks import Forks
from shoal.threads.orchestrator import CHOOSES_NO_MODEL, Orchestrator
from shoal.threads.principals import Principal, no_such_thread
from shoal.tools.tainted_files import MarkedFiles
from shoal.turn.context import ContextBuilder, ContextCosts

routes = Routes()

SEQ_MAX = 2**62
CHAT_EVENTS, PEOPLE_MAX = 30, 3
"""Number of recent events in a chat's latest thread to search for people, and maximum number of people to list."""
MESSAGE_ID_CHARS_MAX = 200
CONFINED_COMMANDS = ("new", "stop", "steer")
"""Commands that neither change nor show threads other than the current one."""

MessageId = Annotated[str, msgspec.Meta(max_length=MESSAGE_ID_CHARS_MAX)]
Seq = Annotated[int, msgspec.Meta(ge=0, le=SEQ_MAX)]


# ---- requests and views ----


class NewMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message for a thread.

    message_id: id of the message. A message with an id that the thread already received is ignored.
    model: the model that answers in this thread from this message on.
    """

    text: str = ""
    message_id: MessageId = ""
    attachments: Annotated[list[AttachmentRef], msgspec.Meta(max_length=10)] = []
    agent: str = ""
    model: Text200 = ""


class NewSteer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message for the running turn."""

    text: str
    message_id: MessageId = ""


class AbortRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to end the running turn. `all_queued` also drops the queued messages."""

    all_queued: bool = False


class RetryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to retry the turn that waits for its model.

    turn: retry only if this is the waiting turn.
    model: use this model instead.
    """

    turn: Annotated[str, msgspec.Meta(max_length=100)] = ""
    model: Text200 = ""


class NewFork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A thread to create as a copy.

    after: number of the last event to copy, or 0 for all events.
    thread: id of the copy, or empty for a new id.
    """

    after: Seq = 0
    thread: str = ""


class AnswerAgain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to answer again.

    seq: number of an event in the message's turn, or 0 for the last turn.
    model: the model that answers, or empty for the thread's own model.
    """

    seq: Seq = 0
    model: Text200 = ""


class ChangedMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text that replaces the message of event `seq`."""

    text: str
    seq: Seq = 0
    message_id: MessageId = ""


class BranchChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The number of the event after which the conversation continues."""

    after: Seq


class Delivered(msgspec.Struct, frozen=True):
    """Whether a running turn received the message or request."""

    delivered: bool


class ChannelMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message that opens a thread in a channel."""

    text: str
    agent: str = ""


class WindowCleared(msgspec.Struct, frozen=True):
    """The model's context window is empty again."""

    cleared: bool


class StepView(Step, frozen=True):
    """A step of a turn and its duration."""

    turn: str


class CommandText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A slash command as written in a chat."""

    text: str


class CommandAnswer(msgspec.Struct, frozen=True):
    """The command's reply as Markdown. It may be empty."""

    answer: str


# ---- checks and prompts, also used below /v1 ----


def check_agent(agents: AgentRegistry, by: Principal, agent: str) -> str:
    """Return the agent that must answer, or an empty string for the thread's own agent. A token's own agent is always
    allowed.

    Raises InvalidInput for an unknown agent, with a list of the existing agents, and ApiError 403 if the token is
    limited to another agent.
    """
    own = by.token.agent
    if own and agent not in ("", own):
        raise ApiError(
            403,
            "confined",
            f"The token {by.token.name!r} is only for the agent {own}. Specify that agent, or omit `agent`.",
        )
    agent = agent or own
    if agent and agent not in agents.names():
        known = ", ".join(sorted(agents.names()))
        raise InvalidInput(f"No agent named {agent[:80]!r}. Agents: {known}.")
    return agent


def check_model(models: Models, by: Principal, model: str | None) -> None:
    """Raise Forbidden if the caller may not choose a model, and InvalidInput if the model is unknown."""
    if model and not by.author.trusted:
        raise Forbidden(CHOOSES_NO_MODEL)
    if model:
        existing_model(models, model)


def check_intake(runtime: Runtime) -> None:
    """Reject messages that no process would answer. Raises ApiError 503 if Shoal is stopping, and Conflict if it
    is not running.
    """
    if runtime.state == "stopped":
        raise Conflict("Shoal is not running, so no agent can answer. Start it with `shoal run`, then try again.")
    if runtime.state == "draining":
        message = "Shoal is stopping and did not accept the message. Send it again later."
        raise ApiError(503, "stopping", message, {"Retry-After": "5"})


async def submit(orchestrator: Orchestrator, runtime: Runtime, prompt: Prompt) -> Receipt:
    """Send a prompt. Raises ApiError 429 if the mailbox is full, and the errors of `check_intake`."""
    check_intake(runtime)
    receipt = await orchestrator.send(prompt)
    if receipt.status == "busy":
        message = "The thread's mailbox is full. Wait for an answer, or steer the running turn."
        raise ApiError(429, "busy", message, {"Retry-After": "5"})
    return receipt


def make_prompt(
    clock: Clock,
    by: Principal,
    thread: ThreadId,
    text: str,
    message_id: str,
    *,
    agent: str = "",
    model: str = "",
    attachments: tuple[Attachment, ...] = (),
) -> Prompt:
    """Return a prompt from the caller. A prompt from the page counts as written by a person.

    The key includes the thread, because a message id is unique only within its thread.
    """
    return Prompt(
        thread=thread,
        key=f"api/{thread}/{message_id}",
        text=text,
        author=by.author,
        at=clock.now(),
        attachments=attachments,
        agent=agent,
        model=model,
        message_id=message_id,
        origin="person" if by.by_cookie else "api",
        direct=thread.partition(":")[0] in OWN_PLATFORMS,
    )


def _message_id(clock: Clock, given: str) -> str:
    return checked_text(given, "message_id") if given else clock.new_id()


# ---- messages ----


@routes("POST /api/threads/{thread}/messages", TALKERS, status=202)
async def send_message(
    store: Store,
    clock: Clock,
    home: Home,
    orchestrator: Orchestrator,
    agents: AgentRegistry,
    models: Models,
    folders: Folders,
    runtime: Runtime,
    tainted_files: MarkedFiles,
    by: Principal,
    thread: ThreadId,
    body: NewMessage,
) -> Accepted:
    """Send a message to a thread. An agent answers it in a turn."""
    text = body.text if body.attachments and not body.text else checked_text(body.text)
    agent = check_agent(agents, by, body.agent)
    message_id = _message_id(clock, body.message_id)
    check_model(models, by, body.model)
    attachments = await take_attachments(home, folders, tainted_files, by.author, thread, body.attachments, message_id)
    prompt = make_prompt(clock, by, thread, text, message_id, agent=agent, model=body.model, attachments=attachments)
    receipt = await submit(orchestrator, runtime, prompt)
    if body.model:
        await store.threads.change(thread, model=body.model)
    return Accepted(True, message_id, receipt.status == "duplicate")


@routes("POST /api/threads/{thread}/steer", TALKERS, status=202)
async def steer(clock: Clock, orchestrator: Orchestrator, by: Principal, thread: ThreadId, body: NewSteer) -> Delivered:
    """Send a message to the running turn."""
    key, text = f"api/{thread}/{_message_id(clock, body.message_id)}", checked_text(body.text)
    receipt = await orchestrator.send(Steer(thread, key, text, by.author, clock.now()))
    return Delivered(receipt.status in ("delivered", "duplicate"))


@routes("POST /api/threads/{thread}/abort", TALKERS, status=202, body_optional=True)
async def abort(orchestrator: Orchestrator, by: Principal, thread: ThreadId, body: AbortRequest) -> Delivered:
    """End the running turn."""
    receipt = await orchestrator.send(Abort(thread, by.author, body.all_queued))
    return Delivered(receipt.delivered)


@routes("POST /api/threads/{thread}/retry", TALKERS, status=202, body_optional=True)
async def retry(
    orchestrator: Orchestrator, models: Models, by: Principal, thread: ThreadId, body: RetryRequest
) -> Delivered:
    """Retry a turn that waits for its model. 409 if no turn waits."""
    check_model(models, by, body.model)
    receipt = await orchestrator.send(Retry(thread, by.author, body.turn, body.model))
    if not receipt.delivered:
        raise Conflict("No turn in this thread is waiting for its model.")
    return Delivered(True)


# ---- branches and copies ----


@routes("POST /api/threads/{thread}/fork", TALKERS, status=201, body_optional=True)
async def fork(clock: Clock, forks: Forks, by: Principal, thread: ThreadId, body: NewFork) -> OpenedThread:
    """Create a thread as a copy of this one up to an event. Messages in the copy do not affect the original."""
    own = by.channel or "lobby"
    place = thread if thread.partition(":")[0] in OWN_PLATFORMS else make_thread_id("web", own, "x")
    target = parse_thread_id(body.thread) if body.thread else ThreadId(f"{channel_of(place)}{clock.new_id()}")
    if thread_address(target).platform not in OWN_PLATFORMS:
        raise InvalidInput(
            "A copy must be on the page or in the terminal. Choose a thread id that begins with `web:` or `terminal:`."
        )
    if not by.owns(target):
        raise no_such_thread(target)
    await forks.fork(thread, target, by.author.id, body.after)
    return OpenedThread(target)


@routes("POST /api/threads/{thread}/again", TALKERS, status=202, body_optional=True)
async def answer_again(
    orchestrator: Orchestrator, models: Models, runtime: Runtime, by: Principal, thread: ThreadId, body: AnswerAgain
) -> Accepted:
    """Answer a message again. The previous answer stays on another branch of the conversation."""
    check_model(models, by, body.model)
    check_intake(runtime)
    answer = await orchestrator.try_again(thread, by.asker, body.seq, body.model)
    return Accepted(True, str(answer.seq), False)


@routes("POST /api/threads/{thread}/edit", TALKERS, status=202)
async def say_instead(
    clock: Clock, orchestrator: Orchestrator, runtime: Runtime, by: Principal, thread: ThreadId, body: ChangedMessage
) -> Accepted:
    """Replace one of the caller's own messages. The rest of the conversation stays on another branch."""
    check_intake(runtime)
    message_id = _message_id(clock, body.message_id)
    prompt = make_prompt(clock, by, thread, checked_text(body.text), message_id)
    await orchestrator.say_instead(prompt, body.seq)
    return Accepted(True, message_id, False)


@routes("POST /api/threads/{thread}/branch", TALKERS, answer=ThreadSummary)
async def go_to_branch(
    store: Store, orchestrator: Orchestrator, by: Principal, thread: ThreadId, body: BranchChoice
) -> ThreadInfo:
    """Continue the conversation after an event. The event is the end of another branch, or an earlier point
    between turns.
    """
    await orchestrator.go_to(thread, body.after, by.author.id)
    return await known_thread(store, thread)


@routes("POST /api/channels/{platform}/{channel}/messages", ADMINS, status=202)
async def send_to_channel(
    orchestrator: Orchestrator,
    agents: AgentRegistry,
    runtime: Runtime,
    by: Principal,
    platform: str,
    channel: str,
    body: ChannelMessage,
) -> OpenedThread:
    """Post a message to a channel, which opens a thread. The channel's agent answers there."""
    check_intake(runtime)
    text, agent = checked_text(body.text), check_agent(agents, by, body.agent)
    return OpenedThread(await orchestrator.send_to_channel(platform, channel, text, by.author, agent))


# ---- threads and journals ----


async def known_thread(store: Store, thread: ThreadId) -> ThreadInfo:
    """Return an existing thread. Raises NotFound."""
    info = await store.journal.thread(thread)
    if info is None:
        raise no_such_thread(thread)
    return info


@routes("GET /api/threads", EVERYONE, narrows=True, answer=list[ThreadSummary])
async def threads(
    store: Store,
    by: Principal,
    *,
    limit: Annotated[int, msgspec.Meta(ge=1, le=THREADS_MAX)] = 200,
    agent: str = "",
    before: Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})] | None = None,
    archived: bool = False,
) -> list[ThreadInfo]:
    """List threads, most recently active first.

    limit: maximum number of threads. Older pinned threads are added to the list, unless `before` or `archived` is set.
    agent: list only threads of this agent.
    before: list only threads that were last active before this time.
    archived: list only archived threads, which are otherwise left out.
    """
    until = None
    if before is not None:
        try:
            until = msgspec.convert(before, Annotated[datetime, msgspec.Meta(tz=True)])
        except msgspec.ValidationError as error:
            raise InvalidInput("`before` must be a time like 2026-01-31T09:00:00Z.") from error
    own = by.token.agent or agent
    if agent not in ("", own):
        return []
    journal, channels = store.journal, by.channels
    threads = await journal.threads(limit, agent=own, before=until, channels=channels, archived=archived)
    if until is None and not archived:
        known = {info.thread for info in threads}
        for info in await journal.pinned():
            theirs = not channels or info.thread.startswith(channels) or info.parent.startswith(channels)
            if info.thread not in known and own in ("", info.agent) and theirs:
                threads.append(info)
    return threads


async def authors(store: Store, thread: ThreadId, last_seq: int) -> list[Author]:
    events = await store.journal.events(thread, max(0, last_seq - CHAT_EVENTS), CHAT_EVENTS)
    messages = [event.data for event in events if isinstance(event.data, UserSaid) and event.data.origin == "person"]
    return [message.author for message in reversed(messages)]


class ChatView(msgspec.Struct, frozen=True):
    """A channel that has threads, or that a bot can see.

    title: title of the most recently active thread.
    people: people who wrote recently in that thread.
    updated_at: null for a channel without threads.
    name: the platform's name for a group.
    """

    platform: str
    channel: str
    thread: str
    title: str
    people: list[str]
    updated_at: datetime | None
    name: str = ""


@routes("GET /api/chats", READERS)
async def chats(store: Store, connections: Connections) -> list[ChatView]:
    """List at most 1,000 channels with threads, most recently active first, and then the other groups that the
    bots can see.
    """
    chats: list[ChatView] = []
    settings = store.settings
    names = {platform: dict(await settings.page(channel_names(platform))) for platform in connections.configured}
    for chat in await store.threads.chats():
        address = thread_address(chat.thread)
        people: list[str] = []
        if address.platform not in OWN_PLATFORMS:
            people = [author.name or author.id for author in await authors(store, chat.thread, chat.last_seq)]
        name = names.get(address.platform, {}).pop(address.channel, "")
        people = list(dict.fromkeys(people))[:PEOPLE_MAX]
        shown = address.platform, address.channel, chat.thread, chat.title, people, chat.updated_at, name
        chats.append(ChatView(*shown))
    for platform, unused in names.items():
        for channel, name in sorted(unused.items(), key=lambda item: natural(item[1])):
            thread = make_thread_id(platform, channel, WHOLE_CHANNEL)
            chats.append(ChatView(platform, channel, thread, "", [], None, name))
    return chats


@routes("GET /api/threads/{thread}", EVERYONE, answer=ThreadSummary)
async def thread(store: Store, thread: ThreadId) -> ThreadInfo:
    """Return one thread."""
    return await known_thread(store, thread)


@routes("GET /api/threads/{thread}/steps", EVERYONE)
async def steps(store: Store, thread: ThreadId) -> list[StepView]:
    """Return the steps of the thread's turns with their durations, oldest first."""
    await known_thread(store, thread)
    return [view(StepView, stored.step, turn=stored.turn) for stored in await store.journal.steps(thread)]


@routes("GET /api/threads/{thread}/events", EVERYONE, answer=list[Event], streams=True)
async def events(
    store: Store,
    streams: LiveStreams,
    callers: Callers,
    request: Request,
    by: Principal,
    thread: ThreadId,
    *,
    after: Seq = 0,
    before: Seq = 0,
    limit: Annotated[int, msgspec.Meta(ge=1, le=EVENTS_MAX)] = 1000,
) -> Response:
    """Return the thread's events with numbers above `after` and, unless `before` is 0, below `before`. Returns at most
    `limit` events.

    With `Accept: text/event-stream`, return a live stream, which has no limit. `Last-Event-ID` resumes it.
    """
    if wants_event_stream(request):
        if last := request.headers.get("last-event-id", "").strip():
            if not (last.isascii() and last.isdecimal() and int(last) <= SEQ_MAX):
                message = "Last-Event-ID must be the number of an event. Omit it to start from the beginning."
                raise InvalidInput(message)
            after = int(last)
        admitted = streams.admit()
        frames = thread_frames(streams, thread, after)
        return EventStream(frames, streams, admitted, allowed=callers.access_check(by, thread))
    first = await _page(store, streams, thread, after, limit, before)
    return StreamingResponse(_event_list(store, streams, thread, before, limit, first), media_type=JSON)


async def _page(
    store: Store, streams: LiveStreams, thread: ThreadId, after: int, left: int, before: int
) -> list[Event]:
    async with streams.reading:
        events = await store.journal.events(thread, after, min(left, REPLAY_EVENTS_MAX), before=before)
        await anyio.lowlevel.checkpoint()  # let other tasks run first
        return events


async def _event_list(
    store: Store, streams: LiveStreams, thread: ThreadId, before: int, left: int, events: Sequence[Event]
) -> AsyncIterator[bytes]:
    """Stream a JSON list that begins with `events`. Later events are read during the transfer, so only a few are in
    memory at a time.
    """
    yield b"[" + b",".join(map(encode_event, events))
    while events and (left := left - len(events)):
        events = await _page(store, streams, thread, events[-1].seq, left, before)
        yield b"".join(b"," + encode_event(event) for event in events)
    yield b"]"


@routes("GET /api/events", READERS, media_type="text/event-stream")
async def all_events(streams: LiveStreams, callers: Callers, request: Request, by: Principal) -> Response:
    """Stream new events of all threads."""
    if not wants_event_stream(request):
        raise ApiError(
            406, "not_acceptable", ("This call returns only a live stream. Send the header Accept: text/event-stream.")
        )
    return EventStream(all_frames(streams), streams, streams.admit(), allowed=callers.access_check(by))


# ---- the model's context window ----


@routes("GET /api/threads/{thread}/context", READERS)
async def context_costs(
    store: Store, agents: AgentRegistry, models: Models, context: ContextBuilder, thread: ThreadId
) -> ContextCosts:
    """Return the size of each part of a thread's next model request. For a new thread, this is the first request."""
    agent = await agent_here(store, agents, thread)
    return await context.costs(thread, agent, models.route(agent.model), store)


@routes("POST /api/threads/{thread}/clear", TALKERS)
async def clear(store: Store, orchestrator: Orchestrator, by: Principal, thread: ThreadId) -> WindowCleared:
    """Start a new conversation in the thread. Nothing is deleted."""
    await known_thread(store, thread)
    await orchestrator.clear(thread, by.author.id)
    return WindowCleared(True)


# ---- commands ----


@routes("POST /api/threads/{thread}/command", TALKERS)
async def command(
    clock: Clock, commands: CommandRouter, by: Principal, thread: ThreadId, body: CommandText
) -> CommandAnswer:
    """Run a slash command as the token's person."""
    text = checked_text(body.text)
    spoken = commands.table.parse(text)
    if spoken is None:
        return CommandAnswer(f"No command named {text.split()[0][:40]}. Use /help to list all commands.")
    if by.is_confined and spoken.name not in CONFINED_COMMANDS:
        allowed = ", /".join(CONFINED_COMMANDS)
        raise ApiError(403, "scope", f"The token {by.token.name!r} cannot use /{spoken.name}, only /{allowed}.")
    key, at = clock.new_id(), clock.now()
    asked = CommandRequest(thread, by.author, spoken.name, spoken.argument, key, at, direct=True, by=by.asker)
    return CommandAnswer(await commands.command(asked))


@routes("GET /api/commands", EVERYONE, narrows=True)
async def commands(router: CommandRouter, by: Principal) -> list[CommandSpec]:
    """List the slash commands that the caller can run."""
    if by.token.scope not in TALKERS:
        return []
    return [spec for spec in router.table if not by.is_confined or spec.name in CONFINED_COMMANDS]
