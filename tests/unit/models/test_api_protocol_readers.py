"""Responses from providers and compatible servers, beyond the plain case in the contract tests."""

import json

import msgspec
import pytest

from shoal.kernel.ids import CallId
from shoal.kernel.messages import (
    AssistantMessage,
    ModelDone,
    ModelFailed,
    ModelRequest,
    StopReason,
    TextDelta,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from shoal.models.answers import AnswerContext
from shoal.models.anthropic import AnthropicMessages
from shoal.models.api_protocol import ApiProtocol, arguments_object
from shoal.models.gemini import GeminiContents
from shoal.models.openai import OpenAiChat, OpenAiResponses
from shoal.models.quirks import Quirks

ORIGIN = "kind:mine:api.example.com:m"


def read(
    protocol: ApiProtocol, *events: object, taken: frozenset[str] = frozenset(), back: bool = False
) -> ModelDone | ModelFailed:
    count = iter(range(1, 100))
    reader = protocol.reader(AnswerContext("mine", ORIGIN, taken, lambda: f"new{next(count)}", reasoning_back=back))
    for event in events:
        reader.feed(b"[DONE]" if event == "[DONE]" else msgspec.json.encode(event))
    return reader.result()


def done(protocol: ApiProtocol, *events: object, taken: frozenset[str] = frozenset(), back: bool = False) -> ModelDone:
    result = read(protocol, *events, taken=taken, back=back)
    assert isinstance(result, ModelDone), result
    return result


def failed(protocol: ApiProtocol, *events: object) -> ModelFailed:
    result = read(protocol, *events)
    assert isinstance(result, ModelFailed), result
    return result


def chunk(delta: object = None, finish: str | None = None, **more: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **more}


def piece(index: int | None, call_id: str | None = None, name: str | None = None, arguments: object = None) -> object:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    call = {"function": function, "index": index, "id": call_id}
    return {"tool_calls": [{key: value for key, value in call.items() if value is not None}]}


def calls_of(result: ModelDone) -> list[tuple[str, str, str]]:
    return [(call.id, call.name, call.arguments) for call in result.message.tool_calls]


class TestOpenAi:
    def test_calls_without_an_index_are_distinguished_by_their_names(self) -> None:
        result = done(
            OpenAiChat(),
            chunk(piece(None, "a", "bash", '{"x"')),
            chunk(piece(None, None, None, ":1}")),
            chunk(piece(None, "b", "read", "{}"), "tool_calls"),
        )
        assert calls_of(result) == [("a", "bash", '{"x":1}'), ("b", "read", "{}")]

    def test_calls_that_share_an_index_are_distinguished_by_their_ids(self) -> None:
        result = done(
            OpenAiChat(), chunk(piece(0, "a", "bash", "{}")), chunk(piece(0, "b", "read", "{}")), chunk({}, "stop")
        )
        assert calls_of(result) == [("a", "bash", "{}"), ("b", "read", "{}")]
        assert result.stop == "tool_calls"

    def test_a_server_that_repeats_id_and_name_with_every_fragment_means_one_call(self) -> None:
        result = done(
            OpenAiChat(), chunk(piece(0, "a", "bash", '{"x":')), chunk(piece(0, "a", "bash", "1}")), chunk({}, "stop")
        )
        assert calls_of(result) == [("a", "bash", '{"x":1}')]

    def test_missing_repeated_and_taken_ids_are_replaced(self) -> None:
        result = done(
            OpenAiChat(),
            chunk(piece(0, None, "one", "{}")),
            chunk(piece(1, "x", "two", "{}")),
            chunk(piece(2, "x", "three", "{}")),
            chunk(piece(3, "old", "four", "{}"), "tool_calls"),
            taken=frozenset({"old"}),
        )
        assert [call.id for call in result.message.tool_calls] == ["call_new1", "x", "call_new2", "call_new3"]

    def test_arguments_given_as_an_object_or_not_at_all_are_json(self) -> None:
        result = done(
            OpenAiChat(), chunk(piece(0, "a", "bash", {"command": "ls"})), chunk(piece(1, "b", "read"), "tool_calls")
        )
        assert [call.arguments for call in result.message.tool_calls] == ['{"command":"ls"}', "{}"]

    @pytest.mark.parametrize(
        ("finish", "stop"),
        [("stop", "end"), ("eos", "end"), ("length", "max_tokens"), ("tool_calls", "end"),
         ("content_filter", "refusal"), ("something new", "end")],
    )  # fmt: skip
    def test_every_reason_to_stop_is_understood(self, finish: str, stop: StopReason) -> None:
        assert done(OpenAiChat(), chunk({"content": "Hi"}), chunk({}, finish)).stop == stop

    def test_a_done_event_ends_the_answer_and_its_absence_means_a_dropped_connection(self) -> None:
        assert done(OpenAiChat(), chunk({"content": "Hi"}), "[DONE]").message.text == "Hi"
        assert failed(OpenAiChat(), chunk({"content": "Hi"})).kind == "dropped"
        assert failed(OpenAiChat()).kind == "dropped"

    def test_usage_is_read_from_any_position(self) -> None:
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_cache_hit_tokens": 8, "total_tokens": 12}
        with_choices = done(OpenAiChat(), chunk({"content": "Hi"}, "stop", usage=usage))
        apart = done(OpenAiChat(), chunk({"content": "Hi"}, "stop", usage=None), {"choices": [], "usage": usage})
        assert with_choices.usage == apart.usage == Usage(10, 2, 8)
        assert done(OpenAiChat(), chunk({"content": "Hi"}, "stop")).usage == Usage()

    @pytest.mark.parametrize(
        "usage", [{"prompt_tokens": 1.5, "completion_tokens": 2}, {"prompt_tokens": "12", "completion_tokens": 2}]
    )
    def test_unknown_usage_forms_do_not_lose_the_answer(self, usage: object) -> None:
        answer = done(OpenAiChat(), chunk({"content": "Hi"}, "stop"), {"choices": [], "usage": usage})
        assert (answer.message.text, answer.usage.output_tokens) == ("Hi", 2)

    @pytest.mark.parametrize("reason", ["error", "abort", "cancelled"])
    def test_an_end_not_chosen_by_the_model_is_a_failure(self, reason: str) -> None:
        assert failed(OpenAiChat(), chunk({"content": "Hi"}), chunk({}, reason)).kind == "overloaded"

    def test_an_error_object_in_the_stream_fails(self) -> None:
        error = {"error": {"code": 502, "message": "Upstream broke"}, "choices": [{"finish_reason": "error"}]}
        assert failed(OpenAiChat(), chunk({"content": "Hi"}), error).kind == "server_error"
        assert failed(OpenAiChat(), chunk({"content": "Hi"}, "insufficient_system_resource")).kind == "overloaded"

    def test_a_refusal_is_returned_as_text_with_its_stop_reason(self) -> None:
        result = done(OpenAiChat(), chunk({"refusal": "I will not."}), chunk({}, "stop"))
        assert (result.message.text, result.stop) == ("I will not.", "refusal")
        assert failed(OpenAiChat(), chunk({}, "content_filter")).kind == "content_filter"

    def test_reasoning_in_any_field_is_read_as_thinking(self) -> None:
        parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "c"}]}, {"type": "text", "text": "T"}]
        result = done(
            OpenAiChat(),
            chunk({"reasoning_content": "a"}),
            chunk({"reasoning": "b"}),
            chunk({"content": parts}, "stop"),
        )
        assert (result.thinking, result.message.text, result.message.opaque) == ("abc", "T", None)

    def test_reasoning_is_sent_back_in_the_servers_field(self) -> None:
        details = [{"type": "reasoning.encrypted", "data": "zzz", "index": 0}]
        for quirks, delta, kept in (
            (Quirks(), {"reasoning_details": details}, {"reasoning_details": details}),
            (Quirks(reasoning_field="reasoning_content"), {"reasoning_content": "hm"}, {"reasoning_content": "hm"}),
            (Quirks(reasoning_field="reasoning"), {"reasoning_content": "hm"}, {"reasoning": "hm"}),
        ):
            protocol = OpenAiChat()
            result = done(protocol, chunk(delta), chunk({"content": "Hi"}, "stop"), back=bool(quirks.reasoning_field))
            again = ModelRequest("m", "", (UserMessage("q"), result.message, UserMessage("r")))
            body = msgspec.json.decode(protocol.encode(again, quirks, {}, ORIGIN).content)
            assert {key: body["messages"][1].get(key) for key in kept} == kept

    def test_context_windows_are_read_from_every_servers_model_list(self) -> None:
        rows = [{"id": "a", "max_model_len": 1}, {"id": "b", "context_length": 2}, {"id": "c", "meta": {"n_ctx": 3}},
                {"id": "d", "meta": {"n_ctx_train": 4}}, {"id": "e", "context_window": 5},
                {"id": "f", "meta": None}]  # fmt: skip
        found = OpenAiChat().models(msgspec.json.encode({"data": rows}))
        assert [model.context_tokens for model in found] == [1, 2, 3, 4, 5, 0]


