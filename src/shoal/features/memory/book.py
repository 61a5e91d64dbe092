"""Change memory files. Each change is recorded for undo, then written, then audited.

A change replaces lines with other lines. If the process dies between the record and the write, the history contains a
change that was never made. Undoing that change raises Conflict.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from shoal.features.memory.files import MemoryEdit, apply_edit
from shoal.features.memory.store import MemoryChange, MemoryHistory
from shoal.kernel.clock import Clock
from shoal.kernel.errors import Conflict, InvalidInput, NotFound, ToolError, system_words
from shoal.kernel.files import in_thread
from shoal.kernel.home import Home
from shoal.kernel.memory_files import lines_of, read_memory
from shoal.kernel.ports import ToolContext
from shoal.kernel.records import AuditEntry
from shoal.store.store import Store
from shoal.tools.functions import as_tool_error
from shoal.tools.prompt_files import AMEND_SECONDS_MAX, PromptFiles

if TYPE_CHECKING:
    from shoal.services import Services

ChangeMemory: TypeAlias = Callable[[MemoryEdit], Awaitable[object | None]]
CHAIN = "memory"
"""Audit chain for memory changes that do not belong to a thread."""
LOOKED_MAX = 1000
"""Maximum number of recent changes to search for a change that can be undone."""


class MemoryBook:
    def __init__(self, home: Home, store: Store, clock: Clock, files: PromptFiles) -> None:
        self.home = home
        self.history = MemoryHistory(store.driver, clock)
        self._audit = store.audit
        self._clock = clock
        self._files = files

    @classmethod
    def of(cls, services: "Services") -> "MemoryBook":
        return cls(services[Home], services[Store], services[Clock], services[PromptFiles])

    async def change(self, edit: MemoryEdit) -> MemoryChange | None:
        """Apply an edit and record it. Return None if `edit.once` is set and the file already contains the text.

        Raises InvalidInput if the file is full, Conflict if the lines to remove do not exist, OSError and StoreError.
        """
        path = edit.path
        line = edit.line if edit.line >= 0 else len(lines_of(await in_thread(lambda: read_memory(path))))
        change = MemoryChange(
            id=self._clock.new_id(),
            at=self._clock.now(),
            file=path.relative_to(self.home.root).as_posix(),
            line=line,
            removed=edit.removed,
            added=edit.added,
            changed_by=edit.changed_by,
            person=edit.person,
            agent=edit.agent,
            thread=edit.thread,
            tainted_by=edit.tainted_by or (await self._files.source_of(path) if edit.removed else ""),
        )
        await self.history.note(change)
        try:
            made = await in_thread(lambda: apply_edit(edit))
        except BaseException:
            await self.history.drop(change)
            raise
        if not made:
            await self.history.drop(change)
            return None
        detail = f"before {_digest(change.removed)} after {_digest(change.added)}"
        entry = AuditEntry(
            "memory", f"change {change.file}", "done", user=edit.changed_by, agent=edit.agent, detail=detail
        )
        await self._audit.record(edit.thread or CHAIN, [entry])
        return change

    async def amend(self, edit: MemoryEdit) -> MemoryChange | None:
        """Apply an edit for a person who may not have read the complete file. The file keeps its taint.

        Raises the same errors as `change`.
        """
        async with self._files.amending([edit.path], edit.tainted_by, AMEND_SECONDS_MAX, edit.person):
            return await self.change(edit)

    async def undo(self, id: str, by: str) -> MemoryChange:
        """Undo a change and return it. An empty `id` selects the newest change that has not been undone.

        Raises NotFound, and Conflict if the change was already undone or its lines have changed since.
        """
        if id:
            change = await self.history.get(id)
        else:
            newest = await self.history.newest(LOOKED_MAX)
            change = next((change for change in newest if not change.undone), None)
        if change is None:
            raise NotFound(f"Memory change {id[:80]} does not exist." if id else "Nothing is left to undo.")
        if change.undone:
            raise Conflict("This change has already been undone.")
        edit = MemoryEdit(
            self.home.root / change.file,
            removed=change.added,
            added=change.removed,
            line=change.line,
            person=change.person,
            changed_by=by,
            tainted_by=change.tainted_by,
        )
        back = await self.amend(edit)
        assert back is not None
        await self.history.note_undone(change)
        await self.history.note_undone(back)
        return change


def _digest(lines: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest() if lines else "nothing"


async def change_in_turn(change: ChangeMemory, context: ToolContext, edit: MemoryEdit) -> bool:
    """Apply an edit for a tool call. Return False if `edit.once` is set and the file already contains the text.

    Raises ToolError.
    """
    who, agent, taint = context.asker.identity, context.agent.name, context.purpose.tainted_by
    edit = msgspec.structs.replace(edit, changed_by=who, agent=agent, thread=context.thread, tainted_by=taint)
    try:
        with as_tool_error(InvalidInput, Conflict):
            return await change(edit) is not None
    except OSError as error:
        raise ToolError(f"Shoal could not write the memory file: {system_words(error)}.") from error
