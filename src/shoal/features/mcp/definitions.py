"""Definitions of MCP tools: the server's original for people, and a sanitized version for models.

A definition contains everything that the server sends about a tool: name, title, description, schemas and annotations.
It is untrusted. For models, names are made unique, control and invisible characters are removed, and schemas are
rewritten (schemas.py). The server validates calls against its own schema.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias, cast

import msgspec

from shoal.features.mcp.kinds import Hints
from shoal.text.shown import strip_controls
from shoal.tools.output import visible

NAME_CHARS_MAX = 64
DESCRIPTION_CHARS_MAX = 1024
TEXT_CHARS_MAX = 40_000
"""Maximum length of a definition stored for display, in characters. The digest covers the complete definition."""
DIGEST_CHARS = 12
"""Number of digest characters that are shown. People must enter at least this many to identify a definition."""
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Definition(msgspec.Struct, frozen=True):
    """A tool as its server defines it.

    `text`: complete definition, formatted for people.
    `description`, `parameters`: sanitized version for models.
    `names`: the server's property names, by the new names of renamed properties.
    `hints`: annotations of the tool.
    """

    digest: str
    text: str
    description: str
    parameters: str
    names: dict[str, str] = {}
    hints: Hints = Hints()


NO_DEFINITION = Definition("", "", "", "")


def tool_name(server: str, tool: str) -> str:
    """Return `mcp_SERVER_TOOL` with at most 64 letters, digits, `_` and `-`.

    A name that needs changes ends in a digest, which keeps it unique.
    """
    wanted = f"mcp_{server}_{tool}"
    clean = re.sub(r"[^A-Za-z0-9_-]", "_", wanted)
    if clean == wanted and len(clean) <= NAME_CHARS_MAX:
        return clean
    digest = hashlib.sha256(wanted.encode("utf-8", errors="replace")).hexdigest()[:8]
    return f"{clean[: NAME_CHARS_MAX - 9]}_{digest}"


def described(server: str, description: str) -> str:
    text = visible(description).strip()
    words = text if len(text) <= DESCRIPTION_CHARS_MAX else f"{text[:DESCRIPTION_CHARS_MAX]}…"
    return f"[Tool from the MCP server {server}, which wrote this description] {words}".strip()


def definition_digest(definition: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()


def definition_text(definition: Mapping[str, object]) -> str:
    """Format a definition for people, with one line per value or line of text. Cut it after TEXT_CHARS_MAX
    characters.
    """
    text = "\n".join(_lines(cast("Json", dict(definition)), ""))
    return strip_controls(text[:TEXT_CHARS_MAX].translate(_CONTROLS).encode(errors="replace").decode())


_CONTROLS = {code: f"\\u{{{code:x}}}" for code in range(0x7F, 0xA0)}
"""Escape sequences for control characters that JSON does not escape."""


def _lines(value: Json, path: str) -> Iterator[str]:
    match value:
        case {} | [] if not value:
            yield f"{path}: {json.dumps(value)}"
        case dict():
            for key in sorted(value):
                shown = key if key.isidentifier() else json.dumps(key, ensure_ascii=False)
                yield from _lines(value[key], f"{path}.{shown}" if path else shown)
        case list():
            for number, item in enumerate(value):
                yield from _lines(item, f"{path}[{number}]")
        case str():
            for number, line in enumerate(value.split("\n")):
                yield f"{path if number == 0 else ' ' * len(path)}: {json.dumps(line, ensure_ascii=False)}"
        case _:
            yield f"{path}: {json.dumps(value)}"
