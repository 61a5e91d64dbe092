"""Triggers: start turns on schedules, from event files, from webhooks and as heartbeats. Includes the morning brief."""

from shoal.feature import CliCommand, Feature

FEATURE = Feature(
    name="triggers",
    settings={"triggers": "settings:TriggersSettings"},
    attach="attach:attach",
    tools="tools:trigger_tools",
    chat_commands="commands:chat_commands",
    routes="routes:routes",
    paths=("/api/triggers", "/api/brief", "/hooks"),
    cli=(
        CliCommand("brief", "Get a brief every morning.", "cli:brief", job="Schedule"),
        CliCommand(
            "triggers",
            "Schedules: list, add, pause, resume, remove, next.",
            "cli:triggers",
            job="Schedule",
        ),
    ),
)
