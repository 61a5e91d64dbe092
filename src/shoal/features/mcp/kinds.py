"""The three kinds of MCP tools. A tool's annotations propose its kind, and the owner confirms it.

    kind           annotations that propose it                                calls
    ------------   --------------------------------------------------------   ------------------------------------------
    read           readOnlyHint true, openWorldHint false, not destructive    Run without approval.
    read_outside   readOnlyHint true, not destructive                         Run without approval. After untrusted
                                                                              content, this applies only to reads of a
                                                                              given URL (permissions/addresses.py).
    write          all others                                                 Need approval, and can be staged.
    unconfirmed    -                                                          Need approval.

Missing and non-boolean annotations have the protocol's defaults: the tool writes, is destructive, and acts in an open
world. Annotations apply only after the owner has confirmed them, and only to that exact definition.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias, cast, get_args

import msgspec

from shoal.kernel.phrases import counted
from shoal.kernel.traits import Traits

Kind: TypeAlias = Literal["read", "read_outside", "write"]
KINDS: tuple[Kind, ...] = get_args(Kind)
NAMES_SHOWN_MAX = 20

UNCONFIRMED = Traits(group="mcp")
_READ = Traits(group="mcp", effect="read", idempotent=True, harm="none", changes="nothing", for_trusted=True)
TRAITS: Mapping[Kind, Traits] = MappingProxyType(
    {
        "read": _READ,
        "read_outside": msgspec.structs.replace(_READ, open_world=True, harm="outside"),
        "write": Traits(group="mcp", effect="outward", can_stage=True, harm="outside"),
    }
)
WORDS: Mapping[Kind, str] = MappingProxyType(
    {"read": "read", "read_outside": "read data outside this machine", "write": "write"}
)

PROPOSED_FOR: Mapping[Kind, str] = MappingProxyType(
    {
        "read": "`readOnlyHint: true`, `openWorldHint: false`, and not `destructiveHint: true`",
        "read_outside": "`readOnlyHint: true`, and not `destructiveHint: true`",
        "write": "everything else",
    }
)


class Hints(msgspec.Struct, frozen=True, omit_defaults=True):
    """Annotations of a tool, with the protocol's defaults."""

    read_only: bool = False
    destructive: bool = True
    idempotent: bool = False
    open_world: bool = True

    @property
    def kind(self) -> Kind:
        if not self.read_only:
            return "write"
        return "read_outside" if self.open_world else "read"


def hints_of(tool: Mapping[str, object]) -> Hints:
    """Parse a tool's annotations. A tool that claims to be both read-only and destructive is not read-only."""
    given = tool.get("annotations")
    hints = cast("dict[str, object]", given) if isinstance(given, dict) else {}
    destroys = hints.get("destructiveHint")
    return Hints(
        read_only=hints.get("readOnlyHint") is True and destroys is not True,
        destructive=destroys is not False,
        idempotent=hints.get("idempotentHint") is True,
        open_world=hints.get("openWorldHint") is not False,
    )


def traits_of(kind: Kind | None, hints: Hints) -> Traits:
    """Return a tool's traits. `kind` is None until the owner confirms a kind."""
    if kind is None:
        return UNCONFIRMED
    traits = TRAITS[kind]
    return msgspec.structs.replace(traits, idempotent=traits.idempotent or hints.idempotent)


def offer_text(server: str, tools: Iterable[tuple[str, Kind]]) -> str:
    by_kind: dict[Kind, list[str]] = {kind: [] for kind in KINDS}
    for name, kind in tools:
        by_kind[kind].append(name)
    parts = [
        f"{len(names)} {WORDS[kind]}" + (f" ({_listed(names)})" if kind != "read" else "")
        for kind, names in by_kind.items()
        if names
    ]
    return f"The MCP server {server} offers {counted(sum(map(len, by_kind.values())), 'tool')}: {', '.join(parts)}."


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return f"{', '.join(sorted(names)[:NAMES_SHOWN_MAX])}{more}"
