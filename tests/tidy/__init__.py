"""Checks of the code's shape: sizes, layers, names, documents, and imports at start."""
