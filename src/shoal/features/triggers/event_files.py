"""Event files: JSON files in `data/events/` that start turns immediately, at a time, or repeatedly.

type        what happens to the file                         what starts the turn
----------  -----------------------------------------------  ------------------------------------------------------
immediate   moves to done/ when the message is accepted, or  the scan that finds the file; later scans retry while
            when it is posted, if it names a channel         the queue is full
one-shot    stays until its time, then moves to done/        a stored trigger named `file:NAME`
periodic    stays; deleting the file removes the trigger     a stored trigger named `file:NAME`

A file moves to failed/, next to a .reason.txt file, if it is malformed, was missed, or its message cannot be sent.

A changed file replaces its trigger. A file that is not valid JSON may be incomplete. It is read again up to three
times, and after each change, before it moves to failed/.
"""

import asyncio
import contextlib
import logging
import os
import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from shoal.features.triggers.records import NewTrigger, Trigger
from shoal.features.triggers.schedules import check, first_time, single_time
from shoal.features.triggers.service import SourceOf, TriggerTarget, message_of
from shoal.features.triggers.store import TriggerStore, key_of
from shoal.kernel.clock import Clock
from shoal.kernel.crash_log import CrashLog
from shoal.kernel.errors import InvalidInput, ShoalError
from shoal.kernel.ids import ThreadId, parse_thread_id, unopened
from shoal.kernel.messages import Author
from shoal.kernel.records import Opening
from shoal.kernel.schema import refusal
from shoal.kernel.untrusted import UNREADABLE, is_text, written_after
from shoal.kernel.zones import zone_named

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""Seconds between two listings of the directory. Unlike kernel notifications, listings also find files that other
machines write.
"""
LOOKS_A_SCAN = 20
"""Number of listings after which the directory is scanned even if it has not changed."""
RETRY_SECONDS = (0.1, 0.2, 0.4)
FILE_BYTES_MAX = 65_536
FILES_MAX = 1000
"""Maximum number of files read from the directory, and of files kept in done/ and in failed/. The oldest files are
deleted.
"""

_NAME_PREFIX = "file:"
_OWNER = Author("shoal", trusted=True)
"""Author of prompts from event files. The prompts act for the owner, because anyone who can write to the directory has
full access. If untrusted content influenced a file, its prompt is tainted.
"""
_NAME_BYTES_MAX = 255
_WRITTEN_MAX = 4e9
"""Maximum modification time to accept, in seconds since 1970. File systems can store later times."""
_EventFileStamp: TypeAlias = tuple[int, int, int]
"""Modification time in nanoseconds, size and inode of a file. If the file changes, its stamp changes too."""


class _HalfWrittenError(InvalidInput):
    """Raised for a file that is not valid JSON, perhaps because it is still being written."""


class _EventFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Format of an event file."""

    type: Literal["immediate", "one-shot", "periodic"]
    text: str
    threadId: str = ""  # noqa: N815 (the format's own name)
    adapterId: str = ""  # noqa: N815
    channelId: str = ""  # noqa: N815
    schedule: str = ""
    timezone: str = ""
    agent: str = ""


_decoder = msgspec.json.Decoder(_EventFile)


ZoneOf = Callable[[str, ThreadId | None], Awaitable[str]]
"""Returns the time zone of the named agent, or of the agent that answers in a channel or thread. Raises StoreError."""


async def in_utc(agent: str, place: ThreadId | None) -> str:
    return "UTC"


