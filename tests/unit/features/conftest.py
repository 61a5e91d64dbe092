"""Shared fixtures for the feature tests: a home directory and commands to run in it."""

from tests.unit.surfaces.cli.conftest import bare_environment, home, shoal

__all__ = ["bare_environment", "home", "shoal"]
