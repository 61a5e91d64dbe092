"""The OpenAI-compatible API, used through OpenAI's own client."""

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
from tests.e2e.http_stand import TOKEN, Served, served

from shoal.kernel.clock import SystemClock
from shoal.kernel.events import AssistantSaid, Failed, RetryScheduled, TextStreamed
from shoal.kernel.ids import CallId
from shoal.kernel.messages import Abort, Author, Prompt, ToolCall
from shoal.kernel.ports import ONCE
from shoal.surfaces.http.options import WebOptions

if TYPE_CHECKING:  # the module's 1,200 models take a second to import, which would slow down test collection
    import openai

pytestmark = pytest.mark.xdist_group("providers-clients")
PIXEL = base64.b64encode(b"pixels").decode()


@pytest.fixture
async def shoal(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path) as stand:
        stand.orchestrator.on_prompt = stand.echo
        yield stand


@pytest.fixture
async def client(shoal: Served) -> AsyncIterator["openai.AsyncOpenAI"]:
    import openai

    async with openai.AsyncOpenAI(
        base_url=f"{shoal.address}/v1", api_key=TOKEN, max_retries=2, timeout=60
    ) as openai_client:
        yield openai_client


def prompts(shoal: Served) -> list[Prompt]:
    return [message for message in shoal.orchestrator.received if isinstance(message, Prompt)]


async def chat(client: "openai.AsyncOpenAI", *texts: str, **more: str) -> str:
    """Send one request and return the reply. The roles of the messages alternate, starting with the user."""
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    done = await client.chat.completions.create(model="main", messages=messages, **more)  # pyrefly: ignore[no-matching-overload]
    return done.choices[0].message.content or ""


async def test_the_agents_are_the_models(client: "openai.AsyncOpenAI") -> None:
    assert [model.id async for model in client.models.list()] == ["main"]
    assert (await client.models.retrieve("main")).owned_by == "shoal"


async def test_a_completion_is_answered(shoal: Served, client: "openai.AsyncOpenAI") -> None:
    done = await client.chat.completions.create(model="main", messages=[{"role": "user", "content": "hello"}])
    assert done.choices[0].message.content == "You said: hello"
    assert done.choices[0].finish_reason == "stop"
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (12, 3, 15)
    assert prompts(shoal)[0].thread.startswith("openai:api:")
    assert prompts(shoal)[0].agent == "main"


