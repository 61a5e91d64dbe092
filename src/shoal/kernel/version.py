"""The version of this Shoal, as pyproject.toml has it."""

VERSION = "0.1.0"
