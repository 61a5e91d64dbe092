"""Provides an empty, migrated database. It is copied from memory, because thousands of tests start with one."""

import contextlib
import functools
from pathlib import Path

from shoal.store.sqlite import connect, migrate


def empty_database(path: Path) -> Path:
    """Create a database with the newest schema and no rows, unless the file exists, and return its path."""
    if not any(path.parent.glob(f"{path.name}*")):
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        path.touch(0o600)
        path.write_bytes(_empty())
    return path


@functools.cache
def _empty() -> bytes:
    with contextlib.closing(connect(":memory:")) as connection:
        migrate(connection, Path("memory"))
        return connection.serialize()
