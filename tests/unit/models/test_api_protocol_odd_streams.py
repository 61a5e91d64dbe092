"""Non-standard streams from real servers: the answer contains everything that arrived.

Seen in CLIProxyAPI#2460 and openai-python#2722 (empty `data:`), vllm-project/aibrix#2653 (cut events), sub2api#1471 (an
error inside an event), brainlid/langchain#569 (comments), client-js#18 (raw line ends), and in the issue trackers of
LiteLLM, vLLM, llama.cpp, Ollama and SGLang.
"""

import gzip
import json
import random
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.connections import listening
from tests.unit.net.test_http import events, saying

from shoal.kernel.messages import ModelDone, ModelFailed
from shoal.models.answers import AnswerContext
from shoal.models.anthropic import AnthropicMessages
from shoal.models.api_protocol import ApiProtocol
from shoal.models.gemini import GeminiContents
from shoal.models.http_provider import EventParser
from shoal.models.openai import OpenAiChat, OpenAiResponses

TEXT = "Grüße, 🐟 und mehr"
END = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def delta(text: str, **more: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}


def sse(*found: object, end: str = END) -> bytes:
    return "".join(f"data: {json.dumps(one)}\n\n" for one in found).encode() + end.encode()


def read(stream: bytes, protocol: ApiProtocol | None = None, size: int = 7) -> ModelDone | ModelFailed:
    protocol = protocol or OpenAiChat()
    reader = protocol.reader(AnswerContext("mine", f"{protocol.kind}:mine", frozenset(), lambda: "new"))
    parser = EventParser()
    for at in range(0, len(stream), size):
        for event in parser.feed(stream[at : at + size]):
            reader.feed(event)
        reader.deltas()
    whole = parser.is_json and not parser.partial_bytes
    for event in parser.finish():
        reader.feed(event)
    reader.complete = reader.complete or whole
    return reader.result()


def text_of(stream: bytes, protocol: ApiProtocol | None = None, size: int = 7) -> str:
    result = read(stream, protocol, size)
    assert isinstance(result, ModelDone), result
    return result.message.text