class TestAnthropic:
    def start(self, index: int, **block: object) -> object:
        return {"type": "content_block_start", "index": index, "content_block": block}

    def delta(self, index: int, **delta: object) -> object:
        return {"type": "content_block_delta", "index": index, "delta": delta}

    def end(self, reason: str) -> object:
        return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}}

    def test_thinking_between_parts_is_sent_back_in_its_position(self) -> None:
        protocol = AnthropicMessages()
        result = done(
            protocol,
            self.start(0, type="thinking", thinking="", signature=""),
            self.delta(0, type="thinking_delta", thinking="first"),
            self.delta(0, type="signature_delta", signature="s1"),
            self.start(1, type="text", text=""),
            self.delta(1, type="text_delta", text="Grüße, "),
            self.start(2, type="redacted_thinking", data="hidden"),
            self.start(3, type="text", text=""),
            self.delta(3, type="text_delta", text="then."),
            self.start(4, type="tool_use", id="t1", name="bash", input={}),
            self.end("tool_use"),
        )
        result_message = ToolMessage(CallId("t1"), "bash", "ok")
        again = ModelRequest("m", "", (UserMessage("q"), result.message, result_message))
        body = msgspec.json.decode(protocol.encode(again, Quirks(), {}, ORIGIN).content)
        assert body["messages"][1]["content"] == [
            {"type": "thinking", "thinking": "first", "signature": "s1"},
            {"type": "text", "text": "Grüße, "},
            {"type": "redacted_thinking", "data": "hidden"},
            {"type": "text", "text": "then."},
            {"type": "tool_use", "id": "t1", "name": "bash", "input": {}},
        ]

    def test_input_sent_whole_at_the_start_is_read(self) -> None:
        result = done(
            AnthropicMessages(), self.start(0, type="tool_use", id="t", name="n", input={"a": 1}), self.end("tool_use")
        )
        assert json.loads(result.message.tool_calls[0].arguments) == {"a": 1}

    def test_unknown_events_and_blocks_are_skipped(self) -> None:
        result = done(
            AnthropicMessages(),
            {"type": "ping"},
            {"type": "brand_new", "delta": {"type": "x"}},
            self.start(0, type="server_tool_use", id="s", name="web", input={}),
            self.delta(0, type="input_json_delta", partial_json="{}"),
            self.start(1, type="text", text="Hi"),
            self.end("end_turn"),
        )
        assert (result.message.text, result.message.tool_calls) == ("Hi", ())

    def test_a_full_window_is_an_overflow_only_without_text(self) -> None:
        reason = "model_context_window_exceeded"
        assert failed(AnthropicMessages(), self.end(reason)).kind == "context_overflow"
        assert done(AnthropicMessages(), self.start(0, type="text", text="Hi"), self.end(reason)).stop == "max_tokens"

    def test_a_refusal_without_words_is_a_content_filter(self) -> None:
        assert failed(AnthropicMessages(), self.end("refusal")).kind == "content_filter"

    def test_cache_marks_are_at_the_end_of_this_and_the_last_request(self) -> None:
        protocol, messages = AnthropicMessages(), [UserMessage("one")]
        protocol.encode(ModelRequest("m", "sys", tuple(messages), cache_key="t"), Quirks(), {})
        more = (*messages, AssistantMessage("two"), UserMessage("three"))
        body = msgspec.json.decode(protocol.encode(ModelRequest("m", "sys", more, cache_key="t"), Quirks(), {}).content)
        marked = [
            block["text"] for message in body["messages"] for block in message["content"] if "cache_control" in block
        ]
        assert marked == ["one", "three"]
        assert "cache_control" in body["system"][0]


