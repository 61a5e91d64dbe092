"""The tools `message`, which writes to this or another conversation, and `upload`, which posts files in this one."""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from shoal.files.mounts import MountedPath
from shoal.kernel.errors import InvalidId, ToolError
from shoal.kernel.events import UserSaid
from shoal.kernel.files import in_thread
from shoal.kernel.ids import UNOPENED, ThreadId, make_thread_id, parse_thread_id, thread_address
from shoal.kernel.messages import Author
from shoal.kernel.permissions import Action
from shoal.kernel.phrases import counted
from shoal.kernel.ports import ChatAdapter, Invocation, ToolContext, ToolOutput
from shoal.kernel.records import NewPost
from shoal.kernel.traits import Traits, Treatment, Treatments
from shoal.tools.attachments import keep_copy
from shoal.tools.builtin.files import PathArgument
from shoal.tools.functions import FunctionTool, Prepared, canonical, tool
from shoal.tools.jail import jail_of

UPLOAD_BYTES_MAX = 26_214_400
"""Maximum size of a file that can be posted. The platform's own limit may be lower."""
FILES_MAX = 10
TEXT_CHARS_MAX = 50_000
HERE = "here"
"""Destination that means the conversation of the turn."""
UNREAD = frozenset({"openai"})
"""Platforms where people read only a turn's answer."""


@tool(
    Traits(
        group="messages",
        offered="deferred",
        effect="outward",
        can_stage=True,
        origin="own",
        names="sent",
        harm="none",
        changes="nothing",
    ),
    example={"path": "notes.txt", "comment": "here"},
)
def upload(
    context: ToolContext,
    path: PathArgument,
    comment: Annotated[str, Meta(description="Text to post with the file.", max_length=4000)] = "",
    more: Annotated[
        tuple[str, ...],
        Meta(description="Paths of more files to send with the first one, as an album.", max_length=FILES_MAX - 1),
    ] = (),
) -> Invocation:
    """Send one or more files to the person you are talking with, by posting them in this conversation. Pictures are
    shown.
    """
    jail = jail_of(context)
    places = [jail.resolve(name) for name in (path, *more)]
    for place in places:
        if jail.size(place) is None:
            raise ToolError(f"{place.shown} does not exist.")

    async def work() -> ToolOutput:
        # copy now, because the files may change before they are posted
        copies = [await _copied(place, context) for place in places]
        file, *album = (copy for copy, _ in copies)
        post = NewPost(_post_id(context), context.chat, comment, "file", file=file, album=tuple(album))
        await context.services.post(post)
        posted = zip(places, copies, strict=True)
        return ToolOutput("\n".join(f"Posted {place.shown} ({counted(size, 'byte')})." for place, (_, size) in posted))

    shown = "\n".join(f"upload {place.shown} ({counted(jail.size(place) or 0, 'byte')})" for place in places)
    further = {"more": [place.shown for place in places[1:]]} if more else {}
    effect = canonical("upload", path=places[0].shown, comment=comment, **further)
    actions = tuple(Action(f"tool:upload:{place.shown}", runs=(place.shown,)) for place in places)
    return Prepared(actions, f"{shown}\n\n{comment}".strip(), effect, work)


MESSAGE = tool(
    Traits(
        group="messages",
        offered="always",
        rank=8,
        effect="outward",
        can_stage=True,
        idempotent=True,
        origin="own",
        harm="message",
        harmless=(HERE,),
        changes="nothing",
        treatments=Treatments(guarded=Treatment(HERE, "messages in the same conversation")),
    ),
    name="message",
    example={"text": "hello", "to": HERE},
)


class _Target(NamedTuple):
    """Destination of a message.

    is_here: the turn already posts there.
    opens: the message opens a new thread in a channel.
    """

    thread: ThreadId
    is_here: bool
    opens: bool = False

    @property
    def name(self) -> str:
        return self.thread.rpartition(":")[0] if self.opens else self.thread


