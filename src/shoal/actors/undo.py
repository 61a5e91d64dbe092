"""What turns did to files: shown, and undone. An undo is undone in the same way.

    an undo's row says       the workspace is           a crash there
    ----------------------   ------------------------   ----------------------------------------------------------
    nothing yet              as it was found            nothing happened
    begun, no end            somewhere in between       the next start brings it to what the row says, and ends it
    ended                    as it was left             it is done: journaled, audited, and told to the model

What a turn did is what differs between its two checkpoints, in files. Where other turns were at work in the same
workspace meanwhile and changed the same file, it may be theirs: that is `shared`, and asked about like a file that was
changed since. A subagent's work counts as its parent's.
"""

import contextlib
import logging
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from shoal.actors.actor import ActorServices
from shoal.domain.agents import AgentSpec, is_child
from shoal.domain.checkpoints import (
    ChangedSince,
    CheckpointRow,
    FileChange,
    Parts,
    TreeChange,
    TreeEntry,
    TurnChanges,
    UndoResult,
    alike,
    shown_path,
)
from shoal.domain.errors import Conflict, FilesDiffer, Forbidden, InvalidInput, NotFound, ShoalError
from shoal.domain.events import Checkpointed, FilesRestored, ToolStarted
from shoal.domain.ids import ThreadId
from shoal.domain.permissions import Asker
from shoal.domain.records import AuditEntry
from shoal.tools.checkpoints import files_of
from shoal.tools.file_diffs import file_change, why_not_restorable
from shoal.tools.restore import restore
from shoal.tools.threads import in_thread
from shoal.tools.trees import Trees

log = logging.getLogger(__name__)

LAST_TURN = "last"
"""Stands for the last turn of a thread whose changes can be undone."""
SHOWN_MAX = 200
"""Most files of a turn that are shown."""
DIFF_CHARS_MAX = 200_000
"""Longest diffs of a turn together."""
NAMED_MAX = 20
"""Most files that the model, a refusal and the journal name."""
BEYOND_MAX = 20
TURN_EVENTS_MAX = 10_000
RESTORE_SECONDS_MAX = 900.0
"""For how long a restoration that is cut by a crash marks what changes."""
NOT_HERE = (
    "What this turn found is not on this machine: it is on the one that ran it, unless it was lost there too. "
    "With [files] url every machine has it."
)
NOT_KEPT = "What this turn found is not kept any more, so it cannot be undone. [checkpoints] days says how long it is."
_INSIDE = "/workspace/"
SELF_EDITS = frozenset(
    {
        "set_system_prompt",
        "set_model",
        "set_permissions",
        "set_tools",
        "set_persona",
        "write_doc",
        "edit_doc",
        "delete_doc",
        "write_skill",
        "delete_skill",
    }
)
"""Tools whose changes are commits of the agent's directory."""
_FILE_TOOLS = frozenset({"write", "edit", "create_file", "str_replace"})

Since = Literal["", "changed", "restored", "shared"]


class PlannedChange(NamedTuple):
    """A change that is to be undone, what became of it since, and why it cannot be."""

    change: TreeChange
    since: Since
    why_not: str


