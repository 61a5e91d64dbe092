"""The OpenAI-compatible calls: models, chat completions and responses. Each agent is a model."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.actors.principals import Principal
from shoal.domain.errors import InvalidInput
from shoal.domain.events import TurnFinished
from shoal.domain.messages import Usage
from shoal.surfaces.http.endpoints import EVERYONE, TALKERS, AnyObject, Routes, WebContext, json_answer
from shoal.surfaces.http.errors import ApiError, compat_body
from shoal.surfaces.http.openai_conversation import (
    ClientConversation,
    GrowingReply,
    Line,
    PendingReply,
    agent_of,
    begin,
    chosen_thread,
    image_ref,
    last_piece,
    models_of,
    reply_pieces,
    response_id,
    thread_of_response,
    whole_reply,
)
from shoal.surfaces.http.routes_threads import still_allowed
from shoal.surfaces.http.streams import HEARTBEAT, EventStream

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

NO_TOOLS = "`tools` must be left out: the agent uses its own tools."

routes = Routes()

# ---- models ----


@routes("GET /v1/models", EVERYONE, narrows=True, answer=AnyObject)
async def models(web: WebContext, by: Principal) -> Response:
    """The agents, as OpenAI's clients list models."""
    return json_answer({"object": "list", "data": [_model(name) for name in models_of(web, by)]})


@routes("GET /v1/models/{model}", EVERYONE, narrows=True, answer=AnyObject)
async def get_model(web: WebContext, by: Principal, model: str) -> Response:
    """One agent as a model."""
    return json_answer(_model(agent_of(web, by, model) or model))


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": "shoal"}


# ---- answering, whole or as a stream ----


async def _respond(
    web: WebContext, begun: PendingReply, form: "_ChatForm | _ResponseForm", *, stream: bool
) -> Response:
    admitted = web.streams.admit()
    if stream:
        allowed = still_allowed(web, begun.conversation.by, begun.thread)
        return EventStream(_frames(web, begun, form), web.streams, admitted, begun.headers, allowed=allowed)
    with admitted:
        response = json_answer(form.whole(await whole_reply(web, begun)))
    response.headers.update(begun.headers)
    return response


async def _frames(
    web: WebContext, begun: PendingReply, form: "_ChatForm | _ResponseForm"
) -> AsyncGenerator[bytes, None]:
    yield form.opening()
    growing = GrowingReply()
    try:
        async with aclosing(reply_pieces(web, begun, growing)) as pieces:
            async for piece in pieces:
                if isinstance(piece, TurnFinished):
                    rest = await last_piece(web, begun, growing, piece)
                    yield (form.delta(rest) if rest else b"") + form.closing(growing.sent, piece.usage)
                else:
                    yield form.delta(piece) if piece else HEARTBEAT
    except ApiError as error:
        yield form.failed(error)


# ---- what both calls take ----


class ImageUrl(msgspec.Struct, frozen=True):
    """An image as a data: address."""

    url: str


class CompatPart(msgspec.Struct, frozen=True):
    """A part of a message: text (`text`, `input_text` or `output_text`) or an image (`image_url`, `input_image`)."""

    type: str
    text: str = ""
    image_url: ImageUrl | str | None = None


class CompatMessage(msgspec.Struct, frozen=True):
    """A message of the conversation; other kinds of items are refused."""

    role: str = ""
    content: str | list[CompatPart] | None = None
    type: str = "message"

    @property
    def line(self) -> Line:
        if isinstance(self.content, list):
            texts = [part.text for part in self.content if part.type in ("text", "input_text", "output_text")]
            return Line(self.role, "\n".join(texts))
        return Line(self.role, self.content or "")


