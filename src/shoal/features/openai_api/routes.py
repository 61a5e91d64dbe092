"""OpenAI-compatible API: models, chat completions and responses. Each agent is a model.

Clients send the complete conversation with every call. A thread already stores its history, so only the last message is
sent to the thread. A new conversation starts a new thread. After the first reply, Shoal stores a hash of the
conversation up to that reply. Later calls repeat this beginning, so its hash identifies the thread.
"""

import hashlib
import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Annotated, NamedTuple, TypeAlias
from urllib.parse import quote

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.agents.registry import AgentRegistry
from shoal.features.openai_api.conversations import SCOPE
from shoal.features.openai_api.messages import (
    BODY_BYTES_MAX,
    FILES_MAX,
    CompatMessage,
    InlineFile,
    Line,
    spoken,
)
from shoal.kernel.clock import Clock, to_micros
from shoal.kernel.errors import InvalidId, InvalidInput
from shoal.kernel.events import AssistantSaid, Event, RetryScheduled, TextStreamed, TurnFinished, UserSaid
from shoal.kernel.home import Home
from shoal.kernel.ids import PART_CHARS_MAX, ThreadId, TurnId, encode_part, make_thread_id, parse_thread_id
from shoal.kernel.messages import Abort, Attachment, Usage
from shoal.kernel.ports import ONCE
from shoal.running import Runtime
from shoal.services import Services
from shoal.store.store import Store
from shoal.surfaces.http.endpoints import (
    EVERYONE,
    TALKERS,
    AnyObject,
    Callers,
    Routes,
    checked_text,
    json_answer,
)
from shoal.surfaces.http.errors import ApiError, compat_body
from shoal.surfaces.http.routes_files import store_upload
from shoal.surfaces.http.routes_threads import make_prompt, submit
from shoal.surfaces.http.streams import HEARTBEAT, EventStream, LiveStreams, cancel_when_refused, thread_items
from shoal.threads.attachments import Attachments
from shoal.threads.orchestrator import Orchestrator
from shoal.threads.principals import Principal, may_use, no_such_thread
from shoal.tools.tainted_files import MarkedFiles

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

routes = Routes()

DEFAULT_MODEL = "shoal"
"""Model name that selects the default agent."""
NO_TOOLS = "`tools` is not supported: the agent uses its own tools."
NO_RESPONSE = "`previous_response_id` is not the id of a response that this token received from this server."

REPEATED_MAX = timedelta(hours=1)
"""Maximum time between a request and its repetition."""
_NO_RETRY = {"X-Should-Retry": "false"}
"""Header that stops OpenAI's clients from retrying a failed turn."""


class Conversations(msgspec.Struct, frozen=True, eq=False):
    store: Store
    home: Home
    clock: Clock
    agents: AgentRegistry
    orchestrator: Orchestrator
    runtime: Runtime
    tainted_files: MarkedFiles
    attachments: Attachments
    streams: LiveStreams
    callers: Callers

    @classmethod
    def of_extension(cls, services: Services) -> "Conversations":
        return cls(
            services[Store],
            services[Home],
            services[Clock],
            services[AgentRegistry],
            services[Orchestrator],
            services[Runtime],
            services[MarkedFiles],
            services[Attachments],
            services[LiveStreams],
            services[Callers],
        )


class ClientConversation(msgspec.Struct, frozen=True):
    """The conversation in a request.

    `thread`: thread that the caller chose, or empty.
    `files`: files of the last message.
    `earlier`: files of earlier messages, which are added only to a new thread.
    """

    by: Principal
    agent: str
    lines: tuple[Line, ...]
    instructions: str = ""
    thread: str = ""
    files: tuple[InlineFile, ...] = ()
    earlier: tuple[InlineFile, ...] = ()

    @property
    def opening(self) -> str:
        """Text that starts a new thread: the caller's instructions, the earlier messages, and the last message."""
        *earlier, last = self.lines
        parts = [f"[Instructions from the calling program]\n{self.instructions}"] if self.instructions else []
        if earlier:
            transcript = "\n".join(f"{line.role}: {line.text}" for line in earlier)
            parts.append(f"[The conversation so far]\n{transcript}")
        return "\n\n".join((*parts, last.text))


