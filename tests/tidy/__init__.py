"""Checks of the code's shape: sizes, layers, names, documents, what starting imports."""
