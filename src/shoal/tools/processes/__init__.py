"""Processes that outlive the turn that started them: the service that runs them, their logs, their hooks."""
