"""Scripts for a fake model: the steps, the parsed request, and the directive language."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel.messages import MORE_TOOLS, StopReason, Usage

WireName: TypeAlias = Literal["process", "openai", "responses", "anthropic", "gemini"]
PLAIN_WORDS = 20

_WORDS = ("tide", "reef", "kelp", "shell", "current", "lagoon", "coral", "drift", "minnow", "harbour")
_TOOLS = re.compile(r"(?<!\S)tools=(\d+)")
_TOOL = re.compile(r"(?<!\S)tool=([\w.:-]+)")
_COUNT = re.compile(r"(?<!\S)words=(\d+)")
_ID = re.compile(r"(?<!\S)id=([\w.:-]+)")
_CONTEXT = re.compile(r"<context>.*?</context>", re.DOTALL)
_REFERRED = re.compile(
    r"\[(?:In reply to|Quoted|Forwarded|The thread began with|Earlier in the channel):.*?(?:\n\n|\Z)", re.DOTALL
)
_ARGS = "args="


class Gate:
    """A gate that blocks an answer until the test opens it.

    Call `await gate.reached.wait()`, check the state of the app, and then call `gate.open()`.
    """

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._open = asyncio.Event()
        self._waiting: list[Callable[[], None]] = []

    def open(self) -> None:
        """Release the current answer and all later ones."""
        self._open.set()
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    async def wait(self) -> None:
        """Set `reached` and wait until the gate is open."""
        self.reached.set()
        await self._open.wait()

    def when_open(self, go_on: Callable[[], None]) -> None:
        """Set `reached`, and call `go_on` as soon as the gate is open."""
        self.reached.set()
        if self._open.is_set():
            go_on()
        else:
            self._waiting.append(go_on)


class Call(msgspec.Struct, frozen=True):
    """A tool call to make. `arguments` is sent unchanged, even if malformed. If `id` is empty, an id is generated."""

    name: str
    arguments: str = "{}"
    id: str = ""


class Reply(msgspec.Struct, frozen=True):
    """An answer.

    - `usage`: the token counts to report. If None, they are computed.
    - `drop_after`: the number of chunks after which the connection breaks. If 0, it breaks before the first byte.
    - `gate`: the gate to wait for before chunk number `gate_at`. If `gate_at` is 0, nothing is sent before the gate
      opens.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    thinking: str = ""
    redacted_thinking: str = ""
    stop: StopReason | None = None
    usage: Usage | None = None
    drop_after: int | None = None
    gate: Gate | None = None
    gate_at: int = 0


class Refusal(msgspec.Struct, frozen=True):
    """An error in the provider's own format.

    - `body`: replaces the generated body.
    - `in_stream`: sends the error inside a stream with status 200.
    """

    status: int = 500
    message: str = "The fake model's script failed this request."
    code: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    in_stream: bool = False


class Recorded(msgspec.Struct, frozen=True):
    """Bytes to send unchanged, one write per chunk. `drop` breaks the connection after the last chunk."""

    chunks: tuple[bytes, ...]
    status: int = 200
    content_type: str = "text/event-stream"
    drop: bool = False


Step: TypeAlias = Reply | Refusal | Recorded


