"""Pairing: a code works once within an hour, and concurrent processes lose no entries."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.kernel.errors import Conflict, InvalidInput, NotFound, StoreCorrupt
from shoal.kernel.messages import Author
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.threads import pairing as module
from shoal.threads.pairing import CHAIN, PAIRED_MAX, SCOPE, WAITING_MAX, PairedPerson, Pairing, PairingList

CHAT = "fake"


class Place:
    """Two processes of a cluster that pair people in one database."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self.clock = clock
        self.store = Store(SqliteDriver(path, synchronous="OFF"), clock)
        self.one, self.other = (Pairing(self.store, clock) for _ in range(2))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    found = Place(tmp_path / "shoal.db", ManualClock())
    yield found
    await found.store.close()


async def test_concurrent_pairing_in_two_processes_loses_no_one(place: Place) -> None:
    names = [f"user{number}" for number in range(WAITING_MAX)]
    codes = [await place.one.ask(CHAT, Author(name, trusted=True)) for name in names]
    both = (place.one, place.other)
    found = await asyncio.gather(*(both[n % 2].confirm(code, [CHAT], "olga") for n, code in enumerate(codes)))
    assert sorted(user for _, user in found) == sorted(names)
    assert sorted(await place.one.people(CHAT)) == sorted(names)
    assert (await place.other.roster(CHAT)).waiting == ()


async def test_concurrent_pairing_requests_in_two_processes_all_wait(place: Place) -> None:
    both = (place.one, place.other)
    codes = await asyncio.gather(
        *(both[n % 2].ask(CHAT, Author(f"user{n}", trusted=True)) for n in range(WAITING_MAX + 5))
    )
    assert len([code for code in codes if code]) == WAITING_MAX
    assert len((await place.one.roster(CHAT)).waiting) == WAITING_MAX


async def test_a_code_works_once(place: Place) -> None:
    code = await place.one.ask(CHAT, Author("ada", "Ada", trusted=True))
    assert await place.other.confirm(f" {code.lower()} ", ["none", CHAT], "olga") == (CHAT, "ada")
    with pytest.raises(NotFound):
        await place.one.confirm(code, [CHAT], "olga")
    (paired,) = (await place.one.roster(CHAT)).paired
    assert paired == PairedPerson("ada", "Ada", "olga", place.clock.now())


async def test_only_a_digest_of_a_code_is_stored(place: Place) -> None:
    code = await place.one.ask(CHAT, Author("ada", trusted=True))
    assert code not in (await place.store.settings.get(SCOPE, f"people:{CHAT}") or "")


async def test_an_untrusted_person_has_one_code_at_a_time(place: Place) -> None:
    first = await place.one.ask(CHAT, Author("ada", trusted=True))
    assert await place.one.ask(CHAT, Author("ada", trusted=True)) == ""
    await place.clock.advance(module.CODE_STANDS_SECONDS)
    assert (await place.one.roster(CHAT)).waiting == ()
    assert await place.one.ask(CHAT, Author("ada", trusted=True)) not in ("", first)


async def test_a_code_made_by_a_fast_clock_ends_when_the_clock_is_corrected(place: Place) -> None:
    place.clock.jump(40 * 86_400)
    code = await place.one.ask(CHAT, Author("ada", trusted=True))
    place.clock.jump(-3600)
    assert len((await place.one.roster(CHAT)).waiting) == 1
    place.clock.jump(3600 - 40 * 86_400)
    with pytest.raises(NotFound):
        await place.one.confirm(code, [CHAT], "olga")
    assert await place.one.ask(CHAT, Author("ada", trusted=True)) not in ("", code)


@pytest.mark.parametrize("code", ["", "SHORT", "MUCHTOOLONGACODE", "🔑🔑🔑🔑🔑🔑🔑🔑"])
async def test_an_impossible_code_is_reported(place: Place, code: str) -> None:
    with pytest.raises(InvalidInput, match="8 letters"):
        await place.one.confirm(code, [CHAT], "olga")


async def test_a_removed_person_loses_access_and_a_second_removal_is_reported(place: Place) -> None:
    await place.one.confirm(await place.one.ask(CHAT, Author("ada", trusted=True)), [CHAT], "olga")
    await place.other.remove(CHAT, "ada", "olga")
    assert await place.one.people(CHAT) == ()
    with pytest.raises(NotFound):
        await place.one.remove(CHAT, "ada", "olga")


async def test_pairing_and_unpairing_are_audited(place: Place) -> None:
    await place.one.confirm(await place.one.ask(CHAT, Author("ada", trusted=True)), [CHAT], "olga")
    await place.one.remove(CHAT, "ada", "ida")
    entries = [row.entry for row in await place.store.audit.tail(chain_name=CHAIN)]
    assert [(one.action, one.decision, one.user) for one in entries] == [
        ("pair fake:ada", "allow", "olga"),
        ("unpair fake:ada", "deny", "ida"),
    ]


async def test_the_number_of_paired_people_is_bounded(place: Place) -> None:
    import msgspec

    full = PairingList(tuple(PairedPerson(f"user{number}") for number in range(PAIRED_MAX)))
    await place.store.settings.put(SCOPE, f"people:{CHAT}", msgspec.json.encode(full).decode())
    code = await place.one.ask(CHAT, Author("ada", trusted=True))
    with pytest.raises(Conflict):
        await place.one.confirm(code, [CHAT], "olga")
    assert "ada" not in await place.one.people(CHAT)


async def test_a_damaged_list_closes_access_and_changes_report_it(place: Place) -> None:
    await place.store.settings.put(SCOPE, f"people:{CHAT}", '{"paired": [')
    assert await place.one.people(CHAT) == ()
    with pytest.raises(StoreCorrupt, match="damaged"):
        await place.one.confirm("ABCDEFGH", [CHAT], "olga")
