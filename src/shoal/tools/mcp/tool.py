"""A tool of an MCP server, as a tool of ours: its arguments as they are, its action naming all of them."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import msgspec

from shoal.domain.errors import ToolError
from shoal.domain.messages import ToolSpec
from shoal.domain.permissions import Action
from shoal.domain.ports import Invocation, ToolContext, ToolOutput
from shoal.tools.typed import Prepared, canonical

ARGUMENTS_CHARS_MAX = 1_000_000

Call: TypeAlias = Callable[[str, dict[str, object], ToolContext], Awaitable[ToolOutput]]
"""Calls a tool of the server by the server's own name for it."""

_decoder = msgspec.json.Decoder(dict[str, object])
_encoder = msgspec.json.Encoder(order="sorted")


class McpTool:
    """One tool of a server. It is neither read-only nor idempotent: what the server says of that is not believed.

    `server_digest` stands for where the server is; an approval for a thread ends when that, or the tool's definition,
    changes.
    """

    def __init__(self, spec: ToolSpec, own_name: str, server_digest: str, call: Call) -> None:
        self.spec = spec
        self._own_name = own_name
        self._call = call
        definition = f"{server_digest}\0{own_name}\0{spec.description}\0{spec.parameters}"
        self.definition = hashlib.sha256(definition.encode("utf-8", errors="replace")).hexdigest()

    def prepare(self, arguments: str, context: ToolContext) -> Invocation:
        """Read the JSON text as an object; the server checks the rest. Raises ToolError."""
        values = _read(self.spec.name, arguments)
        detail = _encoder.encode(values).decode()
        effect = canonical(self.spec.name, arguments=values, definition=self.definition)
        shown = f"{self.spec.name}\n{msgspec.json.format(detail.encode(), indent=2).decode()}"

        async def work() -> ToolOutput:
            return await self._call(self._own_name, dict(values), context)

        return Prepared((Action(f"tool:{self.spec.name}:{detail}"),), shown, effect, work)


def _read(name: str, text: str) -> Mapping[str, object]:
    if len(text) > ARGUMENTS_CHARS_MAX:
        raise ToolError(f"The arguments of {name} have {len(text):,} characters; the most is {ARGUMENTS_CHARS_MAX:,}.")
    try:
        return _decoder.decode(text.strip() or "{}")
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ToolError(f"The arguments of {name} are no JSON object: {error}. Send one object.") from error
