"""Rows of the result table, and their formatting."""

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row of the result. `floor` is the bare client's value in the same run, and `bound` is the target.

    The target applies to the ratio if there is a floor, otherwise to the value.
    """

    name: str
    unit: str
    value: float
    floor: float | None = None
    bound: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Return the ratio of the value to the floor, or None without a floor."""
        return self.value / self.floor if self.floor else None

    @property
    def is_met(self) -> bool | None:
        """Return whether the target is met, or None without a target."""
        if self.bound is None:
            return None
        found = self.ratio if self.ratio is not None else self.value
        return found >= self.bound if self.at_least else found <= self.bound


def middle(values: Iterable[float]) -> float:
    return median(values)


def table(rows: Sequence[Row]) -> str:
    """Format the rows as a text table."""
    cells = [("", "shoal", "", "floor", "ratio", "target", "")]
    cells += [
        (
            row.name,
            shown(row.value),
            row.unit,
            shown(row.floor) if row.floor is not None else "",
            f"{row.ratio:.2f}" if row.ratio is not None else "",
            _target(row),
            row.note,
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    right = (1, 3, 4)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def _target(row: Row) -> str:
    if row.bound is None:
        return ""
    sign = ">=" if row.at_least else "<="
    times = " x" if row.ratio is not None else ""
    return f"{sign} {shown(row.bound)}{times} {'met' if row.is_met else 'MISSED'}"


def shown(value: float) -> str:
    """Format a number with three significant digits. Numbers of 100 or more have no decimals."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
