"""Parse the markup that models use for thinking and calls, when a server passes it on as text.

    markup                                                    interpretation
    -------------------------------------------------------   ------------------------------------------------
    an opening thinking tag at the start of the response      thinking, up to the closing tag or the end
    a closing thinking tag at the edge of a line, without     the text before the tag is thinking, because
    an opening tag                                            some templates put the opening tag in the prompt
    the start of a response without a reasoning field,        thinking, up to the closing tag. Without a
    from a family that always thinks                          closing tag, the response is text
    (`Quirks.opens_thinking`)
    the start of a call, if tools were offered                a call. The text after it is buffered until the
                                                              response ends
    Harmony's channels                                        the analysis channel is thinking, a message with
                                                              `to=` is a call, and all others are text
    markup in a code fence, in inline code, or after a        text
    quotation mark
    text that only looks like a call                          text

A truncated call keeps the arguments that arrived. They are not valid JSON, so the call is rejected. Calls in text
pass the same validation and permission checks as all other calls.

Sources of the formats: the chat templates and parsers of vLLM (`vllm/tool_parsers`), SGLang (`function_call`) and
llama.cpp (`common/chat.cpp`) for Hermes, Qwen, Llama, Mistral, DeepSeek, Kimi, GLM, MiniMax, Granite, Phi, LFM,
InternLM, Cohere and Seed, and openai/harmony's format document.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, cast

from shoal.kernel import lazy_re
from shoal.models.odd_json import JsonScan
from shoal.text.loose_json import loose_value, python_calls

_THINKING = {
    "<think>": "</think>", "<thinking>": "</thinking>", "<thought>": "</thought>", "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>", "<mm:think>": "</mm:think>", "[THINK]": "[/THINK]", "◁think▷": "◁/think▷",
    "<|begin_of_thought|>": "<|end_of_thought|>", "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel>thought": "<channel|>", "<unused94>thought": "<unused95>", "<scratchpad>": "</scratchpad>",
    "<inner_monologue>": "</inner_monologue>",
}  # fmt: skip
_CLOSES = ("</think>", "</thinking>", "</seed:think>", "</mm:think>", "[/THINK]", "◁/think▷")
_HARMONY = ("<|channel|>", "<|start|>")
_CALLS = (
    "<tool_call>", "<tool_calls>", "<toolcall>", "<function=", "<function_call>", "<function_calls>", "<invoke name=",
    "<minimax:tool_call>", "<seed:tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<｜DSML｜", "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>", "<|tool▁calls▁begin|>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>",
    "<|tool_calls_begin|>", "<|tool_call|>", "<|tool_call>", "<|tool_call_start|>", "<|action_start|>",
    "<|START_ACTION|>",
)  # fmt: skip
_ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "<|return|>", "<|call|>",
    "<｜end▁of▁sentence｜>", "<end_of_turn>", "<|start_header_id|>assistant<|end_header_id|>", "<|assistant|>",
)  # fmt: skip
"""Tokens that begin or end a turn in chat templates. They are not part of the content."""
_TWINS = ("</think>", "</thinking>")
"""Closing tags that some models confuse with each other."""
_ENVELOPES = {"<answer>": "</answer>", "<|begin_of_solution|>": "<|end_of_solution|>"}
"""Tags that some models put around the answer that follows the thinking."""
_MARKS_MAX = 100
"""Maximum number of call markers that are parsed per response. Later markers count as text, because parsing one may
scan the rest of the response.
"""
_MARK_CHARS_MAX = max(map(len, (*_THINKING, *_CLOSES, *_CALLS, *_ENDS, *_ENVELOPES)))
_FIRST_CHARS = lazy_re.compile(r"[<\[◁]")
_LINE_CHARS_MAX = 4_000
"""Number of characters at the end of a line that are scanned for inline code."""
_QUOTES = frozenset("\"'“‘«")
_FENCE = lazy_re.compile(r"[\s>*-]{0,20}(`{3,}|~{3,})(.*)", re.DOTALL)
_TICKS = lazy_re.compile("`+")
_PROSE = lazy_re.compile(r" [a-z]")


def _pattern(marks: tuple[str, ...]) -> re.Pattern[str]:
    return lazy_re.compile("|".join(map(re.escape, marks)))


_PLAIN_MARKS = (*_CLOSES, *_HARMONY, *_ENDS)
_ALL_MARKS = (*_PLAIN_MARKS, *_CALLS)
_MARKS = {False: _pattern(_PLAIN_MARKS), True: _pattern(_ALL_MARKS)}
_CALL_MARKS = _pattern(_CALLS)


class MarkedCall(NamedTuple):
    """A call parsed from text. `arguments` is JSON, or the part of it that arrived."""

    name: str
    arguments: str


class MarkupFilter:
    """Sorts the text of a response into `texts` and `thoughts` as it arrives. `finish` returns the calls."""

    def __init__(
        self, texts: list[str], thoughts: list[str], *, reads_calls: bool, opens_thinking: bool = False
    ) -> None:
        self.is_plain = False
        """True if a piece without `<`, `[` and `◁` can be appended to the texts without being parsed."""
        self._texts = texts
        self._thoughts = thoughts
        self._reads_calls = reads_calls
        self._state: Literal["start", "thinking", "closed", "text", "closing", "rest"] = "start"
        self._held = ""
        self._rest: list[str] = []
        self._mark = ""
        self._closing = ""
        self._thinking_from = 0
        self._after_thinking = False
        self._opens_thinking = opens_thinking
        self._envelope_end = ""
        self._code = _CodeScan()
        self._code_at = 0

    @property
    def pieces(self) -> int:
        return len(self._rest)

    def feed(self, text: str) -> None:
        text, self._held = self._held + text, ""
        while text:
            match self._state:
                case "start":
                    text = self._start(text)
                case "thinking":
                    text = self._think(text)
                case "closed":
                    text = self._end_thinking(text)
                case "text":
                    text = self._say(text)
                case "closing":
                    text = self._close(text)
                case "rest":
                    self._rest.append(text)
                    text = ""
        self.is_plain = self._state == "text" and not self._held

    def finish(self, *, has_calls: bool, is_cut_off: bool = False) -> list[MarkedCall]:
        """Parse the buffered text and return its calls in order.

        `has_calls` is set if the response also has calls outside the text. A truncated response (`is_cut_off`) may
        end inside thinking.
        """
        held, self._held = self._held, ""
        match self._state:
            case "thinking":
                self._thoughts.append(held)
                return self._read_unclosed(is_text=not self._mark and not has_calls and not is_cut_off)
            case "closing" if has_calls:
                self._turn_to_thinking()
            case "start" if held.strip():
                self._texts.append(held)
            case "text":
                self._texts.append(held)
                self._drop_end()
            case "rest":
                text, thoughts, calls = read_markup("".join(self._rest), reads_calls=self._reads_calls)
                self._texts.append(text)
                self._thoughts.append(thoughts)
                return calls
            case _:
                pass
        return []

    def _drop_end(self) -> None:
        end = self._envelope_end or "</s>"
        last = "".join(self._texts[-len(end) :]).rstrip()
        if last.endswith(end) and (self._envelope_end or "<s>" not in "".join(self._texts)):
            text = "".join(self._texts).rstrip().removesuffix(end)
            self._texts[:] = [text.rstrip() if self._envelope_end else text]

    def _start(self, text: str) -> str:
        begun = text.lstrip()
        lower = begun[:_MARK_CHARS_MAX].lower()
        for opening, closing in _THINKING.items():
            if lower.startswith(opening.lower()):
                self._state, self._mark, self._closing = "thinking", begun[: len(opening)], closing
                self._thinking_from = len(self._thoughts)
                return begun[len(opening) :]
            if opening.lower().startswith(lower):
                self._held = text
                return ""
        for opening, closing in _ENVELOPES.items() if self._after_thinking else ():
            if lower.startswith(opening):
                self._envelope_end, self._state = closing, "text"
                return begun[len(opening) :].lstrip()
            if opening.startswith(lower):
                self._held = text
                return ""
        if self._opens_thinking and begun and not self._after_thinking and not any(self._thoughts):
            self._state, self._mark, self._closing = "thinking", "", "</think>"
            self._thinking_from = len(self._thoughts)
            return begun
        self._state = "text"
        return begun if self._after_thinking else text

    def _think(self, text: str) -> str:
        closers = _TWINS if self._closing in _TWINS else (self._closing,)
        closing = re.search("|".join(map(re.escape, closers)), text, re.IGNORECASE)
        if closing is not None:
            self._thoughts.append(text[: closing.start()])
            self._state = "closed"
            return text[closing.end() :]
        keep = _partial(text, closers)
        self._thoughts.append(text[: len(text) - keep])
        self._held = text[len(text) - keep :]
        return ""

    def _end_thinking(self, text: str) -> str:
        """End the thinking, unless the tags are part of a sentence, such as `<think> and </think> are tags.`"""
        thought = "".join(self._thoughts[self._thinking_from :])
        if thought.startswith(" ") and "\n" not in thought:
            if len(text) < len(" a"):
                self._held = text
                return ""
            if _PROSE.match(text):
                del self._thoughts[self._thinking_from :]
                self._texts.append(f"{self._mark}{thought}{self._closing}")
                self._state = "text"
                return text
        self._state, self._after_thinking = "start", True
        return text

    def _say(self, text: str) -> str:
        if _FIRST_CHARS.search(text) is None:
            self._texts.append(text)
            return ""
        at = 0
        for match in _MARKS[self._reads_calls].finditer(text):
            self._texts.append(text[at : match.start()])
            at = match.start()
            if self._is_code() or (match[0] in _CLOSES and not self._may_close()):
                continue
            if match[0] in _CLOSES:
                self._state, self._mark = "closing", match[0]
                return text[match.end() :]
            if match[0] not in _ENDS:
                self._state = "rest"
                return text[at:]
            at = match.end()
        text = text[at:]
        keep = _partial(text, _ALL_MARKS if self._reads_calls else _PLAIN_MARKS)
        self._texts.append(text[: len(text) - keep])
        self._held = text[len(text) - keep :]
        return ""

    def _is_code(self) -> bool:
        self._code.feed("".join(self._texts[self._code_at :]))
        self._code_at = len(self._texts)
        return self._code.is_code

    def _may_close(self) -> bool:
        return not any(self._thoughts) and "<think" not in (text := "".join(self._texts)) and "[THINK]" not in text

    def _close(self, text: str) -> str:
        before = next((text for text in reversed(self._texts) if text), "\n")
        if before.endswith("\n") or text.startswith("\n"):
            self._turn_to_thinking()
            self._state = "start"
        else:
            self._texts.append(self._mark)
            self._state = "text"
        return text

    def _turn_to_thinking(self) -> None:
        self._thoughts.append("".join(self._texts))
        self._texts.clear()
        self._code, self._code_at = _CodeScan(), 0
        self._after_thinking = True

    def _read_unclosed(self, *, is_text: bool) -> list[MarkedCall]:
        """Process thinking that has no closing tag.

        Calls in it are parsed. Without calls, it is text if `is_text` is set, or if a space follows the tag, as in a
        sentence.
        """
        thought = "".join(self._thoughts[self._thinking_from :])
        if self._reads_calls and (match := _CALL_MARKS.search(thought)) is not None:
            text, thoughts, calls = read_markup(thought[match.start() :])
            if calls:
                self._thoughts[self._thinking_from :] = [thought[: match.start()], thoughts, text]
                return calls
        if is_text or (self._mark and thought.startswith(" ")):
            del self._thoughts[self._thinking_from :]
            self._texts.append(self._mark + thought)
        return []


class _CodeScan:
    """Detects whether a position is in a code fence, in inline code or after a quotation mark."""

    def __init__(self) -> None:
        self._fence = ""
        self._line = ""

    def feed(self, text: str) -> None:
        *lines, self._line = (self._line + text).split("\n")
        self._line = self._line[-_LINE_CHARS_MAX:]
        for line in lines:
            fence = _FENCE.match(line)
            if fence is None:
                continue
            if not self._fence:
                self._fence = fence[1]
            elif fence[1].startswith(self._fence) and not fence[2].strip():
                self._fence = ""

    @property
    def is_code(self) -> bool:
        if self._fence or self._line[-1:] in _QUOTES:
            return True
        open_ticks = ""
        for ticks in _TICKS.findall(self._line):
            if not open_ticks:
                open_ticks = ticks
            elif ticks == open_ticks:
                open_ticks = ""
        return bool(open_ticks)


def _partial(text: str, marks: tuple[str, ...]) -> int:
    tail = text[-_MARK_CHARS_MAX:].lower()
    for match in _FIRST_CHARS.finditer(tail):
        rest = tail[match.start() :]
        if any(mark.lower().startswith(rest) for mark in marks):
            return len(rest)
    return 0


# ---- calls ----

_GLUE = lazy_re.compile(
    r"(?:\s|[,;]|<\|[^|<>\n]{1,40}\|>|<\|tool_call>|<tool_call\|>|<｜[^｜<>\n]{1,40}｜>|```(?:json)?"
    r"|</?(?:tool_calls?|toolcall|function_calls?|minimax:tool_call|seed:tool_call|function|｜DSML｜\w+)>|\[TOOL_CALLS\])*+"
)
_TAGGED = lazy_re.compile(
    r"<(?:\w+:|｜DSML｜)?(function|invoke)(?:=|\s+name\s*=)\s*[\"']?([^\"'<>\s]{1,100})[\"']?\s*>"
)
_PARAMETER = lazy_re.compile(
    r"<(?:\w+:|｜DSML｜)?parameter(?:=|\s+name\s*=)\s*[\"']?([^\"'<>\s]{1,100})[\"']?[^<>]{0,40}>"
)
_PARAMETER_END = lazy_re.compile(
    r"</(?:\w+:|｜DSML｜)?parameter>(?=\s*(?:</?(?:\w+:|｜DSML｜)?(?:parameter|function|invoke)|\Z))"
)
_TAGGED_END = lazy_re.compile(r"\s*</(?:\w+:|｜DSML｜)?(?:function|invoke)>")
_NAMED = lazy_re.compile(
    r"(?:function\s*<｜tool▁sep｜>\s*)?(?:call:)?([A-Za-z_][\w.:/-]{0,99}?)(?::\d{1,3})?"
    r"(?=\s*(?:[{(]|<arg_key>|</tool_call>|<\||<｜|\[ARGS\]|\[CALL_ID\]|\Z)|\s*\n)"
)
_BETWEEN = lazy_re.compile(
    r"(?:\s|<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|\[CALL_ID\]\w{0,40}|\[ARGS\]|```(?:json)?)*+"
)
_ARGUMENT = lazy_re.compile(r"\s*<arg_key>([^<]{1,100})</arg_key>\s*<arg_value>")
_ARGUMENT_END = lazy_re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>|\Z))")
_PYTHON = lazy_re.compile(r"\[?\s*[A-Za-z_][\w.]{0,99}\(")
_PYTHON_END = lazy_re.compile(r"<\||</|\Z")
_NAME_IN_JSON = lazy_re.compile(r"\"(?:tool_)?name\"\s*:\s*\"([^\"\\]{1,100})\"")
_CLOSING_TOKEN = lazy_re.compile(
    r"<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>"
    r"|</(?:tool_calls?|function_calls?|minimax:tool_call|seed:tool_call|function|｜DSML｜\w{1,40})>|<tool_call\|>"
)
_RESPONSE = lazy_re.compile(r"<tool_response>(?:(?!</tool_response>).)*+(?:</tool_response>)?", re.DOTALL)
_CHANNEL = lazy_re.compile(r"<\|(start|end|return|call|channel|message|constrain)\|>")
_RECIPIENT = lazy_re.compile(r"\bto=([\w.-]{1,100})")
_FENCE_END = lazy_re.compile(r"\s*```")
_GEMMA_QUOTE = '<|"|>'


def read_markup(text: str, *, reads_calls: bool = True) -> tuple[str, str, list[MarkedCall]]:
    """Split a text with markup. Returns the text, the thinking and the calls."""
    if _CHANNEL.search(text) is not None and ("<|message|>" in text or "<|channel|>" in text):
        return _read_channels(text, reads_calls=reads_calls)
    parts: list[str] = []
    calls: list[MarkedCall] = []
    at = 0
    for _ in range(_MARKS_MAX):
        if (match := _CALL_MARKS.search(text, at)) is None:
            break
        parts.append(text[at : match.start()])
        at = match.start()
        read, end = _read_calls(text, at)
        if not read:
            end = match.end()
            parts.append(match[0])
        calls += read
        at = end
    parts.append(text[at:])
    text_left = "".join(parts)
    if calls:
        text_left = _RESPONSE.sub("", _CLOSING_TOKEN.sub("", text_left)).strip()
    return text_left, "", calls


def _read_calls(text: str, at: int) -> tuple[list[MarkedCall], int]:
    calls: list[MarkedCall] = []
    while True:
        begun = at
        if _TAGGED.match(text, at) is None:
            glue = _GLUE.match(text, at)
            begun = glue.end() if glue is not None else at
        call = _read_tagged(text, begun) or _read_json(text, begun) or _read_python(text, begun)
        call = call or (_read_named(text, begun) if not calls or begun > at else None)
        if call is None:
            return calls, at
        read, at = call
        calls += read
        ahead = text[at : at + 200].lstrip()
        if not ahead.startswith(("{", ";", ",")) and _CALL_MARKS.match(ahead) is None:
            return calls, at


_Read = tuple[list[MarkedCall], int] | None
_MatchAt = Callable[[str, int], re.Match[str] | None]


def _read_tagged(text: str, at: int) -> _Read:
    """Parse `<function=name>` and `<invoke name="name">`, with a JSON object or with tagged parameters."""
    head = _TAGGED.match(text, at)
    if head is None:
        return None
    name, at = head[2], head.end()
    body = text[at : at + 200].lstrip()[:1]
    if body == "{":
        return _read_object(text, text.index("{", at), name, _TAGGED_END.match)
    arguments: dict[str, str] = {}
    while (parameter := _PARAMETER.search(text, at)) is not None and not text[at : parameter.start()].strip():
        end = _PARAMETER_END.search(text, parameter.end())
        if end is None:
            return [MarkedCall(name, text[parameter.start() :])], len(text)
        arguments[parameter[1]] = _value(text[parameter.end() : end.start()])
        at = end.end()
    end = _TAGGED_END.match(text, at)
    if end is None and text[at:].strip():
        return [MarkedCall(name, text[at:])], len(text)
    return [MarkedCall(name, json.dumps(arguments, ensure_ascii=False))], end.end() if end is not None else len(text)


def _value(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")


def _read_object(text: str, at: int, name: str, end: _MatchAt | None = None) -> tuple[list[MarkedCall], int]:
    stop = _end_of_json(text, at)
    if stop < 0:
        return [MarkedCall(name, text[at:])], len(text)
    closed = end(text, stop) if end is not None else None
    return [MarkedCall(name, text[at:stop])], closed.end() if closed is not None else stop


def _end_of_json(text: str, at: int) -> int:
    """Return the index after the object or list that begins at `at`, or -1 if it is incomplete."""
    data = text[at:].encode("utf-8", "surrogatepass")
    end = JsonScan().feed(data)
    return end if end < 0 else at + len(data[:end].decode("utf-8", "surrogatepass"))


def _read_json(text: str, at: int) -> _Read:
    if text[at : at + 1] not in ("{", "[") or _PYTHON.match(text, at) is not None:
        return None
    end = _end_of_json(text, at)
    if end < 0:
        name = _NAME_IN_JSON.search(text[at : at + 2_000])
        return ([MarkedCall(name[1], text[at:])], len(text)) if name is not None else None
    try:
        value = loose_value(text[at:end])
    except ValueError:
        name = _NAME_IN_JSON.search(text[at : min(end, at + 2_000)])
        return ([MarkedCall(name[1], text[at:end])], end) if name is not None else None
    calls = list(_calls_in(value))
    return (calls, end) if calls else None


def _calls_in(value: object) -> Iterator[MarkedCall]:
    if isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _calls_in(item)
    if not isinstance(value, dict):
        return
    call = cast("dict[str, object]", value)
    inner = call.get("function")
    if isinstance(inner, dict):
        yield from _calls_in(cast("object", inner))
        return
    name = next(
        (call[key] for key in ("name", "tool_name", "tool", "function") if isinstance(call.get(key), str)), None
    )
    if not isinstance(name, str):
        return
    keys = ("arguments", "parameters", "args", "input", "tool_input")
    given = next((call[key] for key in keys if key in call), dict[str, object]())
    yield MarkedCall(name, given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))


def _read_python(text: str, at: int) -> _Read:
    if _PYTHON.match(text, at) is None:
        return None
    end = _PYTHON_END.search(text, at)
    stop = end.start() if end is not None else len(text)
    try:
        calls = python_calls(text[at:stop])
        read = [MarkedCall(name.removesuffix(".call"), json.dumps(given, ensure_ascii=False)) for name, given in calls]
    except (ValueError, TypeError):
        return None
    return read, stop


def _read_named(text: str, at: int) -> _Read:
    """Parse a name followed by arguments, as Mistral, DeepSeek, Kimi, GLM and Gemma write calls."""
    head = _NAMED.match(text, at)
    if head is None:
        return None
    name = head[1]
    between = _BETWEEN.match(text, head.end())
    at = between.end() if between is not None else head.end()
    if _ARGUMENT.match(text, at) is not None:
        arguments: dict[str, str] = {}
        while (argument := _ARGUMENT.match(text, at)) is not None:
            end = _ARGUMENT_END.search(text, argument.end())
            if end is None:
                return [MarkedCall(name, text[argument.start() :])], len(text)
            arguments[argument[1].strip()] = _value(text[argument.end() : end.start()])
            at = end.end()
        return [MarkedCall(name, json.dumps(arguments, ensure_ascii=False))], at
    if text[at : at + 1] == "{":
        if _GEMMA_QUOTE in text[at:]:
            quoted = text[:at] + text[at:].replace(_GEMMA_QUOTE, '"')
            (call,), end = _read_object(quoted, at, name)
            rest = len(quoted) - end
            return [call], len(text) - rest
        is_fenced = between is not None and "```" in between[0]
        return _read_object(text, at, name, _FENCE_END.match if is_fenced else None)
    if text.startswith("</tool_call>", at):
        return [MarkedCall(name, "{}")], at
    return None


def _read_channels(text: str, *, reads_calls: bool) -> tuple[str, str, list[MarkedCall]]:
    """Parse Harmony messages. Tokens separate the header (role, channel, recipient) and the content of each message."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[MarkedCall] = []
    header, is_content, at = "assistant", True, 0
    for match in (*_CHANNEL.finditer(text), None):
        piece = text[at : match.start()] if match is not None else text[at:]
        at = match.end() if match is not None else len(text)
        if not is_content:
            header += f" {piece}"
        elif piece.strip():
            recipient = _RECIPIENT.search(header)
            if recipient is not None and reads_calls:
                calls.append(MarkedCall(recipient[1], piece.strip()))
            elif "assistant" not in header or "analysis" in header or ("commentary" in header and "{" in piece[:20]):
                thoughts.append(piece)
            else:
                texts.append(piece)
        if match is None:
            break
        match match[1]:
            case "message":
                is_content = True
            case "start":
                header, is_content = "", False
            case "channel":
                header, is_content = (header if not is_content else "assistant"), False
            case "constrain":
                pass
            case _:
                header, is_content = "assistant", True
    return "".join(texts), "\n".join(thoughts), calls
