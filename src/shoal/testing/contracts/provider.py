"""The contract of `Provider`, run against a scripted model.

To test a provider that calls a server over HTTP, subclass `HttpProviderContract`, which adds tests for server failures:

    class TestMyProvider(HttpProviderContract):
        kind = "openai"  # the API that the fake server speaks

        def build(self, url: str, *, key: str, idle_seconds: float) -> Provider: ...
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest
from msgspec.structs import replace

from shoal.kernel.errors import ProviderDown, ProviderRefused
from shoal.kernel.messages import (
    AssistantMessage,
    FailureKind,
    Image,
    ModelDone,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from shoal.kernel.ports import Provider
from shoal.testing.contracts.provider_frames import damage, frames_of
from shoal.testing.model import Call, FakeModel, FakeSettings, Gate, Recorded, Refusal, Reply

KEY = "sk-right-0123456789"
TOOLS = (
    ToolSpec("bash", "Run a command.", '{"type":"object","properties":{"command":{"type":"string"}}}'),
    ToolSpec("read", "Read a file.", '{"type":"object","properties":{"path":{"type":"string"}}}'),
)
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c020000000b4944415478da6364f80f00010501012718e366"
    "0000000049454e44ae426082"
)
WIDE = "Größe – 大きさ – 🐟 "


class Stage(NamedTuple):
    """A scripted model and a provider connected to it."""

    fake: FakeModel
    provider: Provider


def request(*messages: ModelMessage, tools: tuple[ToolSpec, ...] = TOOLS, key: str = "thread") -> ModelRequest:
    """Return a request like the ones that the turn loop sends."""
    return ModelRequest("model-1", "You are terse.", messages, tools, cache_key=key)


async def collect(provider: Provider, asked: ModelRequest) -> list[ModelEvent]:
    return [event async for event in provider.stream(asked)]


async def answer(provider: Provider, asked: ModelRequest) -> ModelDone:
    """Make a call that must succeed. Return its final event."""
    last = (await collect(provider, asked))[-1]
    assert isinstance(last, ModelDone), last
    return last


async def failure(provider: Provider, asked: ModelRequest) -> ModelFailed:
    """Make a call that must fail. Return its final event."""
    last = (await collect(provider, asked))[-1]
    assert isinstance(last, ModelFailed), last
    return last


def shown(events: Sequence[ModelEvent]) -> str:
    """Return the text that the events contain."""
    return "".join(event.text for event in events if isinstance(event, TextDelta))


class ProviderContract:
    """Contract suite for any provider. Subclass it and provide a `stage` fixture."""

    async def test_streamed_text_equals_the_final_text(self, stage: Stage) -> None:
        stage.fake.add(Reply(WIDE * 5))
        events = await collect(stage.provider, request(UserMessage("hi")))
        done = events[-1]
        assert isinstance(done, ModelDone)
        assert done.message.text == shown(events) == WIDE * 5
        assert (done.stop, done.message.tool_calls) == ("end", ())
        assert sum(isinstance(event, ModelDone | ModelFailed) for event in events) == 1

    async def test_thinking_is_separate_from_the_text(self, stage: Stage) -> None:
        stage.fake.add(Reply("Six.", thinking="two times three"))
        events = await collect(stage.provider, request(UserMessage("2*3?")))
        done = events[-1]
        assert isinstance(done, ModelDone)
        assert (done.thinking, done.message.text) == ("two times three", "Six.")
        assert "".join(event.text for event in events if isinstance(event, ThinkingDelta)) == "two times three"

    async def test_several_calls_in_one_message_keep_order_and_arguments(self, stage: Stage) -> None:
        long = '{"command":"' + "echo 大 " * 9000 + '"}'
        stage.fake.add(Reply("Both:", (Call("bash", long), Call("read", '{"path":"a.txt"}'), Call("read", "{}"))))
        done = await answer(stage.provider, request(UserMessage("go")))
        assert done.stop == "tool_calls"
        assert done.message.text == "Both:"
        calls = done.message.tool_calls
        assert [(call.name, call.arguments) for call in calls] == [
            ("bash", long),
            ("read", '{"path":"a.txt"}'),
            ("read", "{}"),
        ]
        assert len({call.id for call in calls}) == 3

    async def test_the_conversation_is_sent_with_calls_and_results(self, stage: Stage) -> None:
        stage.fake.add(Reply(calls=(Call("bash", '{"command":"ls"}'), Call("read", "{}"))), "Done.", "Bye.")
        message = UserMessage("list")
        first = await answer(stage.provider, request(message))
        one, two = first.message.tool_calls
        results = (ToolMessage(one.id, "bash", "a.txt"), ToolMessage(two.id, "read", "no such file", is_error=True))
        second = await answer(stage.provider, request(message, first.message, *results))
        more = UserMessage("thanks")
        await answer(stage.provider, request(message, first.message, *results, second.message, more))
        seen = stage.fake.log[-1]
        assert seen.system == "You are terse."
        assert seen.tools == ("bash", "read")
        assert [(message.role, message.text) for message in seen.messages] == [
            ("user", "list"),
            ("assistant", ""),
            ("tool", "a.txt"),
            ("tool", "no such file"),
            ("assistant", "Done."),
            ("user", "thanks"),
        ]
        assert [call.arguments for call in seen.messages[1].calls] == ['{"command":"ls"}', "{}"]
        assert [message.call_id for message in seen.messages[2:4]] == [call.id for call in seen.messages[1].calls]

    async def test_a_request_can_forbid_tool_calls(self, stage: Stage) -> None:
        """An empty `tools` tuple and `tool_choice="none"` both forbid calls, even after earlier calls."""
        stage.fake.add("Well.", Reply(calls=(Call("bash"),)), "Enough.")
        await answer(stage.provider, request(message := UserMessage("hi"), tools=()))
        called = (await answer(stage.provider, request(message))).message
        result = ToolMessage(called.tool_calls[0].id, "bash", "a.txt")
        await answer(stage.provider, replace(request(message, called, result), tool_choice="none"))
        assert [seen.tools for seen in stage.fake.log] == [(), ("bash", "read"), ()]

    async def test_usage_counts_cached_tokens(self, stage: Stage) -> None:
        stage.fake.add("One.", "Two.")
        message = UserMessage("Tell me something. " * 50)
        first = await answer(stage.provider, request(message))
        second = await answer(stage.provider, request(message, first.message, UserMessage("more")))
        assert first.usage.cached_tokens == 0
        assert first.usage.input_tokens <= second.usage.cached_tokens + 4
        assert second.usage.cached_tokens < second.usage.input_tokens
        assert second.usage.output_tokens > 0

    async def test_a_truncated_answer_has_its_own_stop_reason(self, stage: Stage) -> None:
        stage.fake.add(Reply("half of", stop="max_tokens"))
        done = await answer(stage.provider, request(UserMessage("hi")))
        assert (done.stop, done.message.text) == ("max_tokens", "half of")

    async def test_an_empty_answer_is_not_a_failure(self, stage: Stage) -> None:
        stage.fake.add(Reply(""))
        done = await answer(stage.provider, request(UserMessage("hi")))
        assert (done.message.text, done.message.tool_calls, done.stop) == ("", (), "end")

    async def test_images_are_sent(self, stage: Stage, tmp_path: Path) -> None:
        """The provider sends images from a person's message and images from a tool result."""
        path = tmp_path / "pixel.png"
        path.write_bytes(PIXEL)
        image = Image(str(path), "image/png")
        stage.fake.add(Reply(calls=(Call("read", "{}"),)), "I see.")
        message = UserMessage("Look.", (image, image))
        first = await answer(stage.provider, request(message))
        result = ToolMessage(first.message.tool_calls[0].id, "read", "an image", images=(image,))
        await answer(stage.provider, request(message, first.message, result))
        assert stage.fake.log[0].messages[-1].images == 2
        assert sum(message.images for message in stage.fake.log[1].messages) == 3

    @pytest.mark.parametrize(
        ("status", "kind"),
        [(400, "invalid_request"), (401, "auth"), (402, "quota"), (404, "invalid_request"), (429, "rate_limited"),
         (500, "server_error"), (503, "overloaded"), (504, "timeout"), (529, "overloaded")],
    )  # fmt: skip
    async def test_each_error_status_has_its_kind(self, stage: Stage, status: int, kind: FailureKind) -> None:
        stage.fake.add(Refusal(status, "because"))
        failed = await failure(stage.provider, request(UserMessage("hi")))
        assert failed.kind == kind
        assert "because" in failed.message

    async def test_retry_after_is_reported(self, stage: Stage) -> None:
        stage.fake.add(Refusal(429, headers=(("retry-after", "17"),)))
        failed = await failure(stage.provider, request(UserMessage("hi")))
        assert (failed.kind, failed.retry_after_seconds) == ("rate_limited", 17.0)

    async def test_a_connection_dropped_before_the_answer_is_a_failure(self, stage: Stage) -> None:
        stage.fake.add(Reply("never", drop_after=0))
        events = await collect(stage.provider, request(UserMessage("hi")))
        assert shown(events) == ""
        assert isinstance(events[-1], ModelFailed)
        assert events[-1].kind == "dropped"

    async def test_after_a_failure_the_next_call_works(self, stage: Stage) -> None:
        stage.fake.add(Reply("never", drop_after=0), Refusal(500), "Fine.")
        message = UserMessage("hi")
        for _ in range(2):
            await failure(stage.provider, request(message))
        assert (await answer(stage.provider, request(message))).message.text == "Fine."

    async def test_concurrent_calls_do_not_mix(self, stage: Stage) -> None:
        count = 60

        async def one(number: int) -> str:
            done = await answer(stage.provider, request(UserMessage(f"n{number}"), key=f"thread-{number}"))
            return done.message.text

        stage.fake.follow(lambda seen: f"reply to {seen.user_text}")
        replies = await asyncio.gather(*(one(number) for number in range(count)))
        assert replies == [f"reply to n{number}" for number in range(count)]


