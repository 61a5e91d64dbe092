"""Chat commands: their descriptions, the command table, and parsing.

`CommandTable` is built at startup from the built-in commands and those of features and installed packages.
`threads/commands.py` runs the commands.
"""

import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.errors import ConfigError, InvalidInput
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.permissions import Asker

_NAME = lazy_re.compile("[a-z][a-z0-9_]{0,31}")
EXTENSION_NUMBERS = range(101, 1001)
"""Command numbers reserved for packages. Google Chat accepts 1 to 1000."""


class CommandSpec(msgspec.Struct, frozen=True):
    """A command, as menus and /help describe it."""

    name: str
    description: str
    usage: str = ""
    """Arguments in the usage line, for example `[NAME TEXT]`."""
    completes: bool = False
    """Whether clients can suggest completions for the argument."""
    number: int = 0
    """Permanent number of the command in Google Chat's menus. 0 derives the number from the name."""
    needs: Literal["nothing", "thread", "past", "place"] = "nothing"
    """Thread that the command applies to.

    `nothing`: none.
    `thread`: the current thread. In a channel, the thread in which the person last wrote.
    `past`: the same as `thread`, but the thread must have messages.
    `place`: the same as `thread`. If the person has not written in the channel yet, a thread that does not exist yet.
    """

    @property
    def line(self) -> str:
        """The usage line, for example `/model [NAME TEXT]`."""
        return f"/{self.name} {self.usage}".strip()


class CommandRequest(msgspec.Struct, frozen=True):
    """A command that a person sent in a thread."""

    thread: ThreadId
    author: Author
    name: str
    argument: str
    key: str
    """Key of the message, unique within the platform."""
    at: datetime
    direct: bool = False
    """True if only the person and the agent are in the conversation."""
    private: bool = False
    """True if only the person can read the answer."""
    message_id: str = ""
    by: Asker | None = None
    """The asker, if it carries more information than `author`."""

    @property
    def asker(self) -> Asker:
        """The person who sent the command, as the permission rules see them."""
        direct = self.direct or self.private
        if self.by is not None:
            return msgspec.structs.replace(self.by, kind="direct" if direct else "group")
        return self.author.asker(self.thread, direct=direct)


Answer: TypeAlias = Callable[[CommandRequest], Awaitable[str]]
AnswerInChannel: TypeAlias = Callable[[CommandRequest, ThreadId | None], Awaitable[str | None]]


class ChatCommand(msgspec.Struct, frozen=True, eq=False):
    """A command and the function that answers it.

    `answer` returns Markdown, or an empty string to post nothing. It raises a ShoalError for an invalid request, and
    the error's message becomes the answer. After a StoreError, the platform delivers the command again.

    `answer_in_channel` is called if a command that needs a thread was sent to a channel. Its second argument is the
    thread in which the person last wrote, or None. If it returns None, the command is answered for that thread.
    """

    spec: CommandSpec
    answer: Answer
    answer_in_channel: AnswerInChannel | None = None


def chat_command(
    description: str,
    usage: str = "",
    *,
    number: int = 0,
    needs: Literal["nothing", "thread", "past", "place"] = "nothing",
) -> Callable[[Answer], ChatCommand]:
    """Create a command from an async function. The command has the name of the function.

    Packages register commands under the entry point group `shoal.commands`. The decorator raises InvalidInput if the
    name is not valid on all platforms.
    """

    def make(answer: Answer) -> ChatCommand:
        name = getattr(answer, "__name__", "")
        if not _NAME.fullmatch(name):
            raise InvalidInput(
                f"The command name {name!r} is not valid. Use at most 32 characters (a-z, 0-9 and _), starting with "
                "a letter."
            )
        return ChatCommand(CommandSpec(name, description, usage, number=number, needs=needs), answer)

    return make