class TestResponses:
    def test_text_and_calls_sent_only_in_their_end_event_are_read(self) -> None:
        message = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
        call = {"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{}"}
        result = done(
            OpenAiResponses(),
            {"type": "response.output_item.done", "output_index": 0, "item": message},
            {"type": "response.output_item.done", "output_index": 1, "item": call},
            {"type": "response.completed", "response": {"status": "completed"}},
        )
        assert (result.message.text, calls_of(result)) == ("Hi", [("c", "bash", "{}")])

    def test_events_of_other_tools_are_skipped(self) -> None:
        result = done(
            OpenAiResponses(),
            {"type": "response.code_interpreter_call.completed", "delta": {"not": "text"}, "output_index": 0},
            {"type": "response.output_text.delta", "delta": "Hi", "output_index": 1},
            {"type": "response.completed", "response": {}},
        )
        assert result.message.text == "Hi"

    @pytest.mark.parametrize(
        "event",
        [
            {"type": "error", "code": "rate_limit_exceeded", "message": "slow down", "param": None},
            {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "slow down"}}},
        ],
    )
    def test_an_error_in_either_form_fails_the_answer(self, event: object) -> None:
        result = failed(OpenAiResponses(), event)
        assert result.kind == "rate_limited"
        assert "slow down" in result.message

    @pytest.mark.parametrize(("reason", "stop"), [("max_output_tokens", "max_tokens"), ("content_filter", "refusal")])
    def test_an_incomplete_answer_says_why(self, reason: str, stop: str) -> None:
        result = done(
            OpenAiResponses(),
            {"type": "response.output_text.delta", "delta": "Hi", "output_index": 0},
            {"type": "response.incomplete", "response": {"incomplete_details": {"reason": reason}}},
        )
        assert result.stop == stop


