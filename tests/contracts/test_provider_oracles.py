"""Shoal's adapters and the providers' own packages must read the same stream identically: text, calls, stop reason
and usage.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from tests.contracts.test_provider_adapters import build

from shoal.kernel.messages import Usage, UserMessage
from shoal.testing.contracts.provider import TOOLS, answer, request
from shoal.testing.contracts.provider_frames import frames_of
from shoal.testing.model import Call, FakeModel, Recorded, Reply
from shoal.testing.model.services import SERVICES, Sent, Service

pytestmark = [
    pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning"),  # caused by the Gemini package
    pytest.mark.xdist_group("providers-clients"),
]

STREAMS_DIRECTORY = Path(__file__).parent / "streams"
STREAMS = sorted(STREAMS_DIRECTORY.glob("*.sse"))
"""Recorded streams of each provider, including fields and events that Shoal ignores."""

REPLIES = {
    "text": Reply("A short – and 大 wide – answer.", usage=Usage(1000, 12, 700, 0, 0)),
    "thinking": Reply("Six.", thinking="two times three", usage=Usage(50, 30, 0, 0, 20)),
    "calls": Reply(
        "Both:",
        (Call("bash", '{"command":"echo \\"🐟\\""}', "call_a"), Call("read", '{"path":"a","limit":3}', "call_b")),
        usage=Usage(2000, 90, 1500, 200, 0),
    ),
    "cut": Reply("half of it", stop="max_tokens", usage=Usage(10, 4096)),
    "empty": Reply("", usage=Usage(10, 0)),
}


class Read(NamedTuple):
    """The contents of a stream as one implementation read them."""

    text: str
    calls: list[tuple[str, object]]
    stop: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int


@pytest.fixture
async def fake() -> AsyncIterator[FakeModel]:
    model = FakeModel()
    async with model.serve():
        yield model


async def read_by_us(fake: FakeModel, kind: str) -> Read:
    path = {"anthropic": "", "gemini": "/v1beta"}.get(kind, "/v1")
    provider = build(kind, fake.url + path, "key", 30.0)
    done = await answer(provider, request(UserMessage("hi")))
    await provider.close()
    usage = done.usage
    calls = [(call.name, json.loads(call.arguments)) for call in done.message.tool_calls]
    return Read(done.message.text, calls, done.stop, usage.input_tokens, usage.output_tokens, usage.cached_tokens)


async def read_by_openai(fake: FakeModel) -> Read:
    from openai import AsyncOpenAI

    final = None
    async with (
        AsyncOpenAI(base_url=f"{fake.url}/v1", api_key="key", max_retries=0) as client,
        client.chat.completions.stream(
            model="model-1",
            messages=[{"role": "user", "content": "hi"}],
            stream_options={"include_usage": True},
            tools=[{"type": "function", "function": {"name": tool.name, "parameters": {}}} for tool in TOOLS],
        ) as stream,
    ):
        async for event in stream:
            final = stream.current_completion_snapshot if event.type == "chunk" else final
    assert final is not None
    assert final.usage is not None
    choice = final.choices[0]
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or ()]
    stop = {"stop": "end", "length": "max_tokens"}.get(choice.finish_reason, choice.finish_reason)
    details = final.usage.prompt_tokens_details
    cached = details.cached_tokens if details is not None else 0
    return Read(
        choice.message.content or "",
        calls,
        stop,
        final.usage.prompt_tokens,
        final.usage.completion_tokens,
        cached or 0,
    )


async def read_by_openai_responses(fake: FakeModel) -> Read:
    from openai import AsyncOpenAI
    from openai.types.responses import ResponseCompletedEvent, ResponseIncompleteEvent

    final = None
    async with AsyncOpenAI(base_url=f"{fake.url}/v1", api_key="key", max_retries=0) as client:
        stream = await client.responses.create(model="model-1", input="hi", stream=True)
        async for event in stream:
            if isinstance(event, ResponseCompletedEvent | ResponseIncompleteEvent):
                final = event.response
    assert final is not None
    assert final.usage is not None
    calls = [(item.name, json.loads(item.arguments)) for item in final.output if item.type == "function_call"]
    reason = final.incomplete_details.reason if final.incomplete_details else None
    stop = "tool_calls" if calls else {None: "end", "max_output_tokens": "max_tokens"}.get(reason, "refusal")
    usage = final.usage
    cached = usage.input_tokens_details.cached_tokens
    return Read(final.output_text, calls, stop, usage.input_tokens, usage.output_tokens, cached)


async def read_by_anthropic(fake: FakeModel) -> Read:
    from anthropic import AsyncAnthropic

    async with (
        AsyncAnthropic(base_url=fake.url, api_key="key", max_retries=0) as client,
        client.messages.stream(
            model="model-1", max_tokens=4096, messages=[{"role": "user", "content": "hi"}]
        ) as stream,
    ):
        final = await stream.get_final_message()
    text = "".join(block.text for block in final.content if block.type == "text")
    calls: list[tuple[str, object]] = [(block.name, block.input) for block in final.content if block.type == "tool_use"]
    stops = {"end_turn": "end", "tool_use": "tool_calls", "max_tokens": "max_tokens"}
    usage = final.usage
    cached = usage.cache_read_input_tokens or 0
    written = usage.cache_creation_input_tokens or 0
    stop = stops[str(final.stop_reason)]
    return Read(text, calls, stop, usage.input_tokens + cached + written, usage.output_tokens, cached)


async def read_by_gemini(fake: FakeModel) -> Read:
    from google import genai
    from google.genai import types

    client = genai.Client(api_key="key", http_options=types.HttpOptions(base_url=fake.url, api_version="v1beta"))
    text, calls, stop, usage = "", list[tuple[str, object]](), "", None
    async with client.aio:
        stream = await client.aio.models.generate_content_stream(model="model-1", contents="hi")
        async for chunk in stream:
            candidate = (chunk.candidates or [None])[0]
            parts = (candidate.content.parts if candidate and candidate.content else None) or ()
            calls += [(str(part.function_call.name), part.function_call.args) for part in parts if part.function_call]
            text += "".join(part.text for part in parts if part.text and not part.thought)
            stop = str(candidate.finish_reason.value) if candidate and candidate.finish_reason else stop
            usage = chunk.usage_metadata or usage
    client.close()
    assert usage is not None
    named = "tool_calls" if calls else {"STOP": "end", "MAX_TOKENS": "max_tokens"}[stop]
    output = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
    return Read(text, calls, named, usage.prompt_token_count or 0, output, usage.cached_content_token_count or 0)


ORACLES = {
    "openai": read_by_openai,
    "openai-responses": read_by_openai_responses,
    "anthropic": read_by_anthropic,
    "gemini": read_by_gemini,
}


@pytest.mark.parametrize("name", REPLIES)
@pytest.mark.parametrize("kind", ORACLES)
async def test_our_reader_agrees_with_the_providers_package(fake: FakeModel, kind: str, name: str) -> None:
    recorded = Recorded(tuple(frames_of(kind, REPLIES[name])))
    fake.add(recorded, recorded)
    ours = await read_by_us(fake, kind)
    theirs = await ORACLES[kind](fake)
    assert ours == theirs
    assert ours.text == REPLIES[name].text


@pytest.mark.parametrize("name", [path.name for path in STREAMS])
async def test_a_recorded_stream_is_read_as_the_providers_package_reads_it(fake: FakeModel, name: str) -> None:
    kind = name.split(".", maxsplit=1)[0]
    recorded = Recorded(((STREAMS_DIRECTORY / name).read_bytes(),))
    fake.add(recorded, recorded)
    ours = await read_by_us(fake, kind)
    theirs = await ORACLES[kind](fake)
    assert ours == theirs
    assert ours.text
    assert ours.input_tokens


# ---- error responses ----

LONG_ID = "functions.a_tool_of_a_server_with_a_long_name:0"
CALLS = [{"id": f"{LONG_ID}{number}", "function": {"name": "look"}} for number in range(2)]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image_url"}, {"type": "image_url"}]},
    {"role": "assistant", "tool_calls": CALLS},
    *({"role": "tool", "tool_call_id": call["id"], "content": "seen"} for call in CALLS),
    {"role": "user", "content": "and?"},
    {"role": "assistant", "content": ""},
]
BLOCKS = [{"type": "tool_use", "id": LONG_ID}, {"type": "tool_result", "content": [{"type": "image"}]}]
PARTS = [{"functionCall": {"name": "look"}}, {"inlineData": {}}]
SENT: dict[str, list[object]] = {
    "openai": [
        {"messages": CHAT, "tools": [{"anyOf": []}]},
        {"messages": [{**message, "reasoning_content": "Hm"} for message in CHAT]},
    ],
    "openai-responses": [{"input": [{"type": "reasoning", "id": "rs_1"}]}],
    "anthropic": [{"messages": [{"role": "user", "content": [*BLOCKS, {"type": "image"}]}]}, {"tools": [{}]}],
    "gemini": [{"contents": [{"role": "model", "parts": PARTS}] * 2, "systemInstruction": {}, "tools": [{}]}],
}
"""Conversations that each kind of service refuses for some reason."""


class Raised(NamedTuple):
    """The exception that a provider's own package raises for an error response."""

    name: str
    status: int
    words: str


