"""Builds the model's messages from a thread's journal, one event at a time.

The output never contains a tool call without a result. The results of a message's calls are added at the same time, in
call order, once every call has a result. If another event arrives first, a substitute is added for each missing result.
Adding an event takes constant time.
"""

from datetime import datetime
from pathlib import PurePath

import msgspec
from msgspec.structs import replace

from shoal.kernel.effect_notes import EffectNotes
from shoal.kernel.events import (
    INTERRUPTED,
    ApprovalRequested,
    ApprovalSettled,
    AssistantSaid,
    Cleared,
    Compacted,
    EffectsAccepted,
    Event,
    Failed,
    FilesRestored,
    Revised,
    Steered,
    ToolFinished,
    TurnStarted,
    UserSaid,
)
from shoal.kernel.ids import CallId, TurnId
from shoal.kernel.messages import (
    AssistantMessage,
    Attachment,
    Author,
    Image,
    ModelMessage,
    Reference,
    ToolMessage,
    UserMessage,
)
from shoal.kernel.untrusted import is_untrusted_block, untrusted_block

CUT_OFF = "[Your answer was cut off at the length limit. Continue exactly where it stopped.]"
CUT_OFF_BLANK = "[Your answer was cut off at the length limit before it had any text. Think less, and answer now.]"
SHOWN_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Media types of images that models accept. Other images are treated as ordinary files."""
SUMMARY_HEAD = "[Summary of the conversation so far]"
CONTEXT_HEAD = "<context>\n(From Shoal, not from the person: the current state.)"
CONTEXT_CHANGES = "Changed since your instructions above were written:\n"
"""Heading of the last part of a turn's context, before CONTEXT_TAIL.

That part lists the live sections that have changed since the system text was written.
"""
CONTEXT_TAIL = "</context>"


class TranscriptEntry(msgspec.Struct, frozen=True):
    """A message and its position in the journal."""

    seq: int
    turn: TurnId
    message: ModelMessage
    opens: bool = False
    """True for the first message of a turn."""
    at: datetime | None = None
    """Time of a turn's first message."""


