"""The tools `read`, `write`, `edit` and `list`, and the aliases `view`, `create_file` and `str_replace`.

An approved edit is applied only if it still makes exactly the change that was shown.
"""

import difflib
import hashlib
import re
from bisect import bisect_left, bisect_right
from functools import partial
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Annotated, NamedTuple

from msgspec import Meta
from msgspec.structs import replace

from shoal.kernel.errors import InvalidInput, ToolError
from shoal.kernel.files import in_thread
from shoal.kernel.messages import Image
from shoal.kernel.phrases import counted
from shoal.kernel.ports import Invocation, ToolContext, ToolOutput, VirtualFolder
from shoal.kernel.traits import READABLE, Traits, Treatment, Treatments
from shoal.text.encodings import TextEncoding, find_encoding, plain_text, readable
from shoal.text.secret_forms import PLACEHOLDER
from shoal.tools.attachments import fit_image, is_image, keep_copy, media_type_of
from shoal.tools.functions import FunctionTool, ToolDecorator, planned, quoting, tool
from shoal.tools.jail import jail_of, require_room
from shoal.tools.locks import PathLocks

CONTEXT_LINES = 3
LINES_NAMED_MAX = 8
LINES_COMPARED_MAX = 2000
ALIKE_LINES_MAX = 20_000
"""Maximum number of lines that are searched for text that differs only in white space or typographic characters."""
_LINE_CHARS_COMPARED = 200
_SIMILAR = 0.6


class Change(NamedTuple):
    """The result of an edit.

    times: number of replaced occurrences.
    diff: unified diff.
    body: the same diff without file names and line numbers, to compare two edits.
    """

    content: str
    times: int
    diff: str
    body: str


class _UnifiedText(NamedTuple):
    """Text with LF line endings only. `pairs` lists the positions in `plain` that were CRLF in `original`."""

    plain: str
    original: str
    pairs: tuple[int, ...]

    def at(self, place: int) -> int:
        return place + bisect_left(self.pairs, place)


def _unified(content: str) -> _UnifiedText:
    pairs = [match.start() - count for count, match in enumerate(re.finditer("\r\n", content))]
    plain = content.replace("\r\n", "\n")
    if "\n" not in plain:  # classic Mac OS ends lines with CR
        plain = plain.replace("\r", "\n")
    return _UnifiedText(plain, content, tuple(pairs))


def replace_text(content: str, old: str, new: str, *, replace_all: bool, shown: str) -> Change:
    """Replace `old` with `new`, ignoring differences between line endings.

    Inserted lines get the line endings of the text they replace, even in a file with mixed line endings.

    Raises ToolError if `old` is empty, equal to `new`, not found, or ambiguous without `replace_all`.
    """
    if not old:
        raise ToolError("old_string is empty. To create or replace a file, use the tool that writes files.")
    text = _unified(content)
    old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    if old == new:
        raise ToolError("old_string and new_string are the same, so there is nothing to change.")
    places = [match.start() for match in re.finditer(re.escape(old), text.plain)]
    if not places:
        raise ToolError(f"old_string is not in {shown}.{_nearest(text.plain, old)}")
    if len(places) > 1 and not replace_all:
        lines = [text.plain.count("\n", 0, place) + 1 for place in places[:LINES_NAMED_MAX]]
        more = ", …" if len(places) > LINES_NAMED_MAX else ""
        raise ToolError(
            f"old_string occurs {len(places)} times in {shown} (lines {', '.join(map(str, lines))}{more}). "
            "Include more of the surrounding lines in old_string to make it unique, or set replace_all to "
            "replace every occurrence."
        )
    same = _shared(old, new)
    rest = _shared(old[same:][::-1], new[same:][::-1])
    old, new = old[same : len(old) - rest], new[same : len(new) - rest]
    usual = _line_end(content, "\r" if "\r" in content and "\n" not in content else "\n")
    edits = [
        _Edit(text.at(place + same), text.at(place + same + len(old)), new, usual).in_style(content) for place in places
    ]
    changed, copied_to = list[str](), 0
    for edit in edits:
        changed += content[copied_to : edit.start], edit.new
        copied_to = edit.end
    diff, body = _diff(content, edits)
    whole = "".join((*changed, content[copied_to:]))
    return Change(whole, len(places), f"--- {shown}\n+++ {shown}\n{diff}", body)