class Undo:
    """Shows and undoes what turns did to files."""

    def __init__(self, services: ActorServices) -> None:
        self._services = services
        self._rows = services.store.checkpoints
        self.checkpoints = services.loop.checkpoints

    async def show(self, thread: ThreadId, turn: str, reader: Asker | None = None) -> TurnChanges:
        """What a turn, or an undo, did to files, and what of it cannot be undone.

        Raises NotFound, and Forbidden for a reader who may not undo it; without one it is shown.
        """
        row, clean = await self._row(thread, turn), self._services.context.clean
        if reader is not None:
            _check_may_undo(row, reader)
        await self._services.folders.pull(row.thread, await self._agent(row))
        trees = self.checkpoints.trees(row.workspace)
        try:
            async with self.checkpoints.alone(row.workspace):
                now = await self.checkpoints.take(row.workspace)
            planned = await self._plan(row, now.tree)
            room = DIFF_CHARS_MAX
            files = list[FileChange]()
            for one in planned[:SHOWN_MAX]:
                made = await in_thread(
                    lambda one=one, shows=room > 0: file_change(trees, one.change, one.since, clean, shows=shows)
                )
                room -= len(made.diff)
                files.append(made)
        except OSError as error:
            raise NotFound(NOT_HERE) from error
        is_open = row.ended_at is None
        return TurnChanges(
            thread=row.thread,
            turn=row.id,
            state="running" if is_open else "undone" if row.undone_by else "done",
            undone_by=row.undone_by,
            undoes=row.undoes,
            changed=len(planned),
            files=tuple(files),
            notes=now.notes,
            beyond=await self._beyond(row),
        )

    async def undo(self, thread: ThreadId, turn: str, asker: Asker, since: ChangedSince = "ask") -> UndoResult:
        """Restore the files that a turn, or an undo, changed, to how they were before it.

        `since` says what becomes of those that are not as it left them; with `ask` nothing is done where there are any.
        Raises NotFound, Forbidden, Conflict while the thread has something to do, where it was undone already or
        files changed since, InvalidInput where there is nothing to restore.
        """
        row, clock = await self._row(thread, turn), self._services.clock
        _check_may_undo(row, asker)
        if row.ended_at is None:
            raise Conflict("This is still at work. Wait for its end or stop it, then undo it.")
        if row.undone_by:
            raise Conflict(f"This was undone already. To take that back, undo `{row.undone_by}`.")
        await self._services.folders.pull(row.thread, await self._agent(row))
        trees, workspace = self.checkpoints.trees(row.workspace), row.workspace
        async with self.checkpoints.alone(workspace):
            for cut in await self._rows.undoing():  # what was begun before counts as how the files are
                if cut.workspace == workspace and await self._is_here(cut):
                    await self._carry_out(cut, cut.author)
            try:
                now = (await self.checkpoints.take(workspace)).tree
                planned = [one for one in await self._plan(row, now) if not one.why_not and one.since != "restored"]
                changed = [one for one in planned if one.since]
                if changed and since == "ask":
                    names = ", ".join(shown_path(one.change.path) for one in changed[:NAMED_MAX])
                    are = "file is" if len(changed) == 1 else "files are"
                    raise FilesDiffer(f"{len(changed)} {are} not as this left them: {names}. Keep or overwrite them?")
                chosen = [one for one in planned if not one.since or since == "overwrite"]
                if not chosen:
                    raise InvalidInput("There is nothing to restore: no file that this changed is as it left it.")
                paths = {
                    path[:depth] for path, *_ in (one.change for one in chosen) for depth in range(1, len(path) + 1)
                }
                every = await in_thread(lambda: list(trees.changes(row.before, row.after)))
                targets = {change.path: change.before for change in every if change.path in paths}  # folders, too
                then = await in_thread(lambda: trees.replaced(now, targets))
            except OSError as error:
                raise NotFound(NOT_HERE) from error
            undo = clock.new_id()
            await self._rows.begin_undo(undo, row, asker.user, now, then)
            begun = await self._rows.get(undo)
            assert begun is not None, "it was just stored"
            return await self._carry_out(begun, asker.identity, asker.token)

    async def resume(self) -> None:
        """Bring undos to their end that the end of a process has cut, where what they restore is on this machine."""
        for row in await self._rows.undoing():
            await self._services.folders.pull(row.thread, await self._agent(row))
            async with self.checkpoints.alone(row.workspace):
                now = await self._rows.get(row.id)
                if now is not None and now.ended_at is None and await self._is_here(now):
                    await self._carry_out(now, now.author)

    async def _is_here(self, undo: CheckpointRow) -> bool:
        """Whether this machine has what an undo restores."""
        trees = self.checkpoints.trees(undo.workspace)
        try:
            await in_thread(lambda: (trees.entries(undo.before), trees.entries(undo.after)))
        except OSError as error:
            log.warning("an undo waits for the machine that has its files", extra={"undo": undo.id, "why": str(error)})
            return False
        return True

    async def _carry_out(self, undo: CheckpointRow, user: str, token: str = "") -> UndoResult:
        """Bring the workspace to what an undo's row says, and end it. What is done already is not done again."""
        services, trees = self._services, self.checkpoints.trees(undo.workspace)
        root = self.checkpoints.path_of(undo.workspace)
        changes, left, after = list[TreeChange](), list[Parts](), ""
        try:
            changes = await in_thread(lambda: list(trees.changes(undo.before, undo.after)))
            source = _source(change.after for change in changes)
            async with self.checkpoints.marking(undo.workspace, source, RESTORE_SECONDS_MAX):
                left = await in_thread(lambda: restore(root, trees, undo.before, undo.after, undo.id))
            after = (await self.checkpoints.take(undo.workspace)).tree
        except OSError as error:  # what has gone cannot be brought back, and what could not be kept not be undone
            log.warning("an undo could not be carried out whole", extra={"undo": undo.id, "why": str(error)})
        kept = set(left)
        restored = [change for change in files_of(changes) if change.path not in kept]
        names = [services.context.clean(shown_path(change.path)) for change in restored[:NAMED_MAX]]
        undone = await self._rows.get(undo.undoes)
        event = FilesRestored(
            id=undo.id,
            turn=undo.undoes,
            by=undo.author,
            restored=len(restored),
            files=tuple(names),
            left=len(left),
            again=undone is not None and bool(undone.undoes),
            tainted_by=_source(entry for change in restored for entry in (change.before, change.after)),
        )
        audit = AuditEntry(
            "undo",
            f"restore {len(restored)} files of {undo.workspace}",
            user=user,
            turn=undo.undoes,
            detail=f"{', '.join(names)}{f'; {len(left)} were left' if left else ''}",
            token=token,
        )
        services.hub.publish(await self._rows.end_undo(undo, after, event, audit))
        await services.folders.push(undo.thread, await self._agent(undo))
        return UndoResult(undo.id, len(restored), tuple(names), tuple(shown_path(path) for path in left[:NAMED_MAX]))

    async def _row(self, thread: ThreadId, turn: str) -> CheckpointRow:
        if turn == LAST_TURN:
            for row in await self._rows.newest(thread):
                if row.undoes or row.undone_by or row.ended_at is None or not (row.before and row.after):
                    continue
                trees = self.checkpoints.trees(row.workspace)
                with contextlib.suppress(OSError):  # not kept any more
                    changes = await in_thread(lambda row=row, trees=trees: list(trees.changes(row.before, row.after)))
                    if files_of(changes):  # what was written as it was before is no change
                        return row
            raise NotFound("No turn here has changed files that can still be undone.")
        row = await self._rows.get(turn)
        if row is None or row.thread != thread:
            if await self._was_kept(thread, turn):
                raise NotFound(NOT_KEPT)
            raise NotFound(f"Turn {turn[:80]} of {thread} has changed no files that can still be restored.")
        if not row.before or (row.ended_at is not None and not row.after):
            raise NotFound("The workspace could not be read or kept when this turn began or ended.")
        return row

    async def _was_kept(self, thread: ThreadId, turn: str) -> bool:
        """Whether the journal tells of what a turn, or an undo, found, for which there is no row any more."""
        after = 0
        while events := await self._services.store.journal.events(thread, after, TURN_EVENTS_MAX):
            after = events[-1].seq
            for event in events:
                if isinstance(event.data, Checkpointed) and event.turn == turn:
                    return True
                if isinstance(event.data, FilesRestored) and event.data.id == turn:
                    return True
        return False

    async def _plan(self, row: CheckpointRow, now: str) -> list[PlannedChange]:
        """Each change of a turn and what became of it by now. Raises OSError where a tree is gone."""
        trees, after = self.checkpoints.trees(row.workspace), row.after if row.ended_at is not None else now
        ended, family = row.ended_at or self._services.clock.now(), await self._family(row.thread)
        others = list[tuple[str, str]]()
        for other in await self._rows.of_workspace(row.workspace):
            meets = other.began_at <= ended and (other.ended_at is None or other.ended_at >= row.began_at)
            left = other.after if other.ended_at is not None else now
            if meets and other.before and left and await self._family(other.thread) != family:
                others.append((other.before, left))

        def plan() -> list[PlannedChange]:
            shared = {change.path for pair in others for change in trees.changes(*pair)}
            changes = files_of(list(trees.changes(row.before, after)))
            return [
                PlannedChange(change, _since(trees, change, now, shared), why_not_restorable(change))
                for change in changes
            ]

        return await in_thread(plan)

    async def _family(self, thread: ThreadId) -> ThreadId:
        """A conversation, or the one that a subagent's thread works for in the end."""
        while is_child(thread):
            info = await self._services.store.journal.thread(thread)
            if info is None or not info.parent:
                break
            thread = ThreadId(info.parent)
        return thread

    async def _agent(self, row: CheckpointRow) -> AgentSpec | None:
        """The agent whose workspace it is; None where there is none any more."""
        info = await self._services.store.journal.thread(row.thread)
        try:
            agent = await self._services.agents.resolve(info.agent if info is not None else "", row.thread)
        except ShoalError:
            return None
        workspace = self.checkpoints.path_of(row.workspace)
        return msgspec.structs.replace(agent, workspace=workspace) if workspace.is_relative_to(agent.home) else None

    async def _beyond(self, row: CheckpointRow) -> tuple[str, ...]:
        """What a turn did that no undo takes back."""
        if row.undoes:
            return ()
        registry, commands = self._services.loop.executor.registry, 0
        events = await self._services.store.journal.events(row.thread, row.turn_seq - 1, TURN_EVENTS_MAX)
        lines: list[str] = []
        for event in events:
            if event.turn != row.id or not isinstance(event.data, ToolStarted):
                continue
            name, actions = event.data.name, event.data.actions
            tool = registry.get(name)
            if tool is not None and tool.spec.read_only:
                continue
            if name in _FILE_TOOLS:
                paths = [one.split(":", 2)[-1] for one in actions]
                outside = [one for one in paths if one.startswith(("/", "host:")) and not one.startswith(_INSIDE)]
                lines += [f"{path} was written, which is outside of the workspace." for path in outside]
            elif name == "bash":
                commands += 1
            else:
                what = actions[0].split(":", 2)[-1] if actions else ""
                back = "; `/agent undo` takes it back." if name in SELF_EDITS else "" if what else "."
                lines.append(f"`{name}` ran{f': {what}' if what else ''}{back}")
        if commands:
            ran = "A command ran" if commands == 1 else f"{commands} commands ran"
            lines.append(f"{ran}: what it did elsewhere, to processes or over the network stays.")
        if len(lines) > BEYOND_MAX:
            lines[BEYOND_MAX:] = [f"and {len(lines) - BEYOND_MAX} more"]
        return (*lines, "What was said stays said.")


def _check_may_undo(row: CheckpointRow, asker: Asker) -> None:
    if asker.trust != "owner" and (asker.trust == "untrusted" or asker.user != row.author):
        raise Forbidden("Only whoever asked for it, as far as they are trusted, or my owner may undo this.")


def _since(trees: Trees, change: TreeChange, now: str, shared: set[Parts]) -> Since:
    """What became since of something that a turn changed."""
    path, before, after = change
    found = trees.find(now, path)
    if alike(found, before):
        return "restored"
    if not alike(found, after):
        return "changed"
    if before is not None and after is not None and found is not None and found.kind == "folder" != before.kind:
        is_new = any(trees.changes(after.value.decode(), found.value.decode()))  # in it, and would go with it
        return "changed" if is_new else "shared" if path in shared else ""
    return "shared" if path in shared else ""


def _source(entries: Iterable[TreeEntry | None]) -> str:
    """The first untrusted content that had a hand in any of them; empty where none had."""
    return next((entry.source for entry in entries if entry is not None and entry.source), "")