class SentRequest(NamedTuple):
    """A request of OpenAI's client, stored until its reply is complete. `value` is its time and the id of its message.

    The client repeats a request that timed out or whose connection broke. The repetition must not start a second turn.
    """

    key: str
    value: str

    @property
    def message_id(self) -> str:
        return self.value.partition(" ")[2]


class PendingReply(msgspec.Struct, frozen=True):
    """A sent message whose reply is pending.

    `after`: event number. All events of the reply have higher numbers.
    `fresh`: whether this is the first message of a conversation for which the caller chose no thread.
    `request`: the stored request, by which a repetition is recognized.
    """

    thread: ThreadId
    message_id: str
    after: int
    conversation: ClientConversation
    fresh: bool
    request: "SentRequest | None" = None

    @property
    def headers(self) -> dict[str, str]:
        return {"X-Shoal-Thread": quote(self.thread, safe=":")}


def chosen_thread(by: Principal, metadata: Mapping[str, str] | None, user: str | None) -> str:
    """Return the thread that the caller chose with `metadata.thread` or `user`, or an empty string.

    The value is a thread id, or any name for a thread in the caller's channel. The id of a thread that the caller does
    not own is treated as a name, so a chat token cannot reach other people's threads.
    """
    name = (metadata or {}).get("thread") or user or ""
    if not name:
        return ""
    try:
        thread = parse_thread_id(name)
    except InvalidId:
        thread = None
    if thread is not None and by.owns(thread):
        return thread
    part = name if len(encode_part(name)) <= PART_CHARS_MAX else hashlib.sha256(name.encode()).hexdigest()
    return make_thread_id("openai", _channel_of(by), part)


def _channel_of(by: Principal) -> str:
    return by.channel if by.token.scope == "chat" else "api"


def models_of(api: Conversations, by: Principal) -> Sequence[str]:
    return [name for name in api.agents.names() if by.token.agent in ("", name)]


def agent_of(api: Conversations, by: Principal, model: str) -> str:
    """Return the agent for a model name, or an empty string for the default agent. Raises ApiError 404 for an unknown
    name.
    """
    if model == DEFAULT_MODEL:
        return by.token.agent
    if model in models_of(api, by):
        return model
    known = ", ".join((DEFAULT_MODEL, *models_of(api, by)))
    raise ApiError(404, "model_not_found", f"No agent named {model[:80]!r}. Set `model` to one of: {known}.")


def response_id(fresh_id: str, thread: ThreadId) -> str:
    """Return a response id that encodes the thread."""
    return f"resp_{fresh_id}_{urlsafe_b64encode(thread.encode()).decode().rstrip('=')}"


def thread_of_response(by: Principal, text: str) -> ThreadId:
    """Return the thread that a response id encodes. Raises InvalidInput for an invalid id or another caller's
    thread.
    """
    coded = text.partition("_")[2].partition("_")[2]
    try:
        thread = parse_thread_id(urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode())
    except (Base64Error, UnicodeDecodeError, ValueError, InvalidId) as error:
        raise InvalidInput(NO_RESPONSE) from error
    if not by.owns(thread):
        raise InvalidInput(NO_RESPONSE)
    return thread


def _digest(agent: str, lines: Sequence[Line], extra: str = "") -> str:
    stripped = [Line(line.role, line.text.strip()) for line in lines]
    return hashlib.sha256(msgspec.json.encode((agent, stripped, extra))).hexdigest()[:32]


