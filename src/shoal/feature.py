"""Features: capabilities beyond a conversation, each in one folder of `shoal/features/`.

The `__init__.py` of a feature's folder defines a record, `FEATURE`, that names all parts of the feature. The core
finds the record through the list below, and no other code outside the folder imports it. To remove a feature, delete
its folder and its line in the list.

An entry has the form MODULE:ATTRIBUTE, relative to the feature's folder. It is imported on first use.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

FEATURES = (
    "subagents",
    "telemetry",
    "memory",
    "openai_api",
    "push",
    "processes",
    "evals",
    "recall",
    "undo",
    "mcp",
    "backups",
    "triggers",
    "self_edit",
    "snapshots",
    "standing_rules",
    "voice",
)
"""Folder names of the built-in features, in the order in which the features are opened."""


class CliCommand(NamedTuple):
    """A subcommand of `shoal`.

    - `help`: the text in the list of commands.
    - `entry`: the click command, as MODULE:ATTRIBUTE.
    - `group`: the parent command.
    - `job`: the heading in `shoal --help`.
    """

    name: str
    help: str
    entry: str
    group: str = ""
    job: str = "Inspect"


class Feature(NamedTuple):
    """The parts of a feature. `services` is the registry of the running system (`shoal.services`).

    - `settings`: configuration sections by table name. Each is a struct, or dict[str, …] for [TABLE.NAME].
    - `open`: `open(services)` returns an async context manager. Shoal exits it after everything else has stopped.
    - `attach`: `attach(services)` registers parts of the prompt, virtual folders, rows that expire, and background
      work. It runs at every start, including `shoal ask`, so modules that few starts use should be imported later.
    - `tools`: `tools(services)` returns tools. Their traits are in decorators in the same module.
    - `chat_commands`: `commands(services)` returns slash commands.
    - `routes`: endpoints of the API.
    - `paths`: the prefixes of the endpoints' paths, as in `surfaces/http/table.py`.
    - `cli`: subcommands of `shoal`.
    - `expects`: `patterns(config)` returns patterns for names of tools that may appear and disappear while Shoal runs.
    - `doctor`: `look(context, config)` yields findings for `shoal doctor` (`shoal.surfaces.cli.findings`).

    The file `queries.sql` in the feature's folder contains its named queries.
    """

    name: str
    settings: Mapping[str, str] = {}
    open: str = ""
    attach: str = ""
    tools: str = ""
    chat_commands: str = ""
    routes: str = ""
    paths: tuple[str, ...] = ()
    cli: tuple[CliCommand, ...] = ()
    expects: str = ""
    doctor: str = ""

    def load(self, entry: str) -> object:
        module, _, attribute = entry.partition(":")
        return getattr(import_module(f"shoal.features.{self.name}.{module}"), attribute)


@cache
def features() -> Sequence[Feature]:
    return [import_module(f"shoal.features.{name}").FEATURE for name in FEATURES]


def command_named(name: str) -> object | None:
    """Load a feature's top-level subcommand of `shoal`. Return None if no feature has this subcommand."""
    entries = ((feature, one) for feature in features() for one in feature.cli if one.name == name and not one.group)
    return next((feature.load(command.entry) for feature, command in entries), None)


def tool_modules() -> Iterator[ModuleType]:
    for feature in features():
        if feature.tools:
            yield import_module(f"shoal.features.{feature.name}.{feature.tools.partition(':')[0]}")
