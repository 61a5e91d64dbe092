"""Callbacks that report the outcome of a turn to the stored object that started it, such as a trigger."""

from datetime import datetime

from shoal.kernel.events import TurnFinished
from shoal.kernel.ids import ThreadId
from shoal.store.driver import Script


class Cause:
    """A kind of stored object that starts turns, such as a trigger.

    Each method runs in the transaction of the event that it reports. It must ignore ids that belong to other causes.
    """

    def turn_ended(self, id: str, thread: ThreadId, finished: TurnFinished, at: datetime) -> Script[None]:
        """Record the end of a turn that the object with this id started."""
        yield from ()

    def opening_failed(self, id: str, error: str, *, for_good: bool) -> Script[None]:
        """Record that the object's post failed, which means that no thread was opened. With `for_good`, do not try
        again.
        """
        yield from ()