BUILT_IN = (
    CommandSpec("help", "the commands", number=1),
    CommandSpec("new", "start a new conversation", number=2, needs="thread"),
    CommandSpec("status", "show my current work and its cost", number=3, needs="thread"),
    CommandSpec(
        "stop",
        "stop the running turn; with all, also drop waiting messages",
        "[#NUMBER] [all]",
        number=4,
        needs="thread",
    ),
    CommandSpec(
        "retry",
        "answer the last message again, optionally with another model",
        "[MODEL]",
        completes=True,
        number=5,
        needs="past",
    ),
    CommandSpec("fork", "continue in a copy of this conversation", number=6, needs="past"),
    CommandSpec("steer", "send a message to the running turn", "[#NUMBER] TEXT", number=8, needs="thread"),
    CommandSpec(
        "approve",
        "allow my request, or the one with this id or number",
        "[ID] [1 3]",
        number=9,
        needs="thread",
    ),
    CommandSpec("deny", "deny my request, or the one with this id", "[ID]", number=10, needs="thread"),
    CommandSpec(
        "context",
        "save, clear or restore my context",
        "[clear|save|history|restore ID]",
        number=11,
        needs="thread",
    ),
    CommandSpec(
        "thread", "list my threads and what they did", "[list|kill NUMBER|history NUMBER]", number=12, needs="thread"
    ),
    CommandSpec("tasks", "show what I am doing in all threads", number=13),
    CommandSpec(
        "model",
        ("list the models, or ask one a single question"),
        "[NAME TEXT]",
        completes=True,
        number=15,
        needs="thread",
    ),
    CommandSpec(
        "agent",
        "list, create, bind or configure agents",
        "[list|create|bind|config|delete …]",
        completes=True,
        number=17,
    ),
    CommandSpec(
        "settings",
        "set the model and permissions of this conversation",
        "[show|model NAME|permissions PROFILE]",
        completes=True,
        number=18,
    ),
    CommandSpec("timezone", "set your time zone for reminders and displayed times", "[NAME]", number=20),
)

ALIASES = {"clear": "new"}
"""Command names by alias. Menus do not list aliases."""
WELCOME = "start"
"""Command that Telegram sends when a person starts a chat with a bot. All platforms accept the command, but menus do
not list it.
"""


class ParsedCommand(msgspec.Struct, frozen=True):
    name: str
    argument: str


class CommandTable:
    """All chat commands. Iterates in the order of the menus."""

    def __init__(self, specs: Iterable[CommandSpec] = BUILT_IN) -> None:
        self._specs: dict[str, CommandSpec] = {}
        self._numbered: dict[int, CommandSpec] = {}
        for spec in specs:
            self.add(spec)

    def __iter__(self) -> Iterator[CommandSpec]:
        return iter(sorted(self._specs.values(), key=lambda spec: spec.number))

    def __len__(self) -> int:
        return len(self._specs)

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def add(self, spec: CommandSpec) -> None:
        """Add a command. Raises ConfigError if another command has the same name or number."""
        if not spec.number:
            number = EXTENSION_NUMBERS[zlib.crc32(spec.name.encode()) % len(EXTENSION_NUMBERS)]
            spec = msgspec.structs.replace(spec, number=number)
        if spec.name in (*self._specs, *ALIASES, WELCOME):
            raise ConfigError(
                [f"Two commands are named /{spec.name}. Uninstall the package that provides one of them."]
            )
        other = self._numbered.get(spec.number)
        if other is not None:
            raise ConfigError(
                [
                    (
                        f"The commands /{other.name} and /{spec.name} have the same number {spec.number}. Change "
                        "one of the numbers."
                    )
                ]
            )
        self._specs[spec.name] = self._numbered[spec.number] = spec

    def get(self, name: str) -> CommandSpec | None:
        return self._specs.get(name)

    def numbered(self, number: int) -> CommandSpec | None:
        return self._numbered.get(number)

    def parse(self, text: str) -> ParsedCommand | None:
        head, _, argument = text.strip().partition(" ")
        name = head.removeprefix("/").lower()
        name = ALIASES.get(name, name)
        if not head.startswith("/") or (name not in self._specs and name != WELCOME):
            return None
        return ParsedCommand(name, argument.strip())

    def with_slash(self, text: str) -> str:
        """Convert text such as `!stop` to `/stop`. Some clients intercept messages that begin with a slash."""
        slashed = f"/{text[1:]}"
        return slashed if text.startswith("!") and self.parse(slashed) else text

    def request(self, prompt: Prompt) -> CommandRequest | None:
        command = self.parse(prompt.text)
        if command is None:
            return None
        return CommandRequest(
            prompt.thread, prompt.author, command.name, command.argument, prompt.key, prompt.at, direct=prompt.direct,
            message_id=prompt.message_id,
        )  # fmt: skip
