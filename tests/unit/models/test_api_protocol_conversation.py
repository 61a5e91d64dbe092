"""Caching encoded messages: each message is encoded once, a cached request equals a fresh one, and the cache is
bounded.
"""

import base64
import gc
import os
import re
import weakref
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.ids import CallId
from shoal.kernel.messages import (
    AssistantMessage,
    Image,
    ModelMessage,
    ModelRequest,
    Opaque,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from shoal.models import api_protocol
from shoal.models.anthropic import AnthropicMessages
from shoal.models.api_protocol import (
    ApiProtocol,
    EncodedMessage,
    Images,
    arguments_object,
    load_images,
    portable_call_id,
)
from shoal.models.arrange import MessageForm
from shoal.models.gemini import GeminiContents
from shoal.models.openai import OpenAiChat, OpenAiResponses
from shoal.models.quirks import Quirks

PROTOCOLS = (OpenAiChat, OpenAiResponses, AnthropicMessages, GeminiContents)
PLAIN = MessageForm(Quirks(images="user"))
PICTURE = Image("/pictures/p.png", "image/png")
LOADED = {PICTURE.path: b"aGVsbG8="}


class CountingChat(OpenAiChat):
    def __init__(self) -> None:
        super().__init__()
        self.encoded = 0

    def encode_message(self, message: ModelMessage, images: Images, form: MessageForm) -> EncodedMessage:
        self.encoded += 1
        return super().encode_message(message, images, form)


def request(messages: tuple[ModelMessage, ...], key: str = "t") -> ModelRequest:
    return ModelRequest("m", "system", messages, cache_key=key)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
pictures = st.sampled_from([(), (PICTURE,), (PICTURE, Image("/gone.png", "image/png"))])


@st.composite
def conversations(draw: st.DrawFn) -> list[ModelMessage]:
    messages: list[ModelMessage] = []
    for turn in range(draw(st.integers(1, 4))):
        messages.append(UserMessage(draw(texts), draw(pictures)))
        for step in range(draw(st.integers(0, 2))):
            names = [f"call_{turn}_{step}_{number}" for number in range(draw(st.integers(1, 3)))]
            calls = tuple(
                ToolCall(CallId(name), "bash", draw(st.sampled_from(["{}", '{"a":1}', "{bad"]))) for name in names
            )
            messages.append(AssistantMessage(draw(texts), calls))
            messages.extend(ToolMessage(call.id, "bash", draw(texts), images=draw(pictures)) for call in calls)
        if draw(st.booleans()):
            messages.append(AssistantMessage(draw(texts)))
    return messages


@pytest.mark.parametrize("kind", PROTOCOLS)
@given(messages=conversations(), steps=st.lists(st.integers(1, 4), max_size=6))
def test_incremental_encoding_equals_full_encoding(
    kind: type[ApiProtocol], messages: list[ModelMessage], steps: list[int]
) -> None:
    protocol, at = kind(), 0
    for step in steps:
        at = min(at + step, len(messages))
        grown = protocol.encode(request(tuple(messages[:at])), Quirks(), LOADED).content
        msgspec.json.decode(grown)
        assert _unmarked(grown) == _unmarked(kind().encode(request(tuple(messages[:at])), Quirks(), LOADED).content)


def _unmarked(body: bytes) -> bytes:
    """Remove the `cache_control` fields, which move with the end of the conversation."""
    return body.replace(b',"cache_control":{"type":"ephemeral"}', b"")


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_each_request_is_a_prefix_of_the_next(kind: type[ApiProtocol]) -> None:
    protocol, messages, before = kind(), list[ModelMessage](), b""
    for number in range(20):
        messages += [UserMessage(f"question {number}"), AssistantMessage(f"answer {number}")]
        body = _unmarked(protocol.encode(request(tuple(messages)), Quirks(), {}).content)
        assert body.startswith(before.rstrip(b"]}"))
        before = body


def test_each_message_of_a_growing_conversation_is_encoded_once() -> None:
    protocol = CountingChat()
    kept = protocol.conversations
    said = ((UserMessage(str(number)), AssistantMessage(str(number))) for number in range(50))
    messages = tuple(message for pair in said for message in pair)
    for count in (10, 50, 50, 100):
        kept.join(request(messages[:count]), {}, PLAIN)
        kept.join(request(messages[:count], "other"), {}, PLAIN)
    assert protocol.encoded == 200


@pytest.mark.parametrize("thread", ["", "fake:harbour:ada"])
def test_a_freed_message_is_dropped_from_the_cache(thread: str) -> None:
    kept = CountingChat().conversations
    message = UserMessage("short-lived")
    watch = weakref.ref(message)
    kept.join(request((message,), key=thread), {}, PLAIN)
    del message
    gc.collect()
    assert watch() is None


def test_joined_conversations_are_bounded_by_number_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_protocol, "THREADS_MAX", 3)
    kept = CountingChat().conversations
    said = [(UserMessage("hi"),) for _ in range(5)]
    for number, messages in enumerate(said):
        kept.join(request(messages, key=str(number)), {}, PLAIN)
    assert list(kept.kept) == ["2", "3", "4"]
    monkeypatch.setattr(api_protocol, "JOINED_BYTES_MAX", 5000)
    kept.join(request((UserMessage("x" * 4990),), key="large"), {}, PLAIN)
    assert list(kept.kept) == ["large"]


