"""Agents: registry, templates, channel bindings and versions."""
