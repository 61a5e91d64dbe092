"""Traits of the built-in tools, available to the command line and tests without a running Shoal."""

from importlib import import_module

from shoal.feature import tool_modules
from shoal.kernel.traits import TraitsByName
from shoal.tools.registry import built_in_modules, traits_in

_ELSEWHERE = ("shoal.tools.offer",)


def built_in_traits() -> TraitsByName:
    traits = TraitsByName()
    for module in (*built_in_modules(), *map(import_module, _ELSEWHERE), *tool_modules()):
        for name, tool in traits_in(module):
            traits.add(name, tool)
    return traits
