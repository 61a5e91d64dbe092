"""Show and undo the file changes of turns. An undo can itself be undone.

    an undo's row            the workspace              after a crash
    ----------------------   ------------------------   ----------------------------------------------------------
    does not exist           is unchanged               nothing is left to do
    exists without an end    is partly restored         the next start finishes the restoration and records its end
    has an end               is restored                the end is already journaled, audited and reported to the
                                                        model

A turn's changes are the differences between its two checkpoints. A file is `shared` if another turn in the same
workspace changed it at the same time. Shoal asks about shared files and about files that changed after the turn.

A subagent's changes count as changes of the parent's turn. Changes that a subagent makes after that turn has ended
count as a separate turn of the conversation.
"""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from shoal.features.undo.records import LeftFile, UndoResult
from shoal.features.undo.store import UndoStore
from shoal.kernel.agents import AgentSpec
from shoal.kernel.checkpoints import (
    SINCE,
    ChangedSince,
    CheckpointRow,
    FileChange,
    Parts,
    TreeChange,
    TreeEntry,
    TurnChanges,
    alike,
    shown_path,
)
from shoal.kernel.errors import Conflict, FilesDiffer, Forbidden, InvalidInput, NotFound, ShoalError, system_words
from shoal.kernel.events import Checkpointed, FilesChanged, FilesRestored, Forked, ToolStarted
from shoal.kernel.files import in_thread
from shoal.kernel.ids import ThreadId, is_child
from shoal.kernel.permissions import Asker
from shoal.kernel.phrases import counted
from shoal.kernel.records import AuditEntry
from shoal.running import Runtime
from shoal.threads.actor import ActorServices
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.checkpoints import files_of
from shoal.tools.file_diffs import file_change, why_not_restorable
from shoal.tools.trees import Trees

if TYPE_CHECKING:
    from shoal.services import Services

log = logging.getLogger(__name__)

LAST_TURN = "last"
"""Value that selects the thread's last turn with changes that can be undone."""
LAST_UNDO = "back"
"""Value that selects the thread's last undo that has not itself been undone."""
SHOWN_MAX = 200
DIFF_CHARS_MAX = 200_000
NAMED_MAX = 20
"""Maximum number of files that errors and the journal list for the model."""
BEYOND_MAX = 20
TURN_EVENTS_MAX = 10_000
NUMBER_DIGITS_MAX = 3
RESTORE_SECONDS_MAX = 900.0
"""Maximum time in seconds for which changes in the workspace are tainted while tainted files are restored."""
NOT_HERE = (
    "The files from before this turn are not stored on this machine. Undo the turn on the machine that ran it, or "
    "set files.url to share files between machines."
)
NOT_KEPT = (
    "The files from before this turn are no longer stored, so Shoal cannot undo the turn. The setting "
    "checkpoints.days sets how long Shoal stores such files."
)
_INSIDE = "/workspace/"
Since = Literal["", "changed", "restored", "shared"]


class PlannedChange(NamedTuple):
    """A change to undo.

    since: how the path has changed since the turn.
    why_not: why the change cannot be undone, or empty.
    """

    change: TreeChange
    since: Since
    why_not: str