async def begin(api: Conversations, request: Request, conversation: ClientConversation) -> PendingReply:
    """Send the last message and its files to the thread. Raises ApiError 429 if the thread's mailbox is full."""
    by, agent, lines = conversation.by, conversation.agent, conversation.lines
    if not lines or lines[-1].role != "user":
        raise InvalidInput("The last message must have the role user.")
    last = lines[-1].text
    if not conversation.files or "\0" in last:
        checked_text(last, "content")
    sent = await _sent_request(api, request, conversation)
    message_id = request.headers.get("idempotency-key", "")[:200] or (sent.message_id if sent else api.clock.new_id())
    answered = next((place for place, line in enumerate(lines) if line.role == "assistant"), None)
    if conversation.thread:
        thread = ThreadId(conversation.thread)
    elif answered is None:
        thread = make_thread_id("openai", _channel_of(by), _digest(agent, lines, message_id))
    else:
        beginning = _beginning(conversation, lines[: answered + 1])
        rows = await api.store.settings.get(SCOPE, beginning)
        thread = ThreadId(rows) if rows else make_thread_id("openai", _channel_of(by), beginning)
    if not await may_use(by, api.store.journal, thread):
        raise no_such_thread(thread)
    info = await api.store.journal.thread(thread)
    text = last if info is not None else conversation.opening
    files = conversation.files if info is not None else (*conversation.earlier, *conversation.files)
    stem = hashlib.sha256(message_id.encode()).hexdigest()[:20]
    attachments: list[Attachment] = []
    for number, file in enumerate(files):
        stored = await store_upload(
            api.home, api.tainted_files, by.author, thread, file.name, f"{stem}.{number}", file.pieces(), mine=False
        )
        attachments.append(msgspec.structs.replace(stored, media_type=file.media_type))
    conversation = msgspec.structs.replace(
        conversation, files=(), earlier=()
    )  # the files are views of the body, so this frees its memory
    prompt = make_prompt(api.clock, by, thread, text, message_id, agent=agent, attachments=tuple(attachments))
    receipt = await submit(api.orchestrator, api.runtime, prompt)
    after = info.last_seq if info is not None and receipt.status != "duplicate" else 0
    return PendingReply(thread, message_id, after, conversation, not conversation.thread and answered is None, sent)


async def _sent_request(api: Conversations, request: Request, conversation: ClientConversation) -> SentRequest | None:
    """Store a request of OpenAI's client and return it. Return the stored request if this is a repetition, and None for
    other clients.
    """
    attempt = request.headers.get("x-stainless-retry-count", "")
    if not attempt:
        return None
    by, now = conversation.by, api.clock.now()
    caller = f"{by.token.name} {by.person} {conversation.thread}"
    key = f"openai:{_digest(conversation.agent, conversation.lines, caller)}"
    if attempt != "0":
        stored = await api.store.settings.get(ONCE, key)
        if stored is not None and stored[:16] > f"{to_micros(now - REPEATED_MAX):016}":
            return SentRequest(key, stored)
    sent = SentRequest(key, f"{to_micros(now):016} {api.clock.new_id()}")
    await api.store.settings.put(ONCE, *sent)
    return sent


async def _forget_request(api: Conversations, begun: PendingReply) -> None:
    if begun.request is not None:
        await api.store.settings.drop(ONCE, *begun.request)


def _beginning(conversation: ClientConversation, lines: Sequence[Line]) -> str:
    """Return the key under which a conversation's thread is stored. With chat tokens, each person has separate keys."""
    by = conversation.by
    return _digest(conversation.agent, lines, by.person if by.token.scope == "chat" else "")


class GrowingReply:
    """Splits a turn's reply into parts that are safe to stream, because sent text cannot be withdrawn.

    A blank line separates steps. After a retried model call or a gap in the text, streaming pauses until the step is
    complete.
    """

    def __init__(self) -> None:
        self.sent = ""
        self._of_step = ""
        self._step = -1
        self._reply = ""
        self._glue = ""

    def stream(self, text: str, step: int, offset: int) -> str:
        """Add streamed text. Return the part that can be sent, which may be empty."""
        if step != self._step:
            if self._of_step:
                return ""
            self._step = step
        if offset != len(self._of_step):
            return ""
        piece = text if self._of_step else self._glue + text
        self._of_step += text
        return self._send(piece)

    def finish_step(self, said: AssistantSaid) -> str:
        """Add a step's complete text. Return the part that has not been sent yet."""
        text, had, glue = said.text, self._of_step, self._glue
        continues = said.stop == "max_tokens" and not said.tool_calls
        self._reply = self._reply + text if not glue else text
        self._of_step, self._step = "", -1
        if text or had:
            self._glue = "" if continues else "\n\n"
        if had and text.startswith(had):
            return self._send(text[len(had) :])
        return self._send((glue or ("\n\n" if had else "")) + text) if text else ""

    def finish_turn(self, reply: str) -> str:
        """Add the final reply. Return it if it differs from the last step's text, otherwise an empty string."""
        if not reply or reply == self._reply:
            return ""
        return self._send(f"\n\n{reply}" if self.sent else reply)

    def _send(self, piece: str) -> str:
        self.sent += piece
        return piece


