"""The demo model: deterministic and offline. It says that it is a demo, but its tool calls are real.

It runs if no model is configured, so new users can try Shoal first. It parses simple English requests into intents
and calls a tool for each intent. Patterns are compiled on the first message.
"""

import asyncio
import re
import shlex
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel.clock import Clock, iso
from shoal.kernel.ids import CallId
from shoal.kernel.messages import (
    AssistantMessage,
    ModelDone,
    ModelEvent,
    ModelInfo,
    ModelRequest,
    TextDelta,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from shoal.kernel.untrusted import UNREADABLE

DEMO = "demo"
CONTEXT_TOKENS = 200_000
PIECE_WORDS = 3
RESULT_CHARS_MAX = 4_000

LABEL = "— *demo model: fixed answers, real tools. Ask it “how do I connect a model?”*"
CONNECT = """To connect a real model, do one of these and start Shoal again:

- set `ANTHROPIC_API_KEY`, `OPENAI_API_KEY`, `GEMINI_API_KEY` or `OPENROUTER_API_KEY` in the environment;
- run Ollama on this machine (`ollama pull qwen3` and `ollama serve`); Shoal detects it;
- or configure the model in `shoal.toml` in the home directory:

```toml
[model]
name = "mine/the-models-name"

[providers.mine]
kind = "openai"                       # or anthropic, openai-responses, gemini, local
base_url = "http://127.0.0.1:8080/v1"
api_key = { env = "MY_API_KEY" }
```

`shoal doctor` checks the key, and `shoal models list` shows the models."""
_CAN = {
    "bash": "run a command: `run uname -a`",
    "list": "list files: `list the files`",
    "read": "read a file: `read notes.txt`",
    "write": "write a file: `write “hello” to notes.txt`",
    "edit": "change a file: `replace “hello” with “goodbye” in notes.txt`",
    "upload": "send you a file: `send me notes.txt`",
    "remember": "remember something: `remember that I like tea`",
    "remind": "remind you: `remind me in 10 minutes to stretch`",
}
_REFUSED = r"denied|not allowed|did not allow|refused|expired|nobody (?:approved|answered)"


class DemoProvider:
    """Responds by fixed rules. Equal conversations get equal responses, apart from call ids."""

    name = DEMO

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        message = self._answer(request)
        words = re.findall(r"\s*\S+\s*?(?=\s|$)|\s+$", message.text)
        for start in range(0, len(words), PIECE_WORDS):
            yield TextDelta("".join(words[start : start + PIECE_WORDS]))
            await asyncio.sleep(0)
        yield ModelDone(message, "tool_calls" if message.tool_calls else "end", model=DEMO)

    async def models(self) -> list[ModelInfo]:
        return [ModelInfo(DEMO)]

    async def close(self) -> None:
        pass

    def _answer(self, request: ModelRequest) -> AssistantMessage:
        last = request.messages[-1] if request.messages else UserMessage("")
        if isinstance(last, ToolMessage):
            results: list[ToolMessage] = []
            made: dict[str, ToolCall] = {}
            for message in reversed(request.messages):
                if not isinstance(message, ToolMessage):
                    if isinstance(message, AssistantMessage):
                        made = {call.id: call for call in message.tool_calls}
                    break
                results.append(message)
            lines: list[str] = []
            for result in reversed(results):
                call = made.get(result.call_id)
                try:
                    values = _call_values.decode(call.arguments) if call is not None else _CallValues()
                except UNREADABLE:
                    values = _CallValues()
                lines.append(_outcome(result, values))
            return AssistantMessage("\n\n".join((*lines, LABEL)))
        asked = next((message for message in reversed(request.messages) if isinstance(message, UserMessage)), None)
        intents = understand(asked.text if asked is not None else "")
        kind = intents[0].kind
        if kind in _REPLIES:
            return AssistantMessage(f"{_REPLIES[kind]}\n\n{LABEL}")
        if not intents[0].acts:
            begin = "I am only the demo model and did not understand that. I can:"
            if kind == "help":
                begin = "I am the demo model. I use fixed rules instead of AI, but the tools I call are real. I can:"
            names = {spec.name for spec in (*request.tools, *request.further)}
            lines = [begin, "", *(f"- {words}" for name, words in _CAN.items() if name in names)]
            if "bash" in names or "time" in names:
                lines.append("- tell the time: `what time is it?`")
            lines.append("- explain how to connect a real model: `how do I connect a model?`")
            return AssistantMessage("\n".join((*lines, "", LABEL)))
        offered = (*request.tools, *request.further) if request.tool_choice == "auto" else ()
        tools = {spec.name: spec for spec in offered}
        tool_calls = [call_for(intent, tools, self._clock.now()) for intent in intents]
        calls = tuple(
            ToolCall(CallId(f"call_{self._clock.new_id()}"), name, arguments)
            for name, arguments in (call for call in tool_calls if call is not None)
        )
        if not calls:
            return AssistantMessage(f"I understand, but I have no tool for that here.\n\n{LABEL}")
        missing = [intent.kind for intent, call in zip(intents, tool_calls, strict=True) if call is None]
        return AssistantMessage("I have no tool for one part of this. I will do the rest." if missing else "", calls)


_REPLIES = {
    "connect": CONNECT,
    "greet": "Hello! I am the demo model. I use a few fixed rules instead of AI. Ask me “what can you do?”.",
    "thanks": "You are welcome.",
}


class _CallValues(msgspec.Struct):
    path: str = ""
    command: str = ""


_call_values = msgspec.json.Decoder(_CallValues)


def _outcome(result: ToolMessage, values: _CallValues) -> str:
    text = re.sub(r"</?untrusted[^<>]*+>\n?", "", result.text).strip()
    what = values.command or values.path or result.name
    first = text.partition("\n")[0][:300]
    if text.startswith("Skipped"):
        return f"I skipped `{what}` because you wrote something new."
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
            return f"`{values.path or '.'}` contains:\n\n{_block(text)}" if text else "This folder is empty."
        case _:
            return f"Done: {first}" if first else "Done."


def _block(text: str) -> str:
    shown = text if len(text) <= RESULT_CHARS_MAX else f"{text[:RESULT_CHARS_MAX]}\n… (truncated)"
    fence = "```" if "```" not in shown else "````"
    return f"{fence}\n{shown}\n{fence}"


# ---- intents ----

IntentKind: TypeAlias = Literal[
    "time", "list", "read", "write", "edit", "run", "upload", "remember", "remind", "help", "connect", "greet",
    "thanks", "unknown",
]  # fmt: skip
Values: TypeAlias = Mapping[str, str]

_TALK = frozenset[IntentKind]({"help", "connect", "greet", "thanks", "unknown"})
_QUOTED = r"(?s)```(?:\w*\n)?(.*?)```|`([^`]+)`|\"([^\"]+)\"|“([^”]+)”|(?<!\w)'([^']+)'(?!\w)"
_VERBS = "list|show|read|write|save|run|execute|tell|what|remember|remind|create|make|replace|upload|send|open|print"
_CLAUSES = rf"(?i)(?<!\s)\s*+(?:[;\n]+|,?\s*\b(?:and then|then)\b|,?\s*\band\b(?=\s+(?:{_VERBS})\b))\s*"
_POLITE = r"(?i)^(?:please|now|also|ok(?:ay)?|and|could you|can you(?! do)|would you|i want you to|first)[\s,]+"
_CONTEXT = r"(?m)<context>(?:[^<]|<(?!/?context>))*+</context>|<untrusted[^<>]*+>|</untrusted>|^\[attachment [^\n]*\]$"
_AUTHOR = r"^\s*\[[^\]\n]{1,80}\]\s+"
_COMMAND_LINE = r"^(?:\$|(?:run|execute) [^\n]*[;|&])"
_PRONOUNS = frozenset({"it", "that", "this"})
WORDS_CHARS_MAX = 1_000
"""Maximum length of a message that the demo parses. A longer message can only be a command to run."""
_UNIT_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
_SPAN = r"in (?P<count>\d+|an?|one) (?P<unit>second|minute|hour|day)s?"

_PATTERNS: tuple[tuple[IntentKind, str], ...] = (
    ("run", r"^\$ ?(?P<command>.+)$"),
    ("run", r"^(?:run|execute|bash|shell)(?: this| the)?(?: shell)?(?: command)?:? +(?P<command>.+)$"),
    ("remind", rf"^remind me {_SPAN} (?:to|that|about|of) (?P<text>.+)$"),
    ("remind", rf"^remind me (?:to|that|about|of) (?P<text>.+?) {_SPAN}\.?$"),
    ("remember", r"^(?:remember|note|memori[sz]e)(?: that| this)?:? +(?P<text>.+)$"),
    ("edit", r"^(?:replace|change) (?P<old>.+?) (?:with|by|to) (?P<new>.+?) in (?:the )?(?:file )?(?P<path>\S+?)\.?$"),
    ("write", r"^(?:create|make|write)(?: me)? (?:a |the )?(?:new )?(?:text )?file (?:named |called )?(?P<path>\S+) "
              r"(?:with|containing|saying|that says)(?: the)?(?: texts?| contents?| words?)?:? *(?P<content>.+)$"),
    ("write", r"^(?:write|save|put) (?P<content>.+) (?:to|into|in) (?:a |the )?(?:file )?(?:named |called )?"
              r"(?P<path>\S+?)\.?$"),
    ("time", r"^(?:tell me )?(?:what(?:'s|’s| is)? )?(?:the )?(?:current )?(?:time|date|day)(?: is it)?(?: and date)?"
             r"(?: now| today)?[?.!]*$"),
    ("time", r"\bwhat (?:time|day|date) is it\b"),
    ("list", r"^ls(?: +(?P<path>\S+))?$"),
    ("list", r"\b(?:list|show|which|what|see)\b.*?\b(?:files|folders?|directory|directories|workspace)\b"
             r"(?:.*?\b(?:in|of|under) (?:the )?(?:folder |directory )?(?P<path>[\w./~-]*[\w/~-]))?"),
    ("upload", r"^(?:upload|attach|send)(?: me)?(?: the)?(?: file)? +(?P<path>\S*[./]\S*?)\.?$"),
    ("help", r"what can you do|what do you do|^help\b|your (?:abilities|capabilities|tools)|who are you|what are you"),
    ("connect", r"\bconnect\b|api.?key|\bollama\b|real model|another model|which model|shoal\.toml"),
    ("read", r"^(?:read|show|view|open|print|cat|display)(?: me)?(?: the)?"
             r"(?: (?:file|contents? of)(?: the)?(?: file)?)? +(?P<path>\S+?)(?: back| to me| again)?[.?!]*$"),
    ("thanks", r"^(?:thanks|thank you|thx|great|nice|cool)\b"),
    ("greet", r"^(?:hi|hello|hey|good (?:morning|day|evening))\b"),
)  # fmt: skip
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "path": ("path", "file_path", "file", "filename"),
    "content": ("content", "file_text", "text", "body"),
    "old": ("old_string", "old_str", "old"),
    "new": ("new_string", "new_str", "new"),
    "command": ("command", "cmd", "script"),
    "text": ("text", "fact", "note", "content", "message", "what", "prompt"),
    "seconds": ("in_seconds", "seconds", "delay_seconds", "after_seconds"),
    "minutes": ("in_minutes", "minutes"),
    "at": ("at", "due_at", "run_at"),
    "when": ("when", "time", "schedule", "in"),
}


