"""Engines, which decide which process runs each thread. One is for a single process, the other for many machines."""
