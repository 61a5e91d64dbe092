"""What all adapters share on the way to the inbox: commands, buttons, early edits, servers and files."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, ItemsView
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import msgspec

from shoal.domain.agents import servers_scope
from shoal.domain.clock import Clock
from shoal.domain.commands import ALIASES, COMMANDS, CommandRequest
from shoal.domain.errors import Conflict, Forbidden, Gone, InvalidInput, NotFound, PlatformError
from shoal.domain.events import Scope
from shoal.domain.home import Home
from shoal.domain.ids import ApprovalId, ThreadId, channel_of, encode_part
from shoal.domain.messages import Abort, Attachment, Author, Deletion, Edit, Prompt, Receipt, Retry
from shoal.domain.ports import InboxPort, Settings

V = TypeVar("V")

BUSY = "I am busy: too many messages are waiting. Try again in a moment, or write /stop all."
DECIDED = frozenset({"Allowed.", "Denied."})
"""Answers of `press` that an approval's card will show by itself."""
PENDING_EDITS_MAX = 200
KNOWN_SERVERS_MAX = 10_000
"""Channels whose server is not looked up again."""
NAME_BYTES_MAX = 120


class Recent(Generic[V]):
    """A mapping of at most `size` entries; the longest unused are forgotten."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[str, V] = OrderedDict()

    def put(self, key: str, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def get(self, key: str) -> V | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def pop(self, key: str) -> V | None:
        return self._entries.pop(key, None)

    def items(self) -> ItemsView[str, V]:
        return self._entries.items()

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)


def time_of(text: str, now: datetime) -> datetime:
    """The time that a platform gives as ISO 8601 with an offset; `now` where it gives no such time."""
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo is not None else now
    except (ValueError, OverflowError):
        return now


# ---- commands and buttons ----


class ParsedCommand(msgspec.Struct, frozen=True):
    """A command by its name in `COMMANDS`, and what follows it."""

    name: str
    argument: str


def parse_command(text: str, bot_name: str = "") -> ParsedCommand | None:
    """The command a text is; None for other text and for commands to another bot."""
    head, _, argument = text.strip().partition(" ")
    name, at, addressed = head.removeprefix("/").partition("@")
    if not head.startswith("/") or (at and addressed.lower() != bot_name.lower()):
        return None
    name = ALIASES.get(name.lower(), name.lower())
    return ParsedCommand(name, argument.strip()) if name in COMMANDS else None


async def submit(prompt: Prompt, bot_name: str, inbox: InboxPort) -> str:
    """Send a prompt, or run the command it is; returns what to tell the person, often nothing. Raises StoreError.

    Its files are removed unless a turn will have them: only with a turn are files of strangers marked as such.
    """
    command = parse_command(prompt.text, bot_name)
    receipt = Receipt("dropped")
    try:
        if command is not None:
            return await inbox.command(
                CommandRequest(
                    prompt.thread, prompt.author, command.name, command.argument, prompt.key, prompt.at,
                    direct=prompt.direct, message_id=prompt.message_id
                ),
            )  # fmt: skip
        receipt = await inbox.send(prompt)
        return BUSY if receipt.status == "busy" else ""
    finally:
        if prompt.attachments and receipt.status != "accepted":
            await asyncio.to_thread(remove_attachments, prompt)


async def press(value: str, thread: ThreadId, author: Author, inbox: InboxPort) -> str:
    """Do what a button's value says; returns what to tell the person who pressed it. Raises StoreError.

    `allow:ID`, `thread:ID` and `deny:ID` decide an approval; `retry:TURN`, `retry:TURN:MODEL` and `retry:TURN:stop`
    act on a turn that waits for its model.
    """
    verb, _, what = value.partition(":")
    try:
        match verb:
            case "allow" | "thread" | "deny" if what:
                asker = author.asker(thread, "untrusted")  # the access rules say who is more than that
                scope: Scope = "thread" if verb == "thread" else "once"
                state = await inbox.decide(ApprovalId(what), verb != "deny", asker, scope)
                return {"allow": "Allowed.", "deny": "Denied."}.get(state, f"It is {state}.")
            case "retry" if what:
                turn, _, model = what.partition(":")
                stops = model == "stop"
                change = Abort(thread, author, turn=turn) if stops else Retry(thread, author, turn, model)
                receipt = await inbox.send(change)
                if not receipt.delivered:
                    return "That turn has ended."
                return "Stopping." if stops else "Trying again."
            case _:
                return "This button no longer works."
    except (NotFound, Conflict, Gone, Forbidden, InvalidInput) as error:
        return str(error)


# ---- edits before their message, and servers ----


class PendingEdits:
    """Edits and deletions that arrive before their message, where a platform promises no order.

    Kept is the newest change of each of the last PENDING_EDITS_MAX messages.
    """

    def __init__(self) -> None:
        self._changes: Recent[Edit | Deletion] = Recent(PENDING_EDITS_MAX)

    async def send(self, change: Edit | Deletion, inbox: InboxPort) -> None:
        """Send a change to the thread its message went to; keep it if the message has not come yet. Raises StoreError.

        Of `change.thread` only the channel counts.
        """
        thread = await inbox.thread_of(channel_of(change.thread), "", change.key)
        if thread is None:
            self.keep(change)
        else:
            await inbox.send(msgspec.structs.replace(change, thread=thread))

    def keep(self, change: Edit | Deletion) -> None:
        """Keep a change for a message that has not come yet."""
        self._changes.put(change.key, change)

    def apply(self, prompt: Prompt) -> Prompt | None:
        """A message as its author has changed it since; None where it was deleted, and its files with it."""
        change = self._changes.get(prompt.key)
        if isinstance(change, Deletion):
            remove_attachments(prompt)
            return None
        if change is None or change.author.id != prompt.author.id:
            return prompt
        return msgspec.structs.replace(prompt, text=change.text, tainted_by=prompt.tainted_by or change.tainted_by)


class ChannelServers:
    """Which server each channel of an account belongs to: a guild of Discord, a team of Teams.

    Stored for `AgentStore.server_of`, since a thread's id does not tell.
    """

    def __init__(self, platform: str, store: Settings) -> None:
        self._scope = servers_scope(platform)
        self._store = store
        self._known: Recent[str] = Recent(KNOWN_SERVERS_MAX)

    async def note(self, channel: str, server: str) -> None:
        """Remember a channel's server; an empty one says nothing. Raises StoreError."""
        if not server or self._known.get(channel) == server:
            return
        if await self._store.get(self._scope, channel) != server:
            await self._store.put(self._scope, channel, server)
        self._known.put(channel, server)


