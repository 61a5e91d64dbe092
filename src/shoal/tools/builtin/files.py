"""The tools `read`, `write` and `list`, with `view` and `create_file` as other names of the first two."""

import hashlib
from pathlib import PurePosixPath
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from shoal.domain.errors import InvalidInput, ToolError
from shoal.domain.messages import Image
from shoal.domain.permissions import Action
from shoal.domain.ports import Invocation, ToolContext, ToolOutput
from shoal.tools.images import fit_image
from shoal.tools.jail import Jail, Place, jail_of, require_room
from shoal.tools.keep import keep_copy
from shoal.tools.locks import PathLocks
from shoal.tools.output import is_binary
from shoal.tools.threads import in_thread
from shoal.tools.typed import Prepared, TypedTool, canonical

LINES_DEFAULT = 2000
CHARS_MAX = 15_000
"""How much of a file one call shows; it ends at a line and says where to go on."""
LINE_CHARS_MAX = 2000
"""A longer line is cut when shown."""
TEXT_BYTES_MAX = 10_485_760
"""Longest text file that is read or edited."""
IMAGE_BYTES_MAX = 5_242_880
"""Longest image that is handed to a model."""

PathArgument = Annotated[
    str, Meta(description="Path of the file: relative to the workspace, or absolute, such as /scratch/notes.txt.")
]


class ReadArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `read` takes."""

    path: PathArgument
    offset: Annotated[int, Meta(ge=1, description="First line to show, counted from 1.")] = 1
    limit: Annotated[int, Meta(ge=1, le=100_000, description="How many lines to show.")] = LINES_DEFAULT


class ReadTool(TypedTool[ReadArguments]):
    """Shows a text file with line numbers, or hands an image to the model."""

    name: ClassVar[str] = "read"
    description: ClassVar[str] = (
        "Read a file. Text comes with line numbers, which are not part of the file; long files in parts, by offset and "
        "limit. PNG, JPEG, GIF and WebP images are shown to you."
    )
    read_only: ClassVar[bool] = True
    idempotent: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(ReadArguments)

    def plan(self, arguments: ReadArguments, context: ToolContext) -> Invocation:
        """Resolve the path."""
        jail = jail_of(context)
        place = jail.resolve(arguments.path)

        async def work() -> ToolOutput:
            return await in_thread(lambda: _read(jail, place, arguments, context))

        effect = canonical(self.name, path=place.shown, offset=arguments.offset, limit=arguments.limit)
        return Prepared((Action(f"tool:{self.name}:{place.shown}"),), f"{self.name} {place.shown}", effect, work)


class ViewTool(ReadTool):
    """`read` under another name."""

    name: ClassVar[str] = "view"


class WriteArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `write` takes."""

    path: PathArgument
    content: Annotated[str, Meta(description="All of the file's new content.")]


class WriteTool(TypedTool[WriteArguments]):
    """Makes a file or replaces all of it."""

    name: ClassVar[str] = "write"
    description: ClassVar[str] = (
        "Write a file: make it, with the directories it needs, or replace all of its content. "
        "To change a part of a file use the tool that edits."
    )
    idempotent: ClassVar[bool] = True

    def __init__(self, locks: PathLocks) -> None:
        super().__init__(WriteArguments)
        self._locks = locks

    def plan(self, arguments: WriteArguments, context: ToolContext) -> Invocation:
        """Resolve the path and look at what is there."""
        jail = jail_of(context)
        place = jail.resolve(arguments.path)
        jail.require_writable(place)
        old_size = jail.size(place)
        content = arguments.content.encode("utf-8", errors="replace")
        does = "new file" if old_size is None else f"replaces {old_size:,} bytes"
        shown = f"{self.name} {place.shown} ({len(content):,} bytes, {does})\n\n{arguments.content}"

        async def work() -> ToolOutput:
            await require_room(context)
            async with self._locks.hold(place.host, place.shown):
                await in_thread(lambda: jail.write(place, content))
            lines = arguments.content.count("\n") + (not arguments.content.endswith("\n"))
            return ToolOutput(f"Wrote {place.shown}: {len(content):,} bytes, {lines:,} lines.")

        effect = canonical(self.name, path=place.shown, content=hashlib.sha256(content).hexdigest())
        return Prepared((Action(f"tool:{self.name}:{place.shown}"),), shown, effect, work)