class Intent(msgspec.Struct, frozen=True):
    """A request that was recognized in a message."""

    kind: IntentKind
    values: dict[str, str] = {}

    @property
    def acts(self) -> bool:
        return self.kind not in _TALK


class _ToolSchema(msgspec.Struct):
    properties: dict[str, msgspec.Raw] = {}
    required: list[str] = []


class _ToolProperty(msgspec.Struct):
    type: str | list[str] = ""


_schemas = msgspec.json.Decoder(_ToolSchema)
_properties = msgspec.json.Decoder(_ToolProperty)


def understand(text: str) -> list[Intent]:
    """Parse a message into its intents, in order. Returns at least one intent. Quoted text is never split."""
    spoken = re.sub(_AUTHOR, "", re.sub(_CONTEXT, "", text))
    words = spoken.strip()
    if len(words) > WORDS_CHARS_MAX:
        verb, _, command = words.partition(" ")
        return [Intent("run", {"command": command}) if verb.lower() in ("run", "execute") else Intent("unknown")]
    if fenced := re.fullmatch(r"`([^`\n]+)`", words):
        return [Intent("run", {"command": fenced.group(1)})]
    held: list[str] = []

    def hold(match: re.Match[str]) -> str:
        held.append(next(group for group in match.groups() if group is not None))
        return f"\x00{len(held) - 1}\x00"

    def released(value: str) -> str:
        return re.sub(r"\x00(\d+)\x00", lambda match: held[int(match.group(1))], value).strip()

    def intent_of(clause: str) -> Intent:
        while (shorter := re.sub(_POLITE, "", clause)) != clause:
            clause = shorter
        for kind, pattern in _PATTERNS:
            if match := re.search(pattern, clause, re.IGNORECASE | re.DOTALL):
                return Intent(kind, {name: released(value) for name, value in match.groupdict().items() if value})
        return Intent("unknown")

    masked = re.sub(_QUOTED, hold, words)
    clauses = [masked] if re.match(_COMMAND_LINE, masked) else re.split(_CLAUSES, masked)
    intents = [intent_of(clause.strip()) for clause in clauses if clause.strip()]
    acting: list[Intent] = []
    path = ""
    for intent in intents:
        if intent.acts:
            named = intent.values.get("path", path)
            if named.lower() in _PRONOUNS and path:  # A pronoun means the file named earlier.
                acting.append(Intent(intent.kind, {**intent.values, "path": path}))
            else:
                acting.append(intent)
                path = named
    return acting or intents[:1] or [Intent("unknown")]


