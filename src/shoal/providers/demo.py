"""The demo model: a deterministic stand-in without any network, which says so, and which really calls the tools.

It is what runs when no model is configured, so that a person can see everything else work before connecting one.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING

import msgspec

from shoal.domain.clock import Clock
from shoal.domain.foreign import UNREADABLE
from shoal.domain.ids import CallId
from shoal.domain.messages import (
    AssistantMessage,
    ModelDone,
    ModelEvent,
    ModelInfo,
    ModelMessage,
    ModelRequest,
    TextDelta,
    ToolCall,
    ToolMessage,
    UserMessage,
)

if TYPE_CHECKING:
    from shoal.providers.demo_words import Intent

DEMO = "demo"
PIECE_WORDS = 3
"""Words in one piece of the streamed answer."""
RESULT_CHARS_MAX = 4_000
"""How much of a tool's result is repeated in the answer."""

LABEL = "— *demo model: fixed answers, real tools. Ask it “how do I connect a model?”*"
CONNECT = """To connect a real model, do one of these and start Shoal again:

- set `ANTHROPIC_API_KEY`, `OPENAI_API_KEY`, `GEMINI_API_KEY` or `OPENROUTER_API_KEY` in the environment;
- run Ollama on this machine (`ollama pull qwen3` and `ollama serve`); it is found by itself;
- or write it into `shoal.toml` in the home directory:

```toml
[model]
name = "mine/the-models-name"

[providers.mine]
kind = "openai"                       # or anthropic, openai-responses, gemini, local
base_url = "http://127.0.0.1:8080/v1"
api_key = { env = "MY_API_KEY" }
```

`shoal doctor` says whether the key works, `shoal models list` what it offers."""
_CAN = {
    "bash": "run a command: `run uname -a`",
    "list": "list files: `list the files`",
    "read": "read a file: `read notes.txt`",
    "write": "write a file: `write “hello” to notes.txt`",
    "edit": "change a file: `replace “hello” with “goodbye” in notes.txt`",
    "upload": "hand you a file: `send me notes.txt`",
    "remember": "remember something: `remember that I like tea`",
    "remind": "remind you: `remind me in 10 minutes to stretch`",
}
_REFUSED = r"denied|not allowed|did not allow|refused|expired|nobody (?:approved|answered)"


class _Values(msgspec.Struct):
    path: str = ""
    command: str = ""


_values = msgspec.json.Decoder(_Values)


class DemoProvider:
    """Answers by rules. The same conversation gets the same answer, apart from call ids."""

    def __init__(self, clock: Clock, name: str = DEMO) -> None:
        self._clock = clock
        self._name = name

    @property
    def name(self) -> str:
        """See the port."""
        return self._name

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """See the port. Lets other tasks run between two pieces."""
        message = self._answer(request)
        words = re.findall(r"\s*\S+\s*?(?=\s|$)|\s+$", message.text)
        for start in range(0, len(words), PIECE_WORDS):
            yield TextDelta("".join(words[start : start + PIECE_WORDS]))
            await asyncio.sleep(0)
        yield ModelDone(message, "tool_calls" if message.tool_calls else "end", model=DEMO)

    async def models(self) -> list[ModelInfo]:
        """See the port."""
        return [ModelInfo(DEMO)]

    async def close(self) -> None:
        """See the port."""

    def _answer(self, request: ModelRequest) -> AssistantMessage:
        from shoal.providers.demo_words import understand

        last = request.messages[-1] if request.messages else UserMessage("")
        if isinstance(last, ToolMessage):
            return AssistantMessage(_labelled(_report(request.messages)))
        asked = next((found for found in reversed(request.messages) if isinstance(found, UserMessage)), None)
        intents = understand(asked.text if asked is not None else "")
        if not intents[0].acts:
            return AssistantMessage(_labelled(_talk(intents[0], request)))
        return self._act(intents, request)

    def _act(self, intents: "list[Intent]", request: ModelRequest) -> AssistantMessage:
        from shoal.providers.demo_words import call_for

        tools = {spec.name: spec for spec in request.tools if request.tool_choice == "auto"}
        found = [call_for(intent, tools, self._clock.now()) for intent in intents]
        calls = tuple(
            ToolCall(CallId(f"call_{self._clock.new_id()}"), name, arguments)
            for name, arguments in (call for call in found if call is not None)
        )
        if not calls:
            return AssistantMessage(_labelled("I understand, but I am not offered a tool for that here."))
        missing = [intent.kind for intent, call in zip(intents, found, strict=True) if call is None]
        text = f"I have no tool to {missing[0]} here; the rest I do." if missing else ""
        return AssistantMessage(text, calls)