# ---- files ----


async def save_attachment(
    home: Home, clock: Clock, thread: ThreadId, file: Attachment, fetch: Callable[[], Awaitable[bytes]]
) -> Attachment:
    """Fetch a file into the thread's attachments; returns it with its path, or with the reason why it has none."""
    try:
        body = await fetch()
        path = home.attachments(thread) / f"{clock.new_id()}-{short_name(file.name)}"

        def write() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)

        await asyncio.to_thread(write)
    except PlatformError as error:
        return msgspec.structs.replace(file, error=str(error))
    except OSError as error:
        return msgspec.structs.replace(file, error=f"could not be stored: {error.strerror}")
    return msgspec.structs.replace(file, size_bytes=len(body), path=str(path))


def short_name(name: str) -> str:
    """The end of a file's name, encoded so that it is safe as one."""
    return encode_part(name).encode()[-NAME_BYTES_MAX:].decode("utf-8", "ignore")


def remove_attachments(prompt: Prompt) -> None:
    """Remove the saved files of a message that no turn will have."""
    for file in prompt.attachments:
        if file.path:
            with suppress(OSError):
                Path(file.path).unlink()


def read_file(path: Path, bytes_max: int) -> bytes:
    """The content of a file to upload. Raises PlatformError, for good when it is gone or too large."""
    with open_file(path) as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise PlatformError(f"The file {path.name!r} has more than {bytes_max:,} bytes.", permanent=True)
    return content


@contextmanager
def open_file(path: Path) -> Generator[BinaryIO]:
    """A file to upload. Raises PlatformError when it cannot be read; for good when it is gone."""
    try:
        with path.open("rb") as content:
            yield content
    except OSError as error:
        reason = f"The file {path.name!r} cannot be read: {error.strerror}."
        raise PlatformError(reason, permanent=isinstance(error, FileNotFoundError)) from error
