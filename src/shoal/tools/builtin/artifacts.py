"""The tool `read_artifact`: pieces of a result that was too long to show whole, by place or by a word."""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from shoal.domain.errors import ToolError
from shoal.domain.files import DIGEST_CHARS, Files
from shoal.domain.permissions import Action
from shoal.domain.ports import Invocation, ToolContext, ToolOutput
from shoal.domain.records import Artifact
from shoal.domain.store import Artifacts
from shoal.tools.threads import in_thread
from shoal.tools.typed import Prepared, TypedTool, canonical

PIECE_CHARS = 8_000
PIECE_CHARS_MAX = 15_000
MATCHES_MAX = 100
LINE_CHARS_MAX = 400
"""Of a line that matches, no more is shown."""


class ReadArtifactArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `read_artifact` takes."""

    artifact: Annotated[
        str, Meta(description="The artifact's name as the excerpt gives it, or its first 8 characters or more.")
    ]
    offset: Annotated[int, Meta(ge=0, description="First character to show, counted from 0.")] = 0
    limit: Annotated[int, Meta(ge=1, le=PIECE_CHARS_MAX, description="How many characters to show.")] = PIECE_CHARS
    grep: Annotated[
        str,
        Meta(
            description="Show only the lines that contain this text, upper and lower case alike, each with its offset.",
            max_length=500,
        ),
    ] = ""


class ReadArtifactTool(TypedTool[ReadArtifactArguments]):
    """Shows a piece of an artifact of the same thread."""

    name: ClassVar[str] = "read_artifact"
    description: ClassVar[str] = (
        "Read a stored result of which you saw an excerpt: a piece of it by offset and limit, or by grep the lines "
        "that contain a text."
    )
    read_only: ClassVar[bool] = True
    idempotent: ClassVar[bool] = True

    def __init__(self, artifacts: Artifacts, files: Files) -> None:
        super().__init__(ReadArtifactArguments)
        self._artifacts = artifacts
        self._files = files

    def plan(self, arguments: ReadArtifactArguments, context: ToolContext) -> Invocation:
        """Check the name."""
        name = arguments.artifact.strip().lower()
        if not 8 <= len(name) <= DIGEST_CHARS:
            raise ToolError(f"{arguments.artifact[:80]!r} is no artifact; take the name from the excerpt.")

        async def work() -> ToolOutput:
            found = await self._artifacts.find(context.thread, name)
            if found is None:
                raise ToolError(f"This conversation has no artifact {name}. It may have been too old to be kept.")
            return ToolOutput(await self._shown(found, arguments), tainted_by=found.tainted_by, is_piece=True)

        effect = canonical(
            self.name, artifact=name, offset=arguments.offset, limit=arguments.limit, grep=arguments.grep
        )
        shown = f"{self.name} {name} {arguments.grep}".rstrip()
        return Prepared((Action(f"tool:{self.name}:{name}"),), shown, effect, work)

    async def _shown(self, found: Artifact, arguments: ReadArtifactArguments) -> str:
        try:
            content = await in_thread(lambda: self._files.read(found.digest))
        except OSError as error:
            raise ToolError(f"Artifact {found.digest} is gone: {error.strerror or error}.") from error
        text = content.decode("utf-8", errors="replace")
        if arguments.grep:
            return await in_thread(lambda: _matches(text, arguments))
        piece = text[arguments.offset : arguments.offset + arguments.limit]
        if not piece:
            return f"[Nothing at offset {arguments.offset:,}: the artifact has {len(text):,} characters.]"
        end = arguments.offset + len(piece)
        return f"{piece}\n[Characters {arguments.offset:,} to {end:,} of {len(text):,}.]"


def _matches(text: str, arguments: ReadArtifactArguments) -> str:
    wanted, place = arguments.grep.casefold(), 0
    lines: list[str] = []
    count = 0
    for line in text.splitlines(keepends=True):
        at = line.casefold().find(wanted) if place >= arguments.offset else -1
        if at >= 0:
            count += 1
            if len(lines) < MATCHES_MAX and sum(map(len, lines)) < arguments.limit:
                lines.append(f"{place}: {_around(line.rstrip(), at)}")
        place += len(line)
    if not count:
        return f"[No line contains {arguments.grep!r}.]"
    more = f" The first {len(lines)} are shown; go on with a higher offset." if count > len(lines) else ""
    return "\n".join([*lines, f"[{count} lines contain it, each with its offset.{more}]"])


def _around(line: str, at: int) -> str:
    if len(line) <= LINE_CHARS_MAX:
        return line
    start = max(0, at - LINE_CHARS_MAX // 2)
    return f"…{line[start : start + LINE_CHARS_MAX]}…"
