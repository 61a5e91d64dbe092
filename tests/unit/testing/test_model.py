"""The scripted model: directives, strictness, caches, pacing, and its command line."""

import asyncio

import pytest

from shoal.kernel.ids import CallId
from shoal.kernel.messages import AssistantMessage, ModelRequest, ToolCall, ToolMessage, ToolSpec, UserMessage
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.provider import answer, collect, failure, request
from shoal.testing.model import FakeModel, FakeSettings, Gate, Reply, Seen, SeenMessage, follow_directive
from shoal.testing.model.script import pieces_of
from shoal.testing.model.tokens import MARK, PromptCache, shared_prefix_bytes

BASH = (ToolSpec("bash", "", '{"type":"object"}'),)


async def test_a_directive_makes_its_calls_and_then_answers() -> None:
    fake = FakeModel()
    messages: list[UserMessage | AssistantMessage | ToolMessage] = [
        UserMessage('tools=2 tool=bash args={"command":"echo {}"} words=3 id=abc')
    ]
    for _ in range(2):
        done = await answer(fake, ModelRequest("m", "", tuple(messages), BASH))
        assert [call.arguments for call in done.message.tool_calls] == ['{"command":"echo {}"}']
        messages += [done.message, ToolMessage(done.message.tool_calls[0].id, "bash", "ok")]
    last = await answer(fake, ModelRequest("m", "", tuple(messages), BASH))
    assert last.message.text == "DONE 2 abc tide reef kelp"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tools=3 tool=read words=1", "DONE 0 - tide"),
        ("words=0 id=x", "DONE 0 x"),
        ('words=1 id=x args={"note":"id=y id=z"}\nwords=2 id=b\nno id', "DONE 0 x+b tide"),
        ("mytools=3 tool=bash words=2", None),
    ],
)
def test_only_offered_tools_are_called(text: str, said: str | None) -> None:
    step = follow_directive(Seen("process", "m", (SeenMessage("user", text),), ("bash",)))
    assert isinstance(step, Reply)
    assert step.calls == ()
    assert said is None or step.text == said


async def test_an_exhausted_script_fails_the_call() -> None:
    fake = FakeModel("once")
    assert (await answer(fake, request(UserMessage("hi")))).message.text == "once"
    assert (await failure(fake, request(UserMessage("hi")))).kind == "invalid_request"
    assert fake.calls == 2
    assert len(fake.requests) == 2


async def test_unpaired_calls_are_refused_unless_allowed() -> None:
    call = AssistantMessage("", (ToolCall(CallId("c"), "bash", "{}"),))
    unpaired = request(UserMessage("hi"), call, UserMessage("and?"))
    orphan = request(UserMessage("hi"), ToolMessage(CallId("c"), "bash", "x"))
    for asked in (unpaired, orphan):
        assert (await failure(FakeModel("no"), asked)).kind == "invalid_request"
        lax = FakeModel("yes", settings=FakeSettings(strict=False))
        assert (await answer(lax, asked)).message.text == "yes"


async def test_pacing_waits_for_the_given_clock() -> None:
    clock = ManualClock()
    fake = FakeModel("one two three", settings=FakeSettings(latency_seconds=5, token_seconds=1), clock=clock)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(collect(fake, request(UserMessage("hi"))))
        await clock.advance(6.5)
        assert not running.done()
        await clock.advance(1)
    assert clock.monotonic() == 7.5


async def test_a_gate_holds_the_answer_until_it_opens() -> None:
    gate = Gate()
    fake = FakeModel(Reply("one two", gate=gate, gate_at=1))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(collect(fake, request(UserMessage("hi"))))
        await gate.reached.wait()
        assert not running.done()
        gate.open()
    assert len(running.result()) == 3


async def test_settings_change_while_the_server_runs() -> None:
    fake = FakeModel()
    async with fake.serve() as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = b'{"token_seconds": 0.25, "chunks": 3}'
        writer.write(b"POST /__settings HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
    assert b"200" in head
    assert (fake.settings.token_seconds, fake.settings.chunks) == (0.25, 3)


def test_cache_hits_require_a_matching_prefix() -> None:
    assert shared_prefix_bytes(b"abcdef", b"abcxef") == 3
    assert shared_prefix_bytes(b"", b"a") == 0
    assert shared_prefix_bytes(b"same", b"same and more") == 4
    cache = PromptCache()
    assert cache.implicit("t", b"a" * 400) == (100, 0)
    assert cache.implicit("t", b"a" * 400 + b"b" * 400) == (200, 100)
    assert cache.implicit("other", b"a" * 400) == (100, 0)


def test_only_marked_prefixes_are_cached() -> None:
    cache = PromptCache()
    system, more = b"s" * 400, b"m" * 400
    assert cache.explicit("t", system + MARK + more) == (200, 0, 100)
    assert cache.explicit("t", system + MARK + more + MARK + b"n" * 40) == (210, 100, 100)
    assert cache.explicit("t", b"changed" + system + MARK)[1] == 0


@pytest.mark.parametrize("chunks", [0, 1, 3, 100])
@pytest.mark.parametrize("text", ["", "one", "  one  two \n", "é" * 17])
def test_streamed_pieces_contain_the_whole_text(text: str, chunks: int) -> None:
    assert "".join(pieces_of(text, chunks)) == text
