"""What the tests of features share: a home directory, and ways to run a command in it."""

from tests.unit.surfaces.cli.conftest import bare_environment, home, shoal

__all__ = ["bare_environment", "home", "shoal"]
