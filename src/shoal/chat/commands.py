"""What adapters share of commands and buttons: reading them, and handing them to the inbox."""

import asyncio

import msgspec

from shoal.chat.kept import remove_files
from shoal.domain.commands import ALIASES, COMMANDS, Asked
from shoal.domain.errors import Conflict, Forbidden, Gone, InvalidInput, NotFound
from shoal.domain.events import Scope
from shoal.domain.ids import ApprovalId, ThreadId, thread_address
from shoal.domain.messages import Abort, Author, Prompt, Receipt, Retry
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
        direct=prompt.direct,
        message_id=prompt.message_id,
    )


async def take_in(prompt: Prompt, bot_name: str, inbox: InboxPort) -> str:
    """Send a prompt, or do what it commands; returns what to tell the person, often nothing. Raises StoreError.

    Its files stay only if a turn will have them: it is with the turn that those of strangers are marked.
    """
    spoken = parse_command(prompt.text, bot_name)
    receipt = Receipt("dropped")
    try:
        if spoken is not None:
            return await inbox.command(asked_in(prompt, spoken))
        receipt = await inbox.send(prompt)
        return BUSY if receipt.status == "busy" else ""
    finally:
        if prompt.attachments and receipt.status != "accepted":
            await asyncio.to_thread(remove_files, prompt)


async def press(value: str, thread: ThreadId, author: Author, inbox: InboxPort) -> str:
    """Do what a button's value says; returns what to tell who pressed it. Raises StoreError.

    `allow:ID`, `thread:ID` and `deny:ID` decide an approval; `retry:TURN`, `retry:TURN:MODEL` and `retry:TURN:stop`
    settle a turn that waits for its model.
    """
    verb, _, what = value.partition(":")
    try:
        match verb:
            case "allow" | "thread" | "deny" if what:
                scope: Scope = "thread" if verb == "thread" else "once"
                state = await inbox.decide(ApprovalId(what), verb != "deny", asker_of(thread, author), scope)
                return {"allow": "Allowed.", "deny": "Denied."}.get(state, f"It is {state}.")
            case "retry" if what:
                turn, _, model = what.partition(":")
                stops = model == "stop"
                change = Abort(thread, author, turn=turn) if stops else Retry(thread, author, turn, model)
                receipt = await inbox.send(change)
                if not receipt.delivered:
                    return "That is over."
                return "Stopping." if stops else "Trying again."
            case _:
                return "This button is not known any more."
    except (NotFound, Conflict, Gone, Forbidden, InvalidInput) as error:
        return str(error)


def asker_of(thread: ThreadId, author: Author) -> Asker:
    """Who asks, for the permission rules."""
    address = thread_address(thread)
    return Asker(
        trust="untrusted",  # the door says who is more than that
        user=author.id,
        name=author.name,
        roles=author.roles,
        platform=address.platform,
        channel=address.channel,
    )
