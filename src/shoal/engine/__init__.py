"""Engines, which decide which process runs each thread: one for a single process, and one for many machines."""
