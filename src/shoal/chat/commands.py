"""What adapters share of commands and buttons: reading them, and handing them to the inbox."""

import msgspec

from shoal.domain.commands import ALIASES, COMMANDS, Asked
from shoal.domain.errors import Conflict, Forbidden, Gone, NotFound
from shoal.domain.events import Scope
from shoal.domain.ids import ApprovalId, ThreadId, thread_address
from shoal.domain.messages import Author, Prompt
from shoal.domain.permissions import Asker
from shoal.domain.ports import InboxPort

BUSY = "I am busy: too many messages wait already. Try again in a moment, or write /stop all."


class Spoken(msgspec.Struct, frozen=True):
    """A command as it was written: its name in the table, and what follows."""

    name: str
    argument: str


def parse_command(text: str, bot_name: str = "") -> Spoken | None:
    """The command a text is, with its argument; None for other text and for commands to another bot."""
    head, _, argument = text.strip().partition(" ")
    name, at, addressed = head.removeprefix("/").partition("@")
    if not head.startswith("/") or (at and addressed.lower() != bot_name.lower()):
        return None
    name = ALIASES.get(name.lower(), name.lower())
    return Spoken(name, argument.strip()) if name in COMMANDS else None


def asked_in(prompt: Prompt, spoken: Spoken) -> Asked:
    """The command that a message is."""
    return Asked(
        prompt.thread,
        prompt.author,
        spoken.name,
        spoken.argument,
        prompt.key,
        prompt.at,
        prompt.direct,
        prompt.message_id,
    )


async def take_in(prompt: Prompt, bot_name: str, inbox: InboxPort) -> str:
    """Send a prompt, or do what it commands; returns what to tell the person, often nothing. Raises StoreError."""
    spoken = parse_command(prompt.text, bot_name)
    if spoken is not None:
        return await inbox.command(asked_in(prompt, spoken))
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