async def test_a_completion_streams(client: "openai.AsyncOpenAI") -> None:
    stream = await client.chat.completions.create(
        model="main",
        messages=[{"role": "user", "content": "hello"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    texts = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
    assert "".join(texts) == "You said: hello"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 15
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_conversation_stays_in_its_thread(shoal: Served, client: "openai.AsyncOpenAI") -> None:
    first = await chat(client, "hello")
    second = await chat(client, "hello", first, "and now?")
    await chat(client, "hello", first, "and now?", second, "and then?")
    assert len({prompt.thread for prompt in prompts(shoal)}) == 1
    assert [prompt.text for prompt in prompts(shoal)] == ["hello", "and now?", "and then?"]


async def test_a_streamed_conversation_stays_in_its_thread(shoal: Served, client: "openai.AsyncOpenAI") -> None:
    stream = await client.chat.completions.create(
        model="main", messages=[{"role": "user", "content": "hello"}], stream=True
    )
    texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    await chat(client, "hello", "".join(texts), "and now?")
    assert len({prompt.thread for prompt in prompts(shoal)}) == 1


async def test_conversations_with_the_same_first_message_get_separate_threads(
    shoal: Served, client: "openai.AsyncOpenAI"
) -> None:
    for _ in range(2):
        await chat(client, "hello")
    assert len({prompt.thread for prompt in prompts(shoal)}) == 2


async def test_a_conversation_begun_elsewhere_includes_its_earlier_messages(
    shoal: Served, client: "openai.AsyncOpenAI"
) -> None:
    await chat(client, "my name is Kelp", "Noted.", "what is my name?")
    (prompt,) = prompts(shoal)
    assert "user: my name is Kelp\nassistant: Noted." in prompt.text
    assert prompt.text.endswith("what is my name?")


async def test_system_instructions_precede_the_message_text(shoal: Served, client: "openai.AsyncOpenAI") -> None:
    system = {"role": "system", "content": "Answer in French."}
    await client.chat.completions.create(model="main", messages=[system, {"role": "user", "content": "hi"}])  # pyrefly: ignore[bad-argument-type]
    assert prompts(shoal)[0].text == "[Instructions from the calling program]\nAnswer in French.\n\nhi"


@pytest.mark.parametrize(
    ("more", "thread"),
    [
        ({"user": "ann"}, "openai:api:ann"),
        ({"user": "ann/b"}, "openai:api:ann%2Fb"),
        ({"user": "日本"}, "openai:api:日本"),
        ({"metadata": {"thread": "web:lobby:one"}}, "web:lobby:one"),
        ({"metadata": {"thread": "desk"}, "user": "ann"}, "openai:api:desk"),
    ],
)
async def test_the_caller_may_choose_the_thread(
    shoal: Served, client: "openai.AsyncOpenAI", more: dict[str, str], thread: str
) -> None:
    await chat(client, "hello", **more)
    await chat(client, "another beginning", **more)
    assert [prompt.thread for prompt in prompts(shoal)] == [thread] * 2


async def test_images_are_stored_with_the_message(shoal: Served, client: "openai.AsyncOpenAI") -> None:
    parts = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
    ]
    await client.chat.completions.create(model="main", messages=[{"role": "user", "content": parts}])  # pyrefly: ignore[bad-argument-type]
    (attachment,) = prompts(shoal)[0].attachments
    assert (attachment.name, attachment.media_type) == ("image.png", "image/png")
    assert Path(attachment.path).read_bytes() == b"pixels"


async def test_files_in_every_form_are_stored_with_the_message(shoal: Served) -> None:
    data = base64.b64encode(b"%PDF-1.7 text").decode()
    parts = [
        "bare text",
        {"type": "text", "text": "read these"},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{data}"}},
        {"type": "file", "file": {"filename": "b.txt", "file_data": data.rstrip("=")}},
        {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{data}"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "auto"}},
    ]
    message = {"role": "user", "content": parts, "name": "ann"}
    answer = await shoal.client.post("/v1/chat/completions", json={"model": "main", "messages": [message]})
    assert answer.status_code == 200, answer.text
    (prompt,) = prompts(shoal)
    assert prompt.text == "bare text\nread these"
    assert [(attachment.name, attachment.media_type) for attachment in prompt.attachments] == [
        ("a.pdf", "application/pdf"), ("b.txt", "text/plain"), ("file.pdf", "application/pdf"),
        ("image.png", "image/png"),
    ]  # fmt: skip
    assert [Path(attachment.path).read_bytes() for attachment in prompt.attachments[:3]] == [b"%PDF-1.7 text"] * 3


async def test_large_files_and_long_histories_are_accepted(shoal: Served) -> None:
    content = bytes(range(256)) * 16_384
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{base64.b64encode(content).decode()}"}
    history = [
        {"role": "user", "content": [{"type": "input_text", "text": "x" * 2_000_000}, image]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": [{"type": "input_text", "text": "and"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "this?"}, image]},
    ]
    answer = await shoal.client.post("/v1/responses", json={"model": "main", "input": history})
    assert answer.status_code == 200, answer.text
    (prompt,) = prompts(shoal)
    assert prompt.text.endswith("and\n\nthis?")
    assert [Path(attachment.path).read_bytes() == content for attachment in prompt.attachments] == [True, True]


IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n": 2}, "`n`"),
        ({"logprobs": True}, "`logprobs`"),
        ({"functions": [{"name": "f"}]}, "`functions`"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "`response_format`"),
        ({"modalities": ["text", "audio"], "audio": {"voice": "alloy"}}, "`modalities`"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "last message"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "'critic'"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "does not fetch"),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}]}, "`file_id`"),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]}, "has no data"),
        ({"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {}}]}]}, "'video_url'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": "n*t base64"}}]}]},
            "not base64",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_file", "file_url": "https://x.org/a"}]}]},
            "`file_url`",
        ),
    ],
)
async def test_unsupported_options_are_rejected_by_name(shoal: Served, change: dict[str, object], named: str) -> None:
    body = {"model": "main", "messages": [{"role": "user", "content": "hi"}], **change}
    answer = await shoal.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
    assert prompts(shoal) == []


