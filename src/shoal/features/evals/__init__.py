"""Evaluation: past requests built again, recorded calls asked of other models, and turns kept as an agent's tests."""

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
        CliCommand("replay", "Build past requests to models again and compare them.", "cli:replay", job="Inspect"),
        CliCommand("compare", "Ask another model what you asked before.", "cli:compare", job="Inspect"),
        CliCommand("cases", "Turns kept as tests of an agent: save, list.", "cli:cases", job="Set up agents"),
        CliCommand("check", "Run an agent's cases.", "cli:check", job="Set up agents"),
    ),
)
