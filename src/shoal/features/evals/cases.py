"""Test cases for agents. Each is a TOML file with a conversation, tool results and expectations.

    about = "Checks the forecast before it gives advice."

    [[messages]]
    role = "user"
    text = "Shall I take the boat out?"

    [[results]]
    tool = "forecast"
    arguments = '{"place":"Kiel"}'
    text = "Storm from noon."

    [[expect]]
    calls = "forecast"

    [[expect]]
    contains = "storm"

The texts in a case are untrusted. The model receives them as conversation, never as instructions for the check.
"""

import difflib
import json
import re
from typing import Annotated, Any, Literal, TypeAlias  # noqa: TID251 - the values of JSON

import msgspec
from msgspec import Meta

from shoal.features.evals.answers import plain
from shoal.kernel import lazy_re
from shoal.kernel.errors import InvalidInput
from shoal.kernel.ids import CallId
from shoal.kernel.messages import AssistantMessage, ModelMessage, ToolCall, ToolMessage, UserMessage
from shoal.kernel.schema import refusal
from shoal.kernel.untrusted import BAD_TOML, UNREADABLE, decode_toml
from shoal.text.toml_edit import literal

NAME = lazy_re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
CASE_BYTES_MAX = 1_048_576
CASES_MAX = 200

Text = Annotated[str, Meta(max_length=200_000)]
Role: TypeAlias = Literal["user", "assistant", "tool"]


class CaseCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An earlier tool call in the conversation. `arguments` is JSON text."""

    id: str
    tool: str
    arguments: Text = "{}"


class CaseMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message of the conversation. With the role `tool`, it is the result of the call with the same `id`."""

    role: Role
    text: Text = ""
    calls: tuple[CaseCall, ...] = ()
    id: str = ""
    tool: str = ""
    is_error: bool = False


class CaseResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Recorded result of a call to `tool` with these `arguments`, which are JSON text."""

    tool: str
    arguments: Text = "{}"
    text: Text = ""
    is_error: bool = False


class Expectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A condition that the agent must meet. Exactly one kind is set.

    `calls`, `never_calls`: tool that the agent must call or must not call.
    `arguments`: arguments that such a call must include.
    `contains`, `lacks`: text that the final answer must contain or must not contain, ignoring case.
    `matches`: regular expression to find in the final answer.
    `judged`: sentence that a model must judge to be true.
    """

    calls: Annotated[str, Meta(max_length=64)] = ""
    never_calls: Annotated[str, Meta(max_length=64)] = ""
    arguments: dict[str, Any] = {}
    contains: Annotated[str, Meta(max_length=10_000)] = ""
    matches: Annotated[str, Meta(max_length=1_000)] = ""
    lacks: Annotated[str, Meta(max_length=10_000)] = ""
    judged: Annotated[str, Meta(max_length=2_000)] = ""

    @property
    def kind(self) -> str:
        """Name of the kind that is set, or an empty string if none or several are set."""
        given = [name for name in KINDS if getattr(self, name)]
        return given[0] if len(given) == 1 else ""

    @property
    def problem(self) -> str:
        """Error message for an invalid combination of fields, or an empty string."""
        if not self.kind:
            return f"an [[expect]] table must have exactly one of {', '.join(KINDS)}."
        if self.arguments and self.kind not in ("calls", "never_calls"):
            return "`arguments` is valid only with `calls` or `never_calls`."
        return ""

    @property
    def words(self) -> str:
        value = getattr(self, self.kind)
        with_arguments = f" {json.dumps(self.arguments, ensure_ascii=False)}" if self.arguments else ""
        return {
            "calls": f"calls {value}{with_arguments}",
            "never_calls": f"never calls {value}{with_arguments}",
            "contains": f"answer contains {value!r}",
            "matches": f"answer matches {value!r}",
            "lacks": f"answer does not contain {value!r}",
            "judged": f"judged: {value}",
        }[self.kind]

    def fits(self, call: ToolCall) -> bool:
        """Return True if a call uses the expected tool and includes the expected arguments."""
        if call.name != (self.calls or self.never_calls):
            return False
        try:
            given = msgspec.json.decode(call.arguments or "{}", type=dict[str, object])
        except UNREADABLE:
            return not self.arguments
        return all(name in given and same_value(given[name], value) for name, value in self.arguments.items())


