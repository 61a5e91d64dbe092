"""/undo: show how the last turn changed files, and restore the files."""

from typing import TYPE_CHECKING

from shoal.features.undo.undo import LAST_TURN, LAST_UNDO, Undo
from shoal.kernel.checkpoints import ChangedSince
from shoal.kernel.commands import ChatCommand, CommandRequest, CommandSpec
from shoal.kernel.errors import FilesDiffer
from shoal.kernel.ids import ThreadId
from shoal.kernel.permissions import Asker
from shoal.kernel.phrases import counted
from shoal.threads.commands import LINES_MAX, CommandRouter, moment_text
from shoal.tools.file_diffs import changes_text

if TYPE_CHECKING:
    from shoal.services import Services

UNDOABLE_MAX = 5
UNDO = CommandSpec(
    "undo",
    "show or undo my last turn's file changes",
    "[last|back|NUMBER|ID [keep|overwrite]]",
    number=7,
    needs="past",
)


def chat_commands(services: "Services") -> list[ChatCommand]:
    commands = services[CommandRouter]
    undo = UndoCommand(commands, services[Undo])
    commands.restore_files = undo.restore
    return [ChatCommand(UNDO, undo.undo)]


class UndoCommand:
    def __init__(self, commands: CommandRouter, undo: Undo) -> None:
        self._commands = commands
        self._undo = undo

    async def undo(self, asked: CommandRequest) -> str:
        """Run /undo.

        Without an argument, show the changes of the last turn. `last`, a number or an id restores the files of that
        turn. `back` reverses the last undo.
        """
        zone = await self._commands.zone(asked)
        undo, hows = self._undo, dict[str, ChangedSince](keep="keep", overwrite="overwrite")
        match asked.argument.split():
            case []:
                shown = changes_text(await undo.show(asked.thread, LAST_TURN, asked.asker))
                earlier = [
                    f"\n- `/undo {number}` {moment_text(row.began_at, zone)}, {counted(count, 'file')}"
                    for number, (row, count) in enumerate(await undo.undoable(asked.thread, UNDOABLE_MAX), 1)
                    if number > 1
                ]
                return f"{shown}{' Turns before it:' if earlier else ''}{''.join(earlier)}"
            case [turn, *how] if not how or (len(how) == 1 and how[0].lower() in hows):
                since = hows[how[0].lower()] if how else "ask"
                named = turn.lower() if turn.lower() in (LAST_TURN, LAST_UNDO) else turn.upper()
                id = await self._commands.about(asked, lambda: undo.id_of(asked.thread, named))
                return await self._restored(asked.thread, id, asked.asker, since, named=turn)
            case _:
                shows = "`/undo` shows the file changes from my last turn"
                return f"{shows}. `/undo last` restores the files, and `/undo back` reverses the last undo."

    async def restore(self, thread: ThreadId, turn: str, asker: Asker) -> str:
        """Restore a turn's files and return the reply. If files have changed since the turn, restore nothing and return
        a question.
        """
        return await self._restored(thread, turn, asker, "ask", named=turn)

    async def _restored(self, thread: ThreadId, id: str, asker: Asker, since: ChangedSince, *, named: str) -> str:
        try:
            done = await self._undo.undo(thread, id, asker, since)
        except FilesDiffer as error:
            return (
                f"{error} `/undo {named} keep` restores only the other files, and `/undo {named} overwrite` "
                "restores all files."
            )
        left = [f"\n- `{entry.path}` was not restored. {entry.why}" for entry in done.left[:LINES_MAX]]
        if done.not_restored > len(left):
            left.append(f"\n- and {done.not_restored - len(left)} more")
        return f"Restored {counted(done.restored, 'file')}. `/undo back` reverses this undo.{''.join(left)}"