class Transcript:
    """A thread's messages for the model since the last clear or compaction, oldest first."""

    def __init__(self) -> None:
        self.entries: list[TranscriptEntry] = []
        self.last_seq = 0
        self.turn = TurnId("")
        self._context = self._asked_by = self._system = ""
        self._open: AssistantMessage | None = None
        self._calls_at = 0
        self._results: dict[CallId, ToolMessage] = {}
        self._revised: list[str] = []
        self._notes: list[TranscriptEntry] = []
        self._effects = EffectNotes()

    def add(self, event: Event) -> None:
        """Add the next event. Its `seq` must be higher than those of all earlier events."""
        self.last_seq = event.seq
        match event.data:
            case TurnStarted(context=context, system=system):
                self._context = context
                # The new system text already contains the earlier changes that still apply, so remove them from earlier
                # messages.
                if self._system and system not in ("", self._system):
                    entries = [_without_changes(entry) for entry in self.entries]
                    if any(new is not old for new, old in zip(entries, self.entries, strict=True)):
                        self.entries = entries
                self._system = system or self._system
            case UserSaid(origin="system") as note if not event.turn:
                # An event from outside a turn is added to the current turn, after the results of the running calls.
                note_text = _by(note.author, note.text)
                if note.tainted_by and note.author.trusted:
                    note_text = untrusted_block(note.tainted_by, note_text)
                self._notes.append(TranscriptEntry(event.seq, self.turn, UserMessage(note_text)))
                if self._open is None:
                    self._put_notes()
            case UserSaid(origin="staged"):  # the model sees only the results of accepted calls
                self._context = ""
            case UserSaid() as note_text:
                if not note_text.backfill:
                    self._asked_by = "" if note_text.author.trusted else note_text.author.id
                revised = [*self._revised, *self._effects.take()]
                self._put(event, _user_message(note_text, self._context, revised))
                self._context, self._revised = "", []
            case Revised() as revised:
                self._revised.append(revision_text(revised))
            case FilesRestored() as restored:
                self._revised.append(_restoration(restored))
            case Steered(text=text, author=author):
                self._asked_by = self._asked_by or ("" if author.trusted else author.id)
                self._put(event, UserMessage("\n\n".join((*self._effects.take(), _by(author, text)))))
            case ApprovalRequested() as request:
                self._effects.ask(request)
            case ApprovalSettled() as settled:
                self._effects.decide(settled)
            case EffectsAccepted() as accepted:
                self._effects.begin(accepted)
            case Failed() as failed:
                self._effects.drop(failed)
            case AssistantSaid() as note_text:
                self._put(event, message := AssistantMessage(note_text.text, note_text.tool_calls, note_text.opaque))
                if note_text.tool_calls:
                    self._open, self._calls_at = message, event.seq
                elif note_text.stop == "max_tokens":
                    asked = CUT_OFF if note_text.text.strip() else CUT_OFF_BLANK
                    self.entries.append(TranscriptEntry(event.seq, event.turn, UserMessage(asked)))
            case ToolFinished() as result:
                self._add_result(result)
            case Cleared():
                self.close_open_calls()
                self._revised.clear()
                self.entries = [entry for entry in self.entries if entry.seq > event.seq]
            case Compacted() as compacted:
                self.close_open_calls()
                self.entries = [entry for entry in self.entries if entry.seq > compacted.upto_seq]
                if compacted.summary:
                    self.entries.insert(0, TranscriptEntry(compacted.upto_seq, TurnId(""), summary_message(compacted)))
            case _:
                pass

    def expired(self, before: datetime) -> int:
        """Return the number of the last event in the turns that began before this time, or 0.

        Looks only at the oldest turns, up to the first one that began later.
        """
        upto = 0
        for entry in self.entries:
            if entry.at is not None:
                if entry.at >= before:
                    return upto
                upto = entry.seq
            elif upto:
                upto = entry.seq
        return upto

    def messages_of(self, turn: TurnId) -> tuple[ModelMessage, ...]:
        """Return the messages of one turn. If a call may lack a result, call `close_open_calls` first."""
        return tuple(entry.message for entry in self.entries if entry.turn == turn)

    def turn_starts(self) -> list[int]:
        """Return the event numbers of each turn's first message. The context may be cut at these positions."""
        return [entry.seq for entry in self.entries if entry.opens]

    def _put(self, event: Event, message: ModelMessage) -> None:
        self.close_open_calls()
        opens = event.turn != self.turn
        if opens:
            self.turn = event.turn  # All messages of the turn share one string.
        self.entries.append(TranscriptEntry(event.seq, self.turn, message, opens, event.at if opens else None))

    def _add_result(self, result: ToolFinished) -> None:
        if self._effects.finish(result) or self._open is None or result.call_id in self._results:
            return
        if all(call.id != result.call_id for call in self._open.tool_calls):
            return
        text, source = result.text, result.tainted_by or self._asked_by
        if result.found:  # trusted, because the owner configured these tools
            text = "\n".join((text, *(tool.definition for tool in result.found)))
        elif source and not is_untrusted_block(text):
            text = untrusted_block(source, text)
        self._results[result.call_id] = ToolMessage(
            result.call_id,
            result.name,
            text,
            result.is_error,
            result.images,
            result.artifact,
            result.found,
            wrapped=any(call.wrapped for call in self._open.tool_calls if call.id == result.call_id),
        )
        if len(self._results) == len(self._open.tool_calls):
            self.close_open_calls()

    def _put_notes(self) -> None:
        notes, self._notes = self._notes, []
        self.entries.extend(notes)

    def close_open_calls(self) -> None:
        """Add the results of the open calls, with a substitute for each missing result. Call this when the turn
        has ended.
        """
        if self._open is not None:
            for call in self._open.tool_calls:
                result = self._results.get(call.id)
                if result is None:
                    result = ToolMessage(call.id, call.name, INTERRUPTED, is_error=True, wrapped=call.wrapped)
                self.entries.append(TranscriptEntry(self._calls_at, self.turn, result))
            self._open = None
            self._results = {}
            self._put_notes()


def _without_changes(entry: TranscriptEntry) -> TranscriptEntry:
    """Remove the list of changed instructions from a message. Return the same object if it has none."""
    message = entry.message
    if not isinstance(message, UserMessage) or not message.text.endswith(CONTEXT_TAIL):
        return entry
    text, head, block = message.text.rpartition(CONTEXT_HEAD)
    unchanged, changes, _ = block.partition(CONTEXT_CHANGES)
    if not (head and changes):
        return entry
    return replace(entry, message=replace(message, text=f"{text}{head}{unchanged}{CONTEXT_TAIL}"))


