"""The shapes TOML gives: values whose type is only known by looking."""

from typing import TypeAlias, cast

Table: TypeAlias = dict[str, object]


def as_table(value: object) -> Table | None:
    """The value if it is a table."""
    return cast(Table, value) if isinstance(value, dict) else None


def as_list(value: object) -> list[object] | None:
    """The value if it is a list."""
    return cast("list[object]", value) if isinstance(value, list) else None
