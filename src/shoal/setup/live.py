"""Guided setup. Each answer is tested, written and applied, without a restart if Shoal is running.

Each error message is one sentence. If a step fails, the file, the secrets and the running services are unchanged.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, TypeAlias

import msgspec

from shoal.agents.registry import AgentRegistry
from shoal.backend import Backend
from shoal.config import Config
from shoal.config.defaults import DEMO
from shoal.kernel.clock import Clock
from shoal.kernel.home import Home
from shoal.kernel.live_config import LiveConfig
from shoal.permissions.profiles import Profiles
from shoal.permissions.redact import Redactor
from shoal.services import Services
from shoal.setup.changes import Changes
from shoal.setup.chats import Account, ChatChoice, ChatSetup
from shoal.setup.models import ModelChoice, ModelSetup
from shoal.setup.writing import write_section
from shoal.text.toml_edit import Value
from shoal.turn.compaction import ThreadTitles

Titles: TypeAlias = Literal["auto", "words", "model"]


class SetupState(msgspec.Struct, frozen=True):
    """The state of setup.

    - `model`: the current model.
    - `models`, `chats`: the providers and platforms that can be set up.
    - `accounts`: the configured accounts on platforms.
    - `titles`: how new threads get their titles.
    """

    model: str
    is_demo: bool
    models: tuple[ModelChoice, ...]
    chats: tuple[ChatChoice, ...]
    accounts: tuple[Account, ...]
    titles: Titles


class LiveSetup:
    """Returns the state of setup, and changes all settings except models and chats.

    `by` is always a person, PLATFORM:USER, for the audit log.
    """

    def __init__(self, services: Services) -> None:
        self._changes = services[Changes]
        self._model_setup = services[ModelSetup]
        self._chat_setup = services[ChatSetup]
        self._home = services[Home]
        self._config = services[LiveConfig]
        self._clock = services[Clock]
        self._backend = services[Backend]
        self._agents = services[AgentRegistry]
        self._profiles = services[Profiles]
        self._titles = services[ThreadTitles]
        self._redactor = services[Redactor]

    @classmethod
    def of(cls, services: Services) -> "LiveSetup":
        return cls(services)

    def state(self) -> SetupState:
        model = self._agents.defaults.model
        return SetupState(
            model,
            model == DEMO,
            self._model_setup.choices(),
            self._chat_setup.choices(),
            self._chat_setup.accounts(),
            self._config.current.threads.titles,
        )

    # ---- permission rules ----

    async def change_rules(self, what: str, edit: Callable[[str], str], by: str) -> None:
        """Change the permission rules in shoal.toml. The new rules apply from the next turn.

        `edit` receives the file's text and returns the changed text. Raises InvalidInput with the reason, or the
        errors of `edit`. Nothing is changed in that case.
        """
        async with self._changes.changing(what, by):
            fresh = (await asyncio.to_thread(write_section, self._home, "permissions", edit)).permissions
            self._profiles.replace(fresh.profiles, fresh.overrides)
            permissions = msgspec.structs.replace(
                self._config.current.permissions, profiles=fresh.profiles, overrides=fresh.overrides
            )
            self._config.current = msgspec.structs.replace(self._config.current, permissions=permissions)

    async def set_titles(self, titles: Titles, by: str) -> None:
        """Set how new threads get their titles: from a model, from their first words, or whichever is cheaper.

        Raises InvalidInput.
        """
        async with self._changes.changing(f"titles {titles}", by):
            config = await self._changes.write({"threads.titles": titles}, {})
            self._config.current = msgspec.structs.replace(self._config.current, threads=config.threads)
            self._titles.mode = titles

    async def change_section(
        self,
        what: str,
        section: str,
        values: Mapping[str, Value],
        by: str,
        try_out: Callable[[Config], Awaitable[None]],
    ) -> None:
        """Write live keys in one section of shoal.toml after `try_out` accepts the new configuration.

        Raises InvalidInput with the reason, and StoreError. After InvalidInput, nothing is changed.
        """
        async with self._changes.changing(what, by):
            await try_out(self._changes.loaded(values))
            config = await self._changes.write(values, {})
            changed = {section: getattr(config, section)}
            self._config.current = msgspec.structs.replace(self._config.current, **changed)
