"""The `shoal` command, with one module per command or group of commands. A command imports its dependencies only
when it runs.
"""
