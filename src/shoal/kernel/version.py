"""The version of Shoal. It must match pyproject.toml."""

VERSION = "0.1.0"
