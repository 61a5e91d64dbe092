"""The other views over either dialect, from the approvals to the settings, and the store of them all."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from shoal.domain.audit import GENESIS, entry_hash
from shoal.domain.cards import CardState, card_edit
from shoal.domain.clock import Clock, to_micros
from shoal.domain.errors import Conflict, Gone, InvalidInput, NotFound
from shoal.domain.events import ApprovalSettled, Scope, Verdict
from shoal.domain.ids import ApprovalId, ThreadId, TurnId
from shoal.domain.messages import Usage
from shoal.domain.permissions import Trust
from shoal.domain.records import (
    Approval,
    AuditEntry,
    AuditRow,
    BrokenChain,
    Settlement,
    Spend,
    UsageRow,
    Verification,
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
from shoal.store.script import Driver, Script, number, query, text
from shoal.store.search import SearchView
from shoal.store.snapshots import SnapshotsView
from shoal.store.tokens import TokensView
from shoal.store.triggers import TriggersView

VERIFIED_ROWS = 2000
"""Entries of the audit log in memory at once while it is verified."""
GRANTS_MAX = 8
"""Grants of one call in one thread that are looked at, the newest; each holds for other content."""


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
        if pending:
            script = query("approvals_waiting", thread=thread or "", limit=limit)
        elif thread:
            script = query("approvals_of", thread=thread, limit=limit)
        else:
            script = query("approvals_recent", limit=limit)
        return [convert.approval(row) for row in await self._driver.read(script)]

    async def settle(
        self, approval: ApprovalId, verdict: Verdict, scope: Scope, by: str, trust: Trust, *, token: str = ""
    ) -> Settlement:
        """Decide it, once, and journal it."""
        return await self._driver.write(_settle(approval, verdict, scope, by, trust, token, self._clock.now()))

    async def grants(self, thread: ThreadId, call_digest: str) -> list[Approval]:
        """The approvals by which people allowed this call for the whole thread, newest first."""
        script = query("approval_grants", thread=thread, call_digest=call_digest, limit=GRANTS_MAX)
        return [convert.approval(row) for row in await self._driver.read(script)]

    async def expire(self) -> list[Settlement]:
        """Settle every pending approval whose time is up."""
        now = self._clock.now()
        rows = await self._driver.read(query("approvals_expired", now=to_micros(now)))
        found: list[Settlement] = []
        for row in rows:
            try:
                found.append(await self.settle(ApprovalId(text(row[0])), "expired", "once", "clock", "untrusted"))
            except Conflict:  # decided in this very moment
                continue
        return found


def _settle(
    approval: ApprovalId, verdict: Verdict, scope: Scope, by: str, trust: Trust, token: str, at: datetime
) -> Script[Settlement]:
    asked = yield from query("approval_one", id=approval)
    if not asked:
        raise NotFound(f"There is no approval {approval}.")
    if verdict == "allow" and scope == "thread" and (why := convert.approval(asked[0]).covers.uncovered):
        raise InvalidInput(f"This can only be allowed once, because {why}.")
    yield from query("thread_lock", thread=asked[0][1])
    settled = yield from query(
        "approval_settle",
        id=approval,
        state=verdict,
        scope=scope,
        decided_by=by,
        decided_trust=trust,
        now=to_micros(at),
    )
    rows = yield from query("approval_one", id=approval)
    found = convert.approval((rows or asked)[0])
    if not settled:
        if found.state in ("pending", "expired"):
            raise Gone(f"Approval {approval} has expired. Ask the agent again.")
        raise Conflict(f"Approval {approval} was decided already: {found.state}.")
    data = ApprovalSettled(found.id, found.call_id, verdict, scope, by)
    events = yield from append_outside(found.thread, found.turn, (data,), at)
    entry = AuditEntry(
        "approval", f"{found.tool} {found.digest}", verdict, user=by, turn=found.turn, detail=scope, token=token
    )
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
        of = {"chain": chain_name} if chain_name else {}
        rows = await self._driver.read(query("audit_tail_of" if of else "audit_tail", **of, limit=limit))
        return [convert.audit_row(row) for row in reversed(rows)]

    async def chains(self) -> list[tuple[str, int, str]]:
        """Every chain with its length and head hash; one whose head was removed comes with length 0."""
        rows = await self._driver.read(query("audit_chains")) + await self._driver.read(query("audit_orphans"))
        return [(text(row[0]), number(row[1]), text(row[2])) for row in rows]

    async def rows(self, chain_name: str, after: int = 0, limit: int = 1000) -> list[AuditRow]:
        """Entries of a chain by number."""
        found = await self._driver.read(query("audit_rows", chain=chain_name, after=after, limit=limit))
        return [convert.audit_row(row) for row in found]

    async def verify(self) -> Verification:
        """Check every entry of every chain."""
        return await self._driver.read(_verify())


def _verify() -> Script[Verification]:
    known = (yield from query("audit_chains")) + (yield from query("audit_orphans"))
    heads = {text(row[0]): (number(row[1]), text(row[2])) for row in known}
    whole: dict[str, tuple[int, str]] = dict.fromkeys(heads, (0, GENESIS))
    broken: dict[str, BrokenChain] = {}
    after = ("", 0)
    while rows := (yield from query("audit_after", chain=after[0], after=after[1], limit=VERIFIED_ROWS)):
        for row in map(convert.audit_row, rows):
            (count, previous), length = whole[row.chain], heads[row.chain][0]
            if row.chain in broken:
                continue
            if row.number != count + 1:
                broken[row.chain] = BrokenChain(row.chain, count + 1, "missing", length)
            elif row.previous != previous or row.hash != _hash(previous, row):
                broken[row.chain] = BrokenChain(row.chain, row.number, "changed", length, row)
            else:
                whole[row.chain] = (row.number, row.hash)
        after = (text(rows[-1][0]), number(rows[-1][1]))
    for chain_name, head in heads.items():
        if chain_name not in broken and whole[chain_name] != head:
            broken[chain_name] = BrokenChain(chain_name, whole[chain_name][0], "end", head[0])
    return Verification(len(heads), sum(count for count, _ in whole.values()), tuple(broken.values()))


def _hash(previous: str, row: AuditRow) -> str:
    return entry_hash(previous, row.chain, row.number, row.at, row.entry)


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
        self.tokens = TokensView(driver, clock)
        self.bookkeeping = BookkeepingView(driver)

    async def close(self) -> None:
        """Finish what was handed in, then close."""
        await self.driver.close()