class TestGemini:
    def candidate(self, finish: str | None = None, *parts: object) -> object:
        return {"candidates": [{"content": {"parts": list(parts)}, "finishReason": finish}]}

    def test_a_call_of_another_model_is_sent_with_the_placeholder_signature(self) -> None:
        message = AssistantMessage("", (ToolCall(CallId("c1"), "bash", "{}"), ToolCall(CallId("c2"), "bash", "{}")))
        again = ModelRequest("m", "", (UserMessage("q"), message, ToolMessage(CallId("c1"), "bash", "x")))
        body = msgspec.json.decode(GeminiContents().encode(again, Quirks(), {}).content)
        signatures = [part.get("thoughtSignature") for part in body["contents"][1]["parts"]]
        assert signatures == ["skip_thought_signature_validator", None]

    def test_a_text_is_sent_back_with_its_signature(self) -> None:
        protocol = GeminiContents()
        result = done(protocol, self.candidate("STOP", {"text": "Hi"}, {"text": "", "thoughtSignature": "abc="}))
        again = ModelRequest("m", "", (UserMessage("q"), result.message))
        body = msgspec.json.decode(protocol.encode(again, Quirks(), {}, ORIGIN).content)
        assert body["contents"][1]["parts"] == [{"text": "Hi", "thoughtSignature": "abc="}]

    def test_a_blocked_prompt_is_a_content_filter(self) -> None:
        assert failed(GeminiContents(), {"promptFeedback": {"blockReason": "SAFETY"}}).kind == "content_filter"
        assert failed(GeminiContents(), self.candidate("SAFETY")).kind == "content_filter"

    @pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "OTHER"])
    def test_a_broken_call_may_be_retried(self, reason: str) -> None:
        assert failed(GeminiContents(), self.candidate(reason)).kind == "dropped"
        assert done(GeminiContents(), self.candidate(reason, {"text": "Hi"})).stop == "end"

    def test_calls_without_ids_get_new_ids(self) -> None:
        part = {"functionCall": {"name": "bash", "args": None}}
        assert calls_of(done(GeminiContents(), self.candidate("STOP", part, part))) == [
            ("call_new1", "bash", "{}"),
            ("call_new2", "bash", "{}"),
        ]

    def test_embedding_models_are_not_listed(self) -> None:
        rows = [
            {"name": "models/a", "inputTokenLimit": 9},
            {"name": "models/b", "supportedGenerationMethods": ["embed"]},
        ]
        found = GeminiContents().models(msgspec.json.encode({"models": rows}))
        assert [(model.id, model.context_tokens) for model in found] == [("a", 9)]


