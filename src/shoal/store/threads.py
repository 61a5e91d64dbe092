"""Titles, pins, branches, copies and deletion of threads.

A new branch leaves the earlier journal unchanged. Deletion removes all rows of a thread in one transaction.

rows of a deleted thread                        result
---------------------------------------------   ----------------------------------------------------------------
events, search index, mailbox, outbox,          deleted, together with those of subagents' threads
approvals, steps, results, saved
conversations, answers in comparisons
audit                                           kept; a last entry records the digest of the journal
spend, ceilings                                 kept, because they contain amounts but no content
posted                                          kept, because it contains only ids of messages on platforms
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from shoal.kernel.errors import Conflict, InvalidInput, NotFound
from shoal.kernel.events import (
    AssistantSaid,
    Branched,
    Branching,
    Compacted,
    Event,
    EventData,
    Forked,
    Steered,
    TurnFinished,
    UserSaid,
    decode_data,
    decoder_of,
    encode_data,
    spans_to,
)
from shoal.kernel.ids import SUBAGENTS, ThreadId, TurnId, channel_of, is_child, platform_of
from shoal.kernel.messages import Prompt, Usage
from shoal.kernel.phrases import counted
from shoal.kernel.records import AuditEntry, DeletedThread, Spend
from shoal.store.appends import SEQ_END, append_outside, chain, event, lock_at_rest, title_of
from shoal.store.driver import Script, StorePart, number, queries, query, reads, real, text, time, writes_at
from shoal.store.inbox import accept_prompt
from shoal.store.search import places

EVENTS_AT_ONCE = 500
_DELETES_THREAD = "_delete_thread"
"""Suffix of the names of queries that run when a thread is deleted. Features can add such queries."""


CHATS_MAX = 1_000


class Chat(NamedTuple):
    """A channel (`PLATFORM:CHANNEL:`) and its most recently active thread."""

    channel: str
    thread: ThreadId
    title: str
    last_seq: int
    updated_at: datetime


class ThreadStore(StorePart):
    async def change(
        self,
        thread: ThreadId,
        *,
        title: str | None = None,
        pinned: bool | None = None,
        archived: bool | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> None:
        """Change the fields that are not None. Raises NotFound."""
        wanted = {"title": title, "pinned": pinned, "archived": archived, "agent": agent, "model": model}
        if not await self._write("thread_change", thread=thread, **wanted):
            raise NotFound(f"Thread {thread} does not exist.")

    @reads
    def chats(self) -> Script[list[Chat]]:
        """Return the channels that have threads, most recently active first, at most CHATS_MAX. Subagents are
        excluded.
        """
        chats: list[Chat] = []
        after = ""
        while len(chats) < CHATS_MAX and (rows := (yield from query("chat_after", after=after))):
            after = text(rows[0][0])
            if platform_of(ThreadId(after)) == SUBAGENTS:
                after = f"{SUBAGENTS};"
                continue
            (newest,) = yield from query("chat_newest", channel=after)
            thread, title, last_seq, updated_at = newest
            chats.append(Chat(after, ThreadId(text(thread)), text(title), number(last_seq), time(updated_at)))
        return sorted(chats, key=lambda chat: chat.updated_at, reverse=True)

    async def is_untitled(self, thread: ThreadId) -> bool:
        """Return True if the title still consists of the thread's first words."""
        return bool(await self._read("thread_untitled", thread=thread))

    async def name(self, thread: ThreadId, title: str) -> bool:
        """Set a generated title. Return False if the thread already has a title from a person or a model."""
        return bool(await self._write("thread_name", thread=thread, title=title))

    async def below(self, thread: ThreadId) -> list[ThreadId]:
        """Return a thread and the threads of its subagents, each after the thread that called it."""
        return await self._driver.read(with_subagents(thread))

    async def snapshots(self, thread: ThreadId) -> list[tuple[str, str]]:
        return [(text(row[0]), text(row[1])) for row in await self._read("snapshots_of_thread", thread=thread)]

    async def is_stored_elsewhere(self, digest: str, threads: list[ThreadId]) -> bool:
        return any(text(row[0]) not in threads for row in await self._read("artifact_keepers", digest=digest))

    async def spent(self, thread: ThreadId, turn: str) -> list[Spend]:
        """Return the usage of a turn's model calls, excluding the calls of subagents."""
        rows = await self._read("spend_of_turn", thread=thread, low=f"{turn}:", high=f"{turn};")
        priced = [(row, None if row[7] is None else real(row[7])) for row in rows]
        return [Spend("", "", "", text(row[0]), Usage(*map(number, row[1:7])), usd) for row, usd in priced]

    async def check_rest(self, thread: ThreadId) -> None:
        """Raise NotFound for an unknown thread, and Conflict while the thread or one of its subagents is active."""
        await self._driver.write(_at_rest(thread))  # a write, because it locks rows

    @writes_at
    def delete(self, at: datetime, thread: ThreadId, by: str, token: str) -> Script[DeletedThread]:
        """Delete a thread and the threads of its subagents, and audit the deletion.

        Raises NotFound, and Conflict while one of the threads is active.
        """
        tree = yield from _at_rest(thread)
        digest, events = hashlib.sha256(), 0
        for member in tree:
            found = yield from query("search_of_thread", thread=member, places=f"places : {places(member).split()[1]}")
            indexed = {number(row[1]): number(row[0]) for row in found}
            after = 0
            while rows := (
                yield from query("events_range", thread=member, after=after, before=SEQ_END, limit=EVENTS_AT_ONCE)
            ):
                for row in rows:
                    after, events = number(row[0]), events + 1
                    seq, turn, kind, moment, body = row
                    digest.update(f"{member}\t{seq}\t{turn}\t{kind}\t{moment}\t{body}\n".encode())
                    if after in indexed:
                        data = event(member, row).data
                        assert isinstance(data, UserSaid | Steered | AssistantSaid)
                        row_id, words = indexed[after], data.text.replace("\0", " ")
                        yield from query("search_delete", id=row_id, said=words, places=member, thread=member)
            for name in queries():
                if name.endswith(_DELETES_THREAD):
                    yield from query(name, thread=member)
            yield from query("thread_delete", thread=member)
        deleted = DeletedThread(len(tree), events, digest.hexdigest())
        detail = f"threads: {len(tree)}, events: {events}, sha256 {deleted.digest}"
        entry = AuditEntry("thread", "thread:delete", "allow", user=by, detail=detail, token=token)
        yield from chain(thread, [entry], at)
        return deleted


