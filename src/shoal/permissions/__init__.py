"""May this run? Actions, rules, the decision, approvals, taint and the audit log."""
