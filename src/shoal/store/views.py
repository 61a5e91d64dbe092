"""The other views over either dialect, from the approvals to the settings, and the store of them all."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from shoal.domain.cards import CardState, card_edit
from shoal.domain.clock import Clock, to_micros
from shoal.domain.errors import Conflict, Gone, NotFound
from shoal.domain.events import ApprovalSettled, Scope, Verdict
from shoal.domain.ids import ApprovalId, ThreadId, TurnId
from shoal.domain.messages import Usage
from shoal.domain.records import (
    Approval,
    AuditEntry,
    AuditRow,
    NewTrigger,
    Occurrence,
    Settlement,
    Spend,
    Trigger,
    UsageRow,
)
from shoal.store import rows as convert
from shoal.store.appends import append_outside, chain, put_post
from shoal.store.artifacts import ArtifactsView
from shoal.store.budget import BudgetView, spend
from shoal.store.children import ChildrenView
from shoal.store.journal import JournalView
from shoal.store.mailbox import MailboxView
from shoal.store.outbox import OutboxView
from shoal.store.processes import ProcessesView
from shoal.store.registry import RegistryView
from shoal.store.retention import BookkeepingView
from shoal.store.script import Driver, Row, Script, number, query, text
from shoal.store.search import SearchView
from shoal.store.snapshots import SnapshotsView


class ApprovalsView:
    """Implements `domain.store.Approvals`."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def get(self, approval: ApprovalId) -> Approval | None:
        """One approval, or None."""
        rows = await self._driver.read(query("approval_one", id=approval))
        return convert.approval(rows[0]) if rows else None

    async def search(self, *, pending: bool = True, thread: ThreadId | None = None, limit: int = 200) -> list[Approval]:
        """Approvals, newest first."""
        script = query("approvals_search", pending=int(pending), thread=thread or "", limit=limit)
        return [convert.approval(row) for row in await self._driver.read(script)]

    async def settle(self, approval: ApprovalId, verdict: Verdict, scope: Scope, by: str) -> Settlement:
        """Decide it, once, and journal it."""
        return await self._driver.write(_settle(approval, verdict, scope, by, self._clock.now()))

    async def granted(self, thread: ThreadId, digest: str) -> bool:
        """Whether a person allowed exactly this for the whole thread."""
        return bool(await self._driver.read(query("approval_granted", thread=thread, digest=digest)))

    async def expire(self) -> list[Settlement]:
        """Settle every pending approval whose time is up."""
        now = self._clock.now()
        rows = await self._driver.read(query("approvals_expired", now=to_micros(now)))
        found: list[Settlement] = []
        for row in rows:
            try:
                found.append(await self.settle(ApprovalId(text(row[0])), "expired", "once", "clock"))
            except Conflict:  # decided in this very moment
                continue
        return found


def _settle(approval: ApprovalId, verdict: Verdict, scope: Scope, by: str, at: datetime) -> Script[Settlement]:
    asked = yield from query("approval_one", id=approval)
    if not asked:
        raise NotFound(f"There is no approval {approval}.")
    yield from query("thread_lock", thread=asked[0][1])
    settled = yield from query(
        "approval_settle", id=approval, state=verdict, scope=scope, decided_by=by, now=to_micros(at)
    )
    rows = yield from query("approval_one", id=approval)
    found = convert.approval((rows or asked)[0])
    if not settled:
        if found.state in ("pending", "expired"):
            raise Gone(f"Approval {approval} has expired. Ask the agent again.")
        raise Conflict(f"Approval {approval} was decided already: {found.state}.")
    data = ApprovalSettled(found.id, found.call_id, verdict, scope, by)
    events = yield from append_outside(found.thread, found.turn, (data,), at)
    entry = AuditEntry("approval", f"{found.tool} {found.digest}", verdict, user=by, turn=found.turn, detail=scope)
    yield from chain(found.thread, (entry,), at)
    state: CardState = "thread" if verdict == "allow" and scope == "thread" else verdict
    person = by if verdict in ("allow", "deny") else ""
    yield from put_post(card_edit(found.asked_in, found.id, found.shown, state, person), to_micros(at))
    yield from query("wake", thread=found.thread)
    return Settlement(found, verdict, events[0])


