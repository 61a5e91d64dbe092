"""The tool `message`: says something to people, in this conversation or in another place, with a file if wanted."""

import hashlib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, ClassVar, NamedTuple

import msgspec
from msgspec import Meta

from shoal.domain.errors import InvalidId, ToolError
from shoal.domain.events import UserSaid
from shoal.domain.ids import UNOPENED, ThreadId, make_thread_id, parse_thread_id, thread_address
from shoal.domain.messages import Author
from shoal.domain.permissions import Action
from shoal.domain.ports import ChatAdapter, Invocation, ToolContext, ToolOutput
from shoal.domain.records import NewPost
from shoal.tools.builtin.channel import UPLOAD_BYTES_MAX
from shoal.tools.jail import Place, jail_of
from shoal.tools.keep import keep_copy
from shoal.tools.threads import in_thread
from shoal.tools.typed import Prepared, TypedTool, canonical

TEXT_CHARS_MAX = 50_000
HERE = "here"
"""Stands for the thread that a channel's post opens."""
UNREAD = frozenset({"openai"})
"""Platforms whose people read a turn's answer and nothing beside it."""


class MessageArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `message` takes."""

    text: Annotated[str, Meta(description="What to say, in Markdown.", max_length=TEXT_CHARS_MAX)] = ""
    to: Annotated[
        str,
        Meta(
            description="Where: leave it out for this conversation (from a task that nobody reads, the place where "
            "people last wrote to you), or PLATFORM:CHANNEL to begin something in a channel or a person's direct "
            "messages, or PLATFORM:CHANNEL:THREAD."
        ),
    ] = HERE
    file: Annotated[str, Meta(description="Path of a file to send with it.")] = ""


class _Target(NamedTuple):
    """Where a message goes; `is_here` is where the turn speaks anyway, `opens` a new thread of a channel."""

    thread: ThreadId
    is_here: bool
    opens: bool = False

    @property
    def action(self) -> Action:
        if self.is_here:
            return Action(f"tool:message:{HERE}", also=(f"tool:message:{self.thread}",))
        return Action(f"tool:message:{self.thread.rpartition(':')[0] if self.opens else self.thread}")


class MessageTool(TypedTool[MessageArguments]):
    """Posts through the outbox; the thread written to or opened notes it in its journal, so that who answers knows."""

    name: ClassVar[str] = "message"
    description: ClassVar[str] = (
        "Say something to people now: in this conversation, before your turn ends or instead of its last text, or in "
        "another channel. What you send to this conversation counts as your answer."
    )
    idempotent: ClassVar[bool] = True

    def __init__(self, adapters: Mapping[str, ChatAdapter]) -> None:
        super().__init__(MessageArguments)
        self._adapters = adapters

    def plan(self, arguments: MessageArguments, context: ToolContext) -> Invocation:
        """Find the place and the file. Raises ToolError for one that cannot be reached."""
        if not arguments.text.strip() and not arguments.file:
            raise ToolError("There is nothing to say: give a text or a file.")
        target = self._target(arguments.to.strip() or HERE, context)
        place = jail_of(context).resolve(arguments.file) if arguments.file else None
        if place is not None and jail_of(context).size(place) is None:
            raise ToolError(f"{place.shown} does not exist.")

        async def work() -> ToolOutput:
            await self._post(arguments.text, target, place, context)
            own = target.thread == context.thread and thread_address(target.thread).platform not in UNREAD
            return ToolOutput(f"Sent to {_named(target)}.", answers=own)

        what = f"\n[file {place.shown}]" if place is not None else ""
        effect = canonical(
            self.name, text=arguments.text, to=target.thread, file=place.shown if place is not None else ""
        )
        actions = (
            target.action,
            *((Action(f"tool:upload:{place.shown}", runs=(place.shown,)),) if place is not None else ()),
        )
        return Prepared(actions, f"message to {_named(target)}\n\n{arguments.text}{what}", effect, work)

    def _target(self, to: str, context: ToolContext) -> _Target:
        usual = context.purpose.speaks_in or context.chat
        if to == HERE:
            found = _Target(usual, is_here=True)
        elif to.count(":") == 1:
            found = _Target(_thread_of(f"{to}:{UNOPENED}"), is_here=False, opens=True)
        else:
            thread = _thread_of(to)
            found = _Target(thread, is_here=thread == usual)
        platform = thread_address(found.thread).platform
        if platform not in self._adapters:
            raise ToolError(f"Platform {platform!r} is not connected. Connected: {', '.join(sorted(self._adapters))}.")
        return found

    async def _post(self, text: str, target: _Target, place: Place | None, context: ToolContext) -> None:
        file = ""
        if place is not None:
            jail = jail_of(context)
            content = await in_thread(lambda: jail.read(place, UPLOAD_BYTES_MAX))
            name = PurePosixPath(place.shown).name
            file = str(await in_thread(lambda: keep_copy(context.home, context.thread, name, content)))
        stem = hashlib.sha256(f"{context.turn}\0{context.call_id}".encode()).hexdigest()[:26]
        kind = "opening" if target.opens else "file" if file else "text"
        note = _note(text or f"[file {file}]", context) if target.thread != context.thread else None
        await context.services.post(NewPost(stem, target.thread, text, kind, file=file, note=note))


def _note(text: str, context: ToolContext) -> UserSaid:
    """What another conversation is to know of what was said there."""
    agent, taint = context.agent.name, context.purpose.tainted_by
    author = Author(f"agent:{agent}", agent, is_bot=True, trusted=not taint)
    said = f"[You wrote here, from another conversation:]\n{text}"
    return UserSaid(said, author, origin="system", tainted_by=taint)


def _thread_of(text: str) -> ThreadId:
    try:
        return parse_thread_id(text)
    except InvalidId:
        pass
    try:
        return make_thread_id(*text.split(":", 2))
    except (InvalidId, TypeError) as error:
        raise ToolError(f"{text[:80]!r} is no place: give PLATFORM:CHANNEL or PLATFORM:CHANNEL:THREAD.") from error


def _named(target: _Target) -> str:
    return target.thread.rpartition(":")[0] if target.opens else target.thread
