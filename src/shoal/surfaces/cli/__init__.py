"""The shoal command: one module per command. Each imports its dependencies only when it runs."""
