"""Evaluation: replay past model requests, compare models on recorded calls, and run saved turns as tests of an
agent."""

from shoal.feature import CliCommand, Feature

FEATURE = Feature(
    name="evals",
    settings={"cases": "settings:CasesSettings"},
    attach="attach:attach",
    routes="routes:routes",
    paths=(
        "/api/threads/*/replay",
        "/api/comparisons",
        "/api/threads/*/cases",
        "/api/agents/*/cases",
        "/api/agents/*/check",
    ),
    cli=(
        CliCommand("replay", "Rebuild past model requests and compare them.", "cli:replay", job="Inspect"),
        CliCommand("compare", "Send past requests to another model.", "cli:compare", job="Inspect"),
        CliCommand("cases", "Save turns as test cases, and list the cases.", "cli:cases", job="Set up agents"),
        CliCommand("check", "Run an agent's cases.", "cli:check", job="Set up agents"),
    ),
)
