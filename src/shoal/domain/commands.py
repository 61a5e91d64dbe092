"""The slash commands of all platforms: one table, and what somebody asked with one of them."""

from datetime import datetime

import msgspec

from shoal.domain.ids import ThreadId
from shoal.domain.messages import Author
from shoal.domain.permissions import Asker


class CommandSpec(msgspec.Struct, frozen=True):
    """A command: its name without the slash, its line in menus, and what may follow it (empty: nothing)."""

    name: str
    description: str
    usage: str = ""


class CommandRequest(msgspec.Struct, frozen=True):
    """A command as somebody gave it in a thread. `key` is its message's, unique within the platform.

    `direct`: the conversation is with the agent alone. `private`: nobody else reads the answer, wherever it is. `by` is
    who asks where that is nobody of the thread's platform.
    """

    thread: ThreadId
    author: Author
    name: str
    argument: str
    key: str
    at: datetime
    direct: bool = False
    private: bool = False
    message_id: str = ""
    by: Asker | None = None

    @property
    def asker(self) -> Asker:
        """Who asks, for the rules; `direct` where nobody else reads the answer."""
        direct = self.direct or self.private
        if self.by is not None:
            return msgspec.structs.replace(self.by, kind="direct" if direct else "group")
        return self.author.asker(self.thread, direct=direct)


COMMANDS: dict[str, CommandSpec] = {
    command.name: command
    for command in (
        CommandSpec("help", "the commands"),
        CommandSpec("new", "start a new conversation"),
        CommandSpec("status", "what I am doing, and what it costs"),
        CommandSpec("stop", "stop the running turn; with all, forget what waits too", "[all]"),
        CommandSpec("retry", "ask again now where I wait for the model; with a name, another model", "[MODEL]"),
        CommandSpec("steer", "tell the running turn something", "TEXT"),
        CommandSpec("approve", "allow what an approval asks", "ID"),
        CommandSpec("deny", "deny what an approval asks", "ID"),
        CommandSpec("context", "save, clear or bring back what I look at", "[clear|save|history|restore ID]"),
        CommandSpec("thread", "my threads, and what they did", "[list|kill ID|history ID]"),
        CommandSpec("tasks", "what I do now, in all threads"),
        CommandSpec("remind", "have me do something later, or again and again", "[WHEN TEXT|list|cancel ID]"),
        CommandSpec("model", "the models; or ask one of them once", "[NAME TEXT]"),
        CommandSpec("agent", "who answers: list, make, bind, configure", "[list|create|bind|config|destroy …]"),
        CommandSpec("settings", "model and permissions of this place", "[show|model NAME|permissions PROFILE]"),
    )
}
"""By name. Whoever adds a row writes what it does in `actors/commands.py` or beside it."""

OF_THREAD = frozenset({"new", "status", "stop", "retry", "steer", "context", "remind", "model"})
"""Those that are about the thread in which they are given; the others need none."""

ALIASES = {"start": "help", "clear": "new"}
"""Other names of commands; not listed."""
