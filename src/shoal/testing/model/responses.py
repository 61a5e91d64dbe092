"""The server side of OpenAI's Responses API. Like the real API, it rejects encrypted reasoning that was changed."""

import hashlib
from typing import Protocol

import msgspec

from shoal.kernel.messages import MORE_TOOLS, Usage
from shoal.testing.model.answer import CREATED, Answer, fill, fragments, named_frame, text_json
from shoal.testing.model.script import Call, Refusal, Seen, SeenMessage


class _Put(Protocol):
    def __call__(self, name: str, template: str, /, *values: str | bytes | int) -> None: ...


class _Part(msgspec.Struct):
    type: str
    text: str = ""


class _Item(msgspec.Struct):
    type: str = "message"
    role: str = ""
    content: str | list[_Part] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str | dict[str, msgspec.Raw] = ""
    execution: str = ""
    tools: list["_Tool"] = []
    output: str | list[_Part] = ""
    summary: list[_Part] = []
    encrypted_content: str | None = None


class _Tool(msgspec.Struct):
    type: str = "function"
    name: str = ""
    execution: str = ""
    defer_loading: bool = False


class _Request(msgspec.Struct):
    model: str
    input: str | list[_Item]
    instructions: str | None = None
    tools: list[_Tool] = []
    stream: bool = False
    prompt_cache_key: str = ""
    user: str = ""


class _RawRequest(msgspec.Struct):
    input: msgspec.Raw
    instructions: msgspec.Raw = msgspec.Raw(b"null")
    tools: msgspec.Raw = msgspec.Raw(b"[]")


_decoder = msgspec.json.Decoder(_Request)
_raw_decoder = msgspec.json.Decoder(_RawRequest)
_items = msgspec.json.Decoder(list[msgspec.Raw])


def encrypt(thinking: str) -> str:
    return "enc-" + hashlib.sha256(thinking.encode()).hexdigest()[:32]


def _text(content: str | list[_Part] | None) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content or ())


def _images(content: str | list[_Part] | None) -> int:
    return sum(part.type == "input_image" for part in content) if isinstance(content, list) else 0


def _messages(items: list[_Item]) -> list[SeenMessage]:
    """Convert the items. Consecutive calls and the text that precedes them become one assistant message."""
    messages: list[SeenMessage] = []
    for item in items:
        last = messages[-1] if messages else None
        open_last = last if last is not None and last.role == "assistant" else None
        match item.type:
            case "function_call" | "tool_search_call":
                given = (
                    item.arguments if isinstance(item.arguments, str) else msgspec.json.encode(item.arguments).decode()
                )
                call = Call(item.name if item.type == "function_call" else MORE_TOOLS, given, item.call_id)
                if open_last is not None:
                    messages[-1] = msgspec.structs.replace(open_last, calls=(*open_last.calls, call))
                else:
                    messages.append(SeenMessage("assistant", "", (call,)))
            case "function_call_output":
                images = _images(item.output)
                messages.append(SeenMessage("tool", _text(item.output), call_id=item.call_id, images=images))
            case "tool_search_output":
                names = " ".join(tool.name for tool in item.tools)
                messages.append(SeenMessage("tool", names, call_id=item.call_id))
            case "message" | "":
                role = {"assistant": "assistant", "system": "system", "developer": "system"}.get(item.role, "user")
                message = SeenMessage(role, _text(item.content), images=_images(item.content))  # pyright: ignore[reportArgumentType]
                messages.append(message)
            case _:
                pass
    return messages


def _check_reasoning(seen: Seen, items: list[_Item]) -> None:
    for item in items:
        if item.type == "reasoning" and item.encrypted_content != encrypt(_text(item.summary)):
            seen.problem = "The encrypted content could not be verified."
        elif item.type == "reasoning":
            seen.signed += 1