PLAIN = sse(delta("Grüße, "), delta("🐟 und mehr"))
WHOLE = {"object": "chat.completion", "choices": [{"message": {"role": "assistant", "content": TEXT}}]}
ODD: dict[str, bytes] = {
    "plain": PLAIN,
    "empty data lines": PLAIN.replace(b"\n\n", b"\n\ndata:\n\ndata: \n\n"),
    "comments": b": OPENROUTER PROCESSING\n\n" + PLAIN.replace(b"\n\n", b"\n\n: ping\n\n"),
    "a byte order mark": b"\xef\xbb\xbf" + PLAIN,
    "a byte order mark in each event": PLAIN.replace(b"data: ", b"data: \xef\xbb\xbf"),
    "CRLF": PLAIN.replace(b"\n", b"\r\n"),
    "CR": PLAIN.replace(b"\n", b"\r"),
    "mixed line ends": PLAIN.replace(b"\n\n", b"\r\n\n"),
    "no empty lines": PLAIN.replace(b"\n\n", b"\n"),
    "no space after the colon": PLAIN.replace(b"data: ", b"data:"),
    "indented": PLAIN.replace(b"data:", b"  data:"),
    "data twice": PLAIN.replace(b"data: {", b"data: data: {"),
    "no data at all, lines of JSON": PLAIN.replace(b"data: ", b"").replace(b"[DONE]", b""),
    "event names": PLAIN.replace(b"data: {", b"event: message\nid: 7\ndata: {"),
    "double encoded": "".join(
        f"data: {json.dumps(json.dumps(one))}\n\n" for one in (delta("Grüße, "), delta("🐟 und mehr"))
    ).encode() + END.encode(),
    "halves of an emoji": b'data: {"choices":[{"delta":{"content":"Gr\xc3\xbc\xc3\x9fe, \\ud83d"}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"\\udc1f und mehr"}}]}\n\n' + END.encode(),
    "bytes of an emoji": b'data: {"choices":[{"delta":{"content":"Gr\xc3\xbc\xc3\x9fe, \xf0\x9f"}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"\x90\x9f und mehr"}}]}\n\n' + END.encode(),
    "text for an index": PLAIN.replace(b'"index": 0', b'"index": "0"'),
    "null for an index": PLAIN.replace(b'"index": 0', b'"index": null'),
    "a fraction for an index": PLAIN.replace(b'"index": 0', b'"index": 0.0'),
    "a number for an id": sse(delta("Grüße, ", id=5, model=7), delta("🐟 und mehr", id=5, created="now")),
    "an empty error": sse(delta("Grüße, ", error={}), delta("🐟 und mehr", error={})),
    "null for an error": sse(delta("Grüße, ", error=None), delta("🐟 und mehr", error=False)),
    "an empty text for an error": sse(delta("Grüße, ", error=""), delta("🐟 und mehr", error=[])),
    "message for delta": PLAIN.replace(b'"delta"', b'"message"'),
    "text for delta": sse({"choices": [{"text": "Grüße, "}]}, {"choices": [{"text": "🐟 und mehr"}]}),
    "a bare text for delta": sse({"choices": [{"delta": "Grüße, "}]}, {"choices": [{"delta": "🐟 und mehr"}]}),
    "the message again at the end": sse(delta("Grüße, "), delta("🐟 und mehr"), WHOLE),
    "parts": sse(delta("Grüße, "), {"choices": [{"delta": {"content": [{"type": "text", "text": "🐟 und mehr"}]}}]}),
    "one part": sse(delta("Grüße, "), {"choices": [{"delta": {"content": {"type": "text", "text": "🐟 und mehr"}}}]}),
    "texts for parts": sse(delta("Grüße, "), {"choices": [{"delta": {"content": ["🐟", " und mehr"]}}]}),
    "one choice": sse({"choices": {"delta": {"content": TEXT}}}),
    "refusal: false": sse({"choices": [{"delta": {"content": TEXT, "refusal": False, "tool_calls": False}}]}),
    "empty lists": sse({"choices": [{"delta": {"content": TEXT, "refusal": "", "tool_calls": [], "audio": {}}}]}),
    "empty choices": sse({"choices": []}, delta(TEXT), {"choices": []}, {"choices": None, "usage": {"x": 1}}),
    "a role alone": sse({"choices": [{"delta": {"role": "assistant"}}]}, delta(TEXT), {"choices": [{"delta": None}]}),
    "usage of another kind": sse(delta(TEXT, usage="many"), {"choices": None, "usage": [1, 2]}),
    "NaN": PLAIN.replace(b'"finish_reason": null', b'"logprob": NaN, "finish_reason": null'),
    "a number too large": PLAIN.replace(b'"finish_reason": null', b'"created": 1e999, "finish_reason": null'),
    "digits without end": PLAIN.replace(b'"index": 0', b'"index": ' + b"9" * 5000),
    "garbage after the end": PLAIN + b"garbage {{{\n\n",
    "garbage between": PLAIN.replace(b"\n\n", b"\n\nnonsense\ndata: half {\n\n", 1),
    "trailing words": PLAIN.replace(b"}]}\n", b"}]} trailing\n", 1),
    "two objects in an event": PLAIN.replace(b"\n\ndata: {", b"\ndata: {", 1),
    "DONE with spaces": PLAIN.replace(b"[DONE]", b"  [DONE]  "),
    "several DONE": PLAIN + b"data: [DONE]\n\ndata: [DONE]\n\n",
    "done in small letters": sse(delta(TEXT), end="data: [done]\n\n"),
    "no DONE": PLAIN.replace(b"data: [DONE]\n\n", b""),
    "no last empty line": PLAIN.replace(b"data: [DONE]\n\n", b"").rstrip(),
    "an empty reason": sse(delta(TEXT), {"choices": [{"delta": {}, "finish_reason": ""}]}, end="data: [DONE]\n\n"),
    "a reason in capitals": PLAIN.replace(b'"stop"', b'"STOP"'),
    "a reason of another kind": PLAIN.replace(b'"stop"', b'{"type":"stop"}'),
    "eos": PLAIN.replace(b'"stop"', b'"eos"'),
    "one whole document": json.dumps(WHOLE).encode(),
    "one whole document, indented": json.dumps(WHOLE, indent=2).encode(),
    "one whole document after line ends": b"\n \n" + json.dumps(WHOLE).encode() + b"\n",
    "a whole document as an event": b"data: " + json.dumps(WHOLE).encode() + b"\n\n",
    "an indented document as an event": b"data: " + json.dumps(WHOLE, indent=2).encode() + b"\n\n",
    "a list of a document": json.dumps([WHOLE]).encode(),
    "lines of JSON in a list": b"[" + b",\n".join(json.dumps(delta(one)).encode() for one in ("Gr\xfc\xdfe, ".encode(
        "latin-1").decode("latin-1"), "🐟 und mehr")) + b"]",
    "another choice": sse(delta("Grüße, "), {"choices": [{"index": 1, "delta": {"content": "No."}}]},
                          delta("🐟 und mehr")),
    "Data in capitals": PLAIN.replace(b"data:", b"Data:"),
    "NUL bytes to keep it open": b"\0\0" + PLAIN.replace(b"\n\n", b"\n\n\0", 1),
    "an error that says none": sse(delta("Grüße, ", error="None"), delta("🐟 und mehr", error="null")),
    "an error that says all is well": sse(delta("Grüße, ", error={"code": 0, "message": "success"}),
                                          delta("🐟 und mehr", error={"code": 200, "message": "OK"})),
    "an envelope": sse({"data": delta("Grüße, ")}, {"data": delta("🐟 und mehr")}),
    "another envelope": sse({"success": True, "result": delta(TEXT)}),
    "a bare response": sse({"response": "Grüße, "}, {"response": "🐟 und mehr"}, end="data: [DONE]\n\n"),
    "Ollama's own": b'{"message":{"role":"assistant","content":"Gr\\u00fc\\u00dfe, "},"done":false}\n{"message":'
    + json.dumps({"content": "🐟 und mehr"}).encode() + b',"done":false}\n{"message":{"content":""},"done":true}\n',
    "a list of one for delta": sse({"choices": [{"delta": [{"content": TEXT}]}]}),
    "keys that nobody knows": PLAIN.replace(b'"delta": {', b'"delta": {"x": {"y": []}, '),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_the_answer_contains_everything_that_arrived(name: str) -> None:
    assert text_of(ODD[name]) == TEXT
    assert text_of(ODD[name], size=1) == TEXT
    assert text_of(ODD[name], size=100_000) == TEXT


@pytest.mark.parametrize(
    "pieces",
    [
        json.dumps([{"index": 0, "id": "a", "function": {"name": "bash", "arguments": '{"x":1}'}}]),
        [{"index": 0, "id": "a", "function": json.dumps({"name": "bash", "arguments": '{"x":1}'})}],
        {"index": 0, "id": "a", "function": {"name": "bash", "arguments": '{"x":1}'}},
    ],
)
def test_tool_calls_written_as_strings_or_outside_a_list_are_read(pieces: object) -> None:
    result = read(sse({"choices": [{"delta": {"tool_calls": pieces}}]}))
    assert isinstance(result, ModelDone)
    assert [(call.name, call.arguments) for call in result.message.tool_calls] == [("bash", '{"x":1}')]


RESPONSES: dict[str, list[object]] = {
    "only the text's end": [{"type": "response.output_text.done", "text": "Hi there"}],
    "only the part's end": [{"type": "response.content_part.done",
                             "part": {"type": "output_text", "text": "Hi there"}}],
    "only the item's end": [{"type": "response.output_item.done", "item": {
        "type": "message", "content": [{"type": "output_text", "text": "Hi there"}]}}],
    "the rest at the end": [{"type": "response.output_text.delta", "delta": "Hi "},
                            {"type": "response.output_text.done", "text": "Hi there"}],
    "all of it again": [{"type": "response.output_text.delta", "delta": "Hi there", "output_index": 3},
                        {"type": "response.output_text.done", "text": "Hi there", "output_index": 3},
                        {"type": "response.output_item.done", "output_index": 1, "item": {
                            "type": "message", "content": [{"type": "output_text", "text": "Hi there"}]}}],
    "an odd index": [{"type": "response.output_text.delta", "delta": "Hi there", "output_index": "x"}],
    "content as a text": [{"type": "response.output_item.done", "item": {"type": "message", "content": "Hi there"}}],
}  # fmt: skip


@pytest.mark.parametrize("name", RESPONSES)
def test_repeated_response_text_is_counted_once(name: str) -> None:
    item = {"type": "message", "content": [{"type": "output_text", "text": "Hi there"}]}
    for end in ({"status": "completed"}, {"status": "completed", "output": [item]}):
        stream = sse(*RESPONSES[name], {"type": "response.completed", "response": end}, end="")
        assert text_of(stream, OpenAiResponses()) == "Hi there"


def test_a_response_sent_only_in_its_last_event_is_read() -> None:
    output = [
        {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]},
        {"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{}"},
    ]
    last = {"type": "response.completed", "response": {"status": "completed", "output": output}}
    for stream in (sse(last, end=""), json.dumps({"object": "response", "output": output}).encode()):
        result = read(stream, OpenAiResponses())
        assert isinstance(result, ModelDone), result
        assert (result.message.text, [call.name for call in result.message.tool_calls]) == ("Hi", ["bash"])