async def test_fields_that_change_nothing_are_ignored(shoal: Served) -> None:
    more = {
        "temperature": 0.2, "max_completion_tokens": 99, "seed": 1, "stop": ["x"], "store": False,
        "tool_choice": "none",
        "tools": [], "n": None, "response_format": {"type": "text"}, "stream_options": None, "reasoning_effort": "low",
        "top_p": 1, "logit_bias": {}, "service_tier": "auto", "unknown": {"a": [1]}, "parallel_tool_calls": True,
    }  # fmt: skip
    messages = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function"}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "42"}]},
        {"role": "user", "content": "So?"},
    ]
    answer = await shoal.client.post("/v1/chat/completions", json={"model": "main", "messages": messages, **more})
    assert answer.status_code == 200, answer.text
    assert "tool: 42" in prompts(shoal)[0].text


async def test_text_between_tool_calls_is_streamed_too(shoal: Served, client: "openai.AsyncOpenAI") -> None:
    async def work(prompt: Prompt) -> None:
        turn = await shoal.open(prompt)
        shoal.hub.show(prompt.thread, turn, TextStreamed("Let me look.", 1))
        await shoal.add(prompt.thread, turn, AssistantSaid("Let me look.", (ToolCall(CallId("c"), "ls", "{}"),)))
        shoal.hub.show(prompt.thread, turn, TextStreamed("It is", 2, after=3))
        shoal.hub.show(prompt.thread, turn, TextStreamed("It was", 3, after=3))  # after a retry of the model call
        await shoal.add(prompt.thread, turn, AssistantSaid("It is there."))
        await shoal.finish(prompt.thread, turn, "It is there.")

    shoal.orchestrator.on_prompt = work
    stream = await client.chat.completions.create(
        model="main", messages=[{"role": "user", "content": "look"}], stream=True
    )
    texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(texts) == "Let me look.\n\nIt is there."


async def fail(shoal: Served, prompt: Prompt) -> None:
    turn = await shoal.open(prompt)
    await shoal.add(prompt.thread, turn, Failed("overloaded", "The model is busy."))
    await shoal.finish(prompt.thread, turn, "The model is busy.", "failed")


async def test_a_failed_turn_is_an_error_without_retry(shoal: Served, client: "openai.AsyncOpenAI") -> None:
    import openai

    shoal.orchestrator.on_prompt = lambda prompt: fail(shoal, prompt)
    with pytest.raises(openai.InternalServerError, match="The model is busy"):
        await chat(client, "hello")
    assert len(prompts(shoal)) == 1


def away(shoal: Served, *, after: AssistantSaid | None = None) -> RetryScheduled:
    """Make all turns wait for an unavailable model. `after` is a step that the turn completes first. Return the
    turn's last event.
    """
    next_at = shoal.clock.now() + timedelta(seconds=1)
    waits = RetryScheduled("overloaded", "The model is overloaded right now.", next_at, shoal.clock.now(), 1)

    async def wait(prompt: Prompt) -> None:
        turn = await shoal.open(prompt)
        await shoal.add(prompt.thread, turn, *([after] if after else []), waits)

    shoal.orchestrator.on_prompt = wait
    return waits


async def test_an_unavailable_model_ends_the_turn_immediately(shoal: Served, client: "openai.AsyncOpenAI") -> None:
    import openai

    waits = away(shoal)
    with pytest.raises(openai.InternalServerError, match="The model is overloaded right now") as raised:
        await client.with_options(max_retries=1).responses.create(model="main", input="hello")
    assert raised.value.status_code == 503
    assert int(raised.value.response.headers["retry-after"]) >= 1
    assert waits.message in str(raised.value.body)
    assert len(prompts(shoal)) == 2, "nothing was done yet, so the client may retry"
    ended = [message.thread for message in shoal.orchestrator.received if isinstance(message, Abort)]
    assert ended == [prompt.thread for prompt in prompts(shoal)]


async def test_a_turn_with_effects_is_not_retried_when_its_model_is_unavailable(
    shoal: Served, client: "openai.AsyncOpenAI"
) -> None:
    import openai

    away(shoal, after=AssistantSaid("", (ToolCall(CallId("c"), "bash", "{}"),), "tool_calls"))
    with pytest.raises(openai.InternalServerError, match="overloaded"):
        await chat(client, "hello")
    assert len(prompts(shoal)) == 1