async def reply_pieces(
    api: Conversations, begun: PendingReply, growing: GrowingReply
) -> AsyncGenerator[str | TurnFinished, None]:
    """Yield parts of the reply, empty strings as keep-alives, and finally the TurnFinished event.

    Raises ApiError if the message is removed from the queue, the model is unavailable, or Shoal stops.
    """
    turn: TurnId | None = None
    seen, did_anything = begun.after, False
    async with aclosing(thread_items(api.streams, begun.thread, begun.after)) as items:
        async for item in items:
            if item == "beat":
                info = await api.store.journal.thread(begun.thread) if turn is None else None
                if info is not None and not info.open_turn and not info.queued and info.last_seq <= seen:
                    message = "The message was removed from the queue before the agent answered."
                    raise ApiError(409, "cancelled", message, _NO_RETRY)
                yield ""
                continue
            if isinstance(item, Event):
                seen = item.seq
                if turn is None and isinstance(item.data, UserSaid) and item.data.message_id == begun.message_id:
                    turn = item.turn
            if item.turn != turn:
                continue
            match item.data:
                case TextStreamed(text=text, step=step, offset=offset):
                    yield growing.stream(text, step, offset)
                case AssistantSaid() as said:
                    did_anything = True
                    yield growing.finish_step(said)
                case RetryScheduled() as retry:
                    raise await _model_away(api, begun, item.turn, retry, may_repeat=not did_anything)
                case TurnFinished() as finished:
                    yield finished
                    return
                case _:
                    pass
    raise ApiError(503, "stopping", "Shoal is stopping. The agent continues when Shoal starts again.", _NO_RETRY)


async def _model_away(
    api: Conversations, begun: PendingReply, turn: TurnId, retry: RetryScheduled, *, may_repeat: bool
) -> ApiError:
    """Abort a turn whose model is unavailable, and return the error for the client.

    OpenAI's clients send the message again instead of waiting. Unless `may_repeat` is set, a header stops them.
    """
    await api.orchestrator.send(Abort(begun.thread, begun.conversation.by.author, turn=turn))
    await _forget_request(api, begun)
    seconds = max(1, math.ceil((retry.next_at - api.clock.now()).total_seconds()))
    headers = {"Retry-After": str(seconds), **({} if may_repeat else _NO_RETRY)}
    return ApiError(503, "model_unavailable", f"{retry.message} Send the message again later.", headers)


async def whole_reply(api: Conversations, begun: PendingReply) -> TurnFinished:
    """Wait until the turn ends. Raises ApiError if it ends without a reply or the token is revoked in the meantime."""
    finished: TurnFinished | None = None
    failure: ApiError | None = None
    async with anyio.create_task_group() as group:
        allowed = api.callers.access_check(begun.conversation.by, begun.thread)
        group.start_soon(cancel_when_refused, allowed, group.cancel_scope)
        try:
            async with aclosing(reply_pieces(api, begun, GrowingReply())) as pieces:
                finished = [piece async for piece in pieces if isinstance(piece, TurnFinished)][-1]
        except ApiError as error:
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if finished is None:
        raise ApiError(
            401,
            "unauthorized",
            "The token expired or was revoked before the reply was ready. Ask for a new token.",
            _NO_RETRY,
        )
    _check_outcome(finished)
    await _remember(api, begun, finished.reply)
    return finished


async def _remember(api: Conversations, begun: PendingReply, reply: str) -> None:
    """Store the thread under the key that the conversation's next call will compute, and delete the stored request."""
    await _forget_request(api, begun)
    if begun.fresh:
        lines = (*begun.conversation.lines, Line("assistant", reply))
        await api.store.settings.put(SCOPE, _beginning(begun.conversation, lines), begun.thread)


