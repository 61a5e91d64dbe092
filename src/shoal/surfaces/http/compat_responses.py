"""`POST /v1/responses`: an agent behind OpenAI's responses interface."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.domain.errors import InvalidInput
from shoal.domain.events import TurnFinished
from shoal.domain.messages import Usage
from shoal.surfaces.http.attachments import AttachmentRef
from shoal.surfaces.http.compat import (
    Begun,
    Conversation,
    Growing,
    Json,
    Line,
    agent_of,
    begin,
    chosen_thread,
    image_ref,
    last_piece,
    reply_pieces,
    response_id,
    still_allowed_in,
    thread_of_response,
    whole_reply,
)
from shoal.surfaces.http.core import Web
from shoal.surfaces.http.endpoints import TALKERS, Answer, AnyObject, Endpoint, caller, json_answer
from shoal.surfaces.http.errors import ApiError
from shoal.surfaces.http.parse import read_json
from shoal.surfaces.http.principal import Principal
from shoal.surfaces.http.streams import HEARTBEAT, EventStream


class InputPart(msgspec.Struct, frozen=True):
    """A part of a message: `input_text`, `output_text` or `input_image`."""

    type: str
    text: str = ""
    image_url: str | None = None


class InputItem(msgspec.Struct, frozen=True):
    """A message of the conversation; other kinds of items are refused."""

    role: str = ""
    content: str | list[InputPart] = ""
    type: str = "message"


class ConversationRef(msgspec.Struct, frozen=True):
    """A conversation by its id."""

    id: str


class ResponsesRequest(msgspec.Struct, frozen=True):
    """A response. What is not listed is ignored: the agent's own settings count."""

    model: str
    input: str | list[InputItem]
    instructions: str | None = None
    stream: bool | None = False
    previous_response_id: str | None = None
    conversation: str | ConversationRef | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    tools: list[msgspec.Raw] | None = None


def _conversation(web: Web, by: Principal, body: ResponsesRequest) -> Conversation:
    if body.tools:
        raise InvalidInput("`tools` must be left out: the agent uses its own tools.")
    items = [InputItem("user", body.input)] if isinstance(body.input, str) else body.input
    strange = next((item.type for item in items if item.type != "message"), None)
    if strange is not None:
        raise InvalidInput(f"`input` holds an item of type {strange[:40]!r}; only messages are taken.")
    spoken = [item for item in items if item.role in ("user", "assistant")]
    told = [_text(item) for item in items if item.role in ("system", "developer")]
    return Conversation(
        by=by,
        agent=agent_of(web, by, body.model),
        lines=tuple(Line(item.role, _text(item)) for item in spoken),
        instructions="\n\n".join((*((body.instructions,) if body.instructions else ()), *told)),
        thread=_thread(by, body),
        attachments=_images(spoken[-1]) if spoken else (),
    )


def _thread(by: Principal, body: ResponsesRequest) -> str:
    if body.previous_response_id:
        return thread_of_response(by, body.previous_response_id)
    named = body.conversation.id if isinstance(body.conversation, ConversationRef) else body.conversation
    return chosen_thread(by, body.metadata, named or body.user)


def _text(item: InputItem) -> str:
    if isinstance(item.content, str):
        return item.content
    return "\n".join(part.text for part in item.content if part.type in ("input_text", "output_text", "text"))


def _images(item: InputItem) -> tuple[AttachmentRef, ...]:
    if isinstance(item.content, str):
        return ()
    return tuple(image_ref(part.image_url) for part in item.content if part.image_url)


async def _responses(web: Web, request: Request) -> Response:
    body = await read_json(request, ResponsesRequest, seconds=web.options.body_seconds)
    conversation = _conversation(web, caller(request), body)
    admitted = web.streams.admit()
    begun = await begin(web, request, conversation)
    result = _Result(web, begun, body)
    if body.stream:
        frames = _frames(web, begun, result)
        return EventStream(frames, web.streams, admitted, begun.headers, allowed=still_allowed_in(web, begun))
    with admitted:
        response = json_answer(await _whole(web, begun, result))
    response.headers.update(begun.headers)
    return response


async def _whole(web: Web, begun: Begun, result: "_Result") -> Json:
    finished = await whole_reply(web, begun)
    return result.response("completed", finished.reply, finished.usage)


async def _frames(web: Web, begun: Begun, result: "_Result") -> AsyncGenerator[bytes, None]:
    yield result.opening()
    try:
        async with aclosing(_answer(web, begun, result)) as frames:
            async for frame in frames:
                yield frame
    except ApiError as error:
        yield result.failed(error)


async def _answer(web: Web, begun: Begun, result: "_Result") -> AsyncGenerator[bytes, None]:
    growing = Growing()
    async with aclosing(reply_pieces(web, begun, growing)) as pieces:
        async for piece in pieces:
            if isinstance(piece, TurnFinished):
                rest = await last_piece(web, begun, growing, piece)
                yield (result.delta(rest) if rest else b"") + result.closing(growing.sent, piece.usage)
            else:
                yield result.delta(piece) if piece else HEARTBEAT


class _Result:
    """The wire forms of one response; every frame of a stream has a sequence number."""

    def __init__(self, web: Web, begun: Begun, body: ResponsesRequest) -> None:
        fresh_id = web.core.clock.new_id()
        self._id = response_id(fresh_id, begun.thread)
        self._item = f"msg_{fresh_id}"
        self._created_at = int(web.core.clock.now().timestamp())
        self._body = body
        self._number = 0

    def response(self, status: str, text: str | None, usage: Usage | None, error: Json = None) -> Json:
        body = self._body
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
            "usage": None if usage is None else _usage(usage),
        }

    def opening(self) -> bytes:
        item: Json = {"type": "message", "id": self._item, "status": "in_progress", "role": "assistant", "content": []}
        started = self.response("in_progress", None, None)
        frames = (
            self._frame("response.created", {"response": started}),
            self._frame("response.in_progress", {"response": started}),
            self._frame("response.output_item.added", {"output_index": 0, "item": item}),
            self._frame("response.content_part.added", {**self._place(), "part": _part("")}),
        )
        return b"".join(frames)

    def delta(self, text: str) -> bytes:
        return self._frame("response.output_text.delta", {**self._place(), "delta": text, "logprobs": []})

    def closing(self, text: str, usage: Usage) -> bytes:
        item = self._message(text, "completed")
        whole = self.response("completed", text, usage)
        frames = (
            self._frame("response.output_text.done", {**self._place(), "text": text, "logprobs": []}),
            self._frame("response.content_part.done", {**self._place(), "part": _part(text)}),
            self._frame("response.output_item.done", {"output_index": 0, "item": item}),
            self._frame("response.completed", {"response": whole}),
        )
        return b"".join(frames)

    def failed(self, error: ApiError) -> bytes:
        detail: Json = {"code": "server_error", "message": str(error)}
        return self._frame("response.failed", {"response": self.response("failed", None, None, detail)})

    def _place(self) -> dict[str, Json]:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _message(self, text: str, status: str) -> Json:
        return {"type": "message", "id": self._item, "status": status, "role": "assistant", "content": [_part(text)]}

    def _frame(self, kind: str, fields: dict[str, Json]) -> bytes:
        event: Json = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(event))


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


ENDPOINTS = (
    Endpoint(
        method="POST", path="/v1/responses", handler=_responses, scopes=TALKERS, narrows=True, body=ResponsesRequest,
        summary="Let an agent answer; `model` is the agent's name, `previous_response_id` goes on in its thread.",
        answer=Answer("The response, or its events with `stream`.", AnyObject, streams=True),
    ),
)  # fmt: skip
