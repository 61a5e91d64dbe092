"""Contract suites, one for each port. Shoal runs each suite against all of its own implementations, including the
fakes.

To test your own implementation, subclass a suite and write the fixtures that its docstring names.
"""