class HttpProviderContract(ProviderContract):
    """Contract suite for providers that call a server. Subclass it, set `kind` and implement `build`."""

    kind: ClassVar[str]

    def build(self, url: str, *, key: str, idle_seconds: float) -> Provider:
        """Build the provider under test. `url` is the fake server's address without a path."""
        raise NotImplementedError

    @pytest.fixture
    async def stage(self) -> AsyncIterator[Stage]:
        """Start the fake server and yield a provider connected to it."""
        fake = FakeModel(settings=FakeSettings(api_key=KEY, models=("model-1", "model-2")))
        async with fake.serve() as url:
            provider = self.build(url, key=KEY, idle_seconds=30.0)
            yield Stage(fake, provider)
            await provider.close()

    async def test_thinking_is_sent_back_unchanged(self, stage: Stage) -> None:
        """The fake server rejects changed thinking. It also rejects a request that omits signed thinking."""
        thinking = "Ein Gedanke: 大\n"
        stage.fake.add(
            Reply("I look.", (Call("bash", "{}"),), thinking=thinking, redacted_thinking="hidden=="), "Done."
        )
        message = UserMessage("go")
        first = await answer(stage.provider, request(message))
        result = ToolMessage(first.message.tool_calls[0].id, "bash", "ok")
        # After a restart, the same content is in new objects.
        opaque = first.message.opaque
        again = AssistantMessage(first.message.text, first.message.tool_calls, opaque)
        await answer(stage.provider, request(message, again, result))
        assert stage.fake.log[-1].signed == (0 if self.kind == "openai" else 1)

    async def test_malformed_arguments_do_not_break_the_next_request(self, stage: Stage) -> None:
        """The caller gets the arguments unchanged. The next request sends them as valid JSON."""
        stage.fake.add(Reply(calls=(Call("bash", '{"command": "ls'),)), "Sorry.")
        message = UserMessage("go")
        first = await answer(stage.provider, request(message))
        call = first.message.tool_calls[0]
        assert '{\\"command\\": \\"ls' in call.arguments or call.arguments == '{"command": "ls'
        result = ToolMessage(call.id, "bash", "malformed JSON", is_error=True)
        await answer(stage.provider, request(message, first.message, result))
        assert stage.fake.log[-1].messages[1].calls[0].arguments.startswith('{"malformed":')

    async def test_repeated_call_ids_are_made_unique(self, stage: Stage) -> None:
        same = (Call("bash", "{}", "call_0"), Call("read", "{}", "call_0"))
        stage.fake.add(Reply(calls=same), Reply(calls=same[:1]), "Done.")
        message = UserMessage("go")
        first = await answer(stage.provider, request(message))
        one, two = first.message.tool_calls
        results = (ToolMessage(one.id, "bash", "1"), ToolMessage(two.id, "read", "2"))
        second = await answer(stage.provider, request(message, first.message, *results))
        third = second.message.tool_calls[0]
        assert len({one.id, two.id, third.id}) == 3
        await answer(
            stage.provider,
            request(message, first.message, *results, second.message, ToolMessage(third.id, "bash", "3")),
        )

    @pytest.mark.parametrize("drop_after", [3, 5])
    async def test_a_dropped_connection_is_a_failure(self, stage: Stage, drop_after: int) -> None:
        stage.fake.add(Reply("one two three four five six", drop_after=drop_after))
        events = await collect(stage.provider, request(UserMessage("hi")))
        assert isinstance(events[-1], ModelFailed)
        assert events[-1].kind == "dropped"
        assert "one two three four five six".startswith(shown(events))

    async def test_an_error_inside_the_stream_is_a_failure(self, stage: Stage) -> None:
        """An error that follows status 200 is treated like an error status."""
        code = {"anthropic": "overloaded_error", "gemini": "UNAVAILABLE"}.get(self.kind, "server_error")
        stage.fake.add(Refusal(503, "too many fish", code, in_stream=True))
        failed = await failure(stage.provider, request(UserMessage("hi")))
        assert failed.kind == ("server_error" if code == "server_error" else "overloaded")
        assert "too many fish" in failed.message

    async def test_a_context_overflow_has_its_own_kind(self, stage: Stage) -> None:
        """The caller can fix this failure by shortening the conversation."""
        stage.fake.settings = FakeSettings(context_tokens=200)
        failed = await failure(stage.provider, request(UserMessage("word " * 1000)))
        assert failed.kind == "context_overflow"

    async def test_errors_never_contain_the_key(self, stage: Stage) -> None:
        """The server's error contains the key. The provider's message must not contain it."""
        provider = self.build(stage.fake.url, key="sk-wrong-abcdefghijkl", idle_seconds=30.0)
        failed = await failure(provider, request(UserMessage("hi")))
        assert failed.kind == "auth"
        assert "wrong" not in failed.message
        with pytest.raises(ProviderRefused) as refused:
            await provider.models()
        assert "wrong" not in str(refused.value)
        await provider.close()

    async def test_models_are_listed(self, stage: Stage) -> None:
        assert [model.id for model in await stage.provider.models()] == ["model-1", "model-2"]

    async def test_a_stopped_server_is_unreachable(self, stage: Stage) -> None:
        await stage.fake.stop()
        failed = await failure(stage.provider, request(UserMessage("hi")))
        assert failed.kind == "unreachable"
        with pytest.raises(ProviderDown):
            await stage.provider.models()

    @pytest.mark.parametrize("gate_at", [0, 4])
    async def test_a_stalled_answer_times_out(self, stage: Stage, gate_at: int) -> None:
        provider = self.build(stage.fake.url, key=KEY, idle_seconds=0.05)
        stage.fake.add(Reply("one two three four", gate=Gate(), gate_at=gate_at))
        failed = await failure(provider, request(UserMessage("hi")))
        assert failed.kind == "timeout"
        await stage.fake.log[-1].cancelled.wait()
        await provider.close()

    @pytest.mark.parametrize("gate_at", [0, 4])
    async def test_cancelling_ends_the_call_at_the_server(self, stage: Stage, gate_at: int) -> None:
        stage.fake.add(Reply("one two three four", gate=(gate := Gate()), gate_at=gate_at), "Next.")
        message = UserMessage("hi")
        async with asyncio.TaskGroup() as group:
            running = group.create_task(collect(stage.provider, request(message)))
            await gate.reached.wait()
            running.cancel()
        assert running.cancelled()
        await stage.fake.log[-1].cancelled.wait()
        assert (await answer(stage.provider, request(message))).message.text == "Next."

    async def test_closing_the_iterator_ends_the_call_at_the_server(self, stage: Stage) -> None:
        stage.fake.add(Reply("one two three four five six seven eight nine", gate=Gate(), gate_at=8))
        stream = stage.provider.stream(request(UserMessage("hi")))
        async with aclosing(stream):  # pyright: ignore[reportArgumentType]
            async for _ in stream:
                break
        await stage.fake.log[-1].cancelled.wait()

    async def test_calls_reuse_one_connection(self, stage: Stage) -> None:
        stage.fake.add("1", Refusal(500), "2", "3")
        for _ in range(4):
            await collect(stage.provider, request(UserMessage("hi")))
        assert stage.fake.accepted == 1

    @pytest.mark.parametrize("how", ["bytes", "crlf", "cr", "comments", "lines", "no last line"])
    async def test_chunks_line_ends_and_comments_make_no_difference(self, stage: Stage, how: str) -> None:
        reply = Reply(WIDE * 3, (Call("bash", '{"command":"echo 🐟, \\n ok"}'),), thinking="大")
        frames = frames_of(self.kind, reply)
        stage.fake.add(Recorded(damage(frames, how)))
        done = await answer(stage.provider, request(UserMessage("hi")))
        assert done.message.text == WIDE * 3
        assert [json.loads(call.arguments) for call in done.message.tool_calls] == [{"command": "echo 🐟, \n ok"}]
        assert (done.stop, done.thinking, done.usage.output_tokens > 0) == ("tool_calls", "大", True)

    @pytest.mark.parametrize("body", [b"<html>busy</html>", b'{"hello":1}', b""])
    async def test_a_body_that_is_not_a_stream_is_a_failure(self, stage: Stage, body: bytes) -> None:
        stage.fake.add(Recorded((body,) if body else (), content_type="text/html"), Recorded((b"data: {{{\n\n",)))
        for _ in range(2):
            assert (await failure(stage.provider, request(UserMessage("hi")))).kind == "dropped"

    @pytest.mark.parametrize("part", range(4))
    async def test_an_incomplete_answer_is_a_failure(self, stage: Stage, part: int) -> None:
        """A stream can end at any point without an error."""
        frames = frames_of(self.kind, Reply("one two", (Call("bash", '{"command":"ls"}'),)))
        whole = b"".join(frames)
        stage.fake.add(Recorded((whole,)))
        done = await answer(stage.provider, request(UserMessage("hi")))
        for end in range(part, len(whole), 4):
            stage.fake.add(Recorded((whole[:end],) if end else ()))
            last = (await collect(stage.provider, request(UserMessage("hi"))))[-1]
            if isinstance(last, ModelDone):
                assert (last.message.text, len(last.message.tool_calls), last.stop) == ("one two", 1, done.stop), end
                assert end > len(whole) - len(frames[-1]) - len(frames[-2]) - len(frames[-3]), end
            else:
                assert isinstance(last, ModelFailed)
                assert last.kind == "dropped", end

    @pytest.mark.parametrize("data", [b"[DONE]", b"", b"null", b"[]", b"{}", b"3", b'"one"', b"{", b'{"choices":[]}'])
    async def test_a_stream_without_an_answer_is_a_failure(self, stage: Stage, data: bytes) -> None:
        stage.fake.add(Recorded((b"data: " + data + b"\n\n",)))
        failed = await failure(stage.provider, request(UserMessage("hi")))
        assert failed.kind == "dropped"

    async def test_a_lone_surrogate_does_not_fail_the_answer(self, stage: Stage) -> None:
        """A lone surrogate is not valid text, so the provider replaces it with a replacement character."""
        whole = b"".join(frames_of(self.kind, Reply("one two")))
        stage.fake.add(Recorded((whole.replace(b"one", b"\\ud83d"),)))
        done = await answer(stage.provider, request(UserMessage("hi")))
        assert done.message.text.startswith("\ufffd")

    async def test_a_truncated_stream_and_a_wrong_body_have_different_kinds(self, stage: Stage) -> None:
        """A truncated stream may be a temporary failure. A body that is not a stream means that the address is
        wrong.
        """
        stage.fake.add(Recorded((b'{"id":"x","cho',), content_type="application/json"))
        stage.fake.add(Recorded((b'{"id":"x"}',), content_type="application/json"))
        kinds = [(await failure(stage.provider, request(UserMessage("hi")))).kind for _ in range(2)]
        assert kinds == ["dropped", "invalid_request"]
