"""Create tools from typed functions. Annotations become the JSON Schema for the model and validate its arguments.

`@tool` turns a function into a tool. A function that returns a plain result is called when the call runs. A function
that returns an `Invocation` (a `Prepared` or a `PreparedCommand`) plans the call instead: it resolves everything
that the call depends on and describes what the call will do. The object that is shown for approval is the one that
runs.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import (
    Annotated,
    Generic,
    NamedTuple,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.errors import InvalidInput, ShoalError, ToolError
from shoal.kernel.messages import ToolSpec
from shoal.kernel.permissions import Action
from shoal.kernel.ports import Command, Invocation, RunFile, SeeOutput, ToolContext, ToolOutput
from shoal.kernel.schema import refusal
from shoal.kernel.traits import RANK_LAST, UNKNOWN, Traits
from shoal.kernel.untrusted import UNREADABLE

ARGUMENTS_CHARS_MAX = 30_000_000
NAME = lazy_re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Matches tool names that every provider accepts."""
SIGNATURES_MAX = 500

_PARAMETER_LINE = lazy_re.compile(r"\s*(\w+)(?:\s*\([^)]*\))?:\s+(.+)")
_WRAPPED = lazy_re.compile(r"(?<=\S)\n(?=[^\W\d])")
"""Matches a line break inside a paragraph of a docstring."""
_Result = TypeVar("_Result")
Example: TypeAlias = Mapping[str, object]
NO_EXAMPLE: Example = MappingProxyType({})
_canonical_encoder = msgspec.json.Encoder(order="sorted")


class Prepared(NamedTuple):
    """An `Invocation` that calls a function. It describes the call for people and as canonical JSON.

    `advice` returns more information for the person who is asked for approval. It may be slow.
    """

    actions: tuple[Action, ...]
    shown: str
    canonical: str
    work: Callable[[], Awaitable[ToolOutput]]
    advice: Callable[[], Awaitable[str]] | None = None

    async def run(self) -> ToolOutput:
        return await self.work()


class PreparedCommand(NamedTuple):
    """An `Invocation` that runs a command in a sandbox.

    `work` receives the command and the taint of its output, which is an empty string for untainted output. Tools
    whose output arrives later need the taint.
    """

    actions: tuple[Action, ...]
    shown: str
    canonical: str
    command: Command
    work: Callable[[Command, str], Awaitable[ToolOutput]]
    tainted_by: str = ""

    def bound(self, runs: tuple[RunFile, ...], tainted_by: str, see: SeeOutput) -> "PreparedCommand":
        return self._replace(command=msgspec.structs.replace(self.command, runs=runs, see=see), tainted_by=tainted_by)

    async def run(self) -> ToolOutput:
        return await self.work(self.command, self.tainted_by)


def planned(
    name: str, detail: str, work: Callable[[], Awaitable[ToolOutput]], shown: str = "", /, **effect: object
) -> Prepared:
    """Create a call whose only action is `tool:NAME:DETAIL`. If `shown` is empty, people see the name and the
    detail.
    """
    return Prepared((Action(f"tool:{name}:{detail}"),), shown or f"{name} {detail}", canonical(name, **effect), work)


def canonical(tool: str, **effect: object) -> str:
    """Encode everything that determines the effect of a call as canonical JSON, with sorted keys and without spaces."""
    return _canonical_encoder.encode({"tool": tool, **effect}).decode()


@contextmanager
def as_tool_error(*errors: type[ShoalError]) -> Generator[None]:
    """Convert these errors to ToolError with the same text, for the model."""
    try:
        yield
    except errors as error:
        raise ToolError(str(error)) from error


@contextmanager
def quoting(file: Path) -> Generator[None]:
    """Taint errors raised in the block if `file` is tainted, because their text quotes it."""
    try:
        yield
    except ToolError as error:
        error.quotes = (*error.quotes, file)
        raise


