"""A database for the tests of the engine."""

from tests.postgres import postgres_database

__all__ = ["postgres_database"]
