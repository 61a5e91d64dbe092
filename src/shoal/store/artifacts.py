"""Which results threads keep whole: rows made by the journal's events, listed, found and expired here."""

from datetime import datetime

from shoal.domain.clock import from_micros, to_micros
from shoal.domain.ids import ThreadId
from shoal.domain.records import Artifact
from shoal.store.script import Driver, Row, Script, number, query, text

_HEX = frozenset("0123456789abcdef")


class ArtifactsView:
    """Implements `domain.store.Artifacts`."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def of_thread(self, thread: ThreadId, limit: int = 1000) -> list[Artifact]:
        """Those of a thread, newest first."""
        return [_artifact(row) for row in await self._driver.read(query("artifacts_of", thread=thread, limit=limit))]

    async def find(self, thread: ThreadId, name: str) -> Artifact | None:
        """The thread's newest one whose digest begins with `name`, or None."""
        if not name or not _HEX.issuperset(name):
            return None
        rows = await self._driver.read(query("artifact_find", thread=thread, low=name, high=name + "g"))
        return _artifact(rows[0]) if rows else None

    async def expire(self, before: datetime) -> list[str]:
        """Forget those made before this time; returns the digests that no thread keeps any more."""
        return await self._driver.write(_expire(to_micros(before)))


def _expire(before: int) -> Script[list[str]]:
    gone = yield from query("artifacts_expire", before=before)
    digests = {text(row[0]) for row in gone}
    for digest in sorted(digests):
        if (yield from query("artifact_kept", digest=digest)):
            digests.discard(digest)
    return sorted(digests)


def _artifact(row: Row) -> Artifact:
    thread, digest, name, size_bytes, created_at, turn, call_id, tainted_by = row
    return Artifact(
        thread=ThreadId(text(thread)),
        digest=text(digest),
        name=text(name),
        size_bytes=number(size_bytes),
        created_at=from_micros(number(created_at)),
        turn=text(turn),
        call_id=text(call_id),
        tainted_by=text(tainted_by),
    )