class FunctionTool(Generic[_Result]):
    """A tool that runs a function. Calling the tool object calls the function directly."""

    def __init__(
        self,
        function: Callable[..., _Result],
        spec: ToolSpec,
        traits: Traits,
        example: Example,
        arguments: type[msgspec.Struct],
        hints: Mapping[str, type],
    ) -> None:
        self.function = function
        self.spec = spec
        self.traits = traits
        self.example = example
        self._arguments = arguments
        self._context_name = next(
            (name for name, hint in hints.items() if hint is ToolContext and name != "return"), None
        )
        self._plans = hints.get("return") in (Invocation, Prepared, PreparedCommand)

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[msgspec.Struct]:
        return msgspec.json.Decoder(self._arguments, strict=False)

    def __call__(self, *positional: object, **named: object) -> _Result:
        return self.function(*positional, **named)

    def prepare(self, arguments: str, context: ToolContext) -> Invocation:
        """Validate the JSON arguments and plan the call. Raises ToolError, whose message names the invalid argument."""
        name = self.spec.name
        if len(arguments) > ARGUMENTS_CHARS_MAX:
            raise ToolError(f"The arguments of {name} are too long: {len(arguments):,} characters.")
        try:
            read = self._decoder.decode(arguments.strip() or "{}")
        except msgspec.ValidationError as error:
            fields = msgspec.structs.fields(self._decoder.type)
            takes = ", ".join(field.name + ("" if field.required else " (optional)") for field in fields)
            wrong = refusal(error, self._decoder.type)
            raise ToolError(
                f"Invalid arguments for {name}: {wrong}. The tool takes {takes or 'no arguments'}."
            ) from error
        except UNREADABLE as error:
            wrong = refusal(error)
            raise ToolError(f"The arguments of {name} are not valid JSON: {wrong}. Send one object.") from error
        values = msgspec.structs.asdict(read)
        given = values if self._context_name is None else {**values, self._context_name: context}
        if self._plans:
            return cast("Invocation", self.function(**given))
        effect = msgspec.to_builtins(values)
        detail = msgspec.json.encode(effect, order="sorted").decode()

        async def work() -> ToolOutput:
            if inspect.iscoroutinefunction(self.function):
                result = await self.function(**given)
            else:  # in the bounded thread pool, where cancelling does not stop the function
                result = await asyncio.to_thread(self.function, **given)
            if isinstance(result, ToolOutput):
                return result
            return ToolOutput(result if isinstance(result, str) else msgspec.json.encode(result).decode())

        action, text = Action(f"tool:{name}:{detail}"), canonical(name, arguments=effect)
        return Prepared((action,), f"{name} {detail}", text, work)


class ToolDecorator:
    """A decorator that turns functions into tools. If assigned to a variable, it provides the name and traits of a tool
    before the tool's function exists.
    """

    def __init__(self, traits: Traits, name: str, example: Example) -> None:
        self.traits = traits
        self.name = name
        self.example = example

    def __call__(self, function: Callable[..., _Result]) -> FunctionTool[_Result]:
        name = self.name or getattr(function, "__name__", "")
        if not NAME.fullmatch(name):
            raise InvalidInput(f"A tool cannot be named {name!r}: use 1 to 64 letters, digits, '_' and '-'.")
        signature = _signature_of(function, name)
        spec = ToolSpec(name, signature.description or name, signature.parameters)
        return FunctionTool(function, spec, self.traits, self.example, signature.arguments, signature.hints)

    def alias(self, name: str, example: Example = NO_EXAMPLE) -> "ToolDecorator":
        traits = msgspec.structs.replace(self.traits, offered="by_name", rank=RANK_LAST)
        return ToolDecorator(traits, name, example or self.example)