class Undo:
    """Service that shows and undoes the file changes of turns."""

    def __init__(self, services: ActorServices) -> None:
        self._services = services
        self._rows = services.store.checkpoints
        self._undos = UndoStore(services.store.driver, services.clock)
        self.checkpoints = services.loop.checkpoints

    @classmethod
    def of(cls, services: "Services") -> "Undo":
        return cls(services[Orchestrator].services)

    async def show(self, thread: ThreadId, turn: str, reader: Asker | None = None) -> TurnChanges:
        """Return the file changes of a turn or an undo, including those that cannot be undone.

        Raises NotFound, and Forbidden if `reader` may not undo them. Without `reader`, access is not checked.
        """
        row, clean = await self._row(thread, turn), self._services.context.clean
        if reader is not None:
            _check_may_undo(row, reader)
        trees = self.checkpoints.trees(row.workspace)
        try:
            planned = await self._plan(row, await self._now(row))
            room = DIFF_CHARS_MAX
            files = list[FileChange]()
            for change in planned[:SHOWN_MAX]:
                made = await in_thread(
                    lambda change=change, shows=room > 0: file_change(trees, *change, clean, shows=shows)
                )
                room -= len(made.diff)
                files.append(made)
        except OSError as error:
            raise _why_not(error) from error
        is_open = row.ended_at is None
        notes, beyond = await self._irreversible(row)
        return TurnChanges(
            thread=row.thread,
            turn=row.id,
            state="running" if is_open else "undone" if row.undone_by else "done",
            undone_by=row.undone_by,
            undoes=row.undoes,
            changed=len(planned),
            differ=sum(change.since in ("changed", "shared") and not change.why_not for change in planned),
            files=tuple(files),
            notes=notes,
            beyond=beyond,
        )

    async def undoable(self, thread: ThreadId, limit: int) -> list[tuple[CheckpointRow, int]]:
        """Return the latest turns whose changes can be undone, newest first, each with its number of changed files.

        Includes the turns of subagents.
        """
        undoable_turns, now = list[tuple[CheckpointRow, int]](), dict[str, str]()
        rows = await self._rows.newest(thread)
        turns = [row for row in rows if not row.undoes and row.ended_at is not None and row.before and row.after]
        own = iter(sorted((row for row in turns if row.thread == thread), key=lambda row: -row.turn_seq))
        # Keep the order of turns even if the clock was set back.
        turns = [next(own) if row.thread == thread else row for row in turns]
        for row in turns:
            if row.undone_by or (row.thread != thread and any(_covers(other, row) for other in turns)):
                continue
            try:
                now[row.workspace] = now.get(row.workspace) or await self._now(row)
                planned = await self._plan(row, now[row.workspace])
            except OSError as error:
                if isinstance(error, FileNotFoundError) or not error.strerror:
                    continue  # the trees are no longer stored
                raise _why_not(error) from error
            if any(change.since != "restored" for change in planned):  # skip a turn whose files are all restored
                undoable_turns.append((row, len(planned)))
            if len(undoable_turns) == limit:
                break
        return undoable_turns

    async def id_of(self, thread: ThreadId, turn: str) -> str:
        """Return the id of a turn or an undo, given a number, an id or a name such as LAST_TURN.

        Raises NotFound, and Conflict if the conversation is a copy and the turn ran in the original.
        """
        return (await self._row(thread, turn)).id

    async def _now(self, row: CheckpointRow) -> str:
        await self._services.folders.pull(row.thread, await self._agent(row))
        async with self.checkpoints.alone(row.workspace):
            return (await self.checkpoints.take(row.workspace)).tree

    async def undo(self, thread: ThreadId, turn: str, asker: Asker, since: ChangedSince = "ask") -> UndoResult:
        """Restore the files that a turn or an undo changed.

        `since` says how to treat files that changed after the turn. With `ask`, such files raise FilesDiffer and
        nothing is restored. Raises NotFound, Forbidden, Conflict if the turn is still running or already undone, and
        InvalidInput if nothing can be restored.
        """
        row, clock = await self._row(thread, turn), self._services.clock
        _check_may_undo(row, asker)
        await self._services.folders.pull(row.thread, await self._agent(row))
        trees, workspace = self.checkpoints.trees(row.workspace), row.workspace
        async with self.checkpoints.alone(workspace):
            for cut in await self._undos.running():  # finish interrupted undos first
                if cut.workspace == workspace and await self._is_here(cut):
                    await self._carry_out(cut, cut.author)
            row = await self._row(thread, row.id)  # another request may have undone it first
            if row.ended_at is None:
                raise Conflict("This turn is still running. Wait for it or stop it, then undo it.")
            if row.undone_by:
                raise Conflict(f"These changes have already been undone. To restore them, undo `{row.undone_by}`.")
            try:
                now = (await self.checkpoints.take(workspace)).tree
                planned = [change for change in await self._plan(row, now) if change.since != "restored"]
                able = [change for change in planned if not change.why_not]
                changed = [change for change in able if change.since]
                if changed and since == "ask":
                    names = ", ".join(shown_path(change.change.path) for change in changed[:NAMED_MAX])
                    have = "file has" if len(changed) == 1 else "files have"
                    raise FilesDiffer(
                        f"{len(changed)} {have} other changes too: {names}. Keep or overwrite the other changes?"
                    )
                chosen = [change for change in able if not change.since or since == "overwrite"]
                if not chosen:
                    why = [f"{shown_path(change.change.path)}: {_why_left(change)}" for change in planned[:NAMED_MAX]]
                    raise InvalidInput(f"Nothing to restore. {' '.join(why)}".rstrip())
                own, above = {change.change.path for change in chosen}, set[Parts]()
                for path in own:
                    above.update(path[:depth] for depth in range(1, len(path)))
                every = await in_thread(lambda: list(trees.changes(row.before, row.after)))
                targets = {
                    path: before
                    for path, before, _ in every
                    if path in own or (path in above and (before is None or before.kind == "folder"))
                }
                then = await in_thread(lambda: trees.replaced(now, targets))
            except OSError as error:
                raise _why_not(error) from error
            undo = clock.new_id()
            # The undo is reported to the root conversation.
            done = msgspec.structs.replace(row, thread=await self._family(row.thread))
            await self._undos.begin(undo, done, asker.user, now, then)
            begun = await self._rows.get(undo)
            assert begun is not None, "it was just stored"
            return await self._carry_out(begun, asker.identity, asker.token)

    async def resume(self) -> None:
        """Finish the undos that a crash interrupted, if their files are on this machine."""
        for row in await self._undos.running():
            await self._services.folders.pull(row.thread, await self._agent(row))
            async with self.checkpoints.alone(row.workspace):
                now = await self._rows.get(row.id)
                if now is not None and now.ended_at is None and await self._is_here(now):
                    await self._carry_out(now, now.author)

    async def _is_here(self, undo: CheckpointRow) -> bool:
        trees = self.checkpoints.trees(undo.workspace)
        try:
            await in_thread(lambda: (trees.entries(undo.before), trees.entries(undo.after)))
        except OSError as error:
            log.warning("undo waiting for the machine that has its files", extra={"undo": undo.id, "why": str(error)})
            return False
        return True

    async def _carry_out(self, undo: CheckpointRow, user: str, token: str = "") -> UndoResult:
        """Run a recorded undo and record its end. Skips changes that have already been made, so it can run again after
        a crash.
        """
        from shoal.features.undo.restore import restore  # imported only when an undo runs

        services, trees = self._services, self.checkpoints.trees(undo.workspace)
        root = self.checkpoints.path_of(undo.workspace)
        undone = await self._rows.get(undo.undoes)
        changes, failed, after = list[TreeChange](), dict[Parts, str](), ""
        done, left = list[Parts](), dict[Parts, str]()
        try:
            planned = await self._plan(undone, undo.before) if undone is not None else []
            changes = await in_thread(lambda: list(trees.changes(undo.before, undo.after)))
            source = _source(change.after for change in changes)
            async with self.checkpoints.marking(undo.workspace, source, RESTORE_SECONDS_MAX):
                failed = await in_thread(lambda: restore(root, trees, undo.before, undo.after, undo.id))
            for change in planned:
                path = change.change.path
                if change.since == "restored":
                    continue
                if path in failed or not alike(trees.find(undo.after, path), change.change.before):
                    left[path] = failed.pop(path, "") or _why_left(change)
                else:
                    done.append(path)
            left |= failed
            after = (await self.checkpoints.take(undo.workspace)).tree
        except OSError as error:  # a tree is missing or could not be stored
            log.warning("completing undo failed", extra={"undo": undo.id, "why": str(error)})
        clean = services.context.clean
        names = [clean(shown_path(path)) for path in done[:NAMED_MAX]]
        stayed = [LeftFile(clean(shown_path(path)), why) for path, why in [*left.items()][:SHOWN_MAX]]
        event = FilesRestored(
            id=undo.id,
            turn=undo.undoes,
            by=undo.author,
            restored=len(done),
            files=tuple(names),
            left=len(left),
            stayed=tuple(change.path for change in stayed[:NAMED_MAX]),
            again=undone is not None and bool(undone.undoes),
            tainted_by=_source(entry for change in changes for entry in (change.before, change.after)),
        )
        audit = AuditEntry(
            "undo",
            f"restore {counted(len(done), 'file')} of {undo.workspace}",
            "done",
            user=user,
            turn=undo.undoes,
            detail=f"{', '.join(names)}{f'; {len(left)} not restored' if left else ''}",
            token=token,
        )
        services.hub.publish(await self._undos.end(undo, after, event, audit))
        await services.folders.push(undo.thread, await self._agent(undo))
        return UndoResult(undo.id, len(done), tuple(names), len(left), tuple(stayed))

    async def _row(self, thread: ThreadId, turn: str) -> CheckpointRow:
        """Return the row of a turn or an undo.

        `turn` is an id, LAST_TURN, LAST_UNDO, or the number of a turn that can be undone, where 1 is the latest.
        """
        if turn == LAST_UNDO:
            undos = (row for row in await self._rows.newest(thread) if row.undoes and not row.undone_by)
            if (last := max(undos, key=lambda row: (row.turn_seq, row.id), default=None)) is None:
                await self._check_is_no_copy(thread, LAST_TURN)
                raise NotFound("This conversation has no undo to reverse.")
            turn = last.id
        if turn == LAST_TURN or (turn.isdecimal() and len(turn) <= NUMBER_DIGITS_MAX):
            number = 1 if turn == LAST_TURN else int(turn)
            rows = await self.undoable(thread, number) if number else []
            if rows and len(rows) == number:
                return rows[-1][0]
            await self._check_is_no_copy(thread, LAST_TURN)
            fewer = f"Only {len(rows)} turns here have" if len(rows) > 1 else "Only one turn here has"
            raise NotFound(f"{fewer if rows else 'No turn here has'} file changes that can still be undone.")
        row = await self._rows.get(turn)
        if row is None or await self._family(thread) != await self._family(row.thread):
            if await self._check_is_no_copy(thread, turn):
                raise NotFound(NOT_KEPT)
            raise NotFound(f"Turn {turn[:80]} of {thread} has changed no files that can still be restored.")
        if not row.before or (row.ended_at is not None and not row.after):
            raise NotFound("Shoal could not read or store the workspace when this turn began or ended.")
        return row

    async def _check_is_no_copy(self, thread: ThreadId, turn: str) -> bool:
        """Return True if the journal records the turn or undo. LAST_TURN matches every turn and undo.

        Raises Conflict if this conversation is a copy and the turn ran in the original.
        """
        after, where = 0, ThreadId("")
        while events := await self._services.store.journal.events(thread, after, TURN_EVENTS_MAX):
            after = events[-1].seq
            for event in events:
                data = event.data
                id = data.id if isinstance(data, FilesRestored) else event.turn
                if isinstance(data, Checkpointed | FilesRestored) and turn in (id, LAST_TURN):
                    where = thread
                elif isinstance(data, Forked) and where == thread:
                    where = data.thread
        if where not in ("", thread):
            raise Conflict(f"This conversation is a copy. Undo the turn in the original conversation, `{where}`.")
        return bool(where)

    async def _plan(self, row: CheckpointRow, now: str) -> list[PlannedChange]:
        trees, after = self.checkpoints.trees(row.workspace), row.after if row.ended_at is not None else now
        ended, family = row.ended_at or self._services.clock.now(), await self._family(row.thread)
        others = list[tuple[str, str]]()
        for other in await self._rows.of_workspace(row.workspace):
            till = other.ended_at or ended
            is_certain = (
                row.began_at <= ended and other.began_at <= till
            )  # if false, the clock was set back and the times cannot be compared
            meets = (other.began_at <= ended and row.began_at <= till) or not is_certain
            left = other.after if other.ended_at is not None else now
            if meets and other.before and left and await self._family(other.thread) != family:
                others.append((other.before, left))

        def plan() -> list[PlannedChange]:
            shared = {change.path for pair in others for change in trees.changes(*pair)}
            changes = files_of(list(trees.changes(row.before, after)))
            pairs = [(change, trees.find(now, change.path)) for change in changes]
            return [
                PlannedChange(change, _since(trees, change, entry, shared), why_not_restorable(trees, change, entry))
                for change, entry in pairs
            ]

        return await in_thread(plan)

    async def _family(self, thread: ThreadId) -> ThreadId:
        """Return the root conversation of a subagent's thread. Returns other threads unchanged."""
        while is_child(thread):
            info = await self._services.store.journal.thread(thread)
            if info is None or not info.parent:
                break
            thread = ThreadId(info.parent)
        return thread

    async def _agent(self, row: CheckpointRow) -> AgentSpec | None:
        info = await self._services.store.journal.thread(row.thread)
        try:
            agent = await self._services.agents.resolve(info.agent if info is not None else "", row.thread)
        except ShoalError:
            return None
        workspace = self.checkpoints.path_of(row.workspace)
        return msgspec.structs.replace(agent, workspace=workspace) if workspace.is_relative_to(agent.home) else None

    async def _irreversible(self, row: CheckpointRow) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if row.undoes:
            return (), ()
        registry, commands = self._services.loop.executor.registry, 0
        events = await self._services.store.journal.events(row.thread, row.turn_seq - 1, TURN_EVENTS_MAX)
        lines, notes = list[str](), tuple[str, ...]()
        for event in events:
            if event.turn == row.id and isinstance(event.data, Checkpointed | FilesChanged):
                notes = event.data.notes
            if event.turn != row.id or not isinstance(event.data, ToolStarted):
                continue
            name, actions = event.data.name, event.data.actions
            tool = registry.traits.of(name)
            if tool.read_only:
                continue
            if tool.writes_file:
                paths = [action.split(":", 2)[-1] for action in actions]
                outside = [path for path in paths if path.startswith(("/", "host:")) and not path.startswith(_INSIDE)]
                lines += [f"{path} is outside the workspace, so its change remains." for path in outside]
            elif tool.harm == "command":
                commands += 1
            else:
                what = actions[0].split(":", 2)[-1] if actions else ""
                back = ". `/agent undo` reverses the change." if tool.undo == "agent" else "" if what else "."
                lines.append(f"`{name}` ran{f': {what}' if what else ''}{back}")
        if commands:
            ran = "A command ran" if commands == 1 else f"{commands} commands ran"
            lines.append(f"{ran}. Effects outside the workspace, on processes or over the network remain.")
        if len(lines) > BEYOND_MAX:
            lines[BEYOND_MAX:] = [f"and {len(lines) - BEYOND_MAX} more"]
        return notes, (*lines, "Undo does not affect messages.")


