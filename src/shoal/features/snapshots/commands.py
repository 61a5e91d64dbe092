"""/new saves and clears the conversation. /context saves, lists and restores conversations."""

from typing import TYPE_CHECKING

from shoal.features.snapshots.service import ConversationSnapshots
from shoal.kernel.commands import ChatCommand, CommandRequest
from shoal.kernel.ids import ThreadId
from shoal.kernel.phrases import counted
from shoal.threads.commands import LINES_MAX, CommandRouter, ContextWord, moment_text

if TYPE_CHECKING:
    from shoal.services import Services


def chat_commands(services: "Services") -> list[ChatCommand]:
    commands = services[CommandRouter]
    saved = SavedConversations(commands, services[ConversationSnapshots])
    commands.start_over = saved.start_over
    commands.context_words |= {
        "save": ContextWord("`/context save [DESCRIPTION]`", saved.save),
        "history": ContextWord("`/context history`", saved.history, is_of_channel=True),
        "restore": ContextWord("`/context restore ID`", saved.restore),
    }
    return []


class SavedConversations:
    """Chat commands /new and /context."""

    def __init__(self, commands: CommandRouter, snapshots: ConversationSnapshots) -> None:
        self._commands = commands
        self._snapshots = snapshots

    async def start_over(self, thread: ThreadId, by: str) -> str:
        """Save and clear the conversation. Return a message that explains how to restore it, or an empty string if the
        conversation was empty.
        """
        saved = await self._snapshots.archive(thread, by)
        return f"I saved the conversation. `/context restore {saved.id[-6:]}` restores it." if saved else ""

    async def save(self, asked: CommandRequest) -> str:
        saved = await self._snapshots.save(asked.thread, _rest(asked))
        return f"Saved {counted(saved.messages, 'message')} as `{saved.id[-6:]}`: {saved.description}"

    async def history(self, asked: CommandRequest) -> str:
        zone, saved = await self._commands.zone(asked), await self._snapshots.around(asked.thread)
        lines = [
            f"{number}. `{snapshot.id[-6:]}` {moment_text(snapshot.created_at, zone)}: {snapshot.description}"
            for number, snapshot in enumerate(saved, 1)
        ]
        if len(lines) > LINES_MAX:
            lines = [*lines[:LINES_MAX], f"- and {len(lines) - LINES_MAX} more"]
        return "\n".join(lines) or "This channel has no saved conversations."

    async def restore(self, asked: CommandRequest) -> str:
        name = _rest(asked)
        if not name:
            return f"Usage: {self._commands.context_usage()}."
        restored = await self._snapshots.restore(asked.thread, name, asked.author.id)
        return f"Restored: {restored.description}"


def _rest(asked: CommandRequest) -> str:
    return asked.argument.partition(" ")[2].strip()
