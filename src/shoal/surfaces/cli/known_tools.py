"""Finds the tools and the sandbox for a configuration without starting Shoal."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import cast

from shoal.agents.lifecycle import Checks
from shoal.agents.toolbox import built_in_traits
from shoal.config import Config
from shoal.extensions import extension_sandbox, extension_tools
from shoal.feature import features
from shoal.kernel.errors import ShoalError
from shoal.kernel.ports import Sandbox
from shoal.kernel.traits import NO_TOOLS, TraitsByName
from shoal.models.catalog import Catalog, existing_model
from shoal.permissions.effects import Situation
from shoal.permissions.profiles import Profiles
from shoal.sandbox.choose import open_sandbox


async def sandbox_here(config: Config) -> Sandbox | None:
    """Test this machine's sandbox and return it, or None if no sandbox is usable."""
    try:
        return (await open_sandbox(config.sandbox, extension_sandbox)).sandbox
    except ShoalError:
        return None


async def situation_here(config: Config) -> Situation:
    """Return the situation of a turn that the owner starts on this machine without untrusted content. This tests the
    sandbox.
    """
    sandbox = await sandbox_here(config)
    if sandbox is None:
        return Situation(trusted=True)
    await sandbox.close()
    sealed = sandbox.isolated and config.sandbox.network == "off"
    covered = config.checkpoints.days > 0
    return Situation(isolated=sandbox.isolated, sealed=sealed, covered=covered, trusted=True)


def agent_checks(config: Config, catalog: Catalog) -> Checks:
    profiles = Profiles(NO_TOOLS, config.permissions.profiles, config.permissions.overrides)
    return Checks(partial(existing_model, catalog), profiles.check, partial(tool_names, config))


def tool_names(config: Config) -> tuple[str, ...]:
    """Return the names of all tools, and name patterns for the tools of MCP servers."""
    expects = [feature.load(feature.expects) for feature in features() if feature.expects]
    patterns = (cast("Callable[[Config], Iterable[str]]", patterns_of)(config) for patterns_of in expects)
    return (*(name for name, _ in known_traits(config).items()), *chain.from_iterable(patterns))


def known_traits(config: Config) -> TraitsByName:
    """Return the traits of all tools except the tools of MCP servers."""
    traits = built_in_traits()
    for tool in extension_tools(config.tools):
        traits.add(tool.spec.name, tool.traits)
    return traits
