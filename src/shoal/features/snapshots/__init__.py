"""Snapshots: conversations saved with a description and brought back; idle ones are saved and cleared.

Where a thread's window is and its clearing stay in the core, and so do copies of threads (`threads/forks.py`).
"""

from shoal.feature import CliCommand, Feature

FEATURE = Feature(
    name="snapshots",
    attach="idle:attach",
    chat_commands="commands:chat_commands",
    routes="routes:routes",
    paths=("/api/threads/*/new", "/api/threads/*/snapshots"),
    cli=(CliCommand("snapshot", "Saved conversations.", "cli:snapshot", group="threads"),),
)