def _check_outcome(finished: TurnFinished) -> None:
    if finished.outcome == "failed":
        raise ApiError(500, "turn_failed", finished.reply or "The turn failed.", _NO_RETRY)
    if finished.outcome == "aborted":
        raise ApiError(409, "aborted", "The turn was stopped before the reply was ready.", _NO_RETRY)


# ---- models ----


@routes("GET /v1/models", EVERYONE, narrows=True, answer=AnyObject)
async def models(api: Conversations, by: Principal) -> Response:
    """List the agents as models."""
    return json_answer({"object": "list", "data": [_model(name) for name in models_of(api, by)]})


@routes("GET /v1/models/{model}", EVERYONE, narrows=True, answer=AnyObject)
async def get_model(api: Conversations, by: Principal, model: str) -> Response:
    """Return an agent as a model."""
    return json_answer(_model(agent_of(api, by, model) or model))


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": "shoal"}


# ---- answers, complete or streamed ----


async def _respond(
    api: Conversations, begun: PendingReply, form: "_ChatForm | _ResponseForm", *, stream: bool
) -> Response:
    admitted = api.streams.admit()
    if stream:
        allowed = api.callers.access_check(begun.conversation.by, begun.thread)
        return EventStream(_frames(api, begun, form), api.streams, admitted, begun.headers, allowed=allowed)
    with admitted:
        response = json_answer(form.whole(await whole_reply(api, begun)))
    response.headers.update(begun.headers)
    return response


async def _frames(
    api: Conversations, begun: PendingReply, form: "_ChatForm | _ResponseForm"
) -> AsyncGenerator[bytes, None]:
    yield form.opening()
    growing = GrowingReply()
    try:
        async with aclosing(reply_pieces(api, begun, growing)) as pieces:
            async for piece in pieces:
                if isinstance(piece, TurnFinished):
                    _check_outcome(piece)
                    rest = growing.finish_turn(piece.reply)
                    await _remember(api, begun, growing.sent)
                    yield (form.delta(rest) if rest else b"") + form.closing(growing.sent, piece.usage)
                else:
                    yield form.delta(piece) if piece else HEARTBEAT
    except ApiError as error:
        yield form.failed(error)


# ---- input of both endpoints ----


def _conversation(
    api: Conversations, by: Principal, model: str, items: Sequence[CompatMessage], instructions: str | None, thread: str
) -> ClientConversation:
    messages = spoken(items)
    system = [item.line.text for item in messages if item.role in ("system", "developer")]
    lines: list[Line] = []
    files: list[list[InlineFile]] = []
    for number, item in enumerate(messages):
        item_files = [*item.files(f"messages[{number}]", accepts_audio=api.attachments.transcribe is not None)]
        if item.role in ("system", "developer"):
            continue
        line = item.line
        if lines and line.role == lines[-1].role == "user":
            lines[-1] = Line("user", f"{lines[-1].text}\n\n{line.text}".strip())
            files[-1] += item_files
        else:
            lines.append(line)
            files.append(item_files)
    if sum(map(len, files)) > FILES_MAX:
        raise InvalidInput(f"The conversation has more than {FILES_MAX} files. Send fewer files.")
    return ClientConversation(
        by=by,
        agent=agent_of(api, by, model),
        lines=tuple(lines),
        instructions="\n\n".join([*((instructions,) if instructions else ()), *system]),
        thread=thread,
        files=tuple(files[-1]) if files else (),
        earlier=tuple(file for some in files[:-1] for file in some),
    )


class ResponseFormat(msgspec.Struct, frozen=True):
    """Format of the response. Only `text` is supported."""

    type: str = "text"


def _refuse(reasons: Mapping[str, bool]) -> None:
    if why := next((why for why, holds in reasons.items() if holds), None):
        raise InvalidInput(why)


def _not_text(form: ResponseFormat | None) -> bool:
    return form is not None and form.type != "text"


# ---- POST /v1/chat/completions ----


class StreamOptions(msgspec.Struct, frozen=True):
    """Options for streaming. With `include_usage`, the last chunk contains the token counts."""

    include_usage: bool | None = False


