"""Shared database fixtures of the contract suites."""

from tests.postgres import postgres_database

__all__ = ["postgres_database"]
