"""Back up a home directory to one file, on demand or on a schedule, and restore it."""

from shoal.feature import CliCommand, Feature

FEATURE = Feature(
    name="backups",
    settings={"backup": "settings:BackupSettings"},
    attach="service:attach",
    doctor="doctor:look_at_backups",
    routes="routes:routes",
    paths=("/api/backups",),
    cli=(
        CliCommand("backup", "Back up the home directory to one file.", "cli:backup", job="Back up and move"),
        CliCommand("restore", "Create a home directory from a backup.", "cli:restore", job="Back up and move"),
    ),
)
