"""The contract of `shoal.store.store.Store`, for any database.

class TestMyStore(StoreContract):
    @pytest.fixture
    def clock(self): return ManualClock()

    @pytest.fixture
    async def store(self, clock): ...  # yields an empty store on that clock and closes it after the test
"""

from shoal.testing.contracts.store_approvals import ApprovalRules
from shoal.testing.contracts.store_bookkeeping import BookkeepingRules
from shoal.testing.contracts.store_budget import BudgetRules
from shoal.testing.contracts.store_checkpoints import CheckpointRules
from shoal.testing.contracts.store_children import ChildRules
from shoal.testing.contracts.store_delivery import DeliveryRules
from shoal.testing.contracts.store_expiry import ExpiryRules
from shoal.testing.contracts.store_journal import JournalRules
from shoal.testing.contracts.store_mailbox import MailboxRules
from shoal.testing.contracts.store_openings import OpeningRules
from shoal.testing.contracts.store_records import RecordRules
from shoal.testing.contracts.store_registry import RegistryRules
from shoal.testing.contracts.store_search import SearchRules
from shoal.testing.contracts.store_threads import ThreadRules
from shoal.testing.contracts.store_tokens import TokenRules


class StoreContract(
    MailboxRules,
    JournalRules,
    DeliveryRules,
    OpeningRules,
    ApprovalRules,
    BookkeepingRules,
    BudgetRules,
    CheckpointRules,
    ExpiryRules,
    ChildRules,
    RecordRules,
    RegistryRules,
    SearchRules,
    ThreadRules,
    TokenRules,
):
    """Contract suite for a store. Subclass it and provide the fixtures `store` and `clock`."""