def attach(services: "Services") -> None:
    services[Runtime].before_turns.append(services[Undo].resume)


def _why_not(error: OSError) -> ShoalError:
    if isinstance(error, FileNotFoundError):
        return NotFound(NOT_HERE)
    if error.strerror:
        return Conflict(
            f"Shoal could not read or write the workspace: {system_words(error)}. Fix the problem, then try again."
        )
    return Conflict(str(error))  # damaged data or an object store error, which has its own message


def _check_may_undo(row: CheckpointRow, asker: Asker) -> None:
    if asker.trust != "owner" and (asker.trust == "untrusted" or asker.user != row.author):
        raise Forbidden("Only the person who asked, or the owner, can undo this turn.")


def _covers(row: CheckpointRow, other: CheckpointRow) -> bool:
    """Return True if the subagent's turn `other` ran entirely within the turn `row`. The changes of `row` then include
    those of `other`.
    """
    if row.thread == other.thread or row.ended_at is None or other.ended_at is None or row.workspace != other.workspace:
        return False
    return row.began_at <= other.began_at and other.ended_at <= row.ended_at


def _why_left(planned: PlannedChange) -> str:
    return planned.why_not or (f"It was {SINCE[planned.since]}." if planned.since else "Its content has changed.")


def _since(trees: Trees, change: TreeChange, entry: TreeEntry | None, shared: set[Parts]) -> Since:
    path, before, after = change
    if alike(entry, before):
        return "restored"
    if not alike(entry, after):
        return "changed"
    if before is not None and after is not None and entry is not None and entry.kind == "folder" != before.kind:
        # An undo would remove the new contents of the folder.
        is_new = any(trees.changes(after.value.decode(), entry.value.decode()))
        return "changed" if is_new else "shared" if path in shared else ""
    return "shared" if path in shared else ""


def _source(entries: Iterable[TreeEntry | None]) -> str:
    return next((entry.source for entry in entries if entry is not None and entry.source), "")
