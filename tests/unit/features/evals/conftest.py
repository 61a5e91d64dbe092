"""The model for the command-line tests."""

from tests.unit.surfaces.cli.conftest import model

__all__ = ["model"]
