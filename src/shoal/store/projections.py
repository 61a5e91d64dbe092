"""A thread's readable files, `log.jsonl` and `context.jsonl`, which are derived only from its journal.

The log is append-only and has one line for each message and decision. The context contains the model's input,
starting with the system text. Clears and compactions shorten it. Both files end at a resting point, which is an
event that has a line in the log and after which no turn is open. After a crash, lines after the log's last resting
point are removed and written again. Even after many interruptions the files are identical to the output of
`rebuild`. They are not synced to disk, so call `rebuild` after a power cut.
"""

import contextlib
import fcntl
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.clock import iso
from shoal.kernel.events import (
    ApprovalRequested,
    ApprovalSettled,
    AssistantSaid,
    Branched,
    Cleared,
    Compacted,
    EffectsAccepted,
    Event,
    Failed,
    FilesRestored,
    Forked,
    LimitReached,
    Steered,
    TurnFinished,
    TurnStarted,
    UserSaid,
    current,
)
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Author, ModelMessage
from shoal.kernel.regular_files import read_regular, regular_only
from shoal.kernel.transcript import Transcript, summary_message

LOG = "log.jsonl"
CONTEXT = "context.jsonl"
REFERRED = "referred_message"
"""Type of the log line for a referenced message. The line precedes the message that refers to it and belongs to the
same event. `outcome` is the kind of reference.
"""
WRITTEN_MAX = 256
"""Maximum number of threads whose last write is cached. For all other threads, the files are read."""
TAIL_BYTES = 4096
"""Number of bytes in the first read from the end of a file. Each further read is four times larger."""


class LogFile(msgspec.Struct, omit_defaults=True):
    """A file attached to a message.

    - `original`: the file's name.
    - `local`: the file's path below the thread's directory.
    """

    original: str
    local: str = ""


class LogLine(msgspec.Struct, omit_defaults=True):
    """A line of the log.

    - `user`: the author's id on the platform, or the agent's name for an answer.
    - `joined`: the ids of the messages whose texts precede the text of `message_id`.
    - `trusted`: True if no untrusted person or outside content contributed to the text.
    """

    seq: int
    at: str
    type: str
    turn: str = ""
    author: str = ""
    user: str = ""
    is_bot: bool | None = None
    message_id: str = ""
    joined: tuple[str, ...] = ()
    agent: str = ""
    text: str = ""
    trusted: bool = False
    attachments: tuple[LogFile, ...] = ()
    tools: tuple[str, ...] = ()
    outcome: str = ""


class _ContextLine(msgspec.Struct):
    seq: int
    message: ModelMessage


class _SystemMessage(msgspec.Struct, tag="system", tag_field="role"):
    text: str


class _SystemLine(msgspec.Struct):
    """The context's first line, with the system text.

    `seq` is the number of the event that set the text. `system` is the text's digest.
    """

    seq: int
    system: str
    message: _SystemMessage


class _LogPosition(msgspec.Struct):
    seq: int
    type: str


class ContextPosition(msgspec.Struct):
    """The number of the event from which a line of the context is derived."""

    seq: int


class _Line(NamedTuple):
    seq: int
    body: bytes


_encoder = msgspec.json.Encoder()
_log_position = msgspec.json.Decoder(_LogPosition)
_seq = msgspec.json.Decoder(ContextPosition)
_SYSTEM = lazy_re.compile(rb'\{"seq":\d+,"system":"([^"]*)"')


class _Written(NamedTuple):
    """The state of a thread's files after this process last wrote them. `log` and `context` are the stamps of the
    files.
    """

    seq: int
    system: str
    log: tuple[int, int]
    context: tuple[int, int]


