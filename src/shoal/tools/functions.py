"""`@shoal.tool`: a typed function becomes a tool; its docstring and annotations become what the model is told."""

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Generic, TypeVar, cast, get_args, get_origin, get_type_hints, overload

import msgspec

from shoal.domain.errors import InvalidInput
from shoal.domain.messages import ToolSpec
from shoal.domain.permissions import Action
from shoal.domain.ports import Invocation, ToolContext, ToolOutput
from shoal.tools.typed import ArgumentsReader, Prepared, canonical

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every provider takes as a tool's name."""

_PARAMETER_LINE = re.compile(r"\s*(\w+)(?:\s*\([^)]*\))?:\s+(.+)")
_Result = TypeVar("_Result")


class FunctionTool(Generic[_Result]):
    """A tool that calls a function; calling it directly still calls the function."""

    def __init__(self, function: Callable[..., _Result], spec: ToolSpec, arguments: type[msgspec.Struct]) -> None:
        self.function = function
        self.spec = spec
        self._reader = ArgumentsReader(spec.name, arguments)
        self._context_name = _context_parameter(function)

    def __call__(self, *positional: object, **named: object) -> _Result:
        """Call the function itself."""
        return self.function(*positional, **named)

    def prepare(self, arguments: str, context: ToolContext) -> Invocation:
        """Validate the JSON text. Raises ToolError saying which argument is wrong."""
        values = msgspec.structs.asdict(self._reader.read(arguments))
        effect = msgspec.to_builtins(values)
        text = canonical(self.spec.name, arguments=effect)
        detail = msgspec.json.encode(effect, order="sorted").decode()

        async def work() -> ToolOutput:
            extra = {} if self._context_name is None else {self._context_name: context}
            return _output(await self._call(values, extra))

        return Prepared((Action(f"tool:{self.spec.name}:{detail}"),), f"{self.spec.name} {detail}", text, work)

    async def _call(self, values: Mapping[str, object], extra: Mapping[str, ToolContext]) -> object:
        """Await an async function; run any other in the bounded thread pool, where a cancelled call runs to its end."""
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**values, **extra)
        return await asyncio.to_thread(self.function, **values, **extra)


@overload
def tool(function: Callable[..., _Result], /) -> FunctionTool[_Result]: ...
@overload
def tool(
    *, name: str = "", read_only: bool = False, idempotent: bool = False
) -> Callable[[Callable[..., _Result]], FunctionTool[_Result]]: ...
def tool(
    function: Callable[..., _Result] | None = None,
    /,
    *,
    name: str = "",
    read_only: bool = False,
    idempotent: bool = False,
) -> FunctionTool[_Result] | Callable[[Callable[..., _Result]], FunctionTool[_Result]]:
    """Make a function with annotated parameters a tool, as `@tool` or `@tool(read_only=True)`.

    The docstring is the description; a parameter's is its `Annotated[..., "text"]` or `msgspec.Meta(description=…)`, or
    its line under `Args:`. A parameter of type ToolContext gets the call's context. What is returned becomes text: a
    string as it is, a ToolOutput as it is, anything else as JSON. Raises InvalidInput where a name or annotation is
    missing or is nothing that JSON can carry.
    """
    if function is None:
        return lambda function: _make(function, name, read_only=read_only, idempotent=idempotent)
    return _make(function, name, read_only=read_only, idempotent=idempotent)


def _make(function: Callable[..., _Result], name: str, *, read_only: bool, idempotent: bool) -> FunctionTool[_Result]:
    name = name or getattr(function, "__name__", "")
    if not NAME.fullmatch(name):
        raise InvalidInput(f"A tool cannot be called {name!r}: use 1 to 64 letters, digits, '_' and '-'.")
    description, described = _documents(inspect.getdoc(function) or "")
    fields = [_field(parameter, described, name) for parameter in _parameters(function)]
    try:
        arguments = msgspec.defstruct(
            f"{name}_arguments", fields, kw_only=True, forbid_unknown_fields=True, frozen=True
        )
        parameters = ArgumentsReader(name, arguments).schema
    except TypeError as error:
        raise InvalidInput(f"The tool {name} has a parameter that cannot be described: {error}") from error
    spec = ToolSpec(name, description or name, parameters, read_only=read_only, idempotent=idempotent)
    return FunctionTool(function, spec, arguments)


def _hints(function: Callable[..., object]) -> dict[str, object]:
    return get_type_hints(function, include_extras=True)


def _context_parameter(function: Callable[..., object]) -> str | None:
    return next((name for name, hint in _hints(function).items() if hint is ToolContext and name != "return"), None)


def _parameters(function: Callable[..., object]) -> list[tuple[inspect.Parameter, object]]:
    hints, context = _hints(function), _context_parameter(function)
    given = [parameter for name, parameter in inspect.signature(function).parameters.items() if name != context]
    return [(parameter, hints.get(parameter.name)) for parameter in given]


def _field(
    annotated: tuple[inspect.Parameter, object], described: dict[str, str], tool_name: str
) -> tuple[str, type] | tuple[str, type, object]:
    parameter, hint = annotated
    if hint is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise InvalidInput(f"The tool {tool_name}: parameter {parameter.name} needs a type and must be usable by name.")
    kind = _with_description(hint, described.get(parameter.name, ""))
    if parameter.default is parameter.empty:
        return parameter.name, kind
    return parameter.name, kind, parameter.default


def _with_description(hint: object, described: str) -> type:
    if get_origin(hint) is Annotated:
        base, *extras = get_args(hint)
        text = next((extra for extra in extras if isinstance(extra, str)), described)
        metas = [extra for extra in extras if isinstance(extra, msgspec.Meta)]
        if text and not any(meta.description for meta in metas):
            metas.append(msgspec.Meta(description=text))
        hint = Annotated[base, *metas] if metas else base
        return cast("type", hint)
    return cast("type", Annotated[hint, msgspec.Meta(description=described)] if described else hint)


def _documents(doc: str) -> tuple[str, dict[str, str]]:
    """The description, and the parameters' lines under `Args:`."""
    text, _, rest = doc.partition("\nArgs:\n")
    found = (_PARAMETER_LINE.match(line) for line in rest.split("\n\n")[0].splitlines())
    return text.strip(), {match[1]: match[2].strip() for match in found if match}


def _output(result: object) -> ToolOutput:
    if isinstance(result, ToolOutput):
        return result
    if isinstance(result, str):
        return ToolOutput(result)
    return ToolOutput(msgspec.json.encode(result).decode())
