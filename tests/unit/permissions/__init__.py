"""Tests of the permission engine."""
