"""`shoal usage`: tokens and money by day, agent and model, and the ceilings; `shoal usage lift` suspends those."""

import click

from shoal.domain.budget import Standing
from shoal.domain.records import AuditEntry
from shoal.domain.store import Store
from shoal.surfaces.cli.output import json_option, print_json, print_table, usd
from shoal.surfaces.cli.place import Place


@click.group(invoke_without_command=True)
@click.option("--days", default=30, show_default=True, type=click.IntRange(1, 3660))
@json_option
@click.pass_context
def usage(context: click.Context, days: int, as_json: bool) -> None:
    """Show what models were used and what they cost, the newest day first."""
    if context.invoked_subcommand is not None:
        return
    place = context.ensure_object(Place)
    found = place.read(lambda store: store.ledger.usage(days))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            row.day,
            row.agent,
            row.model,
            str(row.calls),
            str(row.usage.input_tokens),
            str(row.usage.cached_tokens),
            str(row.usage.output_tokens),
            usd(row.usd),
        )
        for row in found
    ]
    head = ("day (UTC)", "agent", "model", "calls", "tokens in", "of those cached", "tokens out", "US dollars")
    print_table(head, rows, "No model was called in this time.")
    ceilings = place.read(lambda store: store.budget.standings())
    if ceilings:
        print()
        print_table(("today's ceiling", "US dollars", "tokens"), [_row(one) for one in ceilings], "")


def _row(one: Standing) -> tuple[str, str, str]:
    money = f"{one.usd:.4f} of {one.usd_max:.2f}" if one.usd_max else f"{one.usd:.4f}"
    tokens = f"{one.tokens} of {one.tokens_max}" if one.tokens_max else str(one.tokens)
    return one.scope, money, tokens


@usage.command()
@click.pass_obj
def lift(place: Place) -> None:
    """Let no ceiling of the budget hold anything up for the rest of the day (UTC)."""

    async def lifted(store: Store) -> str:
        day = await store.budget.lift()
        await store.audit.record("owner", [AuditEntry("budget", "lift", "allow", user="owner", detail=day)])
        return day

    print(f"No ceiling holds anything up until the end of {_through(place) or place.write(lifted)} (UTC).")


def _through(place: Place) -> str:
    """Through the Shoal that runs here; empty when none does."""
    import asyncio

    import msgspec

    from shoal.surfaces.cli.remote import find_remote

    remote = find_remote(place)
    if remote is None:
        return ""
    return msgspec.convert(asyncio.run(remote.call("POST", "/api/usage/lift", {})), dict[str, str])["day"]
