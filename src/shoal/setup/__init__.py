"""Guided setup: ask questions, test and write the answers, and apply them to a running Shoal."""
