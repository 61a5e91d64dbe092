"""Repair messages of MCP servers that violate the protocol, before the strict `mcp` package parses them.

- `mended` converts a malformed message to JSON-RPC. It accepts a byte order mark, a batch, a string as an error code,
  `result: null` and lone surrogates.
- `TolerantDispatcher` converts responses to a form that the package always accepts. The original listing or result is
  stored under RAW in `_meta`, where Shoal reads it field by field.
"""

import json
from collections.abc import Mapping
from typing import TypeAlias, cast

from mcp import types
from mcp.shared.dispatcher import CallOptions
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types import methods
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from pydantic import ValidationError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Message: TypeAlias = "dict[str, Json]"

RAW = "shoal/raw"
"""Key in `_meta` that holds the server's original response."""
INTERNAL_ERROR = -32603
BATCH_MAX = 100
WORDS_CHARS_MAX = 2_000


def mended(sent: object) -> list[Message]:
    """Return the JSON-RPC messages that a server sent. `sent` is text or parsed JSON. Return an empty list for text
    without a message, such as a log line.
    """
    if isinstance(sent, bytes):
        sent = sent.decode("utf-8", errors="replace")
    if isinstance(sent, str):
        text = sent.lstrip("\ufeff \t\r\n\0")
        begin = 0 if text[:1] in ("{", "[") else text.find('{"jsonrpc"')
        if begin < 0:
            return []
        try:
            sent = json.loads(text[begin:], strict=False)
        except (ValueError, RecursionError):
            return []
    messages = cast("list[object]", sent)[:BATCH_MAX] if isinstance(sent, list) else [sent]
    usable = [_mended(cast("Message", message)) for message in messages if isinstance(message, dict)]
    return [message for message in usable if message]


def _mended(message: Message) -> Message:
    made: Message = {"jsonrpc": "2.0"}
    number = message.get("id")
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, int | str) and not isinstance(number, bool):
        made["id"] = number
    if isinstance(message.get("method"), str):
        params = message.get("params")
        made["method"] = message["method"]
        return cast("Message", _readable({**made, "params": params} if isinstance(params, dict) else made))
    if (error := message.get("error")) is not None and not (error is False or (error == {} and "result" in message)):
        return cast("Message", _readable({"id": None, **made, "error": _error(error)}))
    if "result" in message and "id" in made:
        result = message["result"]
        made["result"] = result if isinstance(result, dict) else {} if result is None else {"content": result}
        return cast("Message", _readable(made))
    return {}


def _error(error: Json) -> Message:
    given = error if isinstance(error, dict) else {"message": error}
    code, words = given.get("code"), given.get("message")
    message = words if isinstance(words, str) else "" if words is None else json.dumps(words)[:WORDS_CHARS_MAX]
    if isinstance(code, str) and code.strip().lstrip("-").isdecimal() and len(code) < 12:
        code = int(code)
    if not isinstance(code, int) or isinstance(code, bool):
        named = code if isinstance(code, str) else ""
        message, code = ": ".join(part for part in (named, message) if part), INTERNAL_ERROR
    if not message:
        message = json.dumps(given.get("data", given), default=str)[:WORDS_CHARS_MAX]
    made: Message = {"code": code, "message": message}
    return {**made, "data": given["data"]} if "data" in given else made


def _readable(value: Json) -> Json:
    match value:
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return value
        case list():
            return [_readable(item) for item in value]
        case dict():
            return {cast("str", _readable(key)): _readable(item) for key, item in value.items()}
        case _:
            return value


def mended_json(body: bytes) -> bytes:
    """Repair an HTTP body, which must contain a single JSON-RPC message. Return a body without a message unchanged."""
    try:
        types.jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValidationError:
        messages = mended(body)
        answers = [message for message in messages if "method" not in message] or messages
        return json.dumps(answers[0]).encode() if answers else body
    return body


def mended_event(line: bytes) -> bytes:
    """Repair the JSON-RPC message in a `data:` line of an event stream. Return other lines unchanged."""
    if not line.startswith(b"data:") or not line[5:].strip():
        return line
    ending = line[len(line.rstrip(b"\r\n")) :]
    body = line[5:].strip()
    return b"data: " + mended_json(body) + ending if body[:1] in (b"{", b"[", b"\xef") else line


class TolerantDispatcher(JSONRPCDispatcher[TransportContext]):
    """Dispatcher that converts responses to the form that the package's models expect."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, object] | None, opts: CallOptions | None = None, **more: object
    ) -> dict[str, object]:
        answer = await super().send_raw_request(method, params, opts, **more)  # pyright: ignore[reportArgumentType]
        return accepted(method, answer)


def accepted(method: str, answer: dict[str, object]) -> dict[str, object]:
    """Convert a response to `initialize`, `tools/list` or `tools/call` to a form that the package accepts.

    Responses to other methods are returned unchanged.
    """
    if method == "initialize":
        version, instructions = answer.get("protocolVersion"), answer.get("instructions")
        known = version if version in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
        server = {"name": "", "version": ""}
        about = {"instructions": instructions} if isinstance(instructions, str) else {}
        return {"protocolVersion": known, "capabilities": {"tools": {}}, "serverInfo": server, **about}
    complete: dict[str, object] = {"resultType": "complete", "_meta": {RAW: answer}}
    if method == "tools/list":
        tools = [tool for tool in listed(answer) if _is_taken(tool)]
        cursor = answer.get("nextCursor")
        page = {"nextCursor": cursor} if isinstance(cursor, str) and cursor else {}
        return {**complete, "ttlMs": 0, "cacheScope": "private", "tools": tools, **page}
    return {**complete, "content": []} if method == "tools/call" else answer


def listed(answer: Mapping[str, object]) -> list[object]:
    """Return the tool definitions in a `tools/list` response. Accepts a list, or an object keyed by tool name."""
    tools = answer.get("tools")
    if tools is None and isinstance(answer.get("content"), list):
        tools = answer["content"]  # `mended` wraps a bare list in `content`
    if isinstance(tools, dict):
        by_name = cast("dict[str, object]", tools)
        return [
            {"name": name, **cast("dict[str, object]", definition)}
            for name, definition in by_name.items()
            if isinstance(definition, dict)
        ]
    return cast("list[object]", tools) if isinstance(tools, list) else []


def _is_taken(tool: object) -> bool:
    for version in (LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION):
        page = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "tools": [tool]}
        try:
            methods.validate_server_result("tools/list", version, page)
            types.Tool.model_validate(tool)
        except ValidationError:
            return False
    return True