def message_tool(adapters: Mapping[str, ChatAdapter]) -> FunctionTool[Invocation]:
    """Create `message`, which posts through the outbox. A message to another thread is also recorded in that
    thread's journal, where later turns see it.
    """

    def target_of(to: str, context: ToolContext) -> _Target:
        usual = context.purpose.speaks_in or context.chat
        if to == HERE:
            target = _Target(usual, is_here=True)
        elif to.count(":") == 1:
            target = _Target(_thread_of(f"{to}:{UNOPENED}"), is_here=False, opens=True)
        else:
            thread = _thread_of(to)
            target = _Target(thread, is_here=thread == usual)
        platform = thread_address(target.thread).platform
        if platform not in adapters:
            raise ToolError(f"Platform {platform!r} is not connected. Connected: {', '.join(sorted(adapters))}.")
        return target

    @MESSAGE
    def message(
        context: ToolContext,
        text: Annotated[str, Meta(description="The text, in Markdown.", max_length=TEXT_CHARS_MAX)] = "",
        to: Annotated[
            str,
            "Destination. Default: this conversation (in an unattended task, your owner's direct conversation). "
            "PLATFORM:CHANNEL starts a thread in a channel or a person's direct messages. PLATFORM:CHANNEL:THREAD "
            "posts in an existing thread.",
        ] = HERE,
        file: Annotated[str, "Path of a file to send with the message."] = "",
        as_file: Annotated[str, "File name, such as report.md, if asked to send a long text as a file."] = "",
    ) -> Invocation:
        """Send a message to people now, in this conversation or in another channel. In this conversation, use it before
        your turn ends, or instead of your final text. A message to this conversation counts as your answer.
        """
        if not text.strip() and not file:
            raise ToolError("The message is empty. Pass text or a file.")
        if as_file and not text.strip():
            raise ToolError("The file has no text. Pass `text`, or a path as `file`.")
        if not as_file:
            text = context.purpose.as_shown(text)
        target = target_of(to.strip() or HERE, context)
        place = jail_of(context).resolve(file) if file else None
        if place is not None and jail_of(context).size(place) is None:
            raise ToolError(f"{place.shown} does not exist.")

        async def work() -> ToolOutput:
            copies = [] if place is None else [(await _copied(place, context))[0]]
            caption = text
            if as_file:
                name, content = PurePosixPath(as_file).name, text.encode()
                copies.insert(0, str(await in_thread(lambda: keep_copy(context.home, context.thread, name, content))))
                caption = ""
            kind = "opening" if target.opens else "file" if copies else "text"
            note = _note(text or f"[file {copies[0]}]", context) if target.thread != context.thread else None
            files = {"file": copies[0], "album": tuple(copies[1:])} if copies else {}
            post = NewPost(_post_id(context), target.thread, caption, kind, note=note)
            await context.services.post(msgspec.structs.replace(post, **files))
            own = target.thread == context.thread and thread_address(target.thread).platform not in UNREAD
            return ToolOutput(f"Sent to {target.name}.", answers=own)

        if target.is_here:
            actions = (Action(f"tool:message:{HERE}", also=(f"tool:message:{target.thread}",)),)
        else:
            actions = (Action(f"tool:message:{target.name}"),)
        shown, path = f"message to {target.name}{f' as {as_file}' if as_file else ''}\n\n{text}", ""
        if place is not None:
            path = place.shown
            shown += f"\n[file {path}]"
            actions += (Action(f"tool:upload:{path}", runs=(path,)),)
        named = {"as_file": as_file} if as_file else {}
        return Prepared(actions, shown, canonical("message", text=text, to=target.thread, file=path, **named), work)

    return message


async def _copied(place: MountedPath, context: ToolContext) -> tuple[str, int]:
    jail, name = jail_of(context), PurePosixPath(place.shown).name
    content = await in_thread(lambda: jail.read(place, UPLOAD_BYTES_MAX))
    return str(await in_thread(lambda: keep_copy(context.home, context.thread, name, content))), len(content)


def _post_id(context: ToolContext) -> str:
    return hashlib.sha256(f"{context.turn}\0{context.call_id}".encode()).hexdigest()[:26]


def _note(text: str, context: ToolContext) -> UserSaid:
    agent, taint = context.agent.name, context.purpose.tainted_by
    author = Author(f"agent:{agent}", agent, is_bot=True, trusted=not taint)
    return UserSaid(
        f"[You wrote this here from another conversation:]\n{text}", author, origin="system", tainted_by=taint
    )


def _thread_of(text: str) -> ThreadId:
    with suppress(InvalidId):
        return parse_thread_id(text)
    try:
        return make_thread_id(*text.split(":", 2))
    except (InvalidId, TypeError) as error:
        raise ToolError(
            f"{text[:80]!r} is not a destination. Use PLATFORM:CHANNEL or PLATFORM:CHANNEL:THREAD."
        ) from error
