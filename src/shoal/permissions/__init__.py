"""Permissions: actions, rules, decisions, approvals, taint and the audit log."""
