"""Shipped fakes, wire-level test servers and contract suites, for Shoal's own tests and for those of extensions."""

from shoal.testing.model import FakeModel as FakeModel
