"""Memory: facts that agents remember beyond a conversation, in MEMORY.md files at three scopes and in daily notes."""

from shoal.feature import CliCommand, Feature

FEATURE = Feature(
    name="memory",
    attach="attach:attach",
    tools="tools:memory_tools",
    chat_commands="commands:chat_commands",
    routes="routes:routes",
    paths=("/api/memory",),
    cli=(CliCommand("memory", "Agents' memory: show, correct, forget, undo.", "cli:memory", job="Set up agents"),),
)
