"""Checks of the project's structure: sizes, layers, names, documents, and imports at startup."""