class Projections:
    """Writes the threads' readable files. The methods block, so call them from a worker thread."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._written: dict[ThreadId, _Written] = {}

    def append(self, thread: ThreadId, events: Sequence[Event], systems: Mapping[str, str]) -> int:
        """Extend the files to the last resting point in `events`. Events already in the files are skipped. Raises
        OSError.

        `systems` maps digests to the system texts that the events refer to. Missing texts are omitted from the files.

        Return the number of the last event in the files. If `events` begin after a gap, write nothing. The caller
        must then call again with all events of the journal after the returned number. After a branch, call `rebuild`
        instead.
        """
        with self._locked(thread) as folder:
            log, context = folder / LOG, folder / CONTEXT
            known = self._written.pop(thread, None)
            if known is not None and (_stamp(log), _stamp(context)) == (known.log, known.context):
                written, system = known.seq, known.system
            else:
                written, end = _rest(folder)
                _truncate(log, end)
                _truncate(context, _context_end(context, written) if written else 0)
                system = ""
                if context.exists():
                    match = _SYSTEM.match(read_regular(context, 200))
                    system = match[1].decode() if match is not None else ""
            fresh = [event for event in events if event.seq > written]
            ends = _ends(fresh)
            if not ends or fresh[0].seq != written + 1:
                return written
            fresh = fresh[: ends[-1] + 1]
            if any(
                isinstance(event.data, Cleared | Compacted)
                or (isinstance(event.data, TurnStarted) and event.data.system not in ("", system))
                for event in fresh
            ):
                body = read_regular(context) if context.exists() else b""
                before = [_Line(_seq.decode(line).seq, line + b"\n") for _, line in _whole_lines(body, 0)]
                _replace(context, _fold(before, fresh, ends, systems))
                _append(log, _log_bytes(fresh))
            else:
                after = _append(context, _fold([], fresh, ends, {}))
                if len(self._written) >= WRITTEN_MAX:
                    self._written.clear()
                self._written[thread] = _Written(fresh[-1].seq, system, _append(log, _log_bytes(fresh)), after)
            return fresh[-1].seq

    def rebuild(self, thread: ThreadId, events: Sequence[Event], systems: Mapping[str, str]) -> None:
        """Write both files again from the complete journal, and replace each file atomically. Raises OSError.

        `systems` is the same as in `append`.
        """
        ends = _ends(events)
        finished = events[: ends[-1] + 1] if ends else ()
        seen = current(finished)
        with self._locked(thread) as folder:
            _replace(folder / CONTEXT, _fold([], seen, _ends(seen), systems))
            _replace(folder / LOG, _log_bytes(finished))

    def last_seq(self, thread: ThreadId) -> int:
        return _rest(self._home.thread(thread))[0]

    @contextlib.contextmanager
    def _locked(self, thread: ThreadId) -> Generator[Path]:
        folder = self._home.thread(thread)
        try:
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            folder.mkdir(parents=True, exist_ok=True)
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(held)


# ---- lines --------------------------------------------------------------------------------------------------------


def _ends(events: Sequence[Event]) -> list[int]:
    """Return the indexes of the resting points."""
    numbers: list[int] = []
    is_open = False
    for index, event in enumerate(events):
        is_open = _is_open_after(event.data.type, was_open=is_open)
        if not is_open and event.data.type not in _UNLOGGED:
            numbers.append(index)
    return numbers


_UNLOGGED = frozenset({"tool_started", "tool_result", "checkpointed", "files_changed"})


def _is_open_after(kind: str, *, was_open: bool) -> bool:
    return kind == TurnStarted.type or (was_open and kind != TurnFinished.type)


def _log_bytes(events: Iterable[Event]) -> bytes:
    # encode_lines leaks a reference to an iterator, but not to a list
    return _encoder.encode_lines([*_log_lines(events)])


def _log_lines(events: Iterable[Event]) -> Iterator[LogLine]:
    """Yield the log lines of events. `events` must not begin in the middle of a turn."""
    agent, said_after = "", ""
    for event in events:
        line = LogLine(event.seq, iso(event.at), event.data.type, event.turn)
        match event.data:
            case UserSaid() as said:
                for reference in (
                    said.refers_to if said.message_id else ()
                ):  # a restored message has no id, and the messages that it refers to are not logged again
                    if not reference.own:
                        log_line = LogLine(event.seq, line.at, REFERRED, event.turn, message_id=reference.message_id)
                        _name(log_line, reference.author, reference.text)
                        log_line.outcome = reference.kind
                        yield log_line
                line.message_id, line.joined = said.message_id, said.joined
                _name(line, said.author, said.text)
                read = said.tainted_by or (said.caller.tainted_by if said.caller is not None else "")
                line.trusted = line.trusted and not read
                line.attachments = tuple(
                    LogFile(attachment.name, f"attachments/{PurePath(attachment.path).name}" if attachment.path else "")
                    for attachment in said.attachments
                )
            case Steered() as said:
                line.message_id = said.message_id
                _name(line, said.author, said.text)
            case TurnStarted(agent=agent):
                line.agent = agent
            case AssistantSaid(text=text, tool_calls=calls, tainted_by=said_after):
                line.author, line.user, line.is_bot = agent, agent, True
                line.text, line.tools = text, tuple(call.name for call in calls)
                line.trusted = not said_after
            case ApprovalRequested(tool=tool, shown=shown):
                line.text, line.tools, line.trusted = shown, (tool,), not said_after
            case ApprovalSettled(by=by, decision=decision):
                line.author, line.outcome = by, decision
            case EffectsAccepted(by=by, calls=calls):
                line.author, line.tools = by, tuple(call.name for call in calls)
            case Compacted(summary=summary, tainted_by=read):
                line.text, line.trusted = summary, bool(summary) and not read
            case Cleared(by=by, reason=reason):
                line.author, line.text, line.trusted = by, reason, bool(reason)
            case Branched(after=after, by=by):
                line.author, line.text, line.trusted = by, f"continues after {after}", True
            case Forked(thread=source, seq=seq, by=by):
                line.author, line.text, line.trusted = by, f"copied from {source} up to event {seq}", True
            case FilesRestored(turn=turn, restored=restored, by=by, tainted_by=read):
                line.author, line.text, line.trusted = (
                    by,
                    (f"undid changes from {turn} (restored files: {restored})"),
                    not read,
                )
            case LimitReached(limit=limit, detail=detail):
                line.outcome, line.text, line.trusted = limit, detail, bool(detail)
            case Failed(kind=kind, message=message):
                line.outcome, line.text, line.trusted = kind, message, bool(message)
            case TurnFinished(outcome=outcome):
                line.outcome = outcome
            case _ if event.data.type in _UNLOGGED:
                continue
            case _:
                pass
        yield line


def _name(line: LogLine, author: Author, text: str) -> None:
    line.author, line.user, line.is_bot = author.name or author.id, author.id, author.is_bot
    line.text, line.trusted = text, author.trusted


def _fold(lines: list[_Line], events: Sequence[Event], ends: Sequence[int], systems: Mapping[str, str]) -> bytes:
    """Apply events to the lines of a context and return the new content. `ends` contains the indexes of the resting
    points.
    """
    match = _SYSTEM.match(lines[0].body) if lines else None
    head, digest = lines[: match is not None], match[1].decode() if match is not None else ""
    lines = lines[len(head) :]
    rests = frozenset(ends)
    piece = Transcript()
    for index, event in enumerate(events):
        data = event.data
        if isinstance(data, TurnStarted) and data.system not in ("", digest):
            digest, head = data.system, []
            if digest in systems:
                line = _SystemLine(event.seq, digest, _SystemMessage(systems[digest]))
                head = [_Line(event.seq, _encoder.encode(line) + b"\n")]
        elif isinstance(data, Cleared):
            lines, head, digest = [], [], ""
        elif isinstance(data, Compacted):
            summary = [_context_line(data.upto_seq, summary_message(data))] if data.summary else []
            lines = summary + [line for line in lines if line.seq > data.upto_seq]
            data = msgspec.structs.replace(data, summary="")  # the summary is already in `lines`
        piece.add(msgspec.structs.replace(event, data=data))
        if index in rests:
            piece.close_open_calls()
            lines += [_context_line(entry.seq, entry.message) for entry in piece.entries]
            piece = Transcript()
    return b"".join(line.body for line in (*head, *lines))


def _context_line(seq: int, message: ModelMessage) -> _Line:
    return _Line(seq, _encoder.encode(_ContextLine(seq, message)) + b"\n")


# ---- the files ----------------------------------------------------------------------------------------------------


def _rest(folder: Path) -> tuple[int, int]:
    """Return the event number of the log's last resting point and the end offset of its line, or (0, 0)."""
    if not (folder / CONTEXT).exists():
        return 0, 0
    for is_whole, lines in _tails(folder / LOG):
        rest: tuple[int, int] | None = None
        is_open = False if is_whole else None  # None: unknown, because the tail may begin within a turn
        for end, body in lines:
            try:
                line = _log_position.decode(body)
            except msgspec.MsgspecError:  # The line is incomplete. Do not use later lines.
                break
            if line.type in (TurnStarted.type, TurnFinished.type) or is_open is not None:
                is_open = _is_open_after(line.type, was_open=bool(is_open))
            if is_open is False and line.type != REFERRED:
                rest = line.seq, end
        if rest is not None:
            return rest
    return 0, 0


