"""Deviations of models and servers from their API protocol. Some are learned from refusals.

A refusal is an error response that rejects the form or the content of a request.

if a refusal                           then
------------------------------------   ---------------------------------------------------------------------------
names a field or a kind of content     the quirk is learned for this provider and model, and stored
names an image or a signature          the messages of this conversation that contain one are sent without it
is about the history in general        one attempt omits images and reasoning. If it succeeds, that is stored
repeats after that attempt             one attempt omits the tools. If it succeeds, that applies until the tools
                                       change or Shoal restarts

Services phrase the same refusal in many ways, some with status 500. tests/unit/models/refusals.py lists them.
"""

import logging
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.clock import Clock, iso
from shoal.kernel.regular_files import read_regular
from shoal.kernel.untrusted import UNREADABLE
from shoal.models.schema_dialects import SchemaDialect

log = logging.getLogger(__name__)

RELEARN_DAYS = 30
"""Days after which a learned quirk is tested again, because services and servers are upgraded."""
LEARNED_MAX = 1_000
"""Maximum number of models whose learned quirks are stored. The oldest entry is dropped first."""
REFUSAL_CHARS_MAX = 300
WORDS_BYTES_MAX = 16_384
"""Maximum number of bytes of an error response that are searched for known patterns."""

Change: TypeAlias = str | bool | int
Changes: TypeAlias = Mapping[str, Change]