class AuditView:
    """Implements `domain.store.Audit`."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def record(self, chain_name: str, entries: Sequence[AuditEntry]) -> None:
        """Append entries to a chain."""
        await self._driver.write(chain(chain_name, entries, self._clock.now()))

    async def tail(self, limit: int = 100, *, chain_name: str = "") -> list[AuditRow]:
        """The newest entries, oldest of them first."""
        rows = await self._driver.read(query("audit_tail", chain=chain_name, limit=limit))
        return [convert.audit_row(row) for row in reversed(rows)]

    async def chains(self) -> list[tuple[str, int, str]]:
        """Every chain with its length and head hash; one whose head was removed comes with length 0."""
        rows = await self._driver.read(query("audit_chains")) + await self._driver.read(query("audit_orphans"))
        return [(text(row[0]), number(row[1]), text(row[2])) for row in rows]

    async def rows(self, chain_name: str, after: int = 0, limit: int = 1000) -> list[AuditRow]:
        """Entries of a chain by number."""
        found = await self._driver.read(query("audit_rows", chain=chain_name, after=after, limit=limit))
        return [convert.audit_row(row) for row in found]


class TriggersView:
    """Implements `domain.store.Triggers`."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def add(self, spec: NewTrigger, next_at: datetime) -> Trigger:
        """Store a trigger."""
        made = Trigger(self._clock.new_id(), spec, "active", next_at, self._clock.now())
        await self._driver.write(_add_trigger(made, next_at))
        return made

    async def all(self) -> list[Trigger]:
        """All of them, the next due first."""
        return [convert.trigger(row) for row in await self._driver.read(query("triggers_all"))]

    async def remove(self, trigger: str) -> bool:
        """Delete it, and give up what it said and still waits; False when there is none."""
        return bool(await self._driver.write(_remove(trigger)))

    async def next_due_at(self) -> datetime | None:
        """When the next one is due."""
        return convert.moment((await self._driver.read(query("triggers_next")))[0][0])

    async def due(self, limit: int = 100) -> list[Trigger]:
        """Active triggers whose time has come."""
        rows = await self._driver.read(query("triggers_due", now=to_micros(self._clock.now()), limit=limit))
        return [convert.trigger(row) for row in rows]

    async def claim(self, trigger: Trigger, next_at: datetime | None, *, missed: bool = False) -> Occurrence | None:
        """Advance it and take the occurrence that was due, once over all workers."""
        if trigger.next_at is None:
            return None
        occurrence = Occurrence(trigger, trigger.next_at, f"{trigger.id}@{to_micros(trigger.next_at)}")
        script = _claim_occurrence(occurrence, next_at, "missed" if missed else "claimed", self._clock.now())
        return occurrence if await self._driver.write(script) else None

    async def settle(self, trigger: Trigger, *, error: str = "", disable: bool = False) -> None:
        """Note how the occurrence went."""
        await self._driver.write(query("trigger_settle", id=trigger.id, error=error, disable=int(disable)))

    async def pause(self, trigger: str) -> bool:
        """Let it rest until it is resumed; False when it is not active."""
        return bool(await self._driver.write(query("trigger_pause", id=trigger)))

    async def resume(self, trigger: str, next_at: datetime) -> bool:
        """Let one that rests or was switched off come again; False for any other."""
        return bool(await self._driver.write(_resume(trigger, to_micros(next_at))))


def _add_trigger(made: Trigger, next_at: datetime) -> Script[None]:
    spec, now = convert.dump(made.spec), to_micros(made.created_at)
    yield from query("trigger_insert", id=made.id, spec=spec, next_at=to_micros(next_at), now=now)
    yield from query("due", what="triggers")


