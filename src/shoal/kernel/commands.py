"""Chat commands: how each is described, the table of all of them, and how a text is read as one.

`CommandTable` is made when Shoal starts: the built-in commands, those of the features, and those of installed packages.
`threads/commands.py` runs them.
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
"""Numbers of commands that packages bring. Google Chat takes numbers from 1 to 1000."""


class CommandSpec(msgspec.Struct, frozen=True):
    """Describes a command in menus and in /help.

    `name` has no slash. `usage` shows what may follow it. `completes` says that its argument can be completed while it
    is typed. `number` identifies the command in the menus of Google Chat and never changes; 0 derives it from the name.

    `needs` says what the command is about: a `thread` means the one it is given in, and in a channel the one where the
    person spoke last; `past` is the same for a thread in which something was said.
    """

    name: str
    description: str
    usage: str = ""
    completes: bool = False
    number: int = 0
    needs: Literal["nothing", "thread", "past", "place"] = "nothing"

    @property
    def line(self) -> str:
        """The command as it is typed, e.g. `/model [NAME TEXT]`."""
        return f"/{self.name} {self.usage}".strip()


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


Answer: TypeAlias = Callable[[CommandRequest], Awaitable[str]]
AnswerInChannel: TypeAlias = Callable[[CommandRequest, ThreadId | None], Awaitable[str | None]]


class ChatCommand(msgspec.Struct, frozen=True, eq=False):
    """A command with the function that answers it, in Markdown; an empty answer posts nothing.

    `answer` raises a ShoalError for what is wrong with the request. Its message becomes the answer. StoreError says
    that the database failed: the platform delivers the command again.

    `answer_in_channel` is for a command that needs a thread, given in a channel beside all threads. It gets the thread
    where the person spoke last there, if any, and returns None to be answered in that thread.
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
    """Make a command of an async function, with its name. Raises InvalidInput for a name that some platform refuses.

    A package offers it in the entry point group `shoal.commands`.
    """

    def make(answer: Answer) -> ChatCommand:
        name = getattr(answer, "__name__", "")
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"A command cannot be called {name!r}: use up to 32 of a-z, 0-9 and _, a letter first.")
        return ChatCommand(CommandSpec(name, description, usage, number=number, needs=needs), answer)

    return make


BUILT_IN = (
    CommandSpec("help", "the commands", number=1),
    CommandSpec("new", "start a new conversation", number=2, needs="thread"),
    CommandSpec("status", "what I am doing, and what it costs", number=3, needs="thread"),
    CommandSpec(
        "stop", "stop the running turn; with all, forget what waits too", "[#NUMBER] [all]", number=4, needs="thread"
    ),
    CommandSpec(
        "retry",
        "answer the last message again; with a name, by another model",
        "[MODEL]",
        completes=True,
        number=5,
        needs="past",
    ),
    CommandSpec("fork", "go on elsewhere with a copy of this conversation", number=6, needs="past"),
    CommandSpec("steer", "tell the running turn something", "[#NUMBER] TEXT", number=8, needs="thread"),
    CommandSpec(
        "approve",
        "allow what I ask; with an id or numbers, that",
        "[ID] [1 3]",
        number=9,
        needs="thread",
    ),
    CommandSpec("deny", "deny what I ask; with an id, that question", "[ID]", number=10, needs="thread"),
    CommandSpec(
        "context",
        "save, clear or bring back what I look at",
        "[clear|save|history|restore ID]",
        number=11,
        needs="thread",
    ),
    CommandSpec(
        "thread", "my threads, and what they did", "[list|kill NUMBER|history NUMBER]", number=12, needs="thread"
    ),
    CommandSpec("tasks", "what I do now, in all threads", number=13),
    CommandSpec(
        "model", "the models; or ask one of them once", "[NAME TEXT]", completes=True, number=15, needs="thread"
    ),
    CommandSpec(
        "voice", "whether I also answer aloud; auto: when you speak to me", "[on|off|auto]", number=16, needs="thread"
    ),
    CommandSpec(
        "agent",
        "who answers: list, make, bind, configure",
        "[list|create|bind|config|delete …]",
        completes=True,
        number=17,
    ),
    CommandSpec(
        "settings",
        "model and permissions of this place",
        "[show|model NAME|permissions PROFILE]",
        completes=True,
        number=18,
    ),
    CommandSpec("timezone", "your time zone, for reminders and what I tell of times", "[NAME]", number=20),
)
"""Those of the core; features add theirs."""

ALIASES = {"clear": "new"}
"""Other names of commands; not listed."""
WELCOME = "start"
"""Command that Telegram sends when a person opens the chat with a bot. Accepted on all platforms, and not listed."""


class ParsedCommand(msgspec.Struct, frozen=True):
    """A command by its name, and what follows it."""

    name: str
    argument: str


class CommandTable:
    """The commands that people can give, in the order of the menus."""

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
        """Add a command. Raises ConfigError where its name or its number is taken."""
        if not spec.number:
            number = EXTENSION_NUMBERS[zlib.crc32(spec.name.encode()) % len(EXTENSION_NUMBERS)]
            spec = msgspec.structs.replace(spec, number=number)
        if spec.name in (*self._specs, *ALIASES, WELCOME):
            raise ConfigError([f"There are two commands /{spec.name}. Uninstall the package that brings one of them."])
        other = self._numbered.get(spec.number)
        if other is not None:
            raise ConfigError(
                [f"The commands /{other.name} and /{spec.name} have the same number {spec.number}. Give one another."]
            )
        self._specs[spec.name] = self._numbered[spec.number] = spec

    def get(self, name: str) -> CommandSpec | None:
        return self._specs.get(name)

    def numbered(self, number: int) -> CommandSpec | None:
        return self._numbered.get(number)

    def parse(self, text: str) -> ParsedCommand | None:
        """The command a text is; None for other text."""
        head, _, argument = text.strip().partition(" ")
        name = head.removeprefix("/").lower()
        name = ALIASES.get(name, name)
        if not head.startswith("/") or (name not in self._specs and name != WELCOME):
            return None
        return ParsedCommand(name, argument.strip())

    def with_slash(self, text: str) -> str:
        """Return `!stop` as `/stop`, for platforms whose clients keep what begins with a slash to themselves."""
        slashed = f"/{text[1:]}"
        return slashed if text.startswith("!") and self.parse(slashed) else text

    def request(self, prompt: Prompt) -> CommandRequest | None:
        """The command that a message gives; None for other messages."""
        command = self.parse(prompt.text)
        if command is None:
            return None
        return CommandRequest(
            prompt.thread, prompt.author, command.name, command.argument, prompt.key, prompt.at, direct=prompt.direct,
            message_id=prompt.message_id,
        )  # fmt: skip