def summary_message(compacted: Compacted) -> UserMessage:
    summary, source = compacted.summary, compacted.tainted_by
    return UserMessage(f"{SUMMARY_HEAD}\n{untrusted_block(source, summary) if source else summary}")


def _by(author: Author, text: str) -> str:
    text_by = f"[{author.name}] {text}" if author.name else text
    if author.trusted:
        return text_by
    return untrusted_block(author.id, text_by)


def _describe(attachment: Attachment, sender: Author) -> str:
    """Describe a file for the model. The description of an untrusted author's file is an untrusted block."""
    where = attachment.inside or (f"/attachments/{PurePath(attachment.path).name}" if attachment.path else "")
    is_theirs = attachment.author is None
    note = attachment.error or ("its text is above" if attachment.words and is_theirs else "")
    where = ": ".join(part for part in (where, note) if part) or "not downloaded"
    description = f"[attachment {attachment.name!r}, {attachment.media_type}, {attachment.size_bytes} bytes: {where}]"
    if attachment.excerpt:
        description = f"{description}\n{attachment.excerpt}"
    if attachment.words and not is_theirs:
        description = f"{description}\n[Transcript:] {attachment.words}"
    author = attachment.author or sender
    source = attachment.tainted_by if author.trusted else author.id or attachment.tainted_by
    return description if author.trusted and not source else untrusted_block(source, description)


def revision_text(revised: Revised) -> str:
    author = revised.author
    if revised.deleted:
        text = f"[{author.name or author.id} deleted message {revised.message_id}]"
    else:
        new_text = f"[{author.name}] {revised.text}" if author.name else revised.text
        text = f"[message {revised.message_id} was edited; it now says:]\n{new_text}"
    return text if author.trusted else untrusted_block(author.id, text)


_REFERS = {
    "reply": "In reply to",
    "quote": "Quoted",
    "forward": "Forwarded",
    "opening": "The thread began with",
    "before": "Earlier in the channel",
}


def _reference(reference: Reference) -> str:
    """Describe a referenced message for the model. The text of an untrusted author is in an untrusted block."""
    if reference.own and reference.author.trusted:
        quote = reference.text and f"You said: {reference.text}"
        return f"[{_REFERS[reference.kind]}: {quote or 'a message of yours'}]"
    author = reference.author
    quote = f"[{author.name}] {reference.text}" if author.name else reference.text
    if not author.trusted:
        quote = untrusted_block(author.id or reference.tainted_by, quote)
    return f"[{_REFERS[reference.kind]}:]\n{quote}"


def _restoration(restored: FilesRestored) -> str:
    more, stayed = restored.restored - len(restored.files), ", ".join(restored.stayed)
    names = f"{', '.join(restored.files)}{f' and {more} more' if more else ''}"
    if stayed:
        names = (
            f"{names or 'none'}; not restored: {stayed}{' and more' if restored.left > len(restored.stayed) else ''}"
        )
    undone = "an earlier undo" if restored.again else "earlier changes to files"
    text = f"[{restored.by} undid {undone} and restored these workspace files: "
    if restored.tainted_by:
        return f"{text}]\n{untrusted_block(restored.tainted_by, names)}"
    return f"{text}{names}. Read the files again before you rely on earlier knowledge of them.]"


def _user_message(data: UserSaid, context: str, revised: list[str]) -> UserMessage:
    text = data.text if data.said_at is None else f"({data.said_at:%Y-%m-%d %H:%M} UTC) {data.text}"
    by_caller = data.caller.tainted_by if data.caller is not None else ""
    read = data.tainted_by or by_caller  # untrusted content that the owner or a calling agent had read
    is_shown = any(item.tainted_by == read for item in (*data.refers_to, *data.attachments))
    follows_untrusted = read and data.author.trusted and not is_shown
    before = [untrusted_block(read, "The author of the text below had read this source.")] if follows_untrusted else []
    sender = Author(read, trusted=False) if follows_untrusted else data.author  # The attached files are untrusted too.
    attached = (_describe(attachment, sender) for attachment in data.attachments)
    parts = [*revised, *before, *map(_reference, data.refers_to), _by(data.author, text), *attached]
    if context:
        parts.append(context)
    images = tuple(
        Image(attachment.shown or attachment.path, attachment.shown_type or attachment.media_type)
        for attachment in data.attachments
        if attachment.path and not attachment.error and (attachment.shown_type or attachment.media_type) in SHOWN_IMAGES
    )
    return UserMessage("\n\n".join(parts), images)
