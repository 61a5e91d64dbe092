"""All operations on one database, grouped by concern."""

from shoal.kernel.clock import Clock
from shoal.store.agents import AgentStore, SettingStore, TokenStore
from shoal.store.approvals import Approvals
from shoal.store.audit import AuditLog
from shoal.store.budget import BudgetStore, Ledger
from shoal.store.causes import Cause
from shoal.store.checkpoints import CheckpointStore
from shoal.store.driver import Driver
from shoal.store.inbox import ChildStore, Inbox
from shoal.store.journal import Journal, WindowStore
from shoal.store.outbox import Outbox
from shoal.store.retention import Bookkeeping
from shoal.store.search import ArtifactStore, SearchIndex
from shoal.store.threads import BranchStore, ThreadStore


class Store:
    def __init__(self, driver: Driver, clock: Clock) -> None:
        self.driver = driver
        self.causes: list[Cause] = []  # features add their causes
        self.inbox = Inbox(driver, clock)
        self.journal = Journal(driver, clock, self.causes)
        self.threads = ThreadStore(driver, clock)
        self.branches = BranchStore(driver, clock)
        self.checkpoints = CheckpointStore(driver, clock)
        self.outbox = Outbox(driver, clock, self.causes)
        self.approvals = Approvals(driver, clock)
        self.audit = AuditLog(driver, clock)
        self.artifacts = ArtifactStore(driver, clock)
        self.ledger = Ledger(driver, clock)
        self.budget = BudgetStore(driver, clock)
        self.settings = SettingStore(driver, clock)
        self.registry = AgentStore(driver, clock)
        self.children = ChildStore(driver, clock)
        self.search = SearchIndex(driver, clock)
        self.windows = WindowStore(driver, clock)
        self.tokens = TokenStore(driver, clock)
        self.bookkeeping = Bookkeeping(driver, clock)

    async def close(self) -> None:
        await self.driver.close()
