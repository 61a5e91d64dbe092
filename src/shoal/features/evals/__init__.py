"""Evaluation: past requests built again, recorded calls asked of other models, and turns kept as an agent's tests."""

from shoal.feature import CliCommand, Feature

FEATURE = Feature(
    name="evals",
    settings={"cases": "settings:CasesSettings"},
    attach="checks:attach",
    routes="routes:routes",
    cli=(
        CliCommand("replay", "Build past requests to models again and compare them.", "cli:replay"),
        CliCommand(
            "compare", "Ask another model what was asked before, and set the answers side by side.", "cli:compare"
        ),
        CliCommand("cases", "Turns that are kept as tests of an agent: save, list.", "cli:cases"),
        CliCommand("check", "Run an agent's cases.", "cli:check"),
    ),
)