@dataclass(eq=False, repr=False)
class EventFiles:
    """Watches a directory of event files and keeps the stored triggers in sync with it."""

    directory: Path
    triggers: TriggerStore
    target: TriggerTarget
    clock: Clock
    poke: Callable[[], None]
    source_of: SourceOf
    zone_of: ZoneOf = in_utc
    crash_log: CrashLog = field(default_factory=CrashLog)
    _known: dict[str, _EventFileStamp] = field(default_factory=dict[str, _EventFileStamp], init=False)

    async def run(self) -> None:
        """Scan at startup and after each change, until cancelled. Creates the directories.

        If the directories become unreadable, for example because a disk was removed, the triggers remain unchanged.
        """
        is_made, is_readable = False, True
        while True:
            try:
                if not is_made:  # only once, because an empty recreated directory would remove all triggers
                    for path in (self.directory, self.directory / "done", self.directory / "failed"):
                        path.mkdir(parents=True, exist_ok=True)
                    is_made = True
                seen = self._present()
                await self.scan()
                is_readable = True
                for _ in range(LOOKS_A_SCAN):
                    await asyncio.sleep(LOOK_SECONDS)
                    if self._present() != seen:
                        break
            except OSError as error:
                if is_readable:
                    log.warning("reading event files failed; check their directory", extra={"why": str(error)})
                is_readable = False
                await asyncio.sleep(LOOK_SECONDS)

    async def scan(self) -> None:
        """Import new and changed files, remove the triggers of deleted files, and move finished files to done/ or
        failed/.

        Raises StoreError.
        """
        present = self._present()
        stored: dict[str, list[Trigger]] = {}
        for trigger in sorted(await self.triggers.all(), key=lambda trigger: trigger.id):
            if trigger.spec.name.startswith(_NAME_PREFIX):
                stored.setdefault(trigger.spec.name.removeprefix(_NAME_PREFIX), []).append(trigger)
        for name in stored.keys() - present.keys():
            for trigger in stored.pop(name):
                put_away = (self.directory / folder / name for folder in ("done", "failed"))
                if trigger.spec.kind == "one-shot" and trigger.last_at is not None and any(map(Path.exists, put_away)):
                    continue  # it has fired, and its turn may be retried
                if trigger.state in ("active", "paused") or await self._is_on_its_way(trigger):
                    await self.triggers.remove(trigger.id)
        self._known = {name: stamp for name, stamp in self._known.items() if name in present}
        left = await self._process_files(present, stored)
        for seconds in RETRY_SECONDS:
            if left:
                await self.clock.sleep(seconds)
                left = await self._process_files({name: present[name] for name in left}, stored)
        now = self._present() if left else {}
        for name, problem in left.items():
            if now.get(name) == present[name]:  # otherwise it is still being written, and the next scan reads it
                self._refuse(name, present[name], problem)

    async def _process_files(
        self, files: Mapping[str, _EventFileStamp], stored: Mapping[str, list[Trigger]]
    ) -> dict[str, "_HalfWrittenError"]:
        """Process each file. Return the incomplete files. The caller retries them last, so they do not delay other
        files.
        """
        left: dict[str, _HalfWrittenError] = {}
        for name, stamp in files.items():
            try:
                with self.crash_log.during(f"{name} {stamp}"):
                    await self._look_at(name, stamp, stored.get(name, []))
            except _HalfWrittenError as problem:
                left[name] = problem
            except InvalidInput as problem:
                self._refuse(name, stamp, problem)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._leave(name, stamp, error)
        return left

    def _refuse(self, name: str, stamp: _EventFileStamp, problem: InvalidInput) -> None:
        try:
            self._put_away(name, "failed", str(problem))
        except FileNotFoundError:
            return
        except OSError as error:
            self._leave(name, stamp, error)

    def _leave(self, name: str, stamp: _EventFileStamp, error: OSError) -> None:
        self._known[name] = stamp
        log.warning(
            "processing event file failed; check the permissions of its directory",
            extra={"file": name, "why": error.strerror},
        )

    def _present(self) -> dict[str, _EventFileStamp]:
        stamps: dict[str, _EventFileStamp] = {}
        for name in sorted(os.listdir(self.directory))[:FILES_MAX]:
            if name.startswith(".") or not name.endswith(".json") or not is_text(name):
                continue
            with contextlib.suppress(FileNotFoundError):  # just deleted
                status = os.lstat(self.directory / name)
                if stat.S_ISREG(status.st_mode):
                    stamps[name] = _stamp(status)
        return stamps

    async def _look_at(self, name: str, stamp: _EventFileStamp, stored: list[Trigger]) -> None:
        if self._known.get(name) != stamp:
            event, stamp = _read(self.directory / name)
            written_at = datetime.fromtimestamp(min(max(stamp[0] / 1e9, 0), _WRITTEN_MAX), UTC)
            timezone = event.timezone or await self.zone_of(event.agent, _place_of(event))
            spec = _spec(name, event, await self.source_of(self.directory / name), timezone, written_at)
            if event.type == "immediate":
                key = f"{_NAME_PREFIX}{name}@{stamp[0]}"
                author = msgspec.structs.replace(_OWNER, name=f"event {Path(name).stem}")
                prompt = message_of(spec, key, spec.text, author, self.clock.now())
                if spec.thread is not None:
                    if (await self.target.send(prompt)).status != "busy":
                        self._put_away(name, "done")
                    return
                # A later scan moves the file when the outcome of the post is known.
                fate = await self.target.fate(prompt.key)
                if fate is None:
                    await self.target.open(Opening(prompt))
                elif fate.state == "sent":
                    self._put_away(name, "done")
                elif fate.state == "failed":
                    self._put_away(name, "failed", fate.error)
                return
            # Keep one trigger per file. If two processes added one, keep the older.
            same = [trigger for trigger in stored if trigger.spec == spec]
            for trigger in stored:
                if trigger not in same[:1]:
                    await self.triggers.remove(trigger.id)
            stored = same[:1]
            if not stored:
                if spec.kind == "one-shot":  # a past time is accepted: the trigger fires late or is recorded as missed
                    first_at = single_time(spec.schedule, zone_named(spec.timezone))
                else:
                    first_at = first_time(spec, self.clock.now())
                stored = [await self.triggers.add(spec, first_at)]
                self.poke()
            self._known[name] = stamp
        for trigger in stored:
            if trigger.spec.kind == "one-shot" and trigger.state == "done":
                if not await self._is_on_its_way(trigger):
                    self._put_away(name, "done")
            elif trigger.spec.kind == "one-shot" and trigger.state in ("missed", "failed"):
                self._put_away(name, "failed", trigger.error or "The event's time passed while Shoal was not running.")

    async def _is_on_its_way(self, trigger: Trigger) -> bool:
        """Return True if the trigger's post is still waiting for its platform."""
        if trigger.spec.thread is not None or trigger.last_at is None:
            return False
        fate = await self.target.fate(key_of(trigger, trigger.last_at))
        return fate is not None and fate.state in ("pending", "sending")

    def _put_away(self, name: str, folder: str, reason: str = "") -> None:
        target = self.directory / folder / name
        target.parent.mkdir(exist_ok=True)
        os.replace(self.directory / name, target)
        if reason:
            os.utime(target)  # a file that is moved back later counts as new
            ending = ".reason.txt"  # long names are cut to make room for this suffix
            beside = name.encode()[: _NAME_BYTES_MAX - len(ending)].decode(errors="ignore") + ending
            target.with_name(beside).write_text(f"{reason}\n", "utf-8")
            log.warning("event file moved to failed/; see its .reason.txt file", extra={"file": name})
        self._known.pop(name, None)
        names = os.listdir(target.parent)
        if len(names) > FILES_MAX:
            paths = sorted((target.parent / name for name in names), key=lambda path: path.stat().st_mtime_ns)
            for path in paths[: len(names) - FILES_MAX]:
                path.unlink(missing_ok=True)


