"""Lessons from rejected requests: what Shoal remembers, for how long, and what users see."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.ids import CallId
from shoal.kernel.messages import (
    AssistantMessage,
    Image,
    ModelDone,
    ModelFailed,
    ModelRequest,
    Opaque,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from shoal.kernel.ports import Provider
from shoal.kernel.settings import ProviderSettings
from shoal.models.arrange import crowded_out
from shoal.models.catalog import build_provider
from shoal.models.http_provider import ATTEMPTS_MAX
from shoal.models.model_table import known_quirks
from shoal.models.openai import OpenAiChat
from shoal.models.quirks import Learned, QuirkMemory, read_learned, write_learned
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.provider import answer, failure
from shoal.testing.model import FakeModel, Refusal, Reply, Seen
from shoal.testing.model.script import Script
from shoal.testing.model.services import SERVICES, Strict

TOOLS = (ToolSpec("bash", "Run it.", '{"type":"object","properties":{}}'),)
BLIND = Refusal(400, "This model does not support images.")
SILENT = Refusal(400, body=b'{"error":"Bad Request"}')


@pytest.fixture
def picture(tmp_path: Path) -> Image:
    path = tmp_path / "p.png"
    path.write_bytes(b"a picture")
    return Image(str(path), "image/png")


@asynccontextmanager
async def asking(
    script: Script, memory: QuirkMemory | None = None, kind: str = "openai"
) -> AsyncGenerator[tuple[Provider, FakeModel]]:
    fake = FakeModel(script=script)
    async with fake.serve() as url:
        settings = ProviderSettings(kind=kind, base_url=f"{url}/v1")
        provider = build_provider("p", settings, ManualClock(), {}, memory=memory)
        yield provider, fake
        await provider.close()


def request(
    *messages: UserMessage | AssistantMessage | ToolMessage, tools: bool = False, key: str = "t"
) -> ModelRequest:
    return ModelRequest("m", "", messages, TOOLS if tools else (), max_output_tokens=9, cache_key=key)


def no_images(refusal: Refusal) -> Callable[[Seen], Refusal | str]:
    return lambda seen: refusal if b"image_url" in seen.body else "seen"


async def test_a_model_without_images_is_refused_once_and_remembered(tmp_path: Path, picture: Image) -> None:
    clock, file = ManualClock(), tmp_path / "learned.json"
    async with asking(no_images(BLIND), QuirkMemory(file, clock)) as (provider, fake):
        done = await answer(provider, request(UserMessage("look", (picture,))))
        assert done.notes == ("m does not accept images, so it did not see yours.",)
        assert fake.calls == 2
        assert b"p.png is not shown to you" in fake.log[-1].body
        await answer(provider, request(UserMessage("again", (picture,)), key="other"))
        assert fake.calls == 3, "every conversation knows it"
    (learned,) = read_learned(file).values()
    assert learned.changes == {"images": "none"}
    assert "does not support images" in learned.refusal


def test_lessons_apply_to_one_server_for_thirty_days_and_can_be_forgotten(tmp_path: Path) -> None:
    clock, file = ManualClock(), tmp_path / "learned.json"
    QuirkMemory(file, clock).put("p/m", "https://one", {"tools": False}, "no tools")
    memory = QuirkMemory(file, clock)
    assert memory.changes("p/m", "https://one") == {"tools": False}
    assert memory.changes("p/m", "https://two") == {}
    assert memory.changes("p/other", "https://one") == {}
    late = Learned({"tools": False}, "", clock.now() - timedelta(days=31), "https://one")
    write_learned(file, {**read_learned(file), "p/old": late})
    assert memory.changes("p/old", "https://one") == {}, "a server may have been upgraded"
    assert QuirkMemory(file, clock).forget("p/m")
    assert memory.changes("p/m", "https://one") == {}, "another process forgot it"
    assert not memory.forget("p/m")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"p/m":1}', b"\xff", b'{"p/m":{"changes":{"no":1}}}'])
def test_a_damaged_file_counts_as_missing(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "learned.json"
    file.write_bytes(content)
    memory = QuirkMemory(file, ManualClock())
    assert memory.changes("p/m", "") == {}
    memory.put("p/m", "", {"images": "none"}, "")
    assert QuirkMemory(file, ManualClock()).changes("p/m", "") == {"images": "none"}


def test_an_unknown_quirk_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "learned.json"
    at = ManualClock().now()
    write_learned(file, {"p/a": Learned({"smell": True}, "", at), "p/b": Learned({"images": "some"}, "", at)})
    assert read_learned(file) == {}


async def test_an_unknown_refusal_causes_one_attempt_without_images(tmp_path: Path, picture: Image) -> None:
    memory = QuirkMemory(tmp_path / "learned.json", ManualClock())
    async with asking(no_images(SILENT), memory) as (provider, fake):
        done = await answer(provider, request(UserMessage("look", (picture,))))
        assert done.notes == (
            "p rejected this conversation, so m now receives it without images or earlier reasoning.",
        )
        assert fake.calls == 2
        again = await answer(provider, request(UserMessage("look", (picture,)), key="other"))
        assert again.notes == ("m does not accept images, so it did not see yours.",)
        assert fake.calls == 3


async def test_left_out_images_are_reported_once(tmp_path: Path, picture: Image) -> None:
    memory = QuirkMemory(tmp_path / "learned.json", ManualClock())
    async with asking(no_images(SILENT), memory) as (provider, _):
        first, second = UserMessage("look", (picture,)), UserMessage("and this one", (picture,))
        done = await answer(provider, request(first))
        assert len(done.notes) == 1
        later = (first, AssistantMessage("I see."), UserMessage("thanks"))
        assert (await answer(provider, request(*later))).notes == ()
        again = await answer(provider, request(*later, AssistantMessage("Welcome."), second))
        assert again.notes == ("m does not accept images, so it did not see yours.",)


async def test_an_image_refused_in_one_conversation_is_still_sent_in_others(picture: Image) -> None:
    memory = QuirkMemory(None, ManualClock())

    def script(seen: Seen) -> Refusal | str:
        return SILENT if b"image_url" in seen.body and "odd" in seen.user_text else "seen"

    async with asking(script, memory) as (provider, fake):
        await answer(provider, request(UserMessage("look", (picture,))))
        odd = UserMessage("odd", (picture,))
        await answer(provider, request(odd, key="odd"))
        await answer(provider, request(odd, AssistantMessage("seen"), UserMessage("and?"), key="odd"))
        assert fake.calls == 4, "the odd conversation goes on without it"
        await answer(provider, request(UserMessage("look", (picture,)), key="third"))
        assert b"image_url" in fake.log[-1].body
    assert memory.all() == {}


async def test_a_refused_image_is_left_out_only_of_its_conversation(picture: Image) -> None:
    fault = Refusal(
        400, "messages.0.content.0.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880"
    )
    async with asking(no_images(fault)) as (provider, fake):
        said = UserMessage("look", (picture,))
        await answer(provider, request(said))
        assert b"p.png is not shown to you: the model's provider rejected it" in fake.log[-1].body
        await answer(provider, request(said, AssistantMessage("seen"), UserMessage("and?")))
        assert fake.calls == 3
        await answer(provider, request(UserMessage("look", (picture,)), key="other"))
        assert fake.calls == 5


async def test_tools_that_are_refused_without_a_reason_are_retried_when_they_change() -> None:
    memory = QuirkMemory(None, ManualClock())
    async with asking(lambda seen: SILENT if seen.tools == ("bash",) else "hi", memory) as (provider, fake):
        done = await answer(provider, request(UserMessage("hi"), tools=True))
        assert done.notes == ("p rejected the request with my tools, so m answered without them. See `shoal doctor`.",)
        await answer(provider, request(UserMessage("hi"), tools=True))
        assert fake.calls == 3
        other = msgspec.structs.replace(request(UserMessage("hi")), tools=(ToolSpec("read", "Read it.", "{}"),))
        await answer(provider, other)
        assert fake.log[-1].tools == ("read",)
    assert memory.all() == {}


async def test_without_tools_calls_and_results_become_text() -> None:
    refuses = Strict(SERVICES["Ollama"], lambda seen: "hi")
    call = ToolCall(CallId("c1"), "bash", '{"command":"ls"}')
    messages = (
        UserMessage("go"),
        AssistantMessage("So:", (call,)),
        ToolMessage(call.id, "bash", "a.txt"),
        UserMessage("?"),
    )
    async with asking(refuses) as (provider, fake):
        await answer(provider, request(*messages, tools=True))
        sent = fake.log[-1].messages
    assert [(one.role, one.text) for one in sent] == [
        ("user", "go"),
        ("assistant", 'So:\n[I call bash] {"command":"ls"}'),
        ("user", "[bash returned]\na.txt\n\n?"),
    ]


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(401, "Bad key."),
        Refusal(402, "Insufficient credits."),
        Refusal(403, "This key may not ask."),
        Refusal(404, "The model `m` does not exist."),
        Refusal(429, "Too many requests."),
        Refusal(503, "Loading model"),
        Refusal(400, "prompt is too long: 300000 tokens > 200000 maximum"),
        Refusal(400, "The response was filtered: content management policy."),
    ],
)
async def test_a_refusal_unrelated_to_form_is_not_retried(refusal: Refusal, picture: Image) -> None:
    async with asking(lambda seen: refusal) as (provider, fake):
        events = [event async for event in provider.stream(request(UserMessage("look", (picture,)), tools=True))]
        assert isinstance(events[-1], ModelFailed)
        assert fake.calls == 1


async def test_attempts_are_bounded_and_the_first_refusal_is_reported(picture: Image) -> None:
    words = iter(range(100))

    def script(seen: Seen) -> Refusal:
        return Refusal(400, f"{next(words)}: temperature, stream_options, tool_search and images are not supported")

    memory = QuirkMemory(None, ManualClock())
    async with asking(script, memory) as (provider, fake):
        asked = msgspec.structs.replace(request(UserMessage("look", (picture,)), tools=True), temperature=0.5)
        events = [event async for event in provider.stream(asked)]
        assert 3 < fake.calls <= ATTEMPTS_MAX
    assert isinstance(events[-1], ModelFailed)
    assert "0: temperature" in events[-1].message
    assert memory.all() == {}, "what did not help is not kept"


async def test_a_refusal_inside_a_stream_is_learned(picture: Image) -> None:
    refusal = Refusal(400, "Image inputs are not supported by this model.", "invalid_request_error", in_stream=True)
    async with asking(no_images(refusal)) as (provider, fake):
        assert (await answer(provider, request(UserMessage("look", (picture,))))).message.text == "seen"
        assert fake.calls == 2


async def test_reasoning_that_is_refused_is_dropped_and_new_reasoning_kept() -> None:
    strict = Strict(SERVICES["OpenAI Responses"], lambda seen: Reply("hi", thinking="mine"))
    async with asking(strict, kind="openai-responses") as (provider, fake):
        first = (await answer(provider, request(UserMessage("q")))).message
        assert first.opaque is not None
        damaged = AssistantMessage("hi", opaque=Opaque(first.opaque.kind, first.opaque.json.replace("mine", "other")))
        second = (await answer(provider, request(UserMessage("q"), damaged, UserMessage("r"), key="u"))).message
        assert len(strict.refusals) == 1 or fake.calls == 3
        await answer(provider, request(UserMessage("q"), damaged, UserMessage("r"), second, UserMessage("s"), key="u"))
        assert fake.log[-1].signed == 1
        assert fake.calls == 4


async def test_an_ordinary_answer_has_no_notices() -> None:
    async with asking(lambda seen: "hi") as (provider, fake):
        done = await answer(provider, request(UserMessage("hi"), tools=True))
    assert isinstance(done, ModelDone)
    assert done.notes == ()
    assert fake.calls == 1


SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "many": {"type": ["string", "null"], "minLength": 2},
            "kind": {"enum": ["a", "b"], "type": "string"},
            "box": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}},
            "any": {"description": "All of it."},
        },
        "required": ["kind"],
    }
)  # fmt: skip
SCHEMA_WORDS = {
    "moonshot": "Invalid request: tools.function.parameters is not a valid moonshot flavored json schema, details: "
    "<At path 'properties.kind': type is not defined>",
    "bedrock": "The json schema definition at toolConfig.tools.0.toolSpec.inputSchema is invalid. Fix the following "
    "errors and try again: $.properties: type must be unique",
    "anthropic": "tools.0.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12",
    "gemini": "* GenerateContentRequest.tools[0].function_declarations[0].parameters.properties[any].type: must be "
    "specified",
    "openai": "Invalid schema for function 'odd': In context=('properties', 'any'), schema must have a 'type' key.",
    "llama.cpp": "Failed to initialize samplers: failed to parse grammar",
    "xgrammar": "The provided JSON schema contains features not supported by xgrammar.",
    "fireworks": "JSON Schema not supported: could not understand the instance `{}`.",
    "groq": "invalid JSON schema for tool odd, tools[0].function.parameters: `/properties/any`: must have a type",
}


@pytest.mark.parametrize("words", SCHEMA_WORDS.values(), ids=SCHEMA_WORDS.keys())
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_refused_schema_is_resent_in_a_narrower_dialect_that_is_remembered(kind: str, words: str) -> None:
    memory, tools = QuirkMemory(None, ManualClock()), (ToolSpec("odd", "Odd.", SCHEMA),)

    def script(seen: Seen) -> Refusal | str:
        return Refusal(400, words) if b'"null"' in seen.body else "done"

    async with asking(script, memory, kind) as (provider, fake):
        asked = msgspec.structs.replace(request(UserMessage("go")), tools=tools)
        done = await answer(provider, asked)
        assert done.notes == (), "it has its tools"
        assert fake.calls == (2 if kind == "openai" else 3)
        assert b'"odd"' in fake.log[-1].body
        await answer(provider, msgspec.structs.replace(asked, cache_key="other"))
        assert fake.calls == (3 if kind == "openai" else 4), "every conversation knows it"
    assert [one.changes for one in memory.all().values()] == [{"schema_dialect": "bare"}]


async def test_a_dialect_that_did_not_help_is_not_remembered() -> None:
    memory = QuirkMemory(None, ManualClock())

    def script(seen: Seen) -> Refusal | str:
        return Refusal(400, "tools[0] has a bad schema") if b'"tools"' in seen.body else "done"

    async with asking(script, memory) as (provider, fake):
        done = await answer(provider, request(UserMessage("go"), tools=True))
        assert done.notes == ("p rejected the request with my tools, so m answered without them. See `shoal doctor`.",)
        assert fake.calls == 3
    assert memory.all() == {}


async def test_the_server_table_overrides_the_protocol() -> None:
    assert known_quirks("https://api.openai.com/v1", "gpt-5.1").schema_dialect == "full"
    protocol = OpenAiChat()
    assert protocol.dialect(known_quirks("http://127.0.0.1:8080/v1", "m")) == "common"
    assert protocol.dialect(known_quirks("https://api.openai.com/v1", "gpt-5.1")) == "full"


# ---- many images ----


def test_excess_images_are_dropped_oldest_first_with_room_for_new_ones() -> None:
    assert crowded_out([[1]] * 8, 8, 100) == 0
    assert crowded_out([[1]] * 9, 8, 100) == 3, "six stay, so that two more leave the request as it is"
    assert crowded_out([[1]] * 11, 8, 100) == 3
    assert crowded_out([[1]] * 12, 8, 100) == 6
    assert crowded_out([[1], [1] * 5], 5, 100) == 1, "all of the newest message"
    assert crowded_out([[1], [1] * 9], 5, 100) == 5
    assert crowded_out([[50], [50], [1]], 0, 100) == 1
    assert crowded_out([[500]], 0, 100) == 0, "the newest in any case"
    assert crowded_out([], 1, 1) == 0


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=20), st.integers(0, 9), st.integers(1, 40))
def test_images_are_bounded_and_dropped_ones_stay_dropped(
    sizes: list[list[int]], images_max: int, bytes_max: int
) -> None:
    flat = [size for message in sizes for size in message]
    left_out = crowded_out(sizes, images_max, bytes_max)
    kept = flat[left_out:]
    assert len(kept) <= 1 or (sum(kept) <= bytes_max and len(kept) <= (images_max or len(kept)))
    assert bool(kept) == bool(flat)
    assert all(crowded_out(sizes[:count], images_max, bytes_max) <= left_out for count in range(len(sizes)))


MANY = {
    "vLLM": ("At most 2 image(s) may be provided in one prompt.", 2),
    "Groq": ("Too many images provided. This model supports up to 2 images", 2),
    "Bedrock": ("messages.0.content: too many images and documents: 3 + 0 > 2", 2),
    "Mistral": ("Too many images in request. Maximum is 2.", 2),
    "nobody's": ("The number of images is over the limit.", 1),
    "TGI": ("Too many images in the request", 1),
}


@pytest.mark.parametrize(("words", "most"), MANY.values(), ids=MANY.keys())
async def test_a_learned_image_limit_keeps_the_newest_images(tmp_path: Path, words: str, most: int) -> None:
    memory, pictures = QuirkMemory(None, ManualClock()), list[Image]()
    for number in range(4):
        path = tmp_path / f"{number}.png"
        path.write_bytes(b"a picture %d" % number)
        pictures.append(Image(str(path), "image/png"))

    def script(seen: Seen) -> Refusal | str:
        return Refusal(400, words) if seen.body.count(b'"image_url":{') > most else "seen"

    async with asking(script, memory) as (provider, fake):
        said = tuple(UserMessage(f"look {number}", (one,)) for number, one in enumerate(pictures))
        asked = [said[0], AssistantMessage("seen"), said[1], AssistantMessage("seen"), said[2]]
        done = await answer(provider, request(*asked))
        assert done.notes == (), "the newest was seen"
        assert fake.calls == 2
        body = fake.log[-1].body
        assert body.index(b"0.png is no longer shown to you") > 0
        assert body.count(b'"image_url":{') == most
        await answer(provider, request(*asked, AssistantMessage("seen"), said[3]))
        assert fake.calls == 3
        again = await answer(provider, request(UserMessage("all", tuple(pictures)), key="other"))
        assert again.notes == (f"m accepts fewer images per request, so it did not see {4 - most} of yours.",)
    assert [one.changes for one in memory.all().values()] == [{"images_max": most}]


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(413, "Request Entity Too Large"),
        Refusal(413, body=b"<html>413 Request Entity Too Large</html>"),
        Refusal(400, "Request payload size exceeds the limit: 20971520 bytes."),
        Refusal(413, body=b'{"error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}'),
    ],
)
async def test_an_oversized_request_is_resent_with_fewer_images(tmp_path: Path, refusal: Refusal) -> None:
    memory, pictures = QuirkMemory(None, ManualClock()), list[Image]()
    for number in range(4):
        path = tmp_path / f"{number}.png"
        path.write_bytes(b"%d" % number * 300_000)
        pictures.append(Image(str(path), "image/png"))

    def script(seen: Seen) -> Refusal | str:
        return refusal if len(seen.body) > 1_000_000 else "seen"

    async with asking(script, memory) as (provider, fake):
        await answer(provider, request(*(UserMessage("look", (one,)) for one in pictures)))
        assert fake.calls == 2
        assert fake.log[-1].body.count(b'"image_url":{') == 2
    assert [one.changes for one in memory.all().values()] == [{"image_bytes_max": 800_000}]


async def test_known_services_never_get_more_images_than_they_accept() -> None:
    assert known_quirks("https://api.anthropic.com", "claude-sonnet-5-5").images_max == 100
    assert known_quirks("https://api.groq.com/openai/v1", "llama-4-scout").images_max == 5
    assert known_quirks("https://api.mistral.ai/v1", "pixtral-large").images_max == 8


@pytest.mark.parametrize("status", [405, 406, 415, 417, 424])
async def test_an_unrecognized_refusal_of_any_status_causes_one_attempt(picture: Image, status: int) -> None:
    async with asking(no_images(Refusal(status, "no"))) as (provider, fake):
        await answer(provider, request(UserMessage("look", (picture,))))
        assert fake.calls == 2


async def test_an_image_that_is_too_large_for_the_server_is_left_out(picture: Image) -> None:
    async with asking(no_images(Refusal(413, "image too large"))) as (provider, fake):
        await answer(provider, request(UserMessage("look", (picture,))))
        assert b"provider rejected it" in fake.log[-1].body


async def test_a_repeated_server_error_tries_other_forms_once(picture: Image) -> None:
    memory = QuirkMemory(None, ManualClock())
    async with asking(no_images(Refusal(500, "Internal Server Error")), memory) as (provider, fake):
        said = UserMessage("look", (picture,))
        look = request(said)
        assert (await failure(provider, look)).kind == "server_error", "most pass"
        assert fake.calls == 1
        done = await answer(provider, look)
        assert done.notes == (
            "p rejected this conversation, so m now receives it without images or earlier reasoning.",
        )
        assert fake.calls == 3
        await answer(provider, request(said, AssistantMessage("seen"), UserMessage("and?")))
        other = await failure(provider, request(UserMessage("look", (picture,)), key="other"))
        assert other.kind == "server_error", "nothing was learned of the model: it may have been something else"
    assert memory.all() == {}


async def test_an_always_failing_server_gets_other_forms_once(picture: Image) -> None:
    async with asking(lambda seen: Refusal(500, "Internal Server Error")) as (provider, fake):
        look = request(UserMessage("look", (picture,)), tools=True)
        for calls in (1, 4, 5, 6):
            assert (await failure(provider, look)).kind == "server_error"
            assert fake.calls == calls


@pytest.mark.parametrize(
    "words",
    [
        "Value is not callable: null at row 49, column 79: {%- set content = x %}",  # jan#6123
        "Failed to parse chat template: Jinja template error: unexpected exception",  # gpt4all#3291
        "chat template prompt error",  # mistral-vibe#1006
    ],
)
async def test_a_failing_chat_template_is_not_an_outage(picture: Image, words: str) -> None:
    async with asking(no_images(Refusal(500, words))) as (provider, fake):
        await answer(provider, request(UserMessage("look", (picture,))))
        assert fake.calls == 2