KINDS = ("calls", "never_calls", "contains", "matches", "lacks", "judged")


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A test of an agent.

    With recorded tools, calls return `results`. With sandboxed tools, calls run in a temporary workspace that initially
    contains `files`.
    """

    messages: tuple[CaseMessage, ...]
    expect: tuple[Expectation, ...]
    about: Annotated[str, Meta(max_length=2_000)] = ""
    saved_from: str = ""
    tools: Literal["recorded", "sandbox"] = "recorded"
    results: tuple[CaseResult, ...] = ()
    files: dict[str, Text] = {}

    def result_of(self, call: ToolCall) -> CaseResult | None:
        wanted = plain(call.arguments)
        results = (result for result in self.results if result.tool == call.name and plain(result.arguments) == wanted)
        return next(results, None)


def same_value(left: object, other: object) -> bool:
    return plain(json.dumps(left, default=str)) == plain(json.dumps(other, default=str))


def model_message(message: CaseMessage) -> ModelMessage:
    if message.role == "user":
        return UserMessage(message.text)
    if message.role == "tool":
        return ToolMessage(CallId(message.id), message.tool, message.text, message.is_error)
    return AssistantMessage(
        message.text, tuple(ToolCall(CallId(call.id), call.tool, call.arguments) for call in message.calls)
    )


# ---- reading ----


def parse_case(text: str, file: str) -> Case:
    """Parse a case. Raises InvalidInput, whose message names the file, the line and the correction."""
    try:
        content = decode_toml(text)
    except BAD_TOML as error:
        raise InvalidInput(f"{file}: {refusal(error)}. Correct the file.") from error
    try:
        case = msgspec.convert(content, Case)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        path = path.rstrip("`")
        unknown = re.search(r"unknown field `(.+)`", message)
        if unknown is not None:
            line = line_of(text, f"{path}.{unknown[1]}")
            kind = _KINDS_OF.get(re.sub(r"\[[\d.]*\]", "", path), Case)
            near = difflib.get_close_matches(unknown[1], [field.name for field in msgspec.structs.fields(kind)], 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InvalidInput(f"{file}, line {line}: unknown key {unknown[1]!r}.{hint}") from error
        raise InvalidInput(f"{file}, line {line_of(text, path)}: {refusal(error, Case)}. Correct the file.") from error
    check_case(case, text, file)
    return case


_KINDS_OF: dict[str, type[msgspec.Struct]] = {
    "$.messages": CaseMessage,
    "$.messages.calls": CaseCall,
    "$.results": CaseResult,
    "$.expect": Expectation,
}


def check_case(case: Case, text: str, file: str) -> None:
    """Check rules that the schema cannot express. Raises InvalidInput."""
    if not case.messages or case.messages[-1].role == "assistant":
        last = line_of(text, f"$.messages[{len(case.messages) - 1}]")
        raise InvalidInput(f"{file}, line {last}: the last message must have the role user or tool.")
    if not case.expect:
        raise InvalidInput(f"{file}, line 1: the case has no expectation. Add an [[expect]] table.")
    for number, expectation in enumerate(case.expect):
        line = line_of(text, f"$.expect[{number}]")
        if problem := expectation.problem:
            raise InvalidInput(f"{file}, line {line}: {problem}")
    waiting: dict[str, str] = {}
    for number, message in enumerate(case.messages):
        line = line_of(text, f"$.messages[{number}]")
        if message.role != "assistant" and message.calls:
            raise InvalidInput(f"{file}, line {line}: only a message with the role assistant can have `calls`.")
        if message.role == "tool":
            if message.id not in waiting:
                raise InvalidInput(f"{file}, line {line}: no earlier call has the id {message.id!r}.")
            del waiting[message.id]
        elif waiting:
            raise InvalidInput(f"{file}, line {line}: the earlier call {next(iter(waiting))!r} has no result.")
        waiting |= {call.id: call.tool for call in message.calls}
    if waiting:
        raise InvalidInput(f"{file}: the call {next(iter(waiting))!r} has no result. Add a message with the role tool.")
    for name in case.files:
        if not name or name.startswith("/") or ".." in name.split("/"):
            line = line_of(text, "$.files")
            raise InvalidInput(f"{file}, line {line}: {name!r} is not a path below the workspace.")


def line_of(text: str, path: str) -> int:
    """Return the 1-based number of the line that defines a path such as `$.expect[1].calls`, or 1 if no line does."""
    lines, at, until = text.splitlines(), 0, len(text.splitlines())
    for name, index in re.findall(r"\.([^.\[\]]+)(?:\[(\d+)\])?", path):
        header = re.compile(rf"\s*\[{{1,2}}([\w-]+\.)*{re.escape(name)}\]{{1,2}}\s*(#.*)?")
        heads = [number for number in range(at, until) if header.fullmatch(lines[number])]
        if heads:
            wanted = int(index or 0)
            at = heads[min(wanted, len(heads) - 1)]
            after = (number for number in range(at + 1, until) if re.match(r"\s*\[{1,2}[\w.-]+\]{1,2}", lines[number]))
            until = next(after, until)
            continue
        key = re.compile(rf"""\s*(["']?){re.escape(name)}\1\s*=""")
        inline = re.compile(rf"""[{{,]\s*(["']?){re.escape(name)}\1\s*=""")
        here = range(at, until)
        keys = [n for n in here if key.match(lines[n])] or [n for n in here if inline.search(lines[n])]
        if not keys:
            break
        at = keys[0]
    return at + 1


# ---- writing ----


def write_case(case: Case) -> str:
    head = {"about": case.about, "saved_from": case.saved_from}
    lines = [f"{key} = {written(value)}" for key, value in head.items() if value]
    if case.tools != "recorded":
        lines.append(f"tools = {written(case.tools)}")
    tables = [("messages", case.messages), ("results", case.results), ("expect", case.expect)]
    if case.files:
        lines += ["", "[files]", *(f"{literal(name)} = {written(text)}" for name, text in case.files.items())]
    for name, rows in tables:
        for row in rows:
            lines += ["", f"[[{name}]]"]
            for field in msgspec.structs.fields(row):
                value = getattr(row, field.name)
                if field.name == "calls" and isinstance(row, CaseMessage):
                    for call in row.calls:
                        lines += ["", f"[[{name}.calls]]", f"id = {written(call.id)}", f"tool = {written(call.tool)}"]
                        lines.append(f"arguments = {written(call.arguments)}")
                elif value != (field.default_factory() if callable(field.default_factory) else field.default):
                    lines.append(f"{field.name} = {written(value)}")
    return "\n".join(lines).lstrip("\n") + "\n"


def written(value: object) -> str:
    if not isinstance(value, str):
        return literal(value)  # pyright: ignore[reportArgumentType] - what came from TOML or JSON without null
    if "\n" in value and '"""' not in value and all(char.isprintable() or char in "\n\t" for char in value):
        escaped = value.replace("\\", "\\\\")
        return f'"""\n{escaped}"""' if not escaped.endswith('"') else literal(value)
    if '"' in value and "'" not in value and value.isprintable():
        return f"'{value}'"
    return literal(value)