def usage_json(usage: Usage) -> bytes:
    return fill(
        '{"input_tokens":~,"input_tokens_details":{"cached_tokens":~,"cache_write_tokens":0},"output_tokens":~,'
        '"output_tokens_details":{"reasoning_tokens":~},"total_tokens":~}',
        usage.input_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
        usage.input_tokens + usage.output_tokens,
    )


class ResponsesWire:
    def read(self, body: bytes, path: str) -> Seen:
        request = _decoder.decode(body)
        raw = _raw_decoder.decode(body)
        items = [_Item(role="user", content=request.input)] if isinstance(request.input, str) else request.input
        messages = [SeenMessage("system", request.instructions)] if request.instructions else []
        messages.extend(_messages(items))
        names = [tool.name for item in items if item.type == "tool_search_output" for tool in item.tools]
        searches = [tool for tool in request.tools if tool.type == "tool_search"]
        offered = [MORE_TOOLS if tool in searches else tool.name for tool in request.tools]
        seen = Seen("responses", request.model, tuple(messages), tuple(dict.fromkeys((*offered, *names))))
        if names and not searches:
            seen.problem = "A tool_search_output needs the tool_search tool."
        if any(tool.execution != "client" for tool in searches) or any(
            not tool.defer_loading for item in items if item.type == "tool_search_output" for tool in item.tools
        ):
            seen.problem = (
                "The tools in a tool_search_output must be deferred, and only client-side tool search is "
                "supported here."
            )
        seen.searches = bool(searches)
        seen.stream = request.stream
        parts = [bytes(raw.input)] if isinstance(request.input, str) else [bytes(r) for r in _items.decode(raw.input)]
        seen.key = request.prompt_cache_key or request.user or repr((bytes(raw.instructions), parts[:1]))
        seen.prompt = b"\n".join((bytes(raw.instructions), bytes(raw.tools), *parts))
        _check_reasoning(seen, items)
        return seen

    def events(self, answer: Answer, seen: Seen) -> list[bytes]:
        frames: list[bytes] = []

        def put(name: str, template: str, *values: str | bytes | int) -> None:
            body = fill('{"type":~,"sequence_number":~,', name, len(frames)) + fill(template, *values) + b"}"
            frames.append(named_frame(name, body))

        opening = self._document(answer, "in_progress", b"")
        put("response.created", '"response":~', opening)
        put("response.in_progress", '"response":~', opening)
        items = self._items(answer, searches=seen.searches)
        for index, (kind, item) in enumerate(items):
            if kind == "reasoning":
                put("response.output_item.added", '"output_index":~,"item":~', index, self._empty_reasoning(answer))
                where = '"item_id":~,"output_index":~,"summary_index":0'
                put("response.reasoning_summary_text.delta", where + ',"delta":~', "rs_0", index, answer.thinking)
            elif kind == "message":
                self._put_text(put, index, answer)
            elif kind != "search":
                self._put_call(put, index, answer.calls[int(kind)])
            put("response.output_item.done", '"output_index":~,"item":~', index, item)
        status = "incomplete" if answer.stop in ("max_tokens", "refusal") else "completed"
        document = self._document(answer, status, b",".join(item for _, item in items))
        put(f"response.{status}", '"response":~', document)
        return frames

    def _put_text(self, put: _Put, index: int, answer: Answer) -> None:
        empty = b'{"id":"msg_0","type":"message","status":"in_progress","role":"assistant","content":[]}'
        put("response.output_item.added", '"output_index":~,"item":~', index, empty)
        where = '"item_id":"msg_0","output_index":~,"content_index":0'
        part = '"part":{"type":"output_text","text":~,"annotations":[],"logprobs":[]}'
        put("response.content_part.added", f"{where},{part}", index, "")
        for piece in answer.pieces:
            put("response.output_text.delta", where + ',"delta":~,"logprobs":[]', index, piece)
        put("response.output_text.done", where + ',"text":~,"logprobs":[]', index, answer.text)
        put("response.content_part.done", f"{where},{part}", index, answer.text)

    def _put_call(self, put: _Put, index: int, call: Call) -> None:
        empty = fill(
            '{"id":~,"type":"function_call","status":"in_progress","arguments":"","call_id":~,"name":~}',
            "fc_" + call.id,
            call.id,
            call.name,
        )
        put("response.output_item.added", '"output_index":~,"item":~', index, empty)
        for part in fragments(call.arguments):
            where = '"item_id":~,"output_index":~,"delta":~'
            put("response.function_call_arguments.delta", where, "fc_" + call.id, index, part)
        where = '"item_id":~,"output_index":~,"name":~,"arguments":~'
        put("response.function_call_arguments.done", where, "fc_" + call.id, index, call.name, call.arguments)

    def _empty_reasoning(self, answer: Answer) -> bytes:
        return fill('{"id":"rs_0","type":"reasoning","summary":[],"encrypted_content":~}', "incomplete")

    def _items(self, answer: Answer, *, searches: bool = False) -> list[tuple[str, bytes]]:
        items: list[tuple[str, bytes]] = []
        if answer.thinking:
            body = '{"id":"rs_0","type":"reasoning","summary":[{"type":"summary_text","text":~}],"encrypted_content":~}'
            items.append(("reasoning", fill(body, answer.thinking, encrypt(answer.thinking))))
        if answer.pieces:
            part = fill('{"type":"output_text","text":~,"annotations":[],"logprobs":[]}', answer.text)
            body = '{"id":"msg_0","type":"message","status":"completed","role":"assistant","content":[~]}'
            items.append(("message", fill(body, part)))
        for index, call in enumerate(answer.calls):
            if searches and call.name == MORE_TOOLS:
                body = '{"id":~,"type":"tool_search_call","execution":"client","call_id":~,"status":"completed",'
                body += '"arguments":~}'
                items.append(("search", fill(body, "ts_" + call.id, call.id, call.arguments.encode())))
                continue
            body = '{"id":~,"type":"function_call","status":"completed","arguments":~,"call_id":~,"name":~}'
            items.append((str(index), fill(body, "fc_" + call.id, call.arguments, call.id, call.name)))
        return items

    def _document(self, answer: Answer, status: str, output: bytes) -> bytes:
        reason = {"max_tokens": b'{"reason":"max_output_tokens"}', "refusal": b'{"reason":"content_filter"}'}
        incomplete = reason.get(answer.stop, b"null") if status == "incomplete" else b"null"
        return fill(
            '{"id":~,"object":"response","created_at":~,"status":~,"error":null,"incomplete_details":~,"model":~,'
            '"output":[~],"usage":~,"parallel_tool_calls":true,"tool_choice":"auto","tools":[],"instructions":null,'
            '"metadata":{},"temperature":1.0,"top_p":1.0,"store":false}',
            answer.id,
            CREATED,
            status,
            incomplete,
            answer.model,
            output,
            b"null" if status == "in_progress" else usage_json(answer.usage),
        )

    def whole(self, answer: Answer) -> bytes:
        status = "incomplete" if answer.stop in ("max_tokens", "refusal") else "completed"
        return self._document(answer, status, b",".join(item for _, item in self._items(answer)))

    def refuse(self, refusal: Refusal) -> bytes:
        kind = "invalid_request_error" if refusal.status < 500 else "server_error"
        code = text_json(refusal.code) if refusal.code else b"null"
        return fill('{"error":{"message":~,"type":~,"param":null,"code":~}}', refusal.message, kind, code)

    def refuse_in_stream(self, refusal: Refusal) -> bytes:
        failed = fill(
            '{"type":"response.failed","sequence_number":1,"response":{"id":"resp_failed","object":"response",'
            '"created_at":~,"status":"failed","error":{"code":~,"message":~},"incomplete_details":null,"model":"",'
            '"output":[],"parallel_tool_calls":true,"tool_choice":"auto","tools":[]}}',
            CREATED,
            refusal.code or "server_error",
            refusal.message,
        )
        return named_frame("response.failed", failed)