class Quirks(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How to encode requests for one model on one server, and how to decode its responses.

    Requests:
    max_tokens: field name of the output limit. If empty, no limit is sent.
    temperature: allows a temperature.
    usage_option: requests a usage report with `stream_options`.
    cache_key: sends the thread's key for the provider's prompt cache.
    reasoning_items: requests encrypted reasoning.
    tool_search: announces tools through the provider's native search.
    schema_dialect: JSON Schema subset for tools (schema_dialects.py). If empty, the protocol's default applies.

    Messages:
    images: allows images in all messages, only in user messages, or in none.
    images_max: maximum number of images in a request. 0 means unlimited.
    image_bytes_max: maximum base64 bytes of all images in a request.
    tools: if False, calls and results are sent as text.
    parallel_calls: if False, each call is sent in its own message.
    thinking: sends thinking back to the model that wrote it.
    reasoning_field: field in which thinking is sent back as text.
    reasoning_needed: the server requires reasoning in every assistant message.
    nine_char_ids: sends call ids in the form that Mistral requires.
    user_after_tool: if False, a short assistant message separates a tool result from the next user message.
    system_role: if False, the system text begins the first user message.
    call_signatures: adds a placeholder to calls without a known signature.

    Responses:
    opens_thinking: the chat template opens thinking, and the model only closes it.
    """

    max_tokens: str = "max_tokens"
    temperature: bool = True
    usage_option: bool = True
    cache_key: bool = False
    reasoning_items: bool = True
    tool_search: bool = False
    schema_dialect: Literal["", SchemaDialect] = ""
    images: Literal["all", "user", "none"] = "all"
    images_max: int = 0
    image_bytes_max: int = 18_000_000
    tools: bool = True
    parallel_calls: bool = True
    thinking: bool = True
    reasoning_field: Literal["", "reasoning_content", "reasoning"] = ""
    reasoning_needed: bool = False
    nine_char_ids: bool = False
    user_after_tool: bool = True
    system_role: bool = True
    call_signatures: bool = False
    opens_thinking: bool = False

    def changed(self, changes: Changes) -> "Quirks":
        return msgspec.structs.replace(self, **changes) if changes else self


# ---- refusals ----

_NOT = (
    r"(?:not (?:currently )?(?:support|enable|allow|permit|accept|available|valid|configured|implement)|n't"
    r"|do(?:es)? not|cannot|unsupported|unknown|unrecogni[sz]ed|invalid|deprecated|only the default|extra|disabled"
    r"|forbidden|no endpoints|certain models|不支持|非法)"
)
_IMAGE = r"(?:\bimages?\b|image_url|input_image|inline_?data|\bvision\b|multi-?modal|图片|图像)"
_REASONING = r"(?:reasoning_content|reasoning_details|\breasoning\b|\bthinking\b)"
_TOOLS = r"(?:\btools?\b|tool[ _-](?:use|usage|call(?:s|ing)?|choice)|function[ _-]?call(?:s|ing)?|\bfunctions\b|工具)"


def _either(first: str, other: str, gap: int = 60) -> str:
    return rf"{first}.{{0,{gap}}}{other}|{other}.{{0,{gap}}}{first}"


_ABOUT_TOOL = lazy_re.compile(
    r"tools?\W{0,3}\d|function_declarations|schema|properties|\bparameters\.|\bgrammar\b|toolSpec", re.IGNORECASE
)
"""Matches a rejection of one tool's definition. A rejection of all tools does not match."""
_LESSONS: tuple[tuple[str, Changes], ...] = (
    (r"max_tokens.{0,80}max_completion_tokens", {"max_tokens": "max_completion_tokens"}),
    (rf"max_completion_tokens.{{0,60}}{_NOT}", {"max_tokens": "max_tokens"}),
    (rf"temperature.{{0,80}}{_NOT}|{_NOT}.{{0,40}}temperature", {"temperature": False}),
    (r"stream_options", {"usage_option": False}),
    (r"prompt_cache_key", {"cache_key": False}),
    (r"reasoning\.encrypted_content|encrypted content is not supported", {"reasoning_items": False}),
    (r"tool_search|tool_reference|defer_loading", {"tool_search": False}),
    (r"missing a `?thought_?signature", {"call_signatures": True}),
    (
        r"reasoning_content.{0,80}(?:must be passed|missing|required|passed back|返回|回传)"
        r"|missing.{0,40}reasoning_content",
        {"reasoning_field": "reasoning_content", "reasoning_needed": True},
    ),
    (r"\bthinking\b.{0,60}must be passed back", {"reasoning_needed": True}),
    (_either("reasoning_content", _NOT), {"reasoning_field": "", "reasoning_needed": False}),
    (
        _either(_REASONING, r"(?:not permitted|unsupported|not supported|forbidden|unknown|unrecogni[sz]ed)"),
        {"thinking": False},
    ),
    (
        r"length of 9\b|(?:tool_?call_?id|tool call id|call_id|tool_use\.id|tool_calls\[\d+\]\.id).{0,80}"
        r"(?:must be|length|pattern|match|too long)",
        {"nine_char_ids": True},
    ),
    (r"role\W{1,3}user\W{1,3}after role\W{1,3}tool|alternate.{0,80}except for tool", {"user_after_tool": False}),
    (r"single tool.?calls?\b|one tool.?call at|parallel.{0,12}(?:tool|function).{0,40}not", {"parallel_calls": False}),
    (
        r"system (?:role|message|prompt|instruction)s?\b.{0,40}(?:not|n't) (?:support|enable|allow)"
        r"|developer instruction is not enabled|only user.{0,24}roles? (?:is|are) supported"
        r"|(?:does not|n't) support.{0,30}\bsystem\b|(?:unexpected|invalid|unsupported) role\W{1,3}system",
        {"system_role": False},
    ),
    (
        _either(_IMAGE, _NOT)
        + r"|at most 0 image|is not a (?:multimodal|vision) model|expected `text`|content must be a string"
        r"|content\W{1,8}(?:msg\W{1,5})?input should be a valid string|mmproj|missing data required for image"
        r"|`text` is not set|messages\.content\.type",
        {"images": "none"},
    ),
    (
        _either(_TOOLS, _NOT)
        + r"|that support tool use|--enable-auto-tool-choice|tools param requires|roles? must alternate"
        r"|should alternate with|alternate user/assistant",
        {"tools": False},
    ),
)
"""Patterns that match error responses, and the quirks that each implies. Patterns are compiled on first use."""
_IMAGE_FAULT = lazy_re.compile(
    r"\bimages?\b.{0,40}(?:exceed|too (?:large|big|small)|dimension|corrupt|damaged|truncated|format|decode)"
    r"|(?:could not|unable to|failed to|cannot|can't) (?:process|decode|load|open|read|download|identify|fetch)\b"
    r".{0,30}\bimage|(?:unsupported|invalid) image\b|image_parse_error|invalid_image|invalid base64|unsupported mime"
    r"|media_type|image: unknown format|too many images|many-image",
    re.DOTALL | re.IGNORECASE,
)
"""Matches a rejection of one image by a model that accepts others."""
_TEMPLATE = lazy_re.compile(
    r"\bjinja\b|raise_exception|chat template (?:prompt )?error|at row \d+, column \d+", re.IGNORECASE
)
"""Matches a chat template error. The same conversation would cause it again."""
_MANY_IMAGES = lazy_re.compile(
    r"too many (?:images|image)|many-image|at most [1-9]\d{0,4} images?\b|(?:up to|maximum|max|limit|supports?|only)\b"
    r"[^.\d]{0,40}[1-9]\d{0,4} images?\b|number of images|images?.{0,40}\b(?:exceeds?|over) the (?:limit|maximum)",
    re.IGNORECASE,
)
_NUMBER = lazy_re.compile(r"(?<![\d.])\d{1,5}(?![\d.]\d)")
MANY_IMAGES = 20
"""Maximum number of images per request at which Anthropic still accepts images wider or taller than 2,000 pixels."""
_HEAVY = lazy_re.compile(
    r"(?:payload|body|entity|request|message)(?: size)?.{0,24}(?:too large|exceed|over the)|request_too_large"
    r"|(?:too large|exceeds).{0,40}(?:payload|body|entity)|maximum (?:request|payload|body) size",
    re.IGNORECASE,
)
"""Matches a rejection of a request that has too many bytes."""
_LONG = lazy_re.compile(r"token|context", re.IGNORECASE)
_THINKING_FAULT = lazy_re.compile(
    r"signature\W{1,3}in\W{1,3}thinking|thinking\W.{0,60}(?:cannot be modified|signature)|encrypted.content.{0,300}"
    r"(?:verif|decrypt|parsed|match)|invalid_encrypted_content|(?:corrupted|invalid) thought|thought.?signature.{0,20}"
    r"(?:not valid|invalid|corrupt|mismatch)|reasoning\b.{0,80}required following|\bitem\b.{0,90}not found",
    re.DOTALL | re.IGNORECASE,
)
"""Matches a rejection of reasoning in the conversation that is damaged or was generated by another model."""
Fault: TypeAlias = Literal["images", "thinking"]


def words_of(body: bytes) -> str:
    text = body[:WORDS_BYTES_MAX].decode("utf-8", "replace")
    return " ".join(text.replace('\\"', '"').replace("\\n", " ").replace("\\u0027", "'").split())


def fault_of(words: str) -> Fault | None:
    if _THINKING_FAULT.search(words):
        return "thinking"
    return "images" if _IMAGE_FAULT.search(words) else None


def lesson(quirks: Quirks, words: str) -> Changes:
    for pattern, changes in _LESSONS:
        if re.search(pattern, words, re.DOTALL | re.IGNORECASE) and quirks.changed(changes) != quirks:
            if changes == {"tools": False} and _ABOUT_TOOL.search(words):
                continue
            return changes
    return {}


def fewer_images(words: str, sent: int) -> int:
    """Return the new image limit if a request with `sent` images was rejected for their number, otherwise 0."""
    match = _MANY_IMAGES.search(words)
    if match is None or sent < 2:
        return 0
    near = words[max(0, match.start() - 80) : match.end() + 80]
    named = [int(number) for number in _NUMBER.findall(near)]
    fitting = [number for number in named if 0 < number < sent]
    if "many-image" in near:
        return min(MANY_IMAGES, sent - 1)
    return max(fitting, default=sent // 2)


def is_too_heavy(status: int, words: str) -> bool:
    return status == 413 or (_HEAVY.search(words) is not None and _LONG.search(words) is None)


def is_about_schema(words: str) -> bool:
    return _ABOUT_TOOL.search(words) is not None


def teaches(words: str) -> bool:
    return fault_of(words) is not None or bool(lesson(Quirks(), words)) or _TEMPLATE.search(words) is not None


# ---- memory ----


class Learned(msgspec.Struct, frozen=True):
    """Quirks learned from a refusal by the server at `address`."""

    changes: dict[str, Change]
    refusal: str
    at: datetime
    address: str = ""


_decoder = msgspec.json.Decoder(dict[str, Learned])
_NOTHING: dict[str, Learned] = {}


def read_learned(path: Path) -> dict[str, Learned]:
    """Read the learned quirks, keyed by PROVIDER/MODEL. A damaged file counts as empty, because Shoal can learn the
    quirks again.
    """
    try:
        return {
            name: quirks for name, quirks in _decoder.decode(read_regular(path)).items() if _are_quirks(quirks.changes)
        }
    except FileNotFoundError:
        return {}
    except (OSError, *UNREADABLE) as error:
        log.warning("reading learned quirks failed; learning them again", extra={"error": str(error)})
        return {}


def _are_quirks(changes: Changes) -> bool:
    try:
        msgspec.convert(changes, Quirks)
    except msgspec.ValidationError:
        return False
    return True


def write_learned(path: Path, learned: Mapping[str, Learned]) -> None:
    newest = sorted(learned.items(), key=lambda item: item[1].at, reverse=True)[:LEARNED_MAX]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(dict(sorted(newest))), indent=2))
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