class ChatRequest(msgspec.Struct, frozen=True):
    """A request for a chat completion. Other fields, such as `temperature`, are ignored, because the agent's settings
    apply.
    """

    model: str
    messages: Annotated[list[CompatMessage], msgspec.Meta(min_length=1)]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    n: int | None = 1
    tools: list[msgspec.Raw] | None = None
    functions: list[msgspec.Raw] | None = None
    logprobs: bool | None = None
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None


@routes(
    "POST /v1/chat/completions",
    TALKERS,
    narrows=True,
    answer=AnyObject,
    streams=True,
    body_bytes_max=BODY_BYTES_MAX,
)
async def chat(api: Conversations, request: Request, by: Principal, body: ChatRequest) -> Response:
    """Send the last message of a conversation to an agent and return the reply. `model` is the agent's name."""
    _refuse(
        {
            "`n` must be 1: an agent gives one answer.": body.n not in (None, 1),
            NO_TOOLS: bool(body.tools),
            "`functions` is not supported: the agent uses its own tools.": bool(body.functions),
            "`logprobs` is not supported.": bool(body.logprobs),
            "`response_format` must be text.": _not_text(body.response_format),
            "`modalities` must be text.": set(body.modalities or ["text"]) != {"text"},
        }
    )
    thread = chosen_thread(by, body.metadata, body.user)
    conversation = _conversation(api, by, body.model, body.messages, None, thread)
    with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    form, stream = _ChatForm(api, body.model, with_usage=with_usage), bool(body.stream)
    del body
    begun = await begin(api, request, conversation)
    del conversation
    return await _respond(api, begun, form, stream=stream)