def call_for(intent: Intent, tools: Mapping[str, ToolSpec], now: datetime) -> tuple[str, str] | None:
    values = dict(intent.values)
    if intent.kind == "list":
        values.setdefault("path", ".")
    if intent.kind == "remind":
        count = values.pop("count", "1")
        unit = values.pop("unit", "minute").lower()
        seconds = (int(count) if count.isdigit() else 1) * _UNIT_SECONDS[unit]
        values |= {"seconds": str(seconds), "minutes": str(max(1, seconds // 60))}
        values |= {"at": iso(now + timedelta(seconds=seconds)), "when": f"in {seconds // 60 or 1} minutes"}
    path = shlex.quote(values.get("path", "."))
    candidates: Mapping[str, list[tuple[str, Values]]] = {
        "time": [("time", {}), ("bash", {"command": "date"})],
        "list": [("list", values), ("bash", {"command": f"ls -la {path}"})],
        "read": [("read", values), ("view", values), ("bash", {"command": f"cat {path}"})],
        "write": [("write", values), ("create_file", values)],
        "edit": [("edit", values), ("str_replace", values)],
        "run": [("bash", values)],
    }
    for name, wanted in candidates.get(intent.kind, [(intent.kind, values)]):
        if name not in tools:
            continue
        schema = _schemas.decode(tools[name].parameters)
        chosen: dict[str, str | int] = {}
        for meaning, value in wanted.items():
            field = next((field for field in _SYNONYMS.get(meaning, (meaning,)) if field in schema.properties), "")
            if field and field not in chosen:
                kind = _properties.decode(schema.properties[field]).type
                chosen[field] = int(value) if kind in ("integer", "number") and value.isdigit() else value
        if all(field in chosen for field in schema.required):
            return name, msgspec.json.encode(chosen).decode()
    return None