async def test_a_repeated_request_starts_no_second_turn(shoal: Served, client: "openai.AsyncOpenAI") -> None:
    begun: list[Prompt] = []
    is_repeated = asyncio.Event()

    async def answer_the_repetition(prompt: Prompt) -> None:
        begun.append(prompt)
        await is_repeated.wait()
        await shoal.answer(prompt, "You said: ", prompt.text)

    async def watch() -> None:
        while len(prompts(shoal)) < 2:
            await SystemClock().sleep(0.01)
        is_repeated.set()

    shoal.orchestrator.on_prompt = answer_the_repetition
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch())
        assert await chat(client.with_options(timeout=1.0), "hello") == "You said: hello"
    assert len(begun) == 1
    assert await chat(client, "hello") == "You said: hello"
    assert len({prompt.thread for prompt in begun}) == 2, "a new request is a new conversation"


@pytest.mark.parametrize("is_old", [False, True])
async def test_only_a_recent_request_is_repeated(shoal: Served, is_old: bool) -> None:
    async def post(attempt: str, seconds: float) -> str:
        body = {"model": "main", "messages": [{"role": "user", "content": "hello"}]}
        headers = {"x-stainless-retry-count": attempt}
        answer = await shoal.client.post("/v1/chat/completions", json=body, headers=headers, timeout=seconds)
        assert answer.status_code == 200
        return answer.headers["x-shoal-thread"]

    shoal.orchestrator.on_prompt = None
    with pytest.raises(httpx2.ReadTimeout):
        await post("0", 0.5)
    (first,) = prompts(shoal)
    ((key, value),) = await shoal.store.settings.page(ONCE)
    if is_old:
        await shoal.store.settings.put(ONCE, key, f"{0:016}{value[16:]}")
    shoal.orchestrator.on_prompt = shoal.echo
    if not is_old:
        shoal.start(shoal.echo(first))
    assert (await post("1", 60.0) == first.thread) is not is_old
    assert await shoal.store.settings.page(ONCE) == [], "the reply is complete"


async def test_a_failed_turn_ends_its_stream_with_an_error(shoal: Served, client: "openai.AsyncOpenAI") -> None:
    import openai

    shoal.orchestrator.on_prompt = lambda prompt: fail(shoal, prompt)
    stream = await client.chat.completions.create(
        model="main", messages=[{"role": "user", "content": "hello"}], stream=True
    )
    with pytest.raises(openai.APIError, match="The model is busy"):
        async for _ in stream:
            pass


async def test_a_stopped_turn_is_an_error(shoal: Served, client: "openai.AsyncOpenAI") -> None:
    import openai

    async def stop(prompt: Prompt) -> None:
        turn = await shoal.open(prompt)
        await shoal.store.inbox.abort(Abort(prompt.thread, Author("owner", trusted=True)))
        await shoal.finish(prompt.thread, turn, "", "aborted")

    shoal.orchestrator.on_prompt = stop
    with pytest.raises(openai.ConflictError):
        await chat(client, "hello")
    assert len(prompts(shoal)) == 1


async def test_a_message_removed_from_the_queue_is_an_error(tmp_path: Path) -> None:
    import openai

    async with served(tmp_path, WebOptions(token=TOKEN, port=0, heartbeat_seconds=0.01)) as stand:
        stand.orchestrator.on_prompt = lambda prompt: stand.store.inbox.abort(
            Abort(prompt.thread, Author("o", trusted=True), True)
        )
        async with openai.AsyncOpenAI(base_url=f"{stand.address}/v1", api_key=TOKEN) as client:
            with pytest.raises(openai.ConflictError, match="removed from the queue"):
                await chat(client, "hello")


async def test_repeating_a_call_with_a_removed_message_is_an_error_too(tmp_path: Path) -> None:
    import openai

    async with served(tmp_path, WebOptions(token=TOKEN, port=0, heartbeat_seconds=0.01)) as stand:
        stand.orchestrator.on_prompt = stand.echo
        async with openai.AsyncOpenAI(base_url=f"{stand.address}/v1", api_key=TOKEN) as client:
            await chat(client, "hello", user="ann")
            stand.orchestrator.on_prompt = lambda prompt: stand.store.inbox.abort(
                Abort(prompt.thread, Author("owner", trusted=True), all_queued=True)
            )
            keyed = client.with_options(default_headers={"Idempotency-Key": "k1"})
            calls = [chat(keyed, "again", user="ann") for _ in range(2)]
            ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(end) for end in ends] == [openai.ConflictError] * 2


