"""Makes tools from types: a Struct of arguments becomes the schema that the model sees and the validation."""

from collections.abc import Awaitable, Callable
from typing import ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from shoal.domain.errors import ToolError
from shoal.domain.foreign import UNREADABLE
from shoal.domain.messages import ToolSpec
from shoal.domain.permissions import Action
from shoal.domain.ports import Command, Invocation, RunFile, ToolContext, ToolOutput

ARGUMENTS_CHARS_MAX = 30_000_000
"""Longest JSON text of arguments that is looked at."""

Arguments = TypeVar("Arguments", bound=msgspec.Struct)
_canonical_encoder = msgspec.json.Encoder(order="sorted")


class Prepared(NamedTuple):
    """An `Invocation`: what it will do, as shown and as canonical JSON, and the doing itself."""

    actions: tuple[Action, ...]
    shown: str
    canonical: str
    work: Callable[[], Awaitable[ToolOutput]]

    async def run(self) -> ToolOutput:
        """Do it."""
        return await self.work()


class PreparedCommand(NamedTuple):
    """An `Invocation` that runs a command in a sandbox.

    `work` is given the command and what taints its output (empty: nothing), for tools whose output comes later.
    """

    actions: tuple[Action, ...]
    shown: str
    canonical: str
    command: Command
    work: Callable[[Command, str], Awaitable[ToolOutput]]
    tainted_by: str = ""

    def bound(self, runs: tuple[RunFile, ...], tainted_by: str) -> "PreparedCommand":
        """The same with the files that have to be as they were allowed, and what taints its output."""
        return self._replace(command=msgspec.structs.replace(self.command, runs=runs), tainted_by=tainted_by)

    async def run(self) -> ToolOutput:
        """Run it."""
        return await self.work(self.command, self.tainted_by)


class TypedTool(Generic[Arguments]):
    """A tool whose arguments are a Struct with `forbid_unknown_fields=True`; subclasses say what a call will do.

    The fields' descriptions are those of `Annotated[..., msgspec.Meta(description=…)]`.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    read_only: ClassVar[bool] = False
    idempotent: ClassVar[bool] = False
    runs_commands: ClassVar[bool] = False
    waits: ClassVar[bool] = False

    def __init__(self, arguments: type[Arguments]) -> None:
        self._reader = ArgumentsReader(self.name, arguments)
        self.spec = ToolSpec(
            name=self.name,
            description=self.description,
            parameters=self._reader.schema,
            read_only=self.read_only,
            idempotent=self.idempotent,
            runs_commands=self.runs_commands,
            waits=self.waits,
        )

    def prepare(self, arguments: str, context: ToolContext) -> Invocation:
        """Validate the JSON text and plan the call. Raises ToolError saying which argument is wrong."""
        return self.plan(self._reader.read(arguments), context)

    def plan(self, arguments: Arguments, context: ToolContext) -> Invocation:
        """Resolve everything the call depends on and say what it will do. Raises ToolError."""
        raise NotImplementedError


def canonical(tool: str, **effect: object) -> str:
    """Canonical JSON of what determines a call's effect: keys sorted, no spaces."""
    return _canonical_encoder.encode({"tool": tool, **effect}).decode()


class ArgumentsReader(Generic[Arguments]):
    """Decodes the arguments of one tool and explains what is wrong with them; `schema` is their JSON Schema."""

    def __init__(self, name: str, arguments: type[Arguments]) -> None:
        self._name = name
        self._decoder = msgspec.json.Decoder(arguments, strict=False)
        self.schema = schema_of(arguments)
        fields = msgspec.structs.fields(arguments)
        names = (field.encode_name + ("" if field.required else " (optional)") for field in fields)
        self._takes = ", ".join(names) or "no arguments"

    def read(self, text: str) -> Arguments:
        """The arguments. An empty text stands for none. Raises ToolError naming the wrong argument."""
        if len(text) > ARGUMENTS_CHARS_MAX:
            raise ToolError(f"The arguments of {self._name} have {len(text):,} characters, which is too much.")
        try:
            return self._decoder.decode(text.strip() or "{}")
        except msgspec.ValidationError as error:
            raise ToolError(f"Wrong arguments for {self._name}: {_explained(error)} It takes {self._takes}.") from error
        except UNREADABLE as error:
            raise ToolError(f"The arguments of {self._name} are not valid JSON: {error}. Send one object.") from error


def _explained(error: msgspec.ValidationError) -> str:
    message, _, path = str(error).partition(" - at `")
    where = path.rstrip("`").removeprefix("$").removeprefix(".")
    sentence = message.replace("Object contains", "there is an").replace("Object missing", "there is no")
    return f"{where}: {sentence}." if where else f"{sentence}."


def schema_of(arguments: type[msgspec.Struct]) -> str:
    """The JSON Schema of a Struct as compact JSON text: an object without further properties."""
    (_,), components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema = components.pop(arguments.__name__)
    schema.pop("title", None)
    schema.pop("description", None)
    schema.setdefault("required", [])
    if components:
        schema["$defs"] = components
    return msgspec.json.encode(schema).decode()
