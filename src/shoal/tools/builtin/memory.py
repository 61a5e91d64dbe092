"""The tools `remember` and `note_today`: what an agent keeps beyond a conversation.

Writers at the same time, in any number of processes, lose no line.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from shoal.domain.errors import InvalidInput, ToolError
from shoal.domain.home import (
    FILE_BYTES_MAX,
    MEMORY_BYTES_MAX,
    MemoryScope,
    entry_line,
    is_known,
    memory_path,
    note_path,
    only_for,
    shown_to,
)
from shoal.domain.ports import Invocation, ToolContext, ToolOutput
from shoal.tools.functions import planned, tool
from shoal.tools.threads import in_thread

_REOPENS_MAX = 20


@tool
def remember(
    context: ToolContext,
    text: Annotated[str, Meta(description="One fact or preference, in one sentence that stands by itself.")],
    scope: Annotated[
        MemoryScope,
        Meta(description="Where it holds: this channel, all of this platform, or everywhere. Take the narrowest."),
    ] = "channel",
) -> Invocation:
    """Keep something for later conversations: add a line to your long-term memory, which you see in every prompt. What
    you keep in a direct conversation only stands in the prompts of that person's own."""
    line = _entry_line(text)
    words = line.removeprefix("- ")
    path = memory_path(context.home, scope, context.chat)
    person = "" if scope == "channel" else context.purpose.audience.person

    async def work() -> ToolOutput:
        if await _append(path, line, person, once=True):
            return ToolOutput(f"Remembered for scope {scope}: {words}")
        return ToolOutput(f"The memory of scope {scope} has that already. Nothing was added.")

    effect = {"scope": scope, "file": str(path), "line": line, "person": person}
    return planned("remember", f"{scope} {words}", work, f"remember ({scope})\n\n{line}", **effect)


@tool
def note_today(
    context: ToolContext, text: Annotated[str, Meta(description="What happened or was decided, in one line.")]
) -> Invocation:
    """Write a line into today's note. You see the notes of the last days in every prompt."""
    words = _entry_line(text).removeprefix("- ")

    async def work() -> ToolOutput:
        now = context.clock.now()
        line, person = f"- {now:%H:%M} {words}", context.purpose.audience.person
        await _append(note_path(context.home, now.date()), line, person, once=False)
        return ToolOutput(f"Noted: {words}")

    return planned("note_today", words, work, f"note_today\n\n{words}", text=words)


def _entry_line(text: str) -> str:
    try:
        return entry_line(text)
    except InvalidInput as error:
        raise ToolError(str(error)) from error


async def _append(path: Path, line: str, person: str, *, once: bool) -> bool:
    try:
        return await in_thread(lambda: append_entry(path, line, once=once, person=person))
    except InvalidInput as error:
        raise ToolError(str(error)) from error
    except OSError as error:
        raise ToolError(f"The memory file could not be written: {error.strerror or error}.") from error


def append_entry(path: Path, line: str, *, once: bool = True, person: str = "") -> bool:
    """Append `line` to the file, making it and its directories; False when `once` and the file has the entry already.

    It is for `person` alone (empty: for all), who is told nothing of what the file holds for others. Durable (synced)
    on return. Blocks while another writer holds the file's lock, for the time of its write: call it in a thread. Raises
    InvalidInput when the file is full, OSError when it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = _open_locked(path)
    try:
        size = os.fstat(file).st_size
        existing = os.pread(file, size, 0).decode("utf-8", "replace")
        shown = shown_to(existing, person)
        if len(shown.encode()) + len(line) > MEMORY_BYTES_MAX or size > FILE_BYTES_MAX:
            raise InvalidInput(f"{path.name} is full. Remove what is out of date from it first.")
        if once and is_known(shown, line):
            return False
        start = "" if not existing or existing.endswith("\n") else "\n"
        data = memoryview(f"{start}{only_for(line, person)}\n".encode())
        while data:
            data = data[os.write(file, data) :]
        os.fsync(file)
        return True
    finally:
        os.close(file)


def _open_locked(path: Path) -> int:
    """Open for appending and lock; again when an editor put another file in its place meanwhile."""
    for _ in range(_REOPENS_MAX):
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(file)):
                    return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)
    raise InvalidInput(f"{path.name} is being replaced over and over by another program. Try again later.")