ANTHROPIC: dict[str, list[object]] = {
    "deltas before their start": [{"type": "content_block_delta", "index": 0, "delta": {"text": "Hi "}},
                                  {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}},
                                  {"type": "content_block_delta", "index": 0, "delta": {"text": "there"}}],
    "no index": [{"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
                 {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hi there"}}],
    "a block of another kind": [{"type": "content_block_start", "index": 0,
                                 "content_block": {"type": "new", "text": "Hi "}},
                                {"type": "content_block_delta", "index": 0, "delta": {"type": "new", "text": "there"}}],
    "no types": [{"index": 0, "content_block": {"type": "text", "text": ""}},
                 {"index": 0, "delta": {"text": "Hi there"}}],
    "all in the start": [{"type": "message_start", "message": {"content": [{"type": "text", "text": "Hi there"}]}}],
    "null for the text": [{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": None}},
                          {"type": "content_block_delta", "index": 0, "delta": {"text": "Hi there", "thinking": None}}],
}  # fmt: skip


@pytest.mark.parametrize("name", ANTHROPIC)
def test_anthropic_blocks_are_read_in_any_order(name: str) -> None:
    end = [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}]
    assert text_of(sse(*ANTHROPIC[name], *end, end=""), AnthropicMessages()) == "Hi there"


def test_whole_documents_are_read_in_every_protocol() -> None:
    message = {"type": "message", "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"}
    assert text_of(json.dumps(message).encode(), AnthropicMessages()) == "Hi"
    parts = [{"candidates": [{"content": {"parts": [{"text": text}]}}]} for text in ("H", "i")]
    assert text_of(json.dumps(parts, indent=1).encode(), GeminiContents()) == "Hi"


def test_an_error_in_the_middle_keeps_the_text() -> None:
    result = read(sse(delta("Hi there"), {"error": {"code": 503, "message": "Upstream broke"}}))
    assert isinstance(result, ModelFailed)
    assert (result.kind, result.partial) == ("overloaded", "Hi there")


def test_a_truncated_event_keeps_its_text() -> None:
    result = read(b'data: {"choices":[{"delta":{"content":"Hi th')
    assert isinstance(result, ModelFailed)
    assert (result.kind, result.partial) == ("dropped", "Hi th")


@pytest.mark.parametrize(
    "content_type", ["text/event-stream", "application/json", "text/plain", "application/x-ndjson"]
)
@pytest.mark.parametrize("name", ["plain", "one whole document", "no data at all, lines of JSON"])
async def test_the_content_type_is_ignored(content_type: str, name: str) -> None:
    answer = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n\r\n".encode() + ODD[name]
    async with listening(saying([answer], then_close=True)) as port:
        done = (await events(port, "openai"))[-1]
    assert isinstance(done, ModelDone), done
    assert done.message.text == TEXT


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_a_compressed_answer_is_read(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    answer = f"HTTP/1.1 200 OK\r\ncontent-encoding: {encoding}\r\n\r\n".encode() + pack(PLAIN)
    async with listening(saying([answer], then_close=True)) as port:
        done = (await events(port, "openai"))[-1]
    assert isinstance(done, ModelDone), done
    assert done.message.text == TEXT


def _mutated(source: random.Random, value: object, path: tuple[str, ...] = ()) -> object:
    odd: tuple[object, ...] = (None, False, "", [], {}, 7, 1.5, "x", [1], {"x": 1}, True)
    if isinstance(value, dict):
        found = {str(key): _mutated(source, one, (*path, str(key))) for key, one in value.items()}
        if source.random() < 0.3:
            found[source.choice(["x", "logprobs", "id", "model", "created", "refusal"])] = source.choice(odd[:6])
        return found
    if isinstance(value, list):
        return [_mutated(source, one, path) for one in value]
    is_kept = path[-1] in ("content", "text", "type", "delta") and isinstance(value, str)
    if is_kept or source.random() < 0.7:
        return value
    one = source.choice(odd)
    return (
        value if path[-1] == "index" and isinstance(one, int | float) and one else one
    )  # another index would change the answer


STREAMS: dict[type[ApiProtocol], tuple[list[object], list[object]]] = {
    OpenAiChat: ([delta("one "), delta("two "), delta("three", usage={"prompt_tokens": 1})], []),
    OpenAiResponses: (
        [{"type": "response.output_text.delta", "delta": one, "output_index": 0, "item_id": "m"}
         for one in ("one ", "two ", "three")],
        [{"type": "response.completed", "response": {"status": "completed"}}],
    ),
    AnthropicMessages: (
        [{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
         *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": one}}
           for one in ("one ", "two ", "three"))],
        [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}],
    ),
    GeminiContents: (
        [{"candidates": [{"content": {"parts": [{"text": one, "thought": False}]}, "index": 0}], "modelVersion": "m"}
         for one in ("one ", "two ", "three")],
        [{"candidates": [{"finishReason": "STOP"}]}],
    ),
}  # fmt: skip


@settings(max_examples=100)
@given(st.sampled_from(list(STREAMS)), st.randoms(use_true_random=False), st.integers(1, 60))
def test_text_that_arrived_is_in_the_answer(kind: type[ApiProtocol], source: random.Random, size: int) -> None:
    said, end = STREAMS[kind]
    stream = sse(*(_mutated(source, one) for one in said), *end, end=END if kind is OpenAiChat else "")
    noise = source.choice([b"\n\n", b"\n\ndata:\n\n", b"\n\n: ping\n\n", b"\r\n\r\n", b"\n\ndata: nonsense\n\n"])
    result = read(stream.replace(b"\n\n", noise), kind(), size)
    assert isinstance(result, ModelDone | ModelFailed)
    text = result.message.text if isinstance(result, ModelDone) else result.partial
    thinking = result.thinking if isinstance(result, ModelDone) else ""
    words = f"{text} {thinking}"
    assert all(word in words for word in ("one", "two", "three")), result


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: {"response": one}])
def test_gemini_is_read_in_an_envelope_and_with_protobuf_names(wrap: Callable[[object], object]) -> None:
    call = {"function_call": {"name": "bash", "args": {"dry_run": 1}}}
    found = read(
        sse(
            wrap({"candidates": [{"content": {"parts": [{"text": "Hi"}]}}]}),
            wrap({"candidates": [{"content": {"parts": [call]}, "finish_reason": "STOP"}],
                  "usage_metadata": {"prompt_token_count": 5, "candidates_token_count": 2}}),
            end="",
        ),
        GeminiContents(),
    )  # fmt: skip
    assert isinstance(found, ModelDone), found
    assert found.message.text == "Hi"
    assert [(one.name, json.loads(one.arguments)) for one in found.message.tool_calls] == [("bash", {"dry_run": 1})]
    assert (found.usage.input_tokens, found.usage.output_tokens) == (5, 2)


def test_the_event_name_replaces_a_missing_type() -> None:
    named = (
        b'event: response.output_text.delta\ndata: {"delta":"Hi"}\n\n'
        b'event: response.completed\ndata: {"response":{"output":[]}}\n\n'
    )
    assert text_of(named, OpenAiResponses()) == "Hi"
    parser = EventParser()
    assert parser.feed(b"event: ping\ndata: {}\n\ndata: {}\n\n") == [b'{"type":"ping"}', b"{}"]
    assert parser.feed(b'event: a"b\ndata: {}\n\nevent: x\ndata: text\n\n') == [b"{}", b"text"]