class SeenMessage(msgspec.Struct, frozen=True):
    """A message of the conversation, in a form that is independent of the API."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    images: int = 0


class Seen:
    """A request to the fake model, in a form that is independent of the API.

    - `signed`: the number of thinking blocks with a valid signature.
    - `problem`: the reason to reject the request, or empty.
    - `searches`: True if the model can find more tools with the provider's own tool search.
    - `cancelled`: an event that is set when the client disconnects.
    """

    __slots__ = (
        "body", "cancelled", "headers", "key", "messages", "model", "path", "problem", "prompt", "searches", "signed",
        "stream", "system", "tools", "wants_usage", "wire",
    )  # fmt: skip

    def __init__(self, wire: WireName, model: str, messages: tuple[SeenMessage, ...], tools: tuple[str, ...]) -> None:
        self.wire: WireName = wire
        self.model = model
        self.system = "\n".join(message.text for message in messages if message.role == "system")
        self.messages = tuple(message for message in messages if message.role != "system")
        self.tools = tools
        self.stream = True
        self.wants_usage = True
        self.key = ""
        self.prompt = b""
        self.problem = ""
        self.signed = 0
        self.searches = False
        self.body = b""
        self.path = ""
        self.headers: Mapping[str, str] = {}
        self.cancelled = asyncio.Event()

    @property
    def user_text(self) -> str:
        return next((message.text for message in reversed(self.messages) if message.role == "user"), "")

    @property
    def rounds(self) -> int:
        """The number of assistant messages with calls after the last user message."""
        count = 0
        for message in reversed(self.messages):
            if message.role == "user":
                break
            count += 1 if message.calls else 0
        return count

    @property
    def results(self) -> tuple[str, ...]:
        """The tool results at the end of the conversation, in order."""
        words: list[str] = []
        for message in reversed(self.messages):
            if message.role != "tool":
                break
            words.append(message.text)
        return tuple(reversed(words))


Script: TypeAlias = Callable[[Seen], Step | str]


def pairing_problem(messages: tuple[SeenMessage, ...]) -> str:
    """Return the error that real providers send for a call without a result or a result without a call.

    Return an empty string if all calls and results match.
    """
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            if message.call_id not in waiting:
                return f"the result of {message.call_id!r} does not follow the message with that call"
            waiting.remove(message.call_id)
            continue
        if waiting:
            return f"these calls have no result: {', '.join(waiting)}"
        waiting = [call.id for call in message.calls]
    return f"these calls have no result: {', '.join(waiting)}" if waiting else ""


def own_words(text: str) -> str:
    """Return the text of a message without quoted messages and without Shoal's context block."""
    return _CONTEXT.sub("", _REFERRED.sub("", text))


def follow_directive(seen: Seen) -> Step:
    """Answer according to directives in the last user message.

    For `tools=3 tool=bash args={"command":"true"} words=30 id=abc`, the model makes the call in three rounds and
    then answers `DONE 3 abc word word …` with 30 words. It makes no calls if the request offers neither the tool nor
    a way to find it. Without directives, it answers `DONE 0 -` and 20 words.

    If a message has several lines, the first directive of each kind counts. Only `id` counts in every line, and the
    answer contains all ids: `DONE 3 abc+def`. Directives in quoted messages are ignored.
    """
    text = own_words(seen.user_text)
    rounds = _number(_TOOLS, text, 0)
    tool = _TOOL.search(text)
    if tool and seen.rounds < rounds and tool.group(1) in seen.tools:
        return Reply(calls=(Call(tool.group(1), _arguments(text)),))
    if tool and seen.rounds < rounds and MORE_TOOLS in seen.tools:
        wrapped = f'{{"call":"{tool.group(1)}","arguments":{_arguments(text)}}}'
        return Reply(calls=(Call(MORE_TOOLS, wrapped),))
    words = _number(_COUNT, text, PLAIN_WORDS)
    names = [match.group(1) for line in text.splitlines() if (match := _ID.search(line))]
    filler = " ".join(_WORDS[index % len(_WORDS)] for index in range(words))
    return Reply(f"DONE {seen.rounds} {'+'.join(names) or '-'} {filler}".rstrip())


def _number(pattern: re.Pattern[str], text: str, default: int) -> int:
    match = pattern.search(text)
    return int(match.group(1)) if match else default


def _arguments(text: str) -> str:
    at = text.find(_ARGS)
    if at < 0:
        return "{}"
    start = at + len(_ARGS)
    try:
        _, end = json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        return text[start:].split(" ", maxsplit=1)[0]
    return text[start:end]


def pieces_of(text: str, chunks: int) -> list[str]:
    """Split a text into `chunks` nearly equal pieces. If `chunks` is 0, split it after every word."""
    if not text:
        return []
    if chunks <= 0:
        return re.findall(r"\s*\S+|\s+$", text)
    size = max(1, -(-len(text) // chunks))
    return [text[start : start + size] for start in range(0, len(text), size)]
