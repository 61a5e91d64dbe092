"""Undo: show how turns changed files, and restore the files."""

from shoal.feature import CliCommand, Feature

FEATURE = Feature(
    name="undo",
    attach="undo:attach",
    chat_commands="commands:chat_commands",
    routes="routes:routes",
    paths=("/api/threads/*/turns/*/changes", "/api/threads/*/turns/*/undo"),
    cli=(
        CliCommand("changes", "Show the files that a turn or an undo changed.", "cli:changes", group="threads"),
        CliCommand("undo", "Restore the files that a turn changed.", "cli:undo", group="threads"),
    ),
)
