"""Fakes, wire-level test servers and contract suites, for Shoal's own tests and for extensions.

Import the fakes from this module. `FakeModel` replaces a model provider, and `FakeChat` replaces a chat platform.
Both work in memory. `FakeTelegram`, `FakeDiscord` and the other platform fakes are HTTP servers that speak the
protocol of the real platform. To test your own adapter, provider, store, tool or sandbox, subclass a suite from
`shoal.testing.contracts`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.testing.chat import FakeChat as FakeChat
    from shoal.testing.clock import ManualClock as ManualClock
    from shoal.testing.model import FakeModel as FakeModel
    from shoal.testing.platforms.discord import FakeDiscord as FakeDiscord
    from shoal.testing.platforms.fake import FakePlatform as FakePlatform
    from shoal.testing.platforms.google_chat import FakeGoogleChat as FakeGoogleChat
    from shoal.testing.platforms.matrix import FakeMatrix as FakeMatrix
    from shoal.testing.platforms.slack import FakeSlack as FakeSlack
    from shoal.testing.platforms.teams import FakeTeams as FakeTeams
    from shoal.testing.platforms.telegram import FakeTelegram as FakeTelegram
    from shoal.testing.platforms.webhook import FakeHookChat as FakeHookChat
    from shoal.testing.push import FakePush as FakePush
    from shoal.testing.scenario import FakeModels as FakeModels

_HOMES = {
    "FakeChat": "chat",
    "FakeDiscord": "platforms.discord",
    "FakeGoogleChat": "platforms.google_chat",
    "FakeHookChat": "platforms.webhook",
    "FakeMatrix": "platforms.matrix",
    "FakeModel": "model",
    "FakeModels": "scenario",
    "FakePlatform": "platforms.fake",
    "FakePush": "push",
    "FakeSlack": "platforms.slack",
    "FakeTeams": "platforms.teams",
    "FakeTelegram": "platforms.telegram",
    "ManualClock": "clock",
}


def __dir__() -> list[str]:
    return sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Import a fake on first use, because some fakes need the packages of an optional extra."""
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal.testing' has no attribute {name!r}")
    return getattr(import_module(f"shoal.testing.{_HOMES[name]}"), name)