@overload
def tool(function: Callable[..., _Result], /) -> FunctionTool[_Result]: ...
@overload
def tool(traits: Traits = UNKNOWN, /, *, name: str = "", example: Example = NO_EXAMPLE) -> ToolDecorator: ...
def tool(
    given: Traits | Callable[..., _Result] = UNKNOWN, /, *, name: str = "", example: Example = NO_EXAMPLE
) -> FunctionTool[_Result] | ToolDecorator:
    """Turn an annotated function into a tool, as `@tool` or `@tool(Traits(effect="read", origin="own"))`.

    The docstring becomes the description, with wrapped lines joined. To describe a parameter, use `Annotated[...,
    "text"]`, `msgspec.Meta(description=…)` or a line under `Args:`. A parameter of type ToolContext receives the
    context of the call. A returned string or ToolOutput is used unchanged. Other values are encoded as JSON.

    A function with the return type Invocation plans the call instead of running it, and raises ToolError if the call
    is impossible. Only such functions may have the traits `runs_commands` and `waits`.

    By default, results are untrusted and taint the turn. Set the trait `origin` to "own" for the owner's text, or to
    "mixed" if each result names its source in `ToolOutput.tainted_by`.

    `example` contains valid arguments for the documentation and the contract suite. Provide it if arguments
    generated from the schema would be invalid or hard to understand.

    Raises InvalidInput if a name or annotation is missing or has no JSON form.
    """
    if isinstance(given, Traits):
        return ToolDecorator(given, name, example)
    return ToolDecorator(UNKNOWN, name, example)(given)


class _Signature(NamedTuple):
    """Metadata of a tool, derived from its function."""

    hints: Mapping[str, type]
    description: str
    arguments: type[msgspec.Struct]
    parameters: str


_signatures: dict[object, _Signature] = {}


def _signature_of(function: Callable[..., object], name: str) -> _Signature:
    """Read a function's docstring and annotations.

    Every start creates the built-in tools again from the same code, so results are cached by code, docstring,
    annotations and defaults.
    """
    key = None
    if inspect.isfunction(function) and not any(isinstance(hint, str) for hint in function.__annotations__.values()):
        defaults = (function.__defaults__, *(function.__kwdefaults__ or {}).items())
        key = name, function.__code__, function.__doc__, defaults, *function.__annotations__.items()
    try:
        if (signature := _signatures.get(key)) is not None:
            return signature
    except TypeError:  # raised if a default or an annotation is not hashable
        key = None
    hints = get_type_hints(function, include_extras=True)
    description, fields = _documented_fields(function, name, hints)
    try:
        arguments = msgspec.defstruct(
            f"{name}_arguments", fields, kw_only=True, forbid_unknown_fields=True, frozen=True
        )
        signature = _Signature(hints, description, arguments, schema_of(arguments))
    except TypeError as error:
        raise InvalidInput(f"Tool {name} has a parameter of an unsupported type: {error}") from error
    if key is not None:
        if len(_signatures) >= SIGNATURES_MAX:
            _signatures.clear()
        _signatures[key] = signature
    return signature


def _documented_fields(
    function: Callable[..., object], name: str, hints: Mapping[str, type]
) -> tuple[str, list[tuple[str, type] | tuple[str, type, object]]]:
    text, _, rest = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    lines = (_PARAMETER_LINE.match(line) for line in rest.split("\n\n")[0].splitlines())
    described = {match[1]: match[2].strip() for match in lines if match}
    fields: list[tuple[str, type] | tuple[str, type, object]] = []
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name)
        if hint is ToolContext:
            continue
        unusable = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY)
        if hint is None or parameter.kind in unusable:
            raise InvalidInput(
                f"Tool {name}: parameter {parameter.name} needs a type annotation and must accept a keyword argument."
            )
        base, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        words = next((extra for extra in extras if isinstance(extra, str)), described.get(parameter.name, ""))
        metas = [extra for extra in extras if isinstance(extra, msgspec.Meta)]
        if words and not any(meta.description for meta in metas):
            metas.append(msgspec.Meta(description=words))
        kind = cast("type", Annotated[base, *metas] if metas else base)
        is_required = parameter.default is parameter.empty
        fields.append((parameter.name, kind) if is_required else (parameter.name, kind, parameter.default))
    return _WRAPPED.sub(" ", text.strip()), fields


def schema_of(arguments: type[msgspec.Struct]) -> str:
    (_,), components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema = components.pop(arguments.__name__)
    schema.pop("title", None)
    schema.pop("description", None)
    schema.setdefault("required", [])
    if components:
        schema["$defs"] = components
    return msgspec.json.encode(schema).decode()
