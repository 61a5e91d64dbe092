"""What the demo model understands: plain English requests as intents, and each intent as a call of an offered tool."""

import re
import shlex
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

import msgspec

from shoal.domain.clock import iso
from shoal.domain.messages import ToolSpec

Kind: TypeAlias = Literal[
    "time", "list", "read", "write", "edit", "run", "upload", "remember", "remind", "help", "connect", "greet",
    "thanks", "unknown",
]  # fmt: skip
Values: TypeAlias = Mapping[str, str]

_TALK = frozenset[Kind]({"help", "connect", "greet", "thanks", "unknown"})
_QUOTED = re.compile(r"```(?:\w*\n)?(.*?)```|`([^`]+)`|\"([^\"]+)\"|“([^”]+)”|(?<!\w)'([^']+)'(?!\w)", re.DOTALL)
_HELD = re.compile(r"\x00(\d+)\x00")
_VERBS = "list|show|read|write|save|run|execute|tell|what|remember|remind|create|make|replace|upload|send|open|print"
_CLAUSES = re.compile(rf"\s*(?:[;\n]+|,?\s*\b(?:and then|then)\b|,?\s*\band\b(?=\s+(?:{_VERBS})\b))\s*", re.IGNORECASE)
_POLITE = re.compile(
    r"^(?:please|now|also|ok(?:ay)?|and|could you|can you(?! do)|would you|i want you to|first)[\s,]+", re.IGNORECASE
)
_CONTEXT = re.compile(r"<context>.*?</context>|<untrusted[^>]*>|</untrusted>|^\[attachment [^\n]*\]$", re.DOTALL | re.M)
_AUTHOR = re.compile(r"^\s*\[[^\]\n]{1,80}\]\s+")
_COMMAND_LINE = re.compile(r"^(?:\$|(?:run|execute) [^\n]*[;|&])")
_PRONOUNS = frozenset({"it", "that", "this"})
_UNIT_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
_SPAN = r"in (?P<count>\d+|an?|one) (?P<unit>second|minute|hour|day)s?"

_PATTERNS: tuple[tuple[Kind, str], ...] = (
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
_COMPILED: tuple[tuple[Kind, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE | re.DOTALL)) for kind, pattern in _PATTERNS
)

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
    """One thing that was asked for."""

    kind: Kind
    values: dict[str, str] = {}

    @property
    def acts(self) -> bool:
        """Whether a tool is needed."""
        return self.kind not in _TALK


class _Schema(msgspec.Struct):
    properties: dict[str, msgspec.Raw] = {}
    required: list[str] = []


class _Property(msgspec.Struct):
    type: str | list[str] = ""


_schemas = msgspec.json.Decoder(_Schema)
_properties = msgspec.json.Decoder(_Property)


def plain(text: str) -> str:
    """A user message without what Shoal put around the person's words."""
    return _AUTHOR.sub("", _CONTEXT.sub("", text)).strip()


def understand(text: str) -> list[Intent]:
    """The intents of a message, in order; never empty. Quoted parts are kept whole."""
    words = plain(text)
    if fenced := re.fullmatch(r"`([^`\n]+)`", words):
        return [Intent("run", {"command": fenced.group(1)})]
    held: list[str] = []

    def hold(found: re.Match[str]) -> str:
        held.append(next(group for group in found.groups() if group is not None))
        return f"\x00{len(held) - 1}\x00"

    masked = _QUOTED.sub(hold, words)
    clauses = [masked] if _COMMAND_LINE.match(masked) else _CLAUSES.split(masked)
    intents = [_intent(clause.strip(), held) for clause in clauses if clause.strip()]
    acting = _resolve([intent for intent in intents if intent.acts])
    return acting or intents[:1] or [Intent("unknown")]


def _resolve(intents: list[Intent]) -> list[Intent]:
    """Put the file named before in place of "it"."""
    path = ""
    out: list[Intent] = []
    for intent in intents:
        named = intent.values.get("path", path)
        if named.lower() in _PRONOUNS and path:
            out.append(Intent(intent.kind, {**intent.values, "path": path}))
        else:
            out.append(intent)
            path = named
    return out


def _intent(clause: str, held: list[str]) -> Intent:
    while (shorter := _POLITE.sub("", clause)) != clause:
        clause = shorter
    for kind, pattern in _COMPILED:
        found = pattern.search(clause)
        if found is not None:
            values = {name: value for name, value in found.groupdict().items() if value}
            return Intent(kind, {name: _release(value, held) for name, value in values.items()})
    return Intent("unknown")


def _release(text: str, held: list[str]) -> str:
    return _HELD.sub(lambda found: held[int(found.group(1))], text).strip()


def call_for(intent: Intent, tools: Mapping[str, ToolSpec], now: datetime) -> tuple[str, str] | None:
    """The tool and its arguments, by what is offered and what its schema asks for; None when nothing fits."""
    values = _values(intent, now)
    for name, wanted in _candidates(intent, values):
        spec = tools.get(name)
        arguments = _arguments(spec, wanted) if spec is not None else None
        if arguments is not None:
            return name, arguments
    return None


def _values(intent: Intent, now: datetime) -> dict[str, str]:
    values = dict(intent.values)
    if intent.kind == "list":
        values.setdefault("path", ".")
    if intent.kind == "remind":
        count = values.pop("count", "1")
        unit = values.pop("unit", "minute").lower()
        seconds = (int(count) if count.isdigit() else 1) * _UNIT_SECONDS[unit]
        values |= {"seconds": str(seconds), "minutes": str(max(1, seconds // 60))}
        values |= {"at": iso(now + timedelta(seconds=seconds)), "when": f"in {seconds // 60 or 1} minutes"}
    return values


def _candidates(intent: Intent, values: Values) -> list[tuple[str, Values]]:
    path = shlex.quote(values.get("path", "."))
    match intent.kind:
        case "time":
            return [("time", {}), ("bash", {"command": "date"})]
        case "list":
            return [("list", values), ("bash", {"command": f"ls -la {path}"})]
        case "read":
            return [("read", values), ("view", values), ("bash", {"command": f"cat {path}"})]
        case "write":
            return [("write", values), ("create_file", values)]
        case "edit":
            return [("edit", values), ("str_replace", values)]
        case "run":
            return [("bash", values)]
        case "upload" | "remember" | "remind":
            return [(intent.kind, values)]
        case _:
            return []


def _arguments(spec: ToolSpec, values: Values) -> str | None:
    schema = _schemas.decode(spec.parameters)
    chosen: dict[str, str | int] = {}
    for meaning, value in values.items():
        name = next((name for name in _SYNONYMS.get(meaning, (meaning,)) if name in schema.properties), "")
        if name and name not in chosen:
            kind = _properties.decode(schema.properties[name]).type
            chosen[name] = int(value) if kind in ("integer", "number") and value.isdigit() else value
    if any(name not in chosen for name in schema.required):
        return None
    return msgspec.json.encode(chosen).decode()
