"""Backups: everything in a home directory as one file, made by hand or on schedule, verified and restored."""

from shoal.feature import CliCommand, Feature

FEATURE = Feature(
    name="backups",
    settings={"backup": "settings:BackupSettings"},
    attach="service:attach",
    doctor="doctor:look_at_backups",
    routes="routes:routes",
    paths=("/api/backups",),
    cli=(
        CliCommand("backup", "Write everything into one file.", "cli:backup", job="Back up and move"),
        CliCommand("restore", "Make a home directory from a backup.", "cli:restore", job="Back up and move"),
    ),
)
