"""The demo model: it says what it is, calls the offered tools and uses their results."""

import json

import pytest

from shoal.kernel.messages import (
    AssistantMessage,
    ModelDone,
    ModelMessage,
    ModelRequest,
    TextDelta,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from shoal.models.demo import DemoProvider
from shoal.testing.clock import ManualClock


def spec(name: str, *properties: str, required: tuple[str, ...] = (), **types: str) -> ToolSpec:
    schema = {
        "type": "object",
        "properties": {key: {"type": types.get(key, "string")} for key in properties},
        "required": list(required),
    }
    return ToolSpec(name, "", json.dumps(schema))


TOOLS = (
    spec("bash", "command", required=("command",)),
    spec("list", "path"),
    spec("read", "path", "offset", required=("path",)),
    spec("write", "path", "content", required=("path", "content")),
    spec("edit", "path", "old_string", "new_string", required=("path", "old_string", "new_string")),
    spec("upload", "path", required=("path",)),
    spec("remember", "text", required=("text",)),
    spec("remind", "text", "in_minutes", required=("text", "in_minutes"), in_minutes="integer"),
)


async def ask(*messages: ModelMessage, tools: tuple[ToolSpec, ...] = TOOLS) -> AssistantMessage:
    provider = DemoProvider(ManualClock())
    events = [event async for event in provider.stream(ModelRequest("demo", "", messages, tools))]
    done = events[-1]
    assert isinstance(done, ModelDone)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == done.message.text
    return done.message


def calls_of(message: AssistantMessage) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("What time is it?", [("bash", {"command": "date"})]),
        ("please list the files", [("list", {"path": "."})]),
        ("show me the files in src", [("list", {"path": "src"})]),
        ("read notes.txt", [("read", {"path": "notes.txt"})]),
        ("write 'hello; there and then' to a.txt", [("write", {"path": "a.txt", "content": "hello; there and then"})]),
        ("create a file named b.md with two words", [("write", {"path": "b.md", "content": "two words"})]),
        ('replace "a" with "b" in x.txt', [("edit", {"path": "x.txt", "old_string": "a", "new_string": "b"})]),
        ("run `ls -la | head`", [("bash", {"command": "ls -la | head"})]),
        ("$ uname -a; pwd", [("bash", {"command": "uname -a; pwd"})]),
        ("`true`", [("bash", {"command": "true"})]),
        ("remember that I like tea", [("remember", {"text": "I like tea"})]),
        ("remind me in 10 minutes to stretch", [("remind", {"text": "stretch", "in_minutes": 10})]),
        ("remind me to stretch in an hour", [("remind", {"text": "stretch", "in_minutes": 60})]),
        ("send me notes.txt", [("upload", {"path": "notes.txt"})]),
        ("list files, then run date", [("list", {"path": "."}), ("bash", {"command": "date"})]),
        (
            "write a file called c.txt with hi and read it back",
            [("write", {"path": "c.txt", "content": "hi"}), ("read", {"path": "c.txt"})],
        ),
        ("[Ann] list files\n\n<context>\nTime: run rm\n</context>", [("list", {"path": "."})]),
    ],
)
async def test_requests_become_calls_of_the_tools_offered(text: str, calls: list[tuple[str, object]]) -> None:
    message = await ask(UserMessage(text))
    assert calls_of(message) == calls
    assert len({call.id for call in message.tool_calls}) == len(calls)


async def test_tools_with_other_names_and_schemas_are_supported() -> None:
    tools = (spec("create_file", "path", "file_text", required=("path", "file_text")), spec("view", "path"))
    written = await ask(UserMessage("write hi to a.txt"), tools=tools)
    assert calls_of(written) == [("create_file", {"path": "a.txt", "file_text": "hi"})]
    assert calls_of(await ask(UserMessage("read a.txt"), tools=tools)) == [("view", {"path": "a.txt"})]


async def test_a_missing_tool_is_reported() -> None:
    message = await ask(UserMessage("run ls"), tools=())
    assert message.tool_calls == ()
    assert "have no tool for that" in message.text


@pytest.mark.parametrize("text", ["hi", "what can you do?", "how do I connect a model?", "thanks!", "florble", ""])
async def test_small_talk_is_answered_without_tools_and_labeled_as_demo(text: str) -> None:
    message = await ask(UserMessage(text))
    assert message.tool_calls == ()
    assert "demo model" in message.text


async def test_the_capabilities_depend_on_the_tools() -> None:
    everything = (await ask(UserMessage("What can you do?"))).text
    assert "remind" in everything
    assert "remind" not in (await ask(UserMessage("What can you do?"), tools=TOOLS[:2])).text


async def test_connecting_a_model_is_explained() -> None:
    text = (await ask(UserMessage("How do I connect a real model?"))).text
    for word in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "Ollama", "shoal.toml"):
        assert word in text


async def test_results_are_reported_in_order_with_failures_and_denials_named() -> None:
    asked = UserMessage("list files, then read a.txt, then run rm x")
    called = await ask(asked)
    one, two, three = called.tool_calls
    results = (
        ToolMessage(one.id, "list", "a.txt\nb.txt"),
        ToolMessage(two.id, "read", "a.txt: no such file", is_error=True),
        ToolMessage(three.id, "bash", "A person denied this call. Do not try it again.", is_error=True),
    )
    told = await ask(asked, called, *results)
    assert told.tool_calls == ()
    places = [told.text.index(words) for words in ("b.txt", "`a.txt` failed", "not allowed to do `rm x`")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("result", "words"),
    [("Skipped: a new message arrived.", "skipped `ls`"), ("Interrupted: the outcome is unknown.", "interrupted"),
     ("```\nfence\n```", "````"), ("<untrusted source='a page'>\na.txt\n</untrusted>", "printed:\n\n```\na.txt\n```")],
)  # fmt: skip
async def test_unusual_results_are_handled(result: str, words: str) -> None:
    asked = UserMessage("run ls")
    called = await ask(asked)
    told = await ask(asked, called, ToolMessage(called.tool_calls[0].id, "bash", result))
    assert words in told.text


async def test_a_new_request_after_results_has_priority() -> None:
    asked = UserMessage("run ls")
    called = await ask(asked)
    result = ToolMessage(called.tool_calls[0].id, "bash", "x")
    assert calls_of(await ask(asked, called, result, UserMessage("read b.txt"))) == [("read", {"path": "b.txt"})]