class CreateFileTool(WriteTool):
    """`write` under another name."""

    name: ClassVar[str] = "create_file"


class ListArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `list` takes."""

    path: Annotated[str, Meta(description="Path of the directory; the workspace unless given.")] = "."


class ListTool(TypedTool[ListArguments]):
    """Lists a directory."""

    name: ClassVar[str] = "list"
    description: ClassVar[str] = "List a directory: names, with a slash after directories, and the sizes of files."
    read_only: ClassVar[bool] = True
    idempotent: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(ListArguments)

    def plan(self, arguments: ListArguments, context: ToolContext) -> Invocation:
        """Resolve the path."""
        jail = jail_of(context)
        place = jail.resolve(arguments.path)

        async def work() -> ToolOutput:
            return await in_thread(lambda: _list(jail, place))

        effect = canonical(self.name, path=place.shown)
        return Prepared((Action(f"tool:{self.name}:{place.shown}"),), f"{self.name} {place.shown}", effect, work)


def _read(jail: Jail, place: Place, arguments: ReadArguments, context: ToolContext) -> ToolOutput:
    content = jail.read(place, TEXT_BYTES_MAX)
    media_type = _image_type(content)
    if media_type:
        return _image(place, content, media_type, context)
    if is_binary(content):
        raise ToolError(f"{place.shown} is binary ({len(content):,} bytes). Look at it with a command, such as `file`.")
    text = content.decode("utf-8", errors="replace")
    return ToolOutput(_numbered(text, arguments, place.shown), is_piece=True)


def _numbered(text: str, arguments: ReadArguments, shown: str) -> str:
    if not text:
        return f"[{shown} is empty.]"
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    first, last = arguments.offset, min(len(lines), arguments.offset + arguments.limit - 1)
    if first > len(lines):
        raise ToolError(f"{shown} has {len(lines)} lines, so there is no line {first}.")
    numbered: list[str] = []
    chars = 0
    for number in range(first, last + 1):
        line = f"{number:6}\t{_shortened(lines[number - 1])}"
        chars += len(line) + 1
        if chars > CHARS_MAX and numbered:
            last = number - 1
            break
        numbered.append(line)
    notes: list[str] = []
    if last < len(lines) or first > 1:
        rest = f" Go on with offset {last + 1}." if last < len(lines) else ""
        notes.append(f"[Lines {first} to {last} of {len(lines)}.{rest}]")
    if lines[0].endswith("\r"):
        notes.append("[The lines of this file end with CRLF; edits keep that.]")
    return "\n".join(numbered + notes)


def _shortened(line: str) -> str:
    line = line.removesuffix("\r")
    if len(line) <= LINE_CHARS_MAX:
        return line
    return f"{line[:LINE_CHARS_MAX]} [… {len(line) - LINE_CHARS_MAX:,} more characters in this line]"


def _image_type(content: bytes) -> str:
    """The media type of an image that models take, by its first bytes; empty for anything else."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if content.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if content[:4] == b"RIFF" and content[8:12] == b"WEBP" else ""


def _image(place: Place, content: bytes, media_type: str, context: ToolContext) -> ToolOutput:
    try:
        image = fit_image(content, media_type, IMAGE_BYTES_MAX)
    except InvalidInput as problem:
        raise ToolError(f"{place.shown} cannot be shown: {problem}.") from problem
    kept = keep_copy(context.home, context.thread, PurePosixPath(place.shown).name, image.content)
    text = f"[The image {place.shown}, {media_type}, {len(content):,} bytes]"
    return ToolOutput(text, images=(Image(str(kept), image.media_type),))


def _list(jail: Jail, place: Place) -> ToolOutput:
    entries, is_cut = jail.entries(place)
    if not entries:
        return ToolOutput(f"[{place.shown} is empty.]")
    marks = {"directory": "/", "link": "@"}
    lines = [
        f"{entry.name}\t{entry.size_bytes:,} bytes" if entry.kind == "file" else entry.name + marks.get(entry.kind, "=")
        for entry in entries
    ]
    if is_cut:
        lines.append(f"[There is more; only {len(entries)} entries are shown.]")
    return ToolOutput("\n".join(lines))
