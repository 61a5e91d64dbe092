"""Long-running processes that agents start, with hooks that start turns."""

from shoal.feature import CliCommand, Feature

FEATURE = Feature(
    name="processes",
    attach="attach:attach",
    tools="tools:tools",
    routes="routes:routes",
    paths=("/api/processes",),
    cli=(CliCommand("processes", "Processes that agents run: list, logs, kill.", "cli:processes", job="Inspect"),),
)
