"""What is up, in one line each, as the start, `shoal doctor`, the page and the API tell it."""

from collections.abc import Sequence

import msgspec


class Info(msgspec.Struct, frozen=True):
    """A running Shoal: names only, no paths and no secrets. `models` counts the known ones; `notes` are what the
    operator should know, `mcp` tells how each MCP server stands."""

    agents: tuple[str, ...]
    tools: tuple[str, ...]
    skills: tuple[str, ...]
    model: str
    providers: tuple[str, ...]
    models: int
    platforms: tuple[str, ...]
    sandbox: str
    isolated: bool
    notes: tuple[str, ...]
    mcp: tuple[str, ...] = ()


def info_lines(info: Info) -> list[str]:
    """The lines for a person."""
    sandbox = info.sandbox if info.isolated else f"{info.sandbox} (not isolated)"
    return [
        f"agents    {_listed(info.agents)}",
        f"tools     {_listed(info.tools)}",
        f"skills    {_listed(info.skills)}",
        f"model     {info.model}; providers: {', '.join(info.providers) or 'none set up'}; {info.models} models known",
        f"platforms {_listed(info.platforms)}",
        f"sandbox   {sandbox}",
        *(f"mcp       {server}" for server in info.mcp),
        *(f"note      {note}" for note in info.notes),
    ]


def _listed(names: Sequence[str]) -> str:
    return f"{len(names)}: {', '.join(names)}" if names else "none"
