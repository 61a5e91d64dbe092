"""Opens the database a configuration names."""

from shoal.domain.errors import ConfigError
from shoal.domain.home import Home
from shoal.store.script import Driver
from shoal.store.sqlite import SqliteDriver


async def open_driver(home: Home, url: str, *, synchronous: str = "FULL", connections_max: int = 10) -> Driver:
    """SQLite in the home directory, or, with a `url`, PostgreSQL. Makes and migrates the tables as needed.

    Raises ConfigError when the packages for PostgreSQL are missing, InvalidInput for a malformed address, and
    StoreError with what to do.
    """
    if not url:
        return SqliteDriver(home.database_file, synchronous=synchronous)
    try:
        from shoal.store.postgres import PoolSettings, open_postgres
    except ImportError as error:
        missing = f"database.url needs the extra `postgres` ({error.name} is missing)."
        raise ConfigError([f"{missing} Install it: pip install 'shoal[postgres]'"]) from error
    return await open_postgres(url, PoolSettings(connections_max=connections_max))
