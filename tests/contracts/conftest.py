"""What the suites share: a database."""

from tests.postgres import postgres_database

__all__ = ["postgres_database"]