ANSWERS: dict[type[ApiProtocol], list[object]] = {
    OpenAiChat: [
        {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": "?"}},
        "[DONE]",
    ],
    OpenAiResponses: [
        {"type": "response.output_text.delta", "delta": "Hi"},
        {"type": "response.completed", "response": {"usage": {"input_tokens": "?"}}},
    ],
    AnthropicMessages: [
        {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": "?"}}},
        {"type": "content_block_start", "content_block": {"type": "text", "text": "Hi"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": "?"}},
        {"type": "message_stop"},
    ],
    GeminiContents: [
        {
            "candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": "?"},
        }
    ],
}
"""The same answer in each protocol; "?" marks the place of its usage."""


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("said", ["null", "12.0", "1.5", '"12"', "[1]", "{}", "NaN", "-Infinity", "true"])
def test_no_usage_form_loses_the_answer(kind: type[ApiProtocol], said: str) -> None:
    reader = kind().reader(AnswerContext("mine", "", frozenset(), lambda: "new"))
    for event in ANSWERS[kind]:
        reader.feed(b"[DONE]" if event == "[DONE]" else json.dumps(event).replace('"?"', said).encode())
    answer = reader.result()
    assert isinstance(answer, ModelDone), answer
    assert answer.message.text == "Hi"
    assert answer.usage.input_tokens == (12 if said in ("12.0", '"12"') else 0)


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize(
    ("said", "text"), [("5", "5"), ('{"text":"b"}', "b"), ('["a","b"]', "ab"), ('"\\ud83d"', "\ufffd")]
)
def test_text_in_an_unusual_form_is_read(kind: type[ApiProtocol], said: str, text: str) -> None:
    reader = kind().reader(AnswerContext("mine", "", frozenset(), lambda: "new"))
    for event in ANSWERS[kind]:
        reader.feed(b"[DONE]" if event == "[DONE]" else json.dumps(event).replace('"Hi"', said).encode())
    answer = reader.result()
    assert isinstance(answer, ModelDone), answer
    assert answer.message.text == text


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_in_an_unknown_form_is_a_permanent_failure(kind: type[ApiProtocol]) -> None:
    reader = kind().reader(AnswerContext("mine", "", frozenset(), lambda: "new"))
    for event in ANSWERS[kind]:
        reader.feed(b"[DONE]" if event == "[DONE]" else json.dumps(event).replace('"Hi"', '{"a":"b"}').encode())
    answer = reader.result()
    assert isinstance(answer, ModelFailed), answer
    assert answer.kind == "invalid_request"


def test_a_text_about_numbers_is_unchanged() -> None:
    said = json.dumps(chunk({"content": 'NaN, "-Infinity" and \\'}, "stop", usage={"prompt_tokens": float("nan")}))
    reader = OpenAiChat().reader(AnswerContext("mine", "", frozenset(), lambda: "new"))
    reader.feed(said.encode())
    answer = reader.result()
    assert isinstance(answer, ModelDone)
    assert answer.message.text == 'NaN, "-Infinity" and \\'


def test_an_unused_item_may_have_any_form() -> None:
    search = {"type": "tool_search_call", "call_id": None, "arguments": None, "name": 7}
    events = [{"type": "response.output_item.done", "output_index": 0, "item": search}, *ANSWERS[OpenAiResponses]]
    assert done(OpenAiResponses(), *events).message.text == "Hi"


@pytest.mark.parametrize("ids", [("a b", "a_b"), ("a.b", "a_b")])
def test_calls_whose_ids_collide_when_sent_back_get_new_ids(ids: tuple[str, str]) -> None:
    answer = done(OpenAiChat(), *(chunk(piece(index, one, "bash")) for index, one in enumerate(ids)), chunk({}, "stop"))
    assert [call.id for call in answer.message.tool_calls] == [ids[0], "call_new1"]


@pytest.mark.parametrize("arguments", ['{"a": ' + "[" * 5000, "[" * 100_000, '{"a": ' + "[" * 5000 + "]" * 5000 + "}"])
def test_endlessly_nested_arguments_are_sent_back_as_text(arguments: str) -> None:
    assert json.loads(arguments_object(arguments)) == {"malformed": arguments}


def test_a_non_text_reasoning_item_is_kept_as_text() -> None:
    reader = OpenAiResponses().reader(AnswerContext("p", "openai-responses:p", frozenset(), lambda: "new"))
    reader.feed(b'{"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","id":"\xff"}}')
    assert json.loads(reader.opaque()) == [{"type": "reasoning", "id": "\ufffd"}]


BOTH = {"prompt_tokens": 10, "completion_tokens": 2}
CACHED = {"cached_tokens": 3}
REPORTS: dict[str, tuple[list[object], Usage]] = {
    "OpenAI": ([{"choices": [], "usage": BOTH}], Usage(10, 2)),
    "on the last choice": ([chunk(finish="stop", usage=BOTH)], Usage(10, 2)),
    "in the choice": (
        [{"choices": [{"delta": {}, "usage": {"prompt_tokens": 10, "completion_tokens": 2, "cached_tokens": 4}}]}],
        Usage(10, 2, 4),
    ),
    "Responses' names": (
        [{"choices": [], "usage": {"input_tokens": 10, "output_tokens": 2, "input_tokens_details": CACHED}}],
        Usage(10, 2, 3),
    ),
    "Anthropic's names": (
        [{"usage": {"input_tokens": 10, "output_tokens": 2, "cache_read_input_tokens": 90,
                    "cache_creation_input_tokens": 5}}],
        Usage(105, 2, 90, 5),
    ),
    "LiteLLM, Anthropic's beside OpenAI's": (
        [{"usage": {"prompt_tokens": 105, "completion_tokens": 2, "cache_read_input_tokens": 90}}],
        Usage(105, 2, 90),
    ),
    "Bedrock's names": ([{"usage": {"inputTokens": 10, "outputTokens": 2, "totalTokens": 12}}], Usage(10, 2)),
    "Groq": ([{"choices": [], "x_groq": {"id": "r", "usage": BOTH}}], Usage(10, 2)),
    "llama.cpp": ([chunk(finish="stop", timings={"prompt_n": 7, "cache_n": 3, "predicted_n": 2})], Usage(10, 2, 3)),
    "llama.cpp with both": (
        [chunk(finish="stop", timings={"prompt_n": 1, "predicted_n": 2}, usage=BOTH)],
        Usage(10, 2),
    ),
    "Ollama": ([chunk(finish="stop", prompt_eval_count=10, eval_count=2)], Usage(10, 2)),
    "texts": ([{"choices": [], "usage": {"prompt_tokens": "10", "completion_tokens": " 2 "}}], Usage(10, 2)),
    "the input and a total": ([{"usage": {"prompt_tokens": 10, "total_tokens": 12}}], Usage(10, 2)),
    "the output and a total": ([{"usage": {"completion_tokens": 2, "total_tokens": 12}}], Usage(10, 2)),
    "only a total": ([{"usage": {"total_tokens": 12}}], Usage()),
    "with each chunk, zeros at the end": (
        [chunk({"content": "!"}, usage={"prompt_tokens": 10, "completion_tokens": 1}),
         chunk({"content": "!"}, usage=BOTH),
         {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}}],
        Usage(10, 2),
    ),
    "odd timings": ([chunk(finish="stop", timings={"prompt_n": "many"}, x_groq=7)], Usage()),
    "reasoning beside": ([{"usage": {**BOTH, "reasoning_tokens": 1}}], Usage(10, 2, 0, 0, 1)),
}  # fmt: skip


@pytest.mark.parametrize(("events", "usage"), REPORTS.values(), ids=REPORTS.keys())
def test_token_counts_are_read_in_every_reported_form(events: list[object], usage: Usage) -> None:
    assert done(OpenAiChat(), chunk({"content": "Hi"}, "stop"), *events).usage == usage


def test_openai_usage_names_are_read_in_anthropics_protocol() -> None:
    answer = done(
        AnthropicMessages(),
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hi"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"},
         "usage": BOTH},
        {"type": "message_stop"},
    )  # fmt: skip
    assert answer.usage == Usage(10, 2)