class _ChatForm:
    """Formats a chat completion as one object (`whole`), or as a stream from `opening` to `closing` or `failed`."""

    def __init__(self, api: Conversations, model: str, *, with_usage: bool) -> None:
        created = int(api.clock.now().timestamp())
        self._head: dict[str, Json] = {"id": f"chatcmpl-{api.clock.new_id()}", "created": created, "model": model}
        self._with_usage = with_usage

    def whole(self, finished: TurnFinished) -> Json:
        message: Json = {"role": "assistant", "content": finished.reply, "refusal": None}
        choice: Json = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        usage = self._usage(finished.usage)
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage}

    def opening(self) -> bytes:
        return self._choice({"role": "assistant", "content": ""})

    def delta(self, text: str) -> bytes:
        return self._choice({"content": text})

    def closing(self, text: str, usage: Usage) -> bytes:
        used = self._chunk([], self._usage(usage)) if self._with_usage else b""
        return self._choice({}, "stop") + used + b"data: [DONE]\n\n"

    def failed(self, error: ApiError) -> bytes:
        return b"data: %s\n\n" % msgspec.json.encode(compat_body(error.status, error.code, str(error)))

    def _choice(self, delta: Json, finish_reason: str | None = None) -> bytes:
        return self._chunk([{"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}], None)

    def _chunk(self, choices: list[Json], usage: Json) -> bytes:
        chunk: Json = {**self._head, "object": "chat.completion.chunk", "choices": choices, "usage": usage}
        return b"data: %s\n\n" % msgspec.json.encode(chunk)

    def _usage(self, usage: Usage) -> Json:
        return {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        }


# ---- POST /v1/responses ----


class ResponseConversation(msgspec.Struct, frozen=True):
    """Reference to a conversation by its id."""

    id: str


class ResponseText(msgspec.Struct, frozen=True):
    """Options for the text of a response."""

    format: ResponseFormat | None = None


class ResponsesRequest(msgspec.Struct, frozen=True):
    """A request for a response. Other fields, such as `temperature`, are ignored, because the agent's settings
    apply.
    """

    model: str
    input: str | list[CompatMessage]
    instructions: str | None = None
    stream: bool | None = False
    previous_response_id: str | None = None
    conversation: str | ResponseConversation | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    tools: list[msgspec.Raw] | None = None
    text: ResponseText | None = None
    background: bool | None = None
    prompt: dict[str, msgspec.Raw] | None = None
    top_logprobs: int | None = None


@routes("POST /v1/responses", TALKERS, narrows=True, answer=AnyObject, streams=True, body_bytes_max=BODY_BYTES_MAX)
async def responses(api: Conversations, request: Request, by: Principal, body: ResponsesRequest) -> Response:
    """Send an input to an agent and return the reply. `model` is the agent's name. `previous_response_id` continues the
    thread of an earlier response.
    """
    _refuse(
        {
            NO_TOOLS: bool(body.tools),
            "`text.format` must be text.": _not_text(body.text and body.text.format),
            "`background` is not supported. Stream the response instead.": bool(body.background),
            "`prompt` is not supported. Set the agent's persona instead.": body.prompt is not None,
            "`top_logprobs` is not supported.": bool(body.top_logprobs),
        }
    )
    items = [CompatMessage("user", body.input)] if isinstance(body.input, str) else body.input
    if body.previous_response_id:
        thread = str(thread_of_response(by, body.previous_response_id))
    else:
        named = body.conversation.id if isinstance(body.conversation, ResponseConversation) else body.conversation
        thread = chosen_thread(by, body.metadata, named or body.user)
    conversation = _conversation(api, by, body.model, items, body.instructions, thread)
    begun = await begin(api, request, conversation)
    form, stream = _ResponseForm(api, begun, msgspec.structs.replace(body, input="")), bool(body.stream)
    del body, items, conversation
    return await _respond(api, begun, form, stream=stream)


class _ResponseForm:
    """Formats a response as one object (`whole`), or as a stream of numbered events."""

    def __init__(self, api: Conversations, begun: PendingReply, body: ResponsesRequest) -> None:
        fresh_id = api.clock.new_id()
        self._id = response_id(fresh_id, begun.thread)
        self._item = f"msg_{fresh_id}"
        self._where: dict[str, Json] = {"item_id": self._item, "output_index": 0, "content_index": 0}
        self._created_at = int(api.clock.now().timestamp())
        self._body = body
        self._number = 0

    def whole(self, finished: TurnFinished) -> Json:
        return self._response("completed", finished.reply, finished.usage)

    def _response(self, status: str, text: str | None, usage: Usage | None, error: Json = None) -> Json:
        body = self._body
        used: Json = None
        if usage is not None:
            cached: Json = {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens}
            used = {
                "input_tokens": usage.input_tokens,
                "input_tokens_details": cached,
                "output_tokens": usage.output_tokens,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
                "total_tokens": usage.input_tokens + usage.output_tokens,
            }
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "model": body.model,
            "output": [] if text is None else [self._message(text, status)],
            "error": error,
            "incomplete_details": None,
            "instructions": body.instructions,
            "metadata": dict(body.metadata or {}),
            "parallel_tool_calls": False,
            "previous_response_id": body.previous_response_id,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": used,
        }

    def opening(self) -> bytes:
        item: Json = {"type": "message", "id": self._item, "status": "in_progress", "role": "assistant", "content": []}
        started = self._response("in_progress", None, None)
        frames = (
            self._frame("response.created", {"response": started}),
            self._frame("response.in_progress", {"response": started}),
            self._frame("response.output_item.added", {"output_index": 0, "item": item}),
            self._frame("response.content_part.added", {**self._where, "part": _part("")}),
        )
        return b"".join(frames)

    def delta(self, text: str) -> bytes:
        return self._frame("response.output_text.delta", {**self._where, "delta": text, "logprobs": []})

    def closing(self, text: str, usage: Usage) -> bytes:
        item = self._message(text, "completed")
        whole = self._response("completed", text, usage)
        frames = (
            self._frame("response.output_text.done", {**self._where, "text": text, "logprobs": []}),
            self._frame("response.content_part.done", {**self._where, "part": _part(text)}),
            self._frame("response.output_item.done", {"output_index": 0, "item": item}),
            self._frame("response.completed", {"response": whole}),
        )
        return b"".join(frames)

    def failed(self, error: ApiError) -> bytes:
        detail: Json = {"code": "server_error", "message": str(error)}
        return self._frame("response.failed", {"response": self._response("failed", None, None, detail)})

    def _message(self, text: str, status: str) -> Json:
        return {"type": "message", "id": self._item, "status": status, "role": "assistant", "content": [_part(text)]}

    def _frame(self, kind: str, fields: dict[str, Json]) -> bytes:
        event: Json = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(event))


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
