"""Add "always allow" rules to shoal.toml, and remove them."""

from collections.abc import Callable

from shoal.kernel.live_config import LiveConfig
from shoal.kernel.permissions import StandingRule
from shoal.permissions.standing import override_of
from shoal.services import Services
from shoal.setup.rules import with_override, without_override
from shoal.threads.always import AlwaysAllow


def attach(services: Services) -> None:
    services[AlwaysAllow].rules = WrittenRules(services)


class WrittenRules:
    """Stores standing rules in the configuration file. Implements `StandingRules`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def add(self, rule: StandingRule, by: str) -> bool:
        override = override_of(rule)
        if override in self._services[LiveConfig].current.permissions.overrides:
            return False
        await self._change(f"always allow {_named(rule)}", lambda text: with_override(text, override), by)
        return True

    async def remove(self, rule: StandingRule, by: str) -> bool:
        override = override_of(rule)
        if override not in self._services[LiveConfig].current.permissions.overrides:
            return False
        await self._change(f"undo: always allow {_named(rule)}", lambda text: without_override(text, override), by)
        return True

    async def _change(self, what: str, edit: Callable[[str], str], by: str) -> None:
        from shoal.setup.live import LiveSetup  # a slow import

        await self._services[LiveSetup].change_rules(what, edit, by)


def _named(rule: StandingRule) -> str:
    return f"{', '.join(rule.allow)} for {rule.agent}"
