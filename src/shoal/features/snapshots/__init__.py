"""Snapshots: save conversations with a description, and restore them. Idle conversations are saved and cleared.

The core implements context windows, clears them, and copies threads (`threads/forks.py`).
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