def with_subagents(thread: ThreadId) -> Script[list[ThreadId]]:
    """Return a thread and, recursively, the threads that its turns have started."""
    threads = [thread]
    for thread_found in threads:
        for row in (yield from query("threads_below", thread=thread_found, channel=channel_of(thread_found))):
            if row[0] not in threads:
                threads.append(ThreadId(text(row[0])))
    return threads


def _at_rest(thread: ThreadId) -> Script[list[ThreadId]]:
    tree = yield from with_subagents(thread)
    for thread_searched in tree:
        rows = yield from query("thread_work", thread=thread_searched)
        if not rows:
            raise NotFound(f"Thread {thread_searched} does not exist.")
        if rows[0][0] or number(rows[0][2]):
            title = text(rows[0][3]) if thread_searched == thread else ""
            name = f"“{title}”" if title else "The thread" if thread_searched == thread else "A subagent of the thread"
            raise Conflict(f"{name} is running or has messages waiting. Stop it, then delete the thread.")
    return tree


# ---- branches and copies ----

COPY_OF = "Copy of "
BRANCHINGS_MAX = 100_000
NOTES_MAX = 1_000
"""Maximum number of subagent results that are read."""
FIRST_EVENTS = 5
"""Number of events that are read from the start of a subagent's journal. They include the message from its caller."""


