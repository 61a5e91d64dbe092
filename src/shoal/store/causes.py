"""What starts turns by itself and must know how they went."""

from datetime import datetime

from shoal.kernel.events import TurnFinished
from shoal.kernel.ids import ThreadId
from shoal.store.driver import Script


class Cause:
    """Stored things that start turns, such as triggers. Each call is part of the transaction it tells of, and changes
    nothing for an id that is not its own."""

    def turn_ended(self, id: str, thread: ThreadId, finished: TurnFinished, at: datetime) -> Script[None]:
        """A turn that the thing with this id started has ended."""
        yield from ()

    def opening_failed(self, id: str, error: str, *, for_good: bool) -> Script[None]:
        """A post that was to open a thread for it was given up; `for_good` where it must not try again."""
        yield from ()
