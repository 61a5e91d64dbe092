"""Shoal's core records: ids, messages, events, ports, settings, errors and the clock.

Imports nothing else from Shoal.
"""
