"""`POST /v1/chat/completions`: an agent behind OpenAI's chat interface."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

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
    still_allowed_in,
    whole_reply,
)
from shoal.surfaces.http.core import Web
from shoal.surfaces.http.endpoints import TALKERS, Answer, AnyObject, Endpoint, caller, json_answer
from shoal.surfaces.http.errors import ApiError, compat_body
from shoal.surfaces.http.parse import read_json
from shoal.surfaces.http.principal import Principal
from shoal.surfaces.http.streams import HEARTBEAT, EventStream


class ImageUrl(msgspec.Struct, frozen=True):
    """An image as a data: address."""

    url: str


class ContentPart(msgspec.Struct, frozen=True):
    """A part of a message: `text` or `image_url`."""

    type: str
    text: str = ""
    image_url: ImageUrl | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """A message of the conversation."""

    role: str
    content: str | list[ContentPart] | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    """With `include_usage` the tokens used come as the last chunk."""

    include_usage: bool = False


class ChatRequest(msgspec.Struct, frozen=True):
    """A chat completion. What is not listed is ignored: the agent's own settings count."""

    model: str
    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    n: int | None = 1
    tools: list[msgspec.Raw] | None = None


def _conversation(web: Web, by: Principal, body: ChatRequest) -> Conversation:
    if body.n not in (None, 1):
        raise InvalidInput("`n` must be 1: an agent gives one answer.")
    if body.tools:
        raise InvalidInput("`tools` must be left out: the agent uses its own tools.")
    spoken = [message for message in body.messages if message.role in ("user", "assistant")]
    told = [_text(message) for message in body.messages if message.role in ("system", "developer")]
    return Conversation(
        by=by,
        agent=agent_of(web, by, body.model),
        lines=tuple(Line(message.role, _text(message)) for message in spoken),
        instructions="\n\n".join(told),
        thread=chosen_thread(by, body.metadata, body.user),
        attachments=_images(spoken[-1]) if spoken else (),
    )


def _text(message: ChatMessage) -> str:
    match message.content:
        case None:
            return ""
        case str() as text:
            return text
        case parts:
            return "\n".join(part.text for part in parts if part.type == "text")


def _images(message: ChatMessage) -> tuple[AttachmentRef, ...]:
    if message.content is None or isinstance(message.content, str):
        return ()
    return tuple(image_ref(part.image_url.url) for part in message.content if part.image_url is not None)


async def _chat(web: Web, request: Request) -> Response:
    body = await read_json(request, ChatRequest, seconds=web.options.body_seconds)
    conversation = _conversation(web, caller(request), body)
    admitted = web.streams.admit()
    begun = await begin(web, request, conversation)
    completion = _Completion(web, f"chatcmpl-{web.core.clock.new_id()}", body.model)
    if body.stream:
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        chunks = _chunks(web, begun, completion, with_usage=with_usage)
        return EventStream(chunks, web.streams, admitted, begun.headers, allowed=still_allowed_in(web, begun))
    with admitted:
        response = json_answer(await _whole(web, begun, completion))
    response.headers.update(begun.headers)
    return response


async def _whole(web: Web, begun: Begun, completion: "_Completion") -> Json:
    return completion.whole(await whole_reply(web, begun))


async def _chunks(
    web: Web, begun: Begun, completion: "_Completion", *, with_usage: bool
) -> AsyncGenerator[bytes, None]:
    yield completion.chunk({"role": "assistant", "content": ""})
    try:
        async with aclosing(_answer(web, begun, completion, with_usage=with_usage)) as chunks:
            async for chunk in chunks:
                yield chunk
    except ApiError as error:
        yield b"data: %s\n\n" % msgspec.json.encode(compat_body(error.status, error.code, str(error)))


async def _answer(
    web: Web, begun: Begun, completion: "_Completion", *, with_usage: bool
) -> AsyncGenerator[bytes, None]:
    growing = Growing()
    async with aclosing(reply_pieces(web, begun, growing)) as pieces:
        async for piece in pieces:
            if isinstance(piece, TurnFinished):
                rest = await last_piece(web, begun, growing, piece)
                yield completion.ending(rest, piece.usage if with_usage else None)
            else:
                yield completion.chunk({"content": piece}) if piece else HEARTBEAT


class _Completion:
    """The wire forms of one completion."""

    def __init__(self, web: Web, completion_id: str, model: str) -> None:
        self._head: dict[str, Json] = {
            "id": completion_id,
            "created": int(web.core.clock.now().timestamp()),
            "model": model,
        }

    def whole(self, finished: TurnFinished) -> Json:
        message: Json = {"role": "assistant", "content": finished.reply, "refusal": None}
        choice: Json = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": _usage(finished.usage)}

    def chunk(self, delta: Json, finish_reason: str | None = None) -> bytes:
        choice: Json = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return self._frame([choice], None)

    def ending(self, rest: str, usage: Usage | None) -> bytes:
        text = self.chunk({"content": rest}) if rest else b""
        used = b"" if usage is None else self._frame([], _usage(usage))
        return text + self.chunk({}, "stop") + used + b"data: [DONE]\n\n"

    def _frame(self, choices: list[Json], usage: Json) -> bytes:
        chunk: Json = {**self._head, "object": "chat.completion.chunk", "choices": choices, "usage": usage}
        return b"data: %s\n\n" % msgspec.json.encode(chunk)


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


ENDPOINTS = (
    Endpoint(
        method="POST", path="/v1/chat/completions", handler=_chat, scopes=TALKERS, narrows=True, body=ChatRequest,
        summary="Let an agent answer a conversation; `model` is the agent's name.",
        answer=Answer("The completion, or its chunks with `stream`.", AnyObject, streams=True),
    ),
)  # fmt: skip
