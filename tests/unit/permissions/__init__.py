"""Tests for the permission engine."""