class BranchStore(StorePart):
    @writes_at
    def branch(
        self, at: datetime, thread: ThreadId, after: int, by: str, prompt: Prompt | None = None
    ) -> Script[tuple[Event, ...]]:
        """Continue the conversation right after event `after`, with `prompt` if given.

        The branch also receives the results of subagents that began before that event and ended later. Raises
        NotFound, Conflict while the thread is active, InvalidInput if the event does not exist or is inside a turn,
        and StoreNewer if a newer Shoal wrote to the thread.
        """
        yield from query("thread_lock", thread=thread)
        for row in (yield from query("event_types", thread=thread)):
            decoder_of(text(row[0]))
        if prompt is not None and (yield from query("inbox_known", platform=platform_of(thread), key=prompt.key)):
            raise Conflict("This request was already completed.")
        last = yield from lock_at_rest(thread, at)
        if not 0 <= after <= last:
            raise InvalidInput(f"{thread} has only {counted(last, 'event')}; event {after} does not exist.")
        if (yield from _turn_at(thread, after)):
            raise InvalidInput(f"Event {after} of {thread} is inside a turn. A branch begins before or after a turn.")
        begun = dict((yield from branchings_until(thread, after)))
        while after in begun:  # replace the start of a branch with the event that it continues
            after = begun[after]
        window = yield from _window_at(thread, after)
        ends = yield from _ends_since(thread, after, last)
        events = yield from append_outside(thread, TurnId(""), [Branched(after, by), *ends], at)
        yield from query("thread_branch", thread=thread, branch_seq=events[0].seq, window_seq=window)
        if prompt is not None:
            yield from accept_prompt(prompt, 1, at)
        return events

    @writes_at
    def fork(
        self,
        at: datetime,
        source: ThreadId,
        thread: ThreadId,
        after: int,
        by: str,
        moved: Mapping[int, EventData],
        opened_by: str = "",
    ) -> Script[tuple[Event, ...]]:
        """Make `thread` a copy of `source` up to event `after`, with tool results but without approvals and queued
        messages.

        If a turn is open at that event, the copy ends it as aborted. `moved` contains the events that refer to
        files, by number, with the copy's paths. `opened_by` is the post that opened the thread, which is marked as
        sent. Raises NotFound, Conflict if `thread` exists, and InvalidInput if the event does not exist.
        """
        place = {"source": source, "thread": thread, "seq": after}
        rows = yield from query("thread_one", thread=source)
        if not rows:
            raise NotFound(f"Thread {source} does not exist.")
        if not 1 <= after <= number(rows[0][2]):
            raise InvalidInput(
                f"{source} has only {counted(number(rows[0][2]), 'event')}; event {after} does not exist."
            )
        title = text(rows[0][5])
        if title and not title.startswith(COPY_OF):
            title = title_of(f"{COPY_OF}{title}")
        if not (yield from query("thread_fork", **place, title=title, now=at)):
            raise Conflict(f"The thread {thread} already exists.")
        ended = yield from query("search_end")
        yield from query("events_fork", **place)
        for seq, data in moved.items():
            yield from query("event_moved", thread=thread, seq=seq, data=encode_data(data).decode())
        yield from query("search_fork", thread=thread, end=number(ended[0][0]) if ended else 0)
        yield from query("artifacts_fork", **place)
        branchings = yield from branchings_until(thread, after)
        window = yield from _window_at(thread, after)
        yield from query(
            "thread_branch", thread=thread, branch_seq=max(branchings, default=(0, 0))[0], window_seq=window
        )
        turn, cut = (yield from _turn_at(thread, after)), ()
        if turn:
            cut = yield from append_outside(thread, turn, [TurnFinished("aborted")], at)
        events = cut + (yield from append_outside(thread, TurnId(""), [Forked(source, after, by)], at))
        if opened_by:
            yield from query("outbox_sent", id=opened_by, part=1)
        return events


def branchings_until(thread: ThreadId, seq: int) -> Script[list[Branching]]:
    rows = yield from query("branchings_of", thread=thread, seq=seq, limit=BRANCHINGS_MAX)
    datas = ((number(row[0]), decode_data(Branched.type, text(row[1]))) for row in rows)
    return [(at, data.after) for at, data in datas if isinstance(data, Branched)]


def _ends_since(thread: ThreadId, after: int, last: int) -> Script[list[UserSaid]]:
    """Return the results of subagents that began before event `after` and reported after it.

    Results that are already on the branch are excluded.
    """
    messages = dict[str, UserSaid]()
    for note in (yield from _notes(thread, after, last)):
        child = ThreadId(note.message_id)
        begun = yield from query("events_range", thread=child, after=0, before=FIRST_EVENTS, limit=FIRST_EVENTS)
        datas = [decode_data(text(row[2]), text(row[4])) for row in begun]
        turns = [data.caller.turn for data in datas if isinstance(data, UserSaid) and data.caller is not None]
        if turns and not (yield from query("turn_since", thread=thread, after=after, turn=turns[0])):
            messages[child] = note
    if messages:
        for span in spans_to(after, (yield from branchings_until(thread, after))):
            for note in (yield from _notes(thread, span.first - 1, span.last)):
                messages.pop(note.message_id, None)
    return [*messages.values()]


def _notes(thread: ThreadId, after: int, last: int) -> Script[list[UserSaid]]:
    rows = yield from query("notes_between", thread=thread, after=after, last=last, limit=NOTES_MAX)
    datas = (decode_data(UserSaid.type, text(row[0])) for row in rows)
    return [data for data in datas if isinstance(data, UserSaid) and is_child(ThreadId(data.message_id))]


def _window_at(thread: ThreadId, seq: int) -> Script[int]:
    """Return the event after which the model's context window begins, on the branch that ends with event `seq`."""
    for span in reversed(spans_to(seq, (yield from branchings_until(thread, seq)))):
        rows = yield from query("window_between", thread=thread, first=span.first, last=span.last)
        if rows:
            data = decode_data(text(rows[0][1]), text(rows[0][2]))
            return data.upto_seq if isinstance(data, Compacted) else number(rows[0][0])
    return 0


def _turn_at(thread: ThreadId, seq: int) -> Script[TurnId]:
    rows = yield from query("turn_until", thread=thread, seq=seq)
    return TurnId(text(rows[0][1])) if rows and rows[0][0] != TurnFinished.type else TurnId("")
