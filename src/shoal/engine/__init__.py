"""Engines decide which process runs each thread. One engine is for a single process, the other for many machines."""