class _Edit(NamedTuple):
    """Replacement of `content[start:end]` with `new`. `line_end` is the most common line ending of the content."""

    start: int
    end: int
    new: str
    line_end: str

    def in_style(self, content: str) -> "_Edit":
        line = content[self.start : content.find("\n", self.end) + 1 or len(content)]
        return self._replace(new=self.new.replace("\n", _line_end(line, self.line_end)))


def _line_end(text: str, usual: str) -> str:
    pairs, all_ends = text.count("\r\n"), text.count("\n")
    if not all_ends:
        return usual
    return "\r\n" if pairs * 2 > all_ends else "\n"


def _shared(left: str, other: str) -> int:
    differing = (at for at, (left, right) in enumerate(zip(left, other, strict=False)) if left != right)
    return next(differing, min(len(left), len(other)))


def _diff(content: str, edits: list[_Edit]) -> tuple[str, str]:
    lines = _split(content)
    starts = [0, *accumulate(map(len, lines))]
    runs: list[tuple[int, int, list[_Edit]]] = []  # first line, last line and edits of each hunk
    for edit in edits:
        first = min(bisect_right(starts, edit.start), len(lines)) - 1
        last = min(bisect_right(starts, edit.end), len(lines)) - 1
        if runs and first - runs[-1][1] <= 2 * CONTEXT_LINES:
            first, _, before = runs.pop()
            runs.append((first, last, [*before, edit]))
        else:
            runs.append((first, last, [edit]))
    diff = body = ""
    shift = 0
    for first, last, here in runs:
        before = lines[first : last + 1]
        pieces, copied_to = list[str](), starts[first]
        for edit in here:
            pieces += content[copied_to : edit.start], edit.new
            copied_to = edit.end
        after = _split("".join((*pieces, content[copied_to : starts[last + 1]])))
        same = next((at for at, (line, other) in enumerate(zip(before, after, strict=False)) if line != other), None)
        same = min(len(before), len(after)) if same is None else same
        begin, before, after = first + same, before[same:], after[same:]
        while before and after and before[-1] == after[-1]:
            before.pop()
            after.pop()
        end = begin + len(before)
        above, below = lines[max(0, begin - CONTEXT_LINES) : begin], lines[end : end + CONTEXT_LINES]
        start, around = begin - len(above) + 1, len(above) + len(below)
        hunk = "".join(
            f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"
            for mark, some in ((" ", above), ("-", before), ("+", after), (" ", below))
            for line in some
        )
        diff += f"@@ -{start},{around + len(before)} +{start + shift},{around + len(after)} @@\n{hunk}"
        body += hunk
        shift += len(after) - len(before)
    return diff, body


