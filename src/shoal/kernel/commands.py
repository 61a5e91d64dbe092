"""The slash commands of all platforms: one table, how a text is read as one, and what somebody asked with it."""

from datetime import datetime

import msgspec

from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.permissions import Asker


class CommandSpec(msgspec.Struct, frozen=True):
    """A command: its name without the slash, its line in menus, what may follow it (empty: nothing), and whether what
    is typed there can be completed."""

    name: str
    description: str
    usage: str = ""
    completes: bool = False


class CommandRequest(msgspec.Struct, frozen=True):
    """A command as somebody gave it in a thread. `key` is its message's, unique within the platform.

    `direct`: the conversation is with the agent alone. `private`: nobody else reads the answer, wherever it is. `by` is
    who asks where more is known of that than the author says.
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
        CommandSpec("stop", "stop the running turn; with all, forget what waits too", "[#NUMBER] [all]"),
        CommandSpec("retry", "answer the last message again; with a name, by another model", "[MODEL]", True),
        CommandSpec("fork", "go on elsewhere with a copy of this conversation"),
        CommandSpec(
            "undo", "what my last turn did to files, and restore them", "[last|back|NUMBER|ID [keep|overwrite]]"
        ),
        CommandSpec("steer", "tell the running turn something", "[#NUMBER] TEXT"),
        CommandSpec("approve", "allow what I ask; with an id, that question", "[ID]"),
        CommandSpec("deny", "deny what I ask; with an id, that question", "[ID]"),
        CommandSpec("context", "save, clear or bring back what I look at", "[clear|save|history|restore ID]"),
        CommandSpec("thread", "my threads, and what they did", "[list|kill NUMBER|history NUMBER]"),
        CommandSpec("tasks", "what I do now, in all threads"),
        CommandSpec("remind", "have me do something later, or again and again", "[WHEN TEXT|list|cancel ID]"),
        CommandSpec("model", "the models; or ask one of them once", "[NAME TEXT]", True),
        CommandSpec("voice", "whether I also answer aloud; auto: when you speak to me", "[on|off|auto]"),
        CommandSpec("agent", "who answers: list, make, bind, configure", "[list|create|bind|config|delete …]", True),
        CommandSpec("settings", "model and permissions of this place", "[show|model NAME|permissions PROFILE]", True),
        CommandSpec("memory", "what I remember here; forget or correct it", "[WORDS|forget ID|amend ID TEXT|undo]"),
        CommandSpec("timezone", "your time zone, for reminders and what I tell of times", "[NAME]"),
    )
}
"""By name. A new row comes last, and what it does stands in `threads/commands.py` or beside it: Google Chat's
menus know a command by its number here."""

OF_THREAD = frozenset(
    {"new", "status", "stop", "retry", "fork", "undo", "steer", "context", "remind", "model", "voice"}
)
"""Those that are about the thread in which they are given; the others need none."""

ALIASES = {"clear": "new"}
"""Other names of commands; not listed."""
WELCOME = "start"
"""Command that Telegram sends when a person opens the chat with a bot. Accepted on all platforms, and not listed."""


class ParsedCommand(msgspec.Struct, frozen=True):
    """A command by its name in `COMMANDS`, and what follows it."""

    name: str
    argument: str


def parse_command(text: str) -> ParsedCommand | None:
    """The command a text is; None for other text."""
    head, _, argument = text.strip().partition(" ")
    name = head.removeprefix("/").lower()
    name = ALIASES.get(name, name)
    return ParsedCommand(name, argument.strip()) if head.startswith("/") and name in (*COMMANDS, WELCOME) else None


def command_in(prompt: Prompt) -> CommandRequest | None:
    """What a message asks that is a command; None for all others."""
    found = parse_command(prompt.text)
    if found is None:
        return None
    return CommandRequest(
        prompt.thread, prompt.author, found.name, found.argument, prompt.key, prompt.at, direct=prompt.direct,
        message_id=prompt.message_id,
    )  # fmt: skip
