"""Decide which process runs each thread: one process, or many machines."""
