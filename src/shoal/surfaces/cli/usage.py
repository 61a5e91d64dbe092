"""`shoal usage`: tokens and money by day, agent and model."""

import click

from shoal.surfaces.cli.output import json_option, print_json, print_table, usd
from shoal.surfaces.cli.place import Place


@click.command()
@click.option("--days", default=30, show_default=True, type=click.IntRange(1, 3660))
@json_option
@click.pass_obj
def usage(place: Place, days: int, as_json: bool) -> None:
    """Show what models were used and what they cost, the newest day first."""
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
