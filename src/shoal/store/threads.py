"""What people keep of a thread beside what is said in it, and the end of one: all its rows go in one transaction.

rows of a deleted thread                        what becomes of them
---------------------------------------------   ----------------------------------------------------------------
events, search index, mailbox, outbox,          deleted, those of its subagents' threads too
approvals, steps, results, saved conversations,
what models answered to it in comparisons
audit                                           stays, and ends with the digest of what was deleted
spend, ceilings                                 stay: they are sums of money, and say nothing of what was said
posted                                          stays: where messages stand on platforms, by their ids
"""

import hashlib
from datetime import datetime

from shoal.domain.errors import Conflict, NotFound
from shoal.domain.events import AssistantSaid, Steered, UserSaid
from shoal.domain.ids import ThreadId, channel_of
from shoal.domain.messages import Usage
from shoal.domain.records import AuditEntry, DeletedThread, Spend
from shoal.store.appends import chain, event
from shoal.store.driver import Script, StorePart, number, query, real, text, writes_at
from shoal.store.search import places

EVENTS_AT_ONCE = 500
SEQ_END = 2**62
_DELETED_ROWS = ("events", "inbox", "outbox", "approvals", "steps", "artifacts", "snapshots", "answers", "checkpoints")


class ThreadStore(StorePart):
    """Threads as people keep them."""

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
        """Change what is given. Raises NotFound."""
        wanted = {"title": title, "pinned": pinned, "archived": archived, "agent": agent, "model": model}
        if not await self._write("thread_change", thread=thread, **wanted):
            raise NotFound(f"There is no thread {thread}.")

    async def is_untitled(self, thread: ThreadId) -> bool:
        """Whether it still goes by its first words."""
        return bool(await self._read("thread_untitled", thread=thread))

    async def name(self, thread: ThreadId, title: str) -> bool:
        """Give it the title that a model found, unless somebody has named it meanwhile."""
        return bool(await self._write("thread_name", thread=thread, title=title))

    async def below(self, thread: ThreadId) -> list[ThreadId]:
        """It, and the threads of the subagents that worked for it, each after the one that called it."""
        return await self._driver.read(with_subagents(thread))

    async def snapshots(self, thread: ThreadId) -> list[tuple[str, str]]:
        """The saved conversations of a thread: id and agent."""
        return [(text(row[0]), text(row[1])) for row in await self._read("snapshots_of_thread", thread=thread)]

    async def is_kept_elsewhere(self, digest: str, threads: list[ThreadId]) -> bool:
        """Whether a thread other than these keeps this result."""
        return any(text(row[0]) not in threads for row in await self._read("artifact_keepers", digest=digest))

    async def spent(self, thread: ThreadId, turn: str) -> list[Spend]:
        """What the calls of a thread's turn took, subagents' not included."""
        return [
            Spend(
                "",
                "",
                "",
                text(row[0]),
                Usage(*(number(value) for value in row[1:6])),
                None if row[6] is None else real(row[6]),
            )
            for row in await self._read("spend_of_turn", thread=thread, low=f"{turn}:", high=f"{turn};")
        ]

    async def check_rest(self, thread: ThreadId) -> None:
        """Raises NotFound, and Conflict while it or a subagent of it has something to do."""
        await self._driver.read(_at_rest(thread))

    @writes_at
    def delete(self, at: datetime, thread: ThreadId, by: str, token: str) -> Script[DeletedThread]:
        """Delete it with the threads of its subagents. Raises NotFound, and Conflict while one has something to do."""
        tree = yield from _at_rest(thread)
        digest, events = hashlib.sha256(), 0
        for one in tree:
            found = yield from query("search_of_thread", thread=one, places=f"places : {places(one).split()[1]}")
            indexed = {number(row[1]): number(row[0]) for row in found}
            after = 0
            while rows := (
                yield from query("events_range", thread=one, after=after, before=SEQ_END, limit=EVENTS_AT_ONCE)
            ):
                for row in rows:
                    after, events = number(row[0]), events + 1
                    seq, turn, kind, moment, body = row
                    digest.update(f"{one}\t{seq}\t{turn}\t{kind}\t{moment}\t{body}\n".encode())
                    if after in indexed:
                        said = event(one, row).data
                        assert isinstance(said, UserSaid | Steered | AssistantSaid)
                        row_id, words = indexed[after], said.text.replace("\0", " ")
                        yield from query("search_delete", id=row_id, said=words, places=one, thread=one)
            for rows_of in _DELETED_ROWS:
                yield from query(f"{rows_of}_delete_thread", thread=one)
            yield from query("thread_delete", thread=one)
        deleted = DeletedThread(len(tree), events, digest.hexdigest())
        detail = f"threads: {len(tree)}, events: {events}, sha256 {deleted.digest}"
        entry = AuditEntry("thread", "thread:delete", "allow", user=by, detail=detail, token=token)
        yield from chain(thread, [entry], at)
        return deleted


def with_subagents(thread: ThreadId) -> Script[list[ThreadId]]:
    """A thread and all that its turns, and theirs, have begun."""
    found = [thread]
    for one in found:
        for row in (yield from query("threads_below", thread=one, channel=channel_of(one))):
            if row[0] not in found:
                found.append(ThreadId(text(row[0])))
    return found


def _at_rest(thread: ThreadId) -> Script[list[ThreadId]]:
    """The threads of the tree, locked where that is known, none of which has anything to do."""
    tree = yield from with_subagents(thread)
    for one in tree:
        rows = yield from query("thread_work", thread=one)
        if not rows:
            raise NotFound(f"There is no thread {one}.")
        if rows[0][0] or number(rows[0][2]):
            title = text(rows[0][3]) if one == thread else ""
            name = f"“{title}”" if title else "The thread" if one == thread else "A subagent of the thread"
            raise Conflict(f"{name} is at work or has messages waiting. Stop it first, then delete it.")
    return tree