class QuirkMemory:
    """Stores learned quirks in a file, across restarts.

    Changes by another process take effect on the next request. Without a path, quirks are stored only in memory.
    """

    def __init__(self, path: Path | None, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._changed_ns = -1
        self._learned = _NOTHING

    def all(self) -> Mapping[str, Learned]:
        if self._path is not None:
            try:
                changed_ns = self._path.stat().st_mtime_ns
            except OSError:
                changed_ns = 0
            if changed_ns != self._changed_ns:
                self._changed_ns = changed_ns
                self._learned = read_learned(self._path) if changed_ns else {}
        return self._learned

    def changes(self, name: str, address: str) -> Changes:
        """Return the quirks learned for PROVIDER/MODEL at this URL. They expire after RELEARN_DAYS."""
        learned = self.all().get(name)
        if learned is None or learned.address != address:
            return {}
        return learned.changes if self._clock.now() - learned.at < timedelta(days=RELEARN_DAYS) else {}

    def put(self, name: str, address: str, changes: Changes, refusal: str) -> None:
        at, known = self._clock.now(), self.changes(name, address)
        learned = Learned({**known, **changes}, refusal[:REFUSAL_CHARS_MAX], at, address)
        self._write({**self.all(), name: learned})
        log.warning(
            "learned model quirk; `shoal models forget` drops it",
            extra={"model": name, "changes": dict(changes), "at": iso(at)},
        )

    def forget(self, name: str) -> bool:
        """Remove the learned quirks of PROVIDER/MODEL. Returns False if none exist."""
        quirks = dict(self.all())
        if quirks.pop(name, None) is None:
            return False
        self._write(quirks)
        return True

    def _write(self, learned: dict[str, Learned]) -> None:
        self._learned = learned
        if self._path is None:
            return
        try:
            write_learned(self._path, learned)
            self._changed_ns = self._path.stat().st_mtime_ns
        except OSError as error:
            log.warning(
                ("writing learned quirks failed; keeping them until the process ends"), extra={"error": str(error)}
            )


KnownQuirks: TypeAlias = Callable[[str, str], Quirks]
"""Function that returns the built-in quirks for a URL and model."""


class ProviderQuirks:
    """The built-in and learned quirks of one provider's models."""

    def __init__(self, provider: str, address: str, known: KnownQuirks, memory: QuirkMemory) -> None:
        self._provider = provider
        self._address = address
        self._known = known
        self._memory = memory

    def of(self, model: str) -> Quirks:
        return self._known(self._address, model).changed(
            self._memory.changes(f"{self._provider}/{model}", self._address)
        )

    def remember(self, model: str, changes: Changes, refusal: str) -> None:
        self._memory.put(f"{self._provider}/{model}", self._address, changes, refusal)
