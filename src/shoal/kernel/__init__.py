"""Core records and ports: ids, messages, events, settings, errors and the clock.

Imports no other Shoal package.
"""
