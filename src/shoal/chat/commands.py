"""Slash commands and button values: one table for all platforms, and what each asks of the inbox."""

from collections.abc import Awaitable, Callable
from datetime import datetime

import msgspec

from shoal.domain.errors import Conflict, Forbidden, Gone, NotFound
from shoal.domain.events import Scope
from shoal.domain.ids import ApprovalId, ThreadId, thread_address
from shoal.domain.messages import Abort, Author, Prompt, Steer
from shoal.domain.permissions import Asker
from shoal.domain.ports import InboxPort

BUSY = "I am busy: too many messages wait already. Try again in a moment, or write /stop all."


class Asked(msgspec.Struct, frozen=True):
    """A command as somebody gave it. `key` is its message's, unique within the platform."""

    thread: ThreadId
    author: Author
    key: str
    at: datetime
    argument: str = ""


class Command(msgspec.Struct, frozen=True):
    """A command: its name without the slash, its line in menus, and what it does; answers what to tell the person."""

    name: str
    description: str
    obey: Callable[[Asked, InboxPort], Awaitable[str]]


async def _help(asked: Asked, inbox: InboxPort) -> str:
    lines = [f"/{command.name} - {command.description}" for command in COMMANDS.values()]
    return "Write to me and I answer. Commands:\n\n" + "\n".join(lines)


async def _new(asked: Asked, inbox: InboxPort) -> str:
    try:
        await inbox.clear(asked.thread, asked.author.id)
    except NotFound:
        return "Nothing was said here yet."
    return "We start anew. What was said before is kept, but I do not look at it."


async def _status(asked: Asked, inbox: InboxPort) -> str:
    return await inbox.status(asked.thread)


async def _stop(asked: Asked, inbox: InboxPort) -> str:
    everything = asked.argument.strip().lower() == "all"
    receipt = await inbox.send(Abort(asked.thread, asked.author, everything))
    return "Stopping." if receipt.delivered else "Nothing runs here."


async def _steer(asked: Asked, inbox: InboxPort) -> str:
    text = asked.argument.strip()
    if not text:
        return "Write what I should know after /steer."
    receipt = await inbox.send(Steer(asked.thread, asked.key, text, asked.author, asked.at))
    return "" if receipt.status in ("delivered", "duplicate") else "Nothing runs here; write it as a message."


async def _approve(asked: Asked, inbox: InboxPort) -> str:
    return await settle(f"allow:{asked.argument.strip()}", asker_of(asked.thread, asked.author), inbox)


async def _deny(asked: Asked, inbox: InboxPort) -> str:
    return await settle(f"deny:{asked.argument.strip()}", asker_of(asked.thread, asked.author), inbox)


COMMANDS = {
    command.name: command
    for command in (
        Command("start", "what I can do", _help),
        Command("help", "the commands", _help),
        Command("new", "start a new conversation", _new),
        Command("status", "what I am doing", _status),
        Command("stop", "stop the running turn; /stop all also forgets what waits", _stop),
        Command("steer", "tell the running turn something", _steer),
        Command("approve", "allow what an approval asks: /approve ID", _approve),
        Command("deny", "deny what an approval asks: /deny ID", _deny),
    )
}


def parse_command(text: str, bot_name: str = "") -> tuple[Command, str] | None:
    """The command a text is, with its argument; None for other text and for commands to another bot."""
    head, _, argument = text.strip().partition(" ")
    name, at, addressed = head.removeprefix("/").partition("@")
    if not head.startswith("/") or (at and addressed.lower() != bot_name.lower()):
        return None
    command = COMMANDS.get(name.lower())
    return (command, argument) if command is not None else None


async def take_in(prompt: Prompt, bot_name: str, inbox: InboxPort) -> str:
    """Send a prompt, or do what it commands; returns what to tell the person, often nothing. Raises StoreError."""
    found = parse_command(prompt.text, bot_name)
    if found is not None:
        command, argument = found
        return await command.obey(Asked(prompt.thread, prompt.author, prompt.key, prompt.at, argument), inbox)
    receipt = await inbox.send(prompt)
    return BUSY if receipt.status == "busy" else ""


async def settle(value: str, by: Asker, inbox: InboxPort) -> str:
    """Do what a button's value says (`allow:ID`, `thread:ID`, `deny:ID`); returns what to tell who clicked."""
    verb, _, approval = value.partition(":")
    if verb not in ("allow", "thread", "deny") or not approval:
        return "This button is not known any more."
    scope: Scope = "thread" if verb == "thread" else "once"
    try:
        state = await inbox.decide(ApprovalId(approval), verb != "deny", by, scope)
    except (NotFound, Conflict, Gone, Forbidden) as error:
        return str(error)
    return {"allow": "Allowed.", "deny": "Denied."}.get(state, f"It is {state}.")


def asker_of(thread: ThreadId, author: Author) -> Asker:
    """Who asks, for the permission rules."""
    address = thread_address(thread)
    return Asker(author.id, author.name, author.roles, address.platform, address.channel)
