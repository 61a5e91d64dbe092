"""The version of this Shoal, the same as in pyproject.toml."""

VERSION = "0.1.0"