def _context_end(path: Path, seq: int) -> int:
    """Return the end offset of the last line that is derived from event `seq` or an earlier event, or 0."""
    for _, lines in _tails(path):
        for end, body in reversed(lines):
            with contextlib.suppress(msgspec.MsgspecError):
                if _seq.decode(body).seq <= seq:
                    return end
    return 0


def _tails(path: Path) -> Iterator[tuple[bool, list[tuple[int, bytes]]]]:
    """Yield increasingly long tails of a file.

    Each item is a pair: True if the tail is the complete file, and the tail's complete lines with their end offsets.
    """
    with contextlib.suppress(FileNotFoundError), open(path, "rb", opener=regular_only) as file:
        size, want = file.seek(0, os.SEEK_END), TAIL_BYTES
        while True:
            start = max(0, size - want)
            file.seek(start)
            tail = file.read(size - start)
            first = tail.find(b"\n") + 1 if start else 0
            yield start == 0, list(_whole_lines(tail[first:], start + first))
            if start == 0:
                return
            want *= 4


def _whole_lines(data: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    at = 0
    while (newline := data.find(b"\n", at)) >= 0:
        yield start + newline + 1, data[at:newline]
        at = newline + 1


def _truncate(path: Path, size: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > size:
            os.truncate(path, size)


def _append(path: Path, data: bytes) -> tuple[int, int]:
    file = regular_only(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        while data:
            data = data[os.write(file, data) :]
        return _stamp(file)
    finally:
        os.close(file)


def _stamp(file: Path | int) -> tuple[int, int]:
    """Return a file's size and modification time, which reveal writes by other processes."""
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    _append(fresh, data)
    fresh.replace(path)