def test_a_dropped_conversation_frees_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_protocol, "JOINED_BYTES_MAX", 5000)
    kept = CountingChat().conversations
    said = [(UserMessage("x" * 2000),) for _ in range(6)]
    for number, messages in enumerate(said):
        kept.join(request(messages, key=str(number)), {}, PLAIN)
    assert list(kept.kept) == ["4", "5"]


def test_the_oldest_collected_conversation_is_dropped() -> None:
    kept = CountingChat().conversations
    said = [(UserMessage("hi"),) for _ in range(3)]
    for number, messages in enumerate(said):
        kept.join(request(messages, key=str(number)), {}, PLAIN)
    messages = said[2]
    said.clear()
    gc.collect()
    kept.join(request(messages, key="2"), {}, PLAIN)
    assert list(kept.kept) == ["2"]


def test_a_compacted_history_is_encoded_again() -> None:
    protocol, old = OpenAiChat(), (UserMessage("one"), AssistantMessage("two"), UserMessage("three"))
    protocol.encode(request(old), Quirks(), {})
    for messages in (
        (UserMessage("summary"), *old[1:], UserMessage("four")),
        (UserMessage("all"), UserMessage("is"), UserMessage("other"), UserMessage("now")),
        old[2:],
        (),
    ):
        assert protocol.encode(request(messages), Quirks(), {}) == OpenAiChat().encode(request(messages), Quirks(), {})


def test_system_and_tools_are_encoded_once_per_object() -> None:
    protocol, tools = OpenAiChat(), (ToolSpec("a", "d", "{}"),)
    first = protocol.system("prompt"), protocol.tools(tools, "full")
    for _ in range(5):
        assert protocol.system("prompt") is first[0]
        assert protocol.tools(tools, "full") is first[1]
    for number in range(api_protocol.STABLE_MAX):
        protocol.system(f"prompt {number}")
    again = protocol.system("prompt")
    assert again == first[0]
    assert again is not first[0], "it was the least recently used"


def test_images_are_read_and_unreadable_ones_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.png"
    path.write_bytes(b"hello")
    gone, pipe = (Image(str(tmp_path / name), "image/png") for name in ("gone.png", "pipe.png"))
    os.mkfifo(pipe.path)
    assert load_images([Image(str(path), "image/png"), gone, pipe]) == {str(path): base64.b64encode(b"hello")}
    monkeypatch.setattr(api_protocol, "IMAGE_BYTES_MAX", 4)
    assert load_images([Image(str(path), "image/png")]) == {}
    for kind in PROTOCOLS:
        body = kind().encode(request((UserMessage("look", (gone,)),)), Quirks(), {}).content
        assert b"gone.png could not be read" in body


def test_images_are_loaded_only_with_their_request() -> None:
    kept = OpenAiChat().conversations
    said = UserMessage("look", (PICTURE,))
    assert kept.new_images(request((said,)), PLAIN) == [PICTURE]
    kept.join(request((said,)), LOADED, PLAIN)
    assert kept.new_images(request((said, AssistantMessage("ok"), UserMessage("more"))), PLAIN) == []


