"""The interface of stored objects that start turns and need to know the outcome."""

from datetime import datetime

from shoal.kernel.events import TurnFinished
from shoal.kernel.ids import ThreadId
from shoal.store.driver import Script


class Cause:
    """Stored objects that start turns, such as triggers.

    Each method runs in the transaction of the reported event, and ignores ids of other causes.
    """

    def turn_ended(self, id: str, thread: ThreadId, finished: TurnFinished, at: datetime) -> Script[None]:
        """Handle the end of a turn that the cause with this id started."""
        yield from ()

    def opening_failed(self, id: str, error: str, *, for_good: bool) -> Script[None]:
        """Handle the failure of a post that should have opened a thread. With `for_good`, do not retry."""
        yield from ()