async def test_a_call_repeated_under_its_key_is_the_same_message(shoal: Served, client: "openai.AsyncOpenAI") -> None:
    keyed = client.with_options(default_headers={"Idempotency-Key": "k1"})
    assert await chat(keyed, "hello") == await chat(keyed, "hello") == "You said: hello"
    events = (await shoal.client.get(f"/api/threads/{prompts(shoal)[0].thread}/events")).json()
    assert [event["type"] for event in events].count("turn_started") == 1


async def test_the_token_is_the_api_key(shoal: Served) -> None:
    import openai

    async with openai.AsyncOpenAI(base_url=f"{shoal.address}/v1", api_key="wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await chat(client, "hello")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}, 404),
        ({"model": "main", "messages": []}, 400),
        ({"model": "main", "messages": [{"role": "user", "content": " "}]}, 400),
        ({"model": "main", "messages": [{"role": "assistant", "content": "hi"}]}, 400),
        ({"model": "main", "messages": [{"role": "system", "content": "hi"}]}, 400),
        ({"model": "main", "messages": [{"role": "user", "content": "hi"}], "n": 2}, 400),
        ({"model": "main", "messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}]}, 400),
        ({"messages": [{"role": "user", "content": "hi"}]}, 400),
    ],
)
async def test_errors_have_openais_form(shoal: Served, body: dict[str, object], status: int) -> None:
    answer = await shoal.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "code", "param"}
    assert prompts(shoal) == []


async def test_a_full_mailbox_is_a_rate_limit(shoal: Served, client: "openai.AsyncOpenAI") -> None:
    import openai

    shoal.orchestrator.on_prompt = None
    shoal.orchestrator.prompts_max = 0
    with pytest.raises(openai.RateLimitError):
        await chat(client.with_options(max_retries=0), "hello")


async def test_a_response_is_answered(shoal: Served, client: "openai.AsyncOpenAI") -> None:
    done = await client.responses.create(model="main", input="hello", instructions="Be brief.")
    assert done.output_text == "You said: [Instructions from the calling program]\nBe brief.\n\nhello"
    assert done.status == "completed"
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.input_tokens_details.cached_tokens) == (12, 4)
    again = await client.responses.create(model="main", input="go on", previous_response_id=done.id)
    assert again.output_text == "You said: go on"
    assert len({prompt.thread for prompt in prompts(shoal)}) == 1


async def test_a_response_streams(client: "openai.AsyncOpenAI") -> None:
    async with client.responses.stream(model="main", input="hello") as stream:
        kinds = [event.type async for event in stream]
        done = await stream.get_final_response()
    assert done.output_text == "You said: hello"
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert "response.output_text.delta" in kinds


async def test_a_response_takes_a_list_of_messages(shoal: Served, client: "openai.AsyncOpenAI") -> None:
    parts = [
        {"type": "input_text", "text": "what is this?"},
        {"type": "input_image", "image_url": f"data:image/jpeg;base64,{PIXEL}"},
    ]
    done = await client.responses.create(model="main", input=[{"role": "user", "content": parts}])  # pyrefly: ignore[no-matching-overload]
    assert done.output_text == "You said: what is this?"
    assert prompts(shoal)[0].attachments[0].media_type == "image/jpeg"


async def test_a_failed_response_says_so_in_its_stream(shoal: Served, client: "openai.AsyncOpenAI") -> None:
    shoal.orchestrator.on_prompt = lambda prompt: fail(shoal, prompt)
    stream = await client.responses.create(model="main", input="hello", stream=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.message == "The model is busy."


@pytest.mark.parametrize(
    "change",
    [
        {"previous_response_id": "resp_x"},
        {"previous_response_id": "nonsense"},
        {"input": [{"type": "function_call_output", "output": "x"}]},
        {"input": []},
        {"input": ""},
        {"tools": [{"type": "web_search"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://example.org/a.png"}]}]},
    ],
)
async def test_an_invalid_response_request_is_rejected(shoal: Served, change: dict[str, object]) -> None:
    answer = await shoal.client.post("/v1/responses", json={"model": "main", "input": "hi", **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