def _labelled(text: str) -> str:
    return f"{text}\n\n{LABEL}"


def _talk(intent: "Intent", request: ModelRequest) -> str:
    match intent.kind:
        case "connect":
            return CONNECT
        case "greet":
            return "Hello! I am the demo model: no AI, a few fixed rules. Ask me “what can you do?”."
        case "thanks":
            return "You are welcome."
        case "help":
            return f"I am the demo model: no AI, fixed rules, but the tools I call are real. I can\n\n{_can(request)}"
        case _:
            return f"I am only the demo model and did not understand that. What I do understand:\n\n{_can(request)}"


def _can(request: ModelRequest) -> str:
    offered = {spec.name for spec in request.tools}
    lines = [f"- {words}" for name, words in _CAN.items() if name in offered]
    if "bash" in offered or "time" in offered:
        lines.append("- tell the time: `what time is it?`")
    lines.append("- explain how to connect a real model: `how do I connect a model?`")
    return "\n".join(lines)


def _report(messages: tuple[ModelMessage, ...]) -> str:
    """What came of the last calls, in their order."""
    results: list[ToolMessage] = []
    calls: dict[str, ToolCall] = {}
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            results.append(message)
        else:
            calls = {call.id: call for call in message.tool_calls} if isinstance(message, AssistantMessage) else {}
            break
    return "\n\n".join(_sentences(calls, reversed(results)))


def _sentences(calls: dict[str, ToolCall], results: Iterable[ToolMessage]) -> Iterable[str]:
    for result in results:
        call = calls.get(result.call_id)
        try:
            values = _values.decode(call.arguments) if call is not None else _Values()
        except UNREADABLE:
            values = _Values()
        yield _sentence(result, values)


def _sentence(result: ToolMessage, values: _Values) -> str:
    text = result.text.strip()
    what = values.command or values.path or result.name
    first = text.partition("\n")[0][:300]
    if text.startswith("Skipped"):
        return f"I left `{what}` out, since you wrote something new."
    if text.startswith("Interrupted"):
        return f"`{what}` was interrupted, so I do not know whether it took effect. Please check."
    if result.is_error and re.search(_REFUSED, text, re.IGNORECASE):
        return f"I was not allowed to do `{what}`, so nothing happened. ({first})"
    if result.is_error:
        return f"`{what}` failed:\n\n{_block(text)}"
    match result.name:
        case "bash" if values.command == "date":
            return f"It is {first}."
        case "time":
            return f"It is {first}."
        case "bash":
            return f"`{values.command}` printed:\n\n{_block(text)}" if text else f"`{values.command}` printed nothing."
        case "read" | "view":
            return f"`{values.path}` contains:\n\n{_block(text)}" if text else f"`{values.path}` is empty."
        case "list":
            return f"In `{values.path or '.'}` there is:\n\n{_block(text)}" if text else "There is nothing there."
        case _:
            return f"Done: {first}" if first else "Done."


def _block(text: str) -> str:
    shown = text if len(text) <= RESULT_CHARS_MAX else f"{text[:RESULT_CHARS_MAX]}\n… (cut here)"
    fence = "```" if "```" not in shown else "````"
    return f"{fence}\n{shown}\n{fence}"
