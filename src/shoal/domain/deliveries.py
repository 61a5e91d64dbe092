"""Which calls from outside were taken in, so that one that is made again is the same message, whatever was changed.

A call is known by what its proofs cover (`domain/signing.py`): a signature over all addresses that share a secret, so
that what was captured at one is no news at another; a bearer secret at its own address, since whoever has captured it
may make any call, and programs send two addresses the same body.

known by           until                                           a call that is the same
----------------   ---------------------------------------------   --------------------------------------------------
time and body      it is out of date, which is sooner than that    has the first one's key
the body, signed   for ever                                        has the first one's key for REPEATED_SECONDS, and
                                                                   is over from then on
the body, bearer   `repeat_seconds` later, or for ever             the same; afterwards it is a new call

The key is what the store takes a message in once by (`Inbox.accept`, `Outbox.put`). Those rows are forgotten later than
REPEATED_SECONDS, so that between them and this no call is ever taken in twice. A weaker proof that a call also shows
leads to the same delivery: taking the stronger one away gains nothing.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from shoal.domain.clock import from_micros, to_micros
from shoal.domain.signing import Proof
from shoal.domain.store import ONCE, Settings

FOR_EVER = "deliveries"
"""The scope of calls that stay good; those with a time of their own are under `ONCE`, which is forgotten."""
REPEATED_SECONDS = 7 * 86_400.0
"""How long a call that was cut off may still be made again. The longest that a platform tries is Pub/Sub's message
retention."""


class Delivery(msgspec.Struct, frozen=True):
    """A call as it was made first: at which address, and when."""

    identity: str
    place: str
    at: datetime

    @property
    def key(self) -> str:
        """What its message is taken in once by."""
        return f"{self.place}@{self.identity[:32]}.{to_micros(self.at)}"


async def first_delivery(
    settings: Settings, proved: Sequence[Proof], place: str, now: datetime, repeat_seconds: float | None = None
) -> Delivery | None:
    """The delivery that a call is, itself or an earlier one; None for one that is over, so that nothing comes of it.

    `proved` is what the call proves, not empty; `place` is the address it was made to. A body that is known by nothing
    but a bearer secret is a new one after `repeat_seconds` (None: never). Durable on return. Raises StoreError.
    """
    strongest = proved[0]
    repeats = repeat_seconds if strongest.kind == "bearer" else None
    delivery = await _kept(settings, strongest, Delivery(strongest.identity, place, now), repeats)
    for weaker in proved[1:]:
        await _kept(settings, weaker, delivery, None)
    age_seconds = (now - delivery.at).total_seconds()
    return delivery if delivery.place == place and age_seconds < REPEATED_SECONDS else None


async def _kept(settings: Settings, proved: Proof, fresh: Delivery, repeat_seconds: float | None) -> Delivery:
    """What is known of a proof, else `fresh` from now on."""
    scope = ONCE if proved.kind == "timed" else FOR_EVER
    name = f"{proved.identity} {fresh.place}" if proved.kind == "bearer" else proved.identity
    while True:
        known = await settings.get(scope, name)
        if known is not None:
            micros, identity, place = known.split(" ", 2)
            found = Delivery(identity, place, from_micros(int(micros)))
            if repeat_seconds is None or (fresh.at - found.at).total_seconds() < repeat_seconds:
                return found
        value = f"{to_micros(fresh.at)} {fresh.identity} {fresh.place}"
        if await settings.swap(scope, name, known, value):
            return fresh