def opening(*events: object) -> tuple[str, str, list[str]]:
    """Return the text, the thinking, and the live text of a model whose chat template opens with thinking."""
    context = AnswerContext("mine", ORIGIN, frozenset(), lambda: "new", offers_tools=True, opens_thinking=True)
    reader, shown = OpenAiChat().reader(context), list[str]()
    for event in events:
        reader.feed(msgspec.json.encode(event))
        shown += [delta.text for delta in reader.deltas() if isinstance(delta, TextDelta)]
    result = reader.result()
    shown += [delta.text for delta in reader.deltas() if isinstance(delta, TextDelta)]
    assert isinstance(result, ModelDone), result
    return result.message.text, result.thinking, shown


def test_thinking_opened_by_the_template_is_never_shown_as_text() -> None:
    said = [chunk({"content": part}) for part in ("Hm, ", "boats.\n</th", "ink>\n\nHel", "lo")]
    assert opening(*said, chunk(finish="stop")) == ("Hello", "Hm, boats.\n", ["Hel", "lo"])
    apart = chunk({"reasoning_content": "Hm"})
    assert opening(apart, chunk({"content": "Hello"}), chunk(finish="stop")) == ("Hello", "Hm", ["Hello"])
    opened = chunk({"content": "<think>Hm</think>Hello"})
    assert opening(opened, chunk(finish="stop")) == ("Hello", "Hm", ["Hello"])


def test_text_without_an_end_mark_is_text_unless_the_answer_is_cut_off() -> None:
    assert opening(chunk({"content": "Hello"}), chunk(finish="stop")) == ("Hello", "", ["Hello"])
    assert opening(chunk({"content": "Hm, boa"}), chunk(finish="length")) == ("", "Hm, boa", [])
    call = chunk(piece(0, "c", "look", "{}"))
    text, thinking, _ = opening(chunk({"content": "Hm"}), call, chunk(finish="tool_calls"))
    assert (text, thinking) == ("", "Hm")
