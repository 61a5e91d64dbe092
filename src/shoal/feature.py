"""Features: capabilities beyond a conversation, each in one folder of `shoal/features/`.

The folder's `__init__.py` contains a record, `FEATURE`, that names all parts of the feature. The core finds the record
through the list below, and nothing else outside the folder imports it. Deleting the folder and its line in the list
removes the feature.

An entry is MODULE:ATTRIBUTE in the feature's folder, and is imported on first use.
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
"""Folders of the built-in features, in the order in which they are opened."""


class CliCommand(NamedTuple):
    """A subcommand of `shoal`: its name, help line and click command.

    `group` is its parent command. `job` is its heading in `shoal --help`.
    """

    name: str
    help: str
    entry: str
    group: str = ""
    job: str = "Inspect"


class Feature(NamedTuple):
    """The parts of a feature. In each entry, `services` are those of the running system (`shoal.services`).

    settings       sections of the file, by the name of their tables: a struct, or dict[str, …] for [TABLE.NAME]
    open           `open(services)` returns an async context manager, which is left when Shoal has stopped
    attach         `attach(services)` registers what the core calls: parts of the prompt, virtual folders, rows that
                   expire, background work. Every start calls it, also that of `shoal ask`, so it imports late what few
                   starts use
    tools          `tools(services)` returns tools. Their traits are on decorators in the same module
    chat_commands  `commands(services)` returns slash commands
    routes         endpoints of the API
    paths          what their paths begin with, as in `surfaces/http/table.py`
    cli            subcommands of `shoal`
    expects        `patterns(config)` returns patterns for the names of tools that come and go while Shoal runs
    doctor         `look(context, config)` yields findings for `shoal doctor` (`shoal.surfaces.cli.findings`)

    The file `queries.sql` in the folder has the feature's named queries.
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
        """Import an entry and return the object."""
        module, _, attribute = entry.partition(":")
        return getattr(import_module(f"shoal.features.{self.name}.{module}"), attribute)


@cache
def features() -> Sequence[Feature]:
    """Return the records of all features."""
    return [import_module(f"shoal.features.{name}").FEATURE for name in FEATURES]


def command_named(name: str) -> object | None:
    """Load a feature's top-level subcommand of `shoal`, or return None if no feature has it."""
    entries = ((feature, one) for feature in features() for one in feature.cli if one.name == name and not one.group)
    return next((feature.load(command.entry) for feature, command in entries), None)


def tool_modules() -> Iterator[ModuleType]:
    """Yield the modules that define the tools of features."""
    for feature in features():
        if feature.tools:
            yield import_module(f"shoal.features.{feature.name}.{feature.tools.partition(':')[0]}")
