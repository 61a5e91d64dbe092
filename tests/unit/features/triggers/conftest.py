"""A database for the tests of PostgreSQL."""

from tests.postgres import postgres_database

__all__ = ["postgres_database"]
