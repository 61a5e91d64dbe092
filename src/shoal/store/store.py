"""The store: all operations over one database, in parts by concern."""

from shoal.domain.clock import Clock
from shoal.store.agents import AgentStore, ProcessStore
from shoal.store.approvals import Approvals
from shoal.store.audit import AuditLog
from shoal.store.branches import BranchStore
from shoal.store.budget import BudgetStore, Ledger
from shoal.store.checkpoints import CheckpointStore
from shoal.store.comparisons import ComparisonStore
from shoal.store.driver import Driver, StorePart, text
from shoal.store.inbox import ChildStore, Inbox
from shoal.store.journal import Journal, SnapshotStore
from shoal.store.memory import MemoryHistory
from shoal.store.outbox import Outbox
from shoal.store.recall import RecallStore
from shoal.store.retention import Bookkeeping
from shoal.store.search import ArtifactStore, SearchIndex
from shoal.store.threads import ThreadStore
from shoal.store.tokens import TokenStore
from shoal.store.triggers import TriggerStore


class SettingStore(StorePart):
    """Implements `domain.ports.Settings`."""

    async def get(self, scope: str, key: str) -> str | None:
        rows = await self._read("setting_get", scope=scope, key=key)
        return text(rows[0][0]) if rows else None

    async def put(self, scope: str, key: str, value: str) -> None:
        await self._write("setting_put", scope=scope, key=key, value=value)

    async def swap(self, scope: str, key: str, expected: str | None, value: str) -> bool:
        if expected is None:
            return bool(await self._write("setting_make", scope=scope, key=key, value=value))
        return bool(await self._write("setting_swap", scope=scope, key=key, expected=expected, value=value))

    async def page(self, scope: str, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        rows = await self._read("settings_of", scope=scope, after=after, limit=limit)
        return [(text(key), text(value)) for key, value in rows]

    async def drop(self, scope: str, key: str, expected: str) -> bool:
        return bool(await self._write("setting_drop", scope=scope, key=key, expected=expected))


class Store:
    """All parts over one database."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self.driver = driver
        self.inbox = Inbox(driver, clock)
        self.journal = Journal(driver, clock)
        self.threads = ThreadStore(driver, clock)
        self.branches = BranchStore(driver, clock)
        self.checkpoints = CheckpointStore(driver, clock)
        self.outbox = Outbox(driver, clock)
        self.approvals = Approvals(driver, clock)
        self.audit = AuditLog(driver, clock)
        self.triggers = TriggerStore(driver, clock)
        self.artifacts = ArtifactStore(driver, clock)
        self.ledger = Ledger(driver, clock)
        self.budget = BudgetStore(driver, clock)
        self.settings = SettingStore(driver, clock)
        self.registry = AgentStore(driver, clock)
        self.children = ChildStore(driver, clock)
        self.search = SearchIndex(driver, clock)
        self.processes = ProcessStore(driver, clock)
        self.snapshots = SnapshotStore(driver, clock)
        self.tokens = TokenStore(driver, clock)
        self.memory = MemoryHistory(driver, clock)
        self.recall = RecallStore(driver, clock)
        self.comparisons = ComparisonStore(driver, clock)
        self.bookkeeping = Bookkeeping(driver, clock)

    async def close(self) -> None:
        await self.driver.close()