def _split(text: str) -> list[str]:
    """Split only at LF, unlike `str.splitlines`. Each line keeps its LF."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _nearest(content: str, old: str) -> str:
    wanted = next((line.strip() for line in old.splitlines() if line.strip()), "")[:_LINE_CHARS_COMPARED]
    lines = [line.strip()[:_LINE_CHARS_COMPARED] for line in content.split("\n", LINES_COMPARED_MAX)]
    if not wanted:
        return " old_string contains only white space."
    if (alike := _alike(content, old)) is not None:
        return (
            f" Only trailing spaces, quotes, dashes or letter forms differ, starting at line {alike[0]}. Copy the "
            f"text exactly:\n{alike[1]}"
        )
    if wanted in lines:
        return (
            f" The first line of old_string matches line {lines.index(wanted) + 1}. Check white space and the "
            "following lines."
        )
    close = difflib.get_close_matches(wanted, lines[:LINES_COMPARED_MAX], n=1, cutoff=_SIMILAR)
    if not close:
        return " Read the file again and copy the text exactly."
    return f" The nearest line is {lines.index(close[0]) + 1}: {close[0]}"


def _alike(content: str, old: str) -> tuple[int, str] | None:
    """Find `old`, ignoring trailing white space, typographic characters and Unicode normalization.

    Returns the number of the first line, counted from 1, and the text as it is in `content`.
    """
    lines, wanted = content.split("\n")[:ALIKE_LINES_MAX], [plain_text(line) for line in old.split("\n")]
    while len(wanted) > 1 and not wanted[-1]:
        wanted.pop()
    plain = "\n".join(("", *map(plain_text, lines), ""))
    place = plain.find("\n" + "\n".join(wanted) + "\n") + 1 or plain.find("\n".join(wanted))
    if place < 0:
        return None
    first = plain.count("\n", 1, place)
    return first + 1, "\n".join(lines[first : first + len(wanted)])[:CHARS_MAX]


LINES_DEFAULT = 2000
CHARS_MAX = 15_000
"""Maximum number of characters that one call shows. The output stops after a complete line and states the next offset.
"""
LINE_CHARS_MAX = 2000
TEXT_BYTES_MAX = 10_485_760

PathArgument = Annotated[str, "Path of the file: relative to the workspace, or absolute, such as /scratch/notes.txt."]


_READS = Treatments(locked=Treatment(READABLE, "reading and listing in its own folders"))
READ = tool(
    Traits(
        group="files",
        offered="always",
        rank=2,
        effect="read",
        idempotent=True,
        origin="mixed",
        names="shown",
        harm="none",
        in_cases=True,
        treatments=_READS,
    ),
    name="read",
    example={"path": "notes.txt", "offset": 1},
)
VIEW = READ.alias("view")
WRITE = tool(
    Traits(
        group="files",
        offered="always",
        rank=3,
        effect="contained",
        idempotent=True,
        origin="own",
        names="replaced",
        harm="file",
        undo="files",
        in_cases=True,
    ),
    name="write",
    example={"path": "new.txt", "content": "x"},
)
CREATE_FILE = WRITE.alias("create_file")
EDIT = tool(
    replace(WRITE.traits, rank=4, idempotent=False, names="edited"),
    name="edit",
    example={"path": "notes.txt", "old_string": "two", "new_string": "2"},
)
STR_REPLACE = EDIT.alias("str_replace", {"path": "notes.txt", "old_str": "two", "new_str": "2"})


def virtual_folder(context: ToolContext, path: str) -> VirtualFolder | None:
    folders = context.services.virtual_folders
    return next((folder for folder in folders if folder.has(path)), None)


def read_tool(described: ToolDecorator = READ) -> FunctionTool[Invocation]:
    name = described.name

    @described
    def read(
        context: ToolContext,
        path: PathArgument,
        offset: Annotated[int, Meta(ge=0, description="First line to show, counted from 1.")] = 1,
        limit: Annotated[int, Meta(ge=1, le=100_000, description="Number of lines to show.")] = LINES_DEFAULT,
    ) -> Invocation:
        """Read a file. Text is returned with line numbers, which are not part of the file. Read long files in parts
        with offset and limit. Images are shown to you.
        """
        if folder := virtual_folder(context, path):
            page = folder.open(context, path)

            async def recite() -> ToolOutput:
                return ToolOutput(_numbered(readable(page.text), offset, limit, page.shown), is_piece=True)

            return planned(name, page.shown, recite, path=page.shown, offset=offset, limit=limit)
        jail = jail_of(context)
        place = jail.resolve(path)

        def read() -> ToolOutput:
            content = jail.read(place, TEXT_BYTES_MAX)
            if is_image(media_type := media_type_of(content)):
                try:
                    image, image_type = fit_image(content)
                except InvalidInput as problem:
                    raise ToolError(f"Cannot show {place.shown}: {problem}.") from problem
                copy = keep_copy(context.home, context.thread, PurePosixPath(place.shown).name, image)
                text = f"[The image {place.shown}, {media_type}, {len(content):,} bytes]"
                return ToolOutput(text, images=(Image(str(copy), image_type),))
            encoding = find_encoding(content)
            if encoding is None:
                size = f"{len(content):,} bytes"
                raise ToolError(f"{place.shown} is binary ({size}). Inspect it with a command such as `file`.")
            text = readable(encoding.decode(content))
            numbered = _numbered(text, offset, limit, place.shown)
            if encoding != TextEncoding():
                numbered += f"\n[This file is {encoding.label}. Edits keep the encoding.]"
            return ToolOutput(numbered, is_piece=True)

        return planned(name, place.shown, partial(in_thread, read), path=place.shown, offset=offset, limit=limit)

    return read


def write_tool(locks: PathLocks, described: ToolDecorator = WRITE) -> FunctionTool[Invocation]:
    name = described.name

    @described
    def write(
        context: ToolContext,
        path: PathArgument,
        content: Annotated[str, "Complete new content of the file."],
    ) -> Invocation:
        """Write a file: create it and any missing parent directories, or replace its complete content. To change part
        of a file, use the edit tool.
        """
        if folder := virtual_folder(context, path):
            return folder.change(context, name, folder.open(context, path), content)
        jail = jail_of(context)
        place = jail.resolve(path, is_new=True)
        jail.require_writable(place)
        old_size = jail.size(place)
        data = content.encode("utf-8", errors="replace")
        does = "new file" if old_size is None else f"replaces {counted(old_size, 'byte')}"

        async def work() -> ToolOutput:
            await require_room(context)
            async with locks.hold(place.host, place.shown):
                if PLACEHOLDER.search(content) is not None:
                    before = b"" if old_size is None else await in_thread(lambda: jail.read(place, TEXT_BYTES_MAX))
                    refuse_placeholders(content, before.decode("utf-8", errors="replace"), place.shown)
                await in_thread(lambda: jail.write(place, data))
            lines = content.count("\n") + (not content.endswith("\n"))
            text = f"Wrote {place.shown}: {counted(len(data), 'byte')}, {counted(lines, 'line')}."
            notes = [folder.notes.get(place.shown, "") for folder in context.services.virtual_folders]
            return ToolOutput(" ".join(filter(None, (text, *notes))))

        shown = f"{name} {place.shown} ({counted(len(data), 'byte')}, {does})\n\n{content}"
        return planned(name, place.shown, work, shown, path=place.shown, content=hashlib.sha256(data).hexdigest())

    return write


@tool(replace(READ.traits, rank=10, names="listed"), name="list", example={"path": "/docs"})
def list_directory(
    context: ToolContext,
    path: Annotated[str, "Path of the directory. Default: the workspace."] = ".",
) -> Invocation:
    """List a directory: names, with a slash after directories, and the sizes of files."""
    if folder := virtual_folder(context, path):
        names = folder.names(context)

        async def tell() -> ToolOutput:
            return ToolOutput("\n".join(names))

        return planned("list", path, tell, path=path)
    jail = jail_of(context)
    place = jail.resolve(path)

    async def work() -> ToolOutput:
        entries, is_cut = await in_thread(lambda: jail.entries(place))
        marks = {"directory": "/", "link": "@"}
        lines = [
            entry.name
            + (f"\t{counted(entry.size_bytes, 'byte')}" if entry.kind == "file" else marks.get(entry.kind, "="))
            for entry in entries
        ]
        if is_cut:
            lines.append(f"[The directory has more entries. Only {len(entries)} are shown.]")
        return ToolOutput("\n".join(lines) or f"[{place.shown} is empty.]")

    return planned("list", place.shown, work, path=place.shown)


def edit_tool(locks: PathLocks) -> FunctionTool[Invocation]:
    @EDIT
    def edit(
        context: ToolContext,
        path: PathArgument,
        old_string: Annotated[str, "The exact text to replace."],
        new_string: Annotated[str, "The new text."],
        replace_all: Annotated[bool, "Replace every occurrence. Otherwise the text must occur once."] = False,
    ) -> Invocation:
        """Replace text in a file. Read the file first. old_string must match exactly, including white space, and occur
        only once. Include enough of the lines around it to make it unique, or set replace_all.
        """
        return _planned_edit("edit", context, locks, path, old_string, new_string, replace_all=replace_all)

    return edit


def str_replace_tool(locks: PathLocks) -> FunctionTool[Invocation]:
    @STR_REPLACE
    def str_replace(
        context: ToolContext,
        path: PathArgument,
        old_str: Annotated[str, "The exact text to replace; must occur once."],
        new_str: Annotated[str, "The new text."],
    ) -> Invocation:
        """Replace text in a file. old_str must occur exactly once and is replaced with new_str."""
        return _planned_edit("str_replace", context, locks, path, old_str, new_str, replace_all=False)

    return str_replace


def refuse_placeholders(written: str, before: str, shown: str) -> None:
    """Raise ToolError if `written` contains a redaction placeholder that `before` does not contain."""
    for match in PLACEHOLDER.finditer(written):
        if match[0] not in before:
            raise ToolError(
                f"{match[0]} is a placeholder for a hidden secret, so writing it would destroy the secret. "
                f"Nothing was changed. Edit the other lines of {shown}, or copy the file with a command."
            )


def _planned_edit(
    name: str, context: ToolContext, locks: PathLocks, path: str, old: str, new: str, *, replace_all: bool
) -> Invocation:
    """Plan an edit. A problem with the file's content is raised only when the call runs, because an error here
    would reveal the content before the call is allowed.
    """
    if folder := virtual_folder(context, path):
        page = folder.open(context, path)
        with quoting(page.path):
            changed = replace_text(page.text, old, new, replace_all=replace_all, shown=page.shown)
        return folder.change(context, name, page, changed.content)
    jail = jail_of(context)
    place = jail.resolve(path)
    jail.require_writable(place)

    def change() -> tuple[Change, bytes, str]:
        content = jail.read(place, TEXT_BYTES_MAX)
        encoding = find_encoding(content)
        if encoding is None:
            raise ToolError(f"{place.shown} is binary, so it cannot be edited as text.")
        text = encoding.decode(content)
        if encoding.encode(text) != content:
            raise ToolError(
                f"{place.shown} is not valid {encoding.label}, so an edit would also change other bytes. Convert it "
                "to UTF-8 first, with a command such as iconv."
            )
        refuse_placeholders(f"{old}\n{new}", text, place.shown)
        changed = replace_text(text, old, new, replace_all=replace_all, shown=place.shown)
        try:
            data = encoding.encode(changed.content)
        except UnicodeEncodeError as error:
            raise ToolError(
                f"{place.shown} is {encoding.label}, which cannot encode {error.object[error.start]!r}. Use other "
                "characters, or write the complete file, which converts it to UTF-8."
            ) from error
        return changed, data, hashlib.sha256(content).hexdigest()

    effect = {"path": place.shown, "old": old, "new": new, "replace_all": replace_all}
    try:
        approved, _, before = change()
    except ToolError as error:
        problem = error

        async def fail() -> ToolOutput:
            raise problem

        shown = f"{name} {place.shown}\n\nShoal cannot make this edit. If you allow it, the agent only sees the error."
        return planned(name, place.shown, fail, shown, **effect, before="")

    def apply() -> ToolOutput:
        """Write the change if it equals the approved change. Line numbers may differ. Raises ToolError for any other
        difference.
        """
        now, data, _ = change()
        if now.body != approved.body:
            raise ToolError(
                f"{place.shown} has changed since this edit was prepared, so the edit was not made. Read the file "
                "again."
            )
        jail.write(place, data)
        times = "" if now.times == 1 else f" {now.times} times"
        return ToolOutput(f"Edited {place.shown}{times}:\n{readable(now.diff)}")

    async def work() -> ToolOutput:
        await require_room(context)
        async with locks.hold(place.host, place.shown):
            return await in_thread(apply)

    return planned(
        name, place.shown, work, f"{name} {place.shown}\n\n{readable(approved.diff)}", **effect, before=before
    )


def _numbered(text: str, offset: int, limit: int, shown: str) -> str:
    if not text:
        return f"[{shown} is empty.]"
    if "\n" not in text:  # classic Mac OS ends lines with CR
        text = text.replace("\r", "\n")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    first, last = max(1, offset), min(len(lines), max(1, offset) + limit - 1)
    if first > len(lines):
        raise ToolError(f"{shown} has {counted(len(lines), 'line')}, so line {first} does not exist.")
    numbered: list[str] = []
    chars = 0
    for number in range(first, last + 1):
        line = lines[number - 1].removesuffix("\r")
        if len(line) > LINE_CHARS_MAX:
            line = f"{line[:LINE_CHARS_MAX]} [… characters not shown in this line: {len(line) - LINE_CHARS_MAX:,}]"
        line = f"{number:6}\t{line}"
        chars += len(line) + 1
        if chars > CHARS_MAX and numbered:
            last = number - 1
            break
        numbered.append(line)
    notes: list[str] = []
    if last < len(lines) or first > 1:
        rest = f" Continue with offset {last + 1}." if last < len(lines) else ""
        notes.append(f"[Lines {first} to {last} of {len(lines)}.{rest}]")
    if lines[0].endswith("\r"):
        notes.append("[The lines of this file end with CRLF. Edits keep the line endings.]")
    return "\n".join(numbered + notes)