def test_images_of_results_follow_the_last_result_of_their_step() -> None:
    call = ToolCall(CallId("c1"), "read", "{}"), ToolCall(CallId("c2"), "read", "{}")
    results = (ToolMessage(CallId("c1"), "read", "1", images=(PICTURE,)), ToolMessage(CallId("c2"), "read", "2"))
    messages = (UserMessage("go"), AssistantMessage("", call), *results, AssistantMessage("Seen."))
    body = msgspec.json.decode(OpenAiChat().encode(request(messages), Quirks(), LOADED).content)
    assert [message["role"] for message in body["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "assistant",
    ]


OWN: dict[type[ApiProtocol], tuple[str, str]] = {
    OpenAiChat: ("openai", '{"reasoning_content":"secret"}'),
    OpenAiResponses: ("openai-responses", '[{"type":"reasoning","id":"rs_1","encrypted_content":"secret"}]'),
    AnthropicMessages: ("anthropic", '[{"type":"thinking","thinking":"hm","signature":"secret"}]'),
    GeminiContents: ("gemini", '{"text":"secret"}'),
}


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_reasoning_is_sent_back_only_to_its_own_model(kind: type[ApiProtocol]) -> None:
    name, json = OWN[kind]
    own = f"{name}:mine:api.example.com:m-1"
    messages = (UserMessage("hi"), AssistantMessage("Hello.", opaque=Opaque(own, json)), UserMessage("more"))
    quirks = Quirks(reasoning_field="reasoning_content")
    assert b"secret" in kind().encode(request(messages), quirks, {}, own).content
    for other in ("", name, f"{name}:mine", f"{name}:mine:api.example.com:m-2", f"{name}:other:api.example.com:m-1",
                  f"{name}:mine:elsewhere.example.com:m-1", *(one for one, _ in OWN.values())):  # fmt: skip
        for protocol in map(lambda one: one(), PROTOCOLS):
            assert b"secret" not in protocol.encode(request(messages), quirks, {}, other).content


@pytest.mark.parametrize(
    ("kind", "json"),
    [
        (AnthropicMessages, '[{"type":"thinking","thinking":"secret"}]'),
        (AnthropicMessages, '[{"type":"thinking","thinking":"secret","signature":""},{"type":"text","chars":6}]'),
        (AnthropicMessages, '[{"type":"redacted_thinking"},{"type":"thinking","thinking":"secret"}]'),
        (OpenAiResponses, '[{"type":"reasoning","id":"secret","summary":[]}]'),
        (OpenAiResponses, '[{"type":"reasoning","id":"secret","encrypted_content":null}]'),
    ],
)
def test_reasoning_that_was_cut_off_before_its_signature_is_left_out(kind: type[ApiProtocol], json: str) -> None:
    messages = (UserMessage("hi"), AssistantMessage("Hello.", opaque=Opaque("own", json)), UserMessage("more"))
    sent = kind().encode(request(messages), Quirks(), {}, "own").content
    assert b"secret" not in sent
    assert b"Hello." in sent
    assert b"thinking" not in sent


@given(st.text())
def test_arguments_sent_back_are_always_an_object(arguments: str) -> None:
    assert isinstance(msgspec.json.decode(arguments_object(arguments.encode("utf-8", "replace").decode())), dict)


@pytest.mark.parametrize("kind", PROTOCOLS)
@pytest.mark.parametrize("name", ["", "my tool<|x|>", "x" * 300, "名前"])
def test_called_names_are_sent_back_in_a_form_every_provider_accepts(kind: type[ApiProtocol], name: str) -> None:
    """A provider that rejects a name would reject every later request of the conversation."""
    call = ToolCall(CallId("c1"), name, "{}")
    messages = (UserMessage("hi"), AssistantMessage("", (call,)), ToolMessage(CallId("c1"), name, "?", is_error=True))
    sent = kind().encode(request(messages), Quirks(), {}).content
    names = re.findall(rb'"name":"([^"]*)"', sent.split(b'"hi"', 1)[1])
    assert names
    assert all(re.fullmatch(rb"[A-Za-z0-9_-]{1,64}", found) for found in names)


@given(st.text(min_size=1))
def test_call_ids_use_an_alphabet_every_provider_accepts(call_id: str) -> None:
    sent = portable_call_id(call_id)
    assert 0 < len(sent) <= 40
    assert sent.replace("-", "_").replace("_", "a").isalnum()
    assert sent.isascii()
