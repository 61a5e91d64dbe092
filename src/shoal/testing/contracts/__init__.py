"""Contract suites, one per port. Shoal runs each suite against all its implementations of a port, including the fake
one.

To test your own implementation, subclass a suite and write its fixtures; each suite's docstring names them.
"""