def _stamp(status: os.stat_result) -> _EventFileStamp:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path) -> tuple[_EventFile, _EventFileStamp]:
    """Read and parse an event file. Rejects links, pipes and devices, and never blocks on a pipe."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidInput("An event file must be a regular file.")
        content, status = file.read(FILE_BYTES_MAX + 1), os.fstat(file.fileno())
    if len(content) > FILE_BYTES_MAX:
        raise InvalidInput(f"The event file is larger than {FILE_BYTES_MAX} bytes.")
    try:
        return _decoder.decode(content), _stamp(status)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"The event file is invalid: {refusal(error, _EventFile)}.") from None
    except UNREADABLE as error:
        raise _HalfWrittenError(f"The event file is unreadable: {refusal(error)}.") from None


def _place_of(event: _EventFile) -> ThreadId | None:
    try:
        if event.threadId:
            return parse_thread_id(event.threadId)
        return unopened(event.adapterId, event.channelId) if event.adapterId and event.channelId else None
    except ShoalError as error:
        raise InvalidInput(str(error)) from None


def _spec(name: str, event: _EventFile, source: str, timezone: str, written_at: datetime) -> NewTrigger:
    """Convert a file to a trigger. Relative times such as "tomorrow" count from the time when the file was written."""
    from shoal.features.triggers.when import When, parse_schedule

    thread = _place_of(event) if event.threadId else None
    when = When("one-shot", "1970-01-01", zone_named(timezone).key)
    if event.type != "immediate":
        when = parse_schedule(event.type, event.schedule, timezone, written_at)
    spec = NewTrigger(
        kind=when.kind,
        schedule=when.schedule,
        text=event.text,
        author=_OWNER,
        tainted_by=written_after(f"the event file {name}", source),
        thread=thread,
        platform="" if thread else event.adapterId,
        channel="" if thread else event.channelId,
        timezone=when.timezone,
        agent=event.agent,
        name=f"{_NAME_PREFIX}{name}",
    )
    check(spec)
    return spec
