"""`shoal audit`: the hash-chained log of what was checked, decided and done."""

import click
import msgspec

from shoal.domain.audit import GENESIS, entry_hash
from shoal.domain.store import Store
from shoal.surfaces.cli.output import json_option, print_json, print_table, printable, when
from shoal.surfaces.cli.place import Place

ROWS_A_READ = 2000


class Verification(msgspec.Struct, frozen=True):
    """What `audit verify` found: how much is whole, and the first broken entry of each chain that is not."""

    chains: int
    entries: int
    broken: list[str]


@click.group()
def audit() -> None:
    """What was checked, decided and done, in chains of hashes that show any change."""


@audit.command()
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--chain", default="", help="Only this chain: a thread's id, or system.")
@json_option
@click.pass_obj
def tail(place: Place, limit: int, chain: str, as_json: bool) -> None:
    """Print the newest entries, the newest last."""
    found = place.read(lambda store: store.audit.tail(limit, chain_name=chain))
    if as_json:
        print_json(found)
        return
    rows = [
        (when(row.at), row.entry.kind, row.entry.decision, row.entry.user, row.entry.rule, printable(row.entry.action))
        for row in found
    ]
    print_table(("time (UTC)", "kind", "decision", "user", "rule", "action"), rows, "The audit log is empty.")


@audit.command()
@json_option
@click.pass_obj
def verify(place: Place, as_json: bool) -> int:
    """Check every chain; exit 1 and name the first broken entry of each that was tampered with."""
    found = place.read(_verify)
    if as_json:
        print_json(found)
    elif found.broken:
        for problem in found.broken:
            print(f"broken: {problem}")
    else:
        print(f"ok: {found.entries} entries in {found.chains} chains are whole.")
    return 1 if found.broken else 0


async def _verify(store: Store) -> Verification:
    chains = await store.audit.chains()
    broken: list[str] = []
    entries = 0
    for chain, length, head in chains:
        count, problem = await _verify_chain(store, chain, length, head)
        entries += count
        if problem:
            broken.append(problem)
    return Verification(len(chains), entries, broken)


async def _verify_chain(store: Store, chain: str, length: int, head: str) -> tuple[int, str]:
    """How many entries from the start are whole, and what is wrong with the one after."""
    previous, number = GENESIS, 0
    while rows := await store.audit.rows(chain, number, ROWS_A_READ):
        for row in rows:
            if row.number != number + 1:
                return number, f"{chain}, entry {number + 1} is missing."
            if row.previous != previous or row.hash != entry_hash(previous, chain, row.number, row.at, row.entry):
                return number, f"{chain}, entry {row.number} of {when(row.at)} was changed: {row.entry.action[:200]}"
            previous, number = row.hash, row.number
    if (number, previous) != (length, head):
        return number, f"{chain} ends at entry {number} and should end at {length}: entries were cut off or added."
    return number, ""