def _remove(trigger: str) -> Script[list[Row]]:
    yield from query("trigger_hush", id=trigger)
    return (yield from query("trigger_delete", id=trigger))


def _resume(trigger: str, next_at: int) -> Script[list[Row]]:
    rows = yield from query("trigger_resume", id=trigger, next_at=next_at)
    yield from query("due", what="triggers")
    return rows


def _claim_occurrence(occurrence: Occurrence, next_at: datetime | None, state: str, at: datetime) -> Script[bool]:
    due = to_micros(occurrence.due_at)
    advanced = yield from query(
        "trigger_advance",
        id=occurrence.trigger.id,
        due_at=due,
        ended="missed" if state == "missed" else "done",
        next_at=None if next_at is None else to_micros(next_at),
    )
    if not advanced:
        return False
    taken = yield from query(
        "occurrence_insert",
        key=occurrence.key,
        trigger=occurrence.trigger.id,
        due_at=due,
        state=state,
        now=to_micros(at),
    )
    return bool(taken)


class LedgerView:
    """Implements `domain.store.Ledger`."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def record(self, thread: ThreadId, turn: TurnId, spent: Spend) -> None:
        """Record a call and settle its reservation, at once."""
        await self._driver.write(spend(thread, turn, spent, self._clock.now()))

    async def usage(self, days: int = 30) -> list[UsageRow]:
        """Use by day, agent and model; `usd` is None when no call of the row had a price."""
        since = (self._clock.now() - timedelta(days=days)).date().isoformat()
        rows = await self._driver.read(query("spend_by_day", since=since))
        return [
            UsageRow(
                text(row[0]),
                text(row[1]),
                text(row[2]),
                number(row[3]),
                Usage(*(number(value) for value in row[4:9])),
                float(row[9] or 0.0) if number(row[10]) else None,
            )
            for row in rows
        ]


class SettingsView:
    """Implements `domain.store.Settings`."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def get(self, scope: str, key: str) -> str | None:
        """The value, or None."""
        rows = await self._driver.read(query("setting_get", scope=scope, key=key))
        return text(rows[0][0]) if rows else None

    async def put(self, scope: str, key: str, value: str) -> None:
        """Set it."""
        await self._driver.write(query("setting_put", scope=scope, key=key, value=value))

    async def swap(self, scope: str, key: str, expected: str | None, value: str) -> bool:
        """Set it if it is still as expected."""
        if expected is None:
            return bool(await self._driver.write(query("setting_make", scope=scope, key=key, value=value)))
        script = query("setting_swap", scope=scope, key=key, expected=expected, value=value)
        return bool(await self._driver.write(script))

    async def page(self, scope: str, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        """Keys and values by key, those after one."""
        rows = await self._driver.read(query("settings_of", scope=scope, after=after, limit=limit))
        return [(text(key), text(value)) for key, value in rows]

    async def drop(self, scope: str, key: str, expected: str) -> bool:
        """Forget it if it is still as expected."""
        return bool(await self._driver.write(query("setting_drop", scope=scope, key=key, expected=expected)))


class DatabaseStore:
    """Implements `domain.store.Store` over a driver."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self.driver = driver
        self.inbox = MailboxView(driver, clock)
        self.journal = JournalView(driver, clock)
        self.outbox = OutboxView(driver, clock)
        self.approvals = ApprovalsView(driver, clock)
        self.audit = AuditView(driver, clock)
        self.triggers = TriggersView(driver, clock)
        self.artifacts = ArtifactsView(driver)
        self.ledger = LedgerView(driver, clock)
        self.budget = BudgetView(driver, clock)
        self.settings = SettingsView(driver)
        self.registry = RegistryView(driver, clock)
        self.children = ChildrenView(driver, clock)
        self.search = SearchView(driver)
        self.processes = ProcessesView(driver, clock)
        self.snapshots = SnapshotsView(driver, clock)
        self.bookkeeping = BookkeepingView(driver)

    async def close(self) -> None:
        """Finish what was handed in, then close."""
        await self.driver.close()