async def refused_to_openai(fake: FakeModel) -> Raised:
    import openai

    async with openai.AsyncOpenAI(base_url=f"{fake.url}/v1", api_key="key", max_retries=0) as client:
        with pytest.raises(openai.APIStatusError) as raised:
            await client.chat.completions.create(model="model-1", messages=[{"role": "user", "content": "hi"}])
    return Raised(type(raised.value).__name__, raised.value.status_code, raised.value.message)


async def refused_to_responses(fake: FakeModel) -> Raised:
    import openai
    from openai.types import ErrorObject

    async with openai.AsyncOpenAI(base_url=f"{fake.url}/v1", api_key="key", max_retries=0) as client:
        with pytest.raises(openai.APIStatusError) as raised:
            await client.responses.create(model="model-1", input="hi")
    ErrorObject.model_validate(raised.value.body)
    return Raised(type(raised.value).__name__, raised.value.status_code, raised.value.message)


async def refused_to_anthropic(fake: FakeModel) -> Raised:
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=fake.url, api_key="key", max_retries=0) as client:
        with pytest.raises(anthropic.APIStatusError) as raised:
            await client.messages.create(model="model-1", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
    return Raised(type(raised.value).__name__, raised.value.status_code, raised.value.message)


async def refused_to_gemini(fake: FakeModel) -> Raised:
    from google import genai
    from google.genai import errors, types

    client = genai.Client(api_key="key", http_options=types.HttpOptions(base_url=fake.url, api_version="v1beta"))
    async with client.aio:
        with pytest.raises(errors.ClientError) as raised:
            await client.aio.models.generate_content(model="model-1", contents="hi")
    client.close()
    assert raised.value.status == "INVALID_ARGUMENT"
    return Raised("BadRequestError", raised.value.code, str(raised.value.message))


RAISED = {400: "BadRequestError", 404: "NotFoundError", 422: "UnprocessableEntityError"}
REFUSED = {
    "openai": refused_to_openai,
    "openai-responses": refused_to_responses,
    "anthropic": refused_to_anthropic,
    "gemini": refused_to_gemini,
}


@pytest.mark.parametrize("service", SERVICES.values(), ids=lambda one: one.name)
async def test_the_providers_packages_understand_the_fakes_refusals(fake: FakeModel, service: Service) -> None:
    quirks = [service.foreign] if service.foreign is not None else []
    sent = [msgspec.json.decode(msgspec.json.encode(one), type=Sent) for one in SENT[service.kind]]
    for rule in service.rules:
        refusals = [refusal for one in sent if (refusal := rule(one)) is not None]
        assert refusals, rule
        quirks.append(refusals[0])
    for refusal in quirks:
        fake.follow(lambda seen, refusal=refusal: refusal)
        raised = await REFUSED[service.kind](fake)
        assert (raised.name, raised.status) == (RAISED.get(refusal.status, "InternalServerError"), refusal.status)
        assert raised.words