def _conversation(
    web: WebContext, by: Principal, model: str, items: list[CompatMessage], instructions: str | None, thread: str
) -> ClientConversation:
    """What the caller brings. Raises InvalidInput, ApiError 404 for an unknown model."""
    strange = next((item.type for item in items if item.type != "message"), None)
    if strange is not None:
        raise InvalidInput(f"The conversation holds an item of type {strange[:40]!r}; only messages are taken.")
    if not all(item.role for item in items):
        raise InvalidInput("A message of the conversation has no `role`.")
    spoken = [item for item in items if item.role in ("user", "assistant")]
    system = [item.line.text for item in items if item.role in ("system", "developer")]
    last = spoken[-1].content if spoken else None
    images = [part.image_url for part in last if part.image_url] if isinstance(last, list) else []
    return ClientConversation(
        by=by,
        agent=agent_of(web, by, model),
        lines=tuple(item.line for item in spoken),
        instructions="\n\n".join([*((instructions,) if instructions else ()), *system]),
        thread=thread,
        attachments=tuple(image_ref(image.url if isinstance(image, ImageUrl) else image) for image in images),
    )


# ---- POST /v1/chat/completions ----


class StreamOptions(msgspec.Struct, frozen=True):
    """With `include_usage` the tokens used come as the last chunk."""

    include_usage: bool = False


class ChatRequest(msgspec.Struct, frozen=True):
    """A chat completion. What is not listed is ignored: the agent's own settings count."""

    model: str
    messages: Annotated[list[CompatMessage], msgspec.Meta(min_length=1)]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    n: int | None = 1
    tools: list[msgspec.Raw] | None = None


@routes("POST /v1/chat/completions", TALKERS, narrows=True, answer=AnyObject, streams=True)
async def chat(web: WebContext, request: Request, by: Principal, body: ChatRequest) -> Response:
    """Let an agent answer a conversation; `model` is the agent's name."""
    if body.n not in (None, 1):
        raise InvalidInput("`n` must be 1: an agent gives one answer.")
    if body.tools:
        raise InvalidInput(NO_TOOLS)
    thread = chosen_thread(by, body.metadata, body.user)
    begun = await begin(web, request, _conversation(web, by, body.model, body.messages, None, thread))
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    return await _respond(web, begun, _ChatForm(web, body.model, with_usage=with_usage), stream=bool(body.stream))


class _ChatForm:
    """A chat completion: `whole`, or as a stream of chunks from `opening` on, which ends with `closing` or `failed`."""

    def __init__(self, web: WebContext, model: str, *, with_usage: bool) -> None:
        created = int(web.app.clock.now().timestamp())
        self._head: dict[str, Json] = {"id": f"chatcmpl-{web.app.clock.new_id()}", "created": created, "model": model}
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
    """A conversation by its id."""

    id: str


class ResponsesRequest(msgspec.Struct, frozen=True):
    """A response. What is not listed is ignored: the agent's own settings count."""

    model: str
    input: str | list[CompatMessage]
    instructions: str | None = None
    stream: bool | None = False
    previous_response_id: str | None = None
    conversation: str | ResponseConversation | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    tools: list[msgspec.Raw] | None = None


@routes("POST /v1/responses", TALKERS, narrows=True, answer=AnyObject, streams=True)
async def responses(web: WebContext, request: Request, by: Principal, body: ResponsesRequest) -> Response:
    """Let an agent answer; `model` is the agent's name, `previous_response_id` continues its thread."""
    if body.tools:
        raise InvalidInput(NO_TOOLS)
    items = [CompatMessage("user", body.input)] if isinstance(body.input, str) else body.input
    if body.previous_response_id:
        thread = str(thread_of_response(by, body.previous_response_id))
    else:
        named = body.conversation.id if isinstance(body.conversation, ResponseConversation) else body.conversation
        thread = chosen_thread(by, body.metadata, named or body.user)
    begun = await begin(web, request, _conversation(web, by, body.model, items, body.instructions, thread))
    return await _respond(web, begun, _ResponseForm(web, begun, body), stream=bool(body.stream))


class _ResponseForm:
    """A response, whole or as events, which are numbered."""

    def __init__(self, web: WebContext, begun: PendingReply, body: ResponsesRequest) -> None:
        fresh_id = web.app.clock.new_id()
        self._id = response_id(fresh_id, begun.thread)
        self._item = f"msg_{fresh_id}"
        self._where: dict[str, Json] = {"item_id": self._item, "output_index": 0, "content_index": 0}
        self._created_at = int(web.app.clock.now().timestamp())
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
