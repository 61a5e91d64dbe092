"""`shoal audit`: the hash-chained log of what was checked, decided and done."""

import click

from shoal.domain.records import BrokenChain
from shoal.surfaces.cli.output import json_option, print_json, print_table, printable, when
from shoal.surfaces.cli.place import Place


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
        (
            when(row.at),
            row.entry.kind,
            row.entry.decision,
            printable(f"{row.entry.user} ({row.entry.token})" if row.entry.token else row.entry.user),
            row.entry.rule,
            printable(row.entry.action),
        )
        for row in found
    ]
    print_table(("time (UTC)", "kind", "decision", "user (token)", "rule", "action"), rows, "The audit log is empty.")


@audit.command()
@json_option
@click.pass_obj
def verify(place: Place, as_json: bool) -> int:
    """Check every chain; exit 1 and name the first broken entry of each that was tampered with."""
    found = place.read(lambda store: store.audit.verify())
    problems = [_sentence(one) for one in found.broken]
    if as_json:
        print_json({"chains": found.chains, "entries": found.entries, "broken": problems})
    elif problems:
        for problem in problems:
            print(f"broken: {problem}")
    else:
        print(f"ok: {found.entries} entries in {found.chains} chains are whole.")
    return 1 if found.broken else 0


def _sentence(found: BrokenChain) -> str:
    match found.reason:
        case "missing":
            return f"{found.chain}, entry {found.number} is missing."
        case "changed":
            assert found.changed is not None
            row = found.changed
            return f"{row.chain}, entry {row.number} of {when(row.at)} was changed: {row.entry.action[:200]}"
        case "end":
            return (
                f"{found.chain} ends at entry {found.number} and should end at {found.length}:"
                " entries were cut off or added."
            )
