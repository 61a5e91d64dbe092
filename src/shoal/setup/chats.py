"""Setup of chats: a platform's fields, its account, and the bot's owner."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal

import anyio
import msgspec

from shoal.accounts import accounts_of, every_account
from shoal.config import Config
from shoal.config.secrets import watch_secrets
from shoal.connections import Connections
from shoal.installation import how_to_add
from shoal.kernel.errors import InvalidInput, NotFound
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.settings_platforms import AccountSettings
from shoal.permissions.redact import Redactor
from shoal.running import Runtime
from shoal.services import Services
from shoal.setup import trying
from shoal.setup.changes import PUBLIC_URL, Changes, Entered, SettingName
from shoal.setup.choices import bot_of, lacking_package, mistaken, platforms
from shoal.setup.hearing import Hearing
from shoal.setup.writing import value_of
from shoal.store.store import Store
from shoal.text.toml_edit import Value
from shoal.threads.access_gate import Pairing

CONNECT_SECONDS = 5.0
"""Maximum time to wait for an account to connect. The account has already been tested."""

AccountState = Literal["connected", "connecting", "failing", "off"]


class Field(msgspec.Struct, frozen=True):
    """A field of a platform's account.

    - `secret`: true if the value is a secret.
    - `is_set`: true if a value is stored.
    - `value`: the current value, always empty for a secret.
    - `kind`: the kind of the secret, empty for other fields.
    """

    name: str
    question: str
    secret: bool
    is_set: bool
    value: str
    kind: str = ""
    optional: bool = False


class ChatChoice(msgspec.Struct, frozen=True):
    """A platform that can be set up.

    - `install`: the command that installs the platform's package, or empty if none is needed.
    - `owner_question`: the question for the owner's id, if messages arrive only when Shoal has a public URL.
    - `fetches_with`: the field that makes a public URL unnecessary.
    """

    name: str
    title: str
    fields: tuple[Field, ...]
    install: str
    owner_question: str = ""
    fetches_with: str = ""


class Account(msgspec.Struct, frozen=True):
    """An account on a platform.

    - `name`: the first part of the ids of the account's threads.
    - `state`: always `off` if Shoal is not running.
    - `failure`: the latest error, or empty.
    """

    name: str
    platform: str
    title: str
    state: AccountState
    failure: str
    owner: str
    agent: str


class ChatEntered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Input for a platform's account.

    - `values`: keys of the account's table, in the format of environment variables. Missing keys do not change.
    - `public_url`: Shoal's public address, for platforms that call it.
    - `another_bot`: true to accept the token of a different bot.
    """

    values: dict[SettingName, Entered] = {}
    public_url: Entered = ""
    another_bot: bool = False


class ChatSetup:
    """Connects accounts on platforms and sets their owners."""

    def __init__(self, services: Services) -> None:
        self._changes = services[Changes]
        self._config = services[LiveConfig]
        self._store = services[Store]
        self._connections = services[Connections]
        self._pairing = services[Pairing]
        self._redactor = services[Redactor]
        self._runtime = services[Runtime]
        self._hearing: Hearing | None = None

    @classmethod
    def of(cls, services: Services) -> "ChatSetup":
        return cls(services)

    def choices(self) -> tuple[ChatChoice, ...]:
        return tuple(self._choice(name) for name in platforms())

    def _choice(self, platform: str) -> ChatChoice:
        accounts, record = self._config.current.platforms.of(platform), platforms()[platform]
        account = accounts[0] if accounts else None
        fields: list[Field] = []
        for name, question, kind, optional in record.questions:
            value = getattr(account, name) if account is not None else ""
            shown = "" if kind or not value else str(value)
            fields.append(Field(name, question, bool(kind), bool(value), shown, kind, optional))
        install = how_to_add(platform) if lacking_package(platform) else ""
        return ChatChoice(platform, record.title, tuple(fields), install, record.owner_question, record.fetches_with)

    def accounts(self) -> tuple[Account, ...]:
        accounts: list[Account] = []
        for platform, name, account in every_account(self._config.current):
            adapter = self._connections.adapters.get(name)
            state: AccountState = "off"
            failure = ""
            if account.enabled and adapter is not None:
                connected: asyncio.Event | None = getattr(adapter, "connected", None)
                failure = getattr(adapter, "failure", "")
                is_up = connected is None or connected.is_set()
                state = "failing" if failure else "connected" if is_up else "connecting"
            record = platforms().get(platform)
            title = record.title if record is not None else platform.capitalize()
            accounts.append(Account(name, platform, title, state, failure, account.owner, account.agent))
        return tuple(accounts)

    async def test(self, platform: str, entered: ChatEntered) -> None:
        """Test the given values with the platform. Without values, test the configured account. Changes nothing.

        Raises InvalidInput with the reason.
        """
        with self._changes.in_a_sentence():
            if entered.values:
                values, secrets = self._account(platform, entered)
                await trying.try_account(self._changes.loaded({**values, **secrets}), platform)
            elif not any(account.enabled for account in self._config.current.platforms.of(platform)):
                raise InvalidInput(f"No {platform[:80]} account is configured. Enter the account's token to test it.")
            elif not self._is_connected(platform):
                await trying.try_account(self._changes.loaded({}), platform)

    async def connect(self, platform: str, entered: ChatEntered, by: str) -> Account:
        """Test the input, write it and connect the account. Raises InvalidInput with the reason."""
        async with self._changes.changing(f"connect {platform}", by):
            values, secrets = self._account(platform, entered)
            await trying.try_account(self._changes.loaded({**values, **secrets}), platform)
            await self._reconnect(await self._changes.write(values, secrets), platform)
        return next(account for account in self.accounts() if account.platform == platform)

    async def own(self, platform: str, by: str, *, code: str = "", user: str = "") -> Account:
        """Make a user, or the person who received this code, the owner of an account.

        Raises NotFound for an unknown account or code, and InvalidInput unless exactly one of `code` and `user` is
        given.
        """
        prompt = None
        async with self._changes.changing(f"owner of {platform}", by):
            if platform not in accounts_of(self._config.current):
                raise NotFound(f"{platform[:80]} is not connected.")
            if bool(code) == bool(user):
                raise InvalidInput("Enter either a code or a user, not both.")
            if code and self._hearing is not None:
                prompt = self._hearing.owner(code)
                user = prompt.author.id
            elif code:
                user = await self._paired(platform, code, by)
            config = await self._changes.write({f"platforms.{platform}.owner": user}, {})
            self._connections.apply(self._with_platforms(config))
        if prompt is not None and self._hearing is not None:
            await self._hearing.greet(prompt)
        return next(account for account in self.accounts() if account.name == platform)

    async def _paired(self, platform: str, code: str, by: str) -> str:
        """Return the user who received this code, and delete their pairing. Raises NotFound."""
        try:
            _, user = await self._pairing.confirm(code, [platform], by)
        except NotFound as error:
            raise NotFound("This code is unknown or has expired. Write to your bot again.") from error
        await self._pairing.remove(platform, user, by)
        return user

    @asynccontextmanager
    async def hearing(self, platform: str) -> AsyncGenerator[Hearing]:
        """Connect an account while Shoal is not running. Each person who writes to the bot receives a code for `own`.

        Raises PlatformError and ConfigError.
        """
        async with trying.connected(self._changes.loaded({}), platform, self._store.settings) as (adapter, inbox):
            self._hearing = Hearing(adapter)
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._hearing.run, inbox)
                    yield self._hearing
                    tasks.cancel_scope.cancel()
            finally:
                self._hearing = None

    async def switch(self, platform: str, enabled: bool, by: str) -> Account:
        """Enable or disable a configured account, and connect or disconnect it. Raises NotFound and InvalidInput."""
        async with self._changes.changing(f"{'on' if enabled else 'off'} {platform}", by):
            if not any(account.name == platform for account in self.accounts()):
                raise NotFound(f"The account {platform[:80]!r} is not configured.")
            await self._reconnect(await self._changes.write({f"platforms.{platform}.enabled": enabled}, {}), platform)
        return next(account for account in self.accounts() if account.name == platform)

    def _is_connected(self, platform: str) -> bool:
        """Return True if an account of the platform is connected in this process.

        Raises InvalidInput with the reason if the account is failing.
        """
        account = next((account for account in self.accounts() if account.platform == platform), None)
        if account is not None and account.failure:
            raise InvalidInput(account.failure)
        return account is not None and account.state == "connected"

    def _account(self, platform: str, entered: ChatEntered) -> tuple[dict[str, Value], dict[str, str]]:
        """Return the values and the secrets to write, each by key. Raises InvalidInput."""
        if platform not in platforms():
            raise InvalidInput(f"Setup has no platform named {platform[:80]!r}. Platforms: {', '.join(platforms())}.")
        if lacking_package(platform):
            raise InvalidInput(
                f"This platform needs the `{platform}` extra. {how_to_add(platform)}, then restart Shoal."
            )
        accounts: tuple[AccountSettings, ...] = self._config.current.platforms.of(platform)
        account, table = accounts[0] if accounts else None, f"platforms.{platform}"
        given = dict(entered.values)
        values, secrets = dict[str, Value](), dict[str, str]()
        if entered.public_url:
            values[PUBLIC_URL] = entered.public_url
        if account is not None and not account.enabled:
            values[f"{table}.enabled"] = True
        for name, question, kind, optional in platforms()[platform].questions:
            value, before = given.pop(name, "").strip(), getattr(account, name) if account is not None else ""
            if not value and not before and not optional:
                raise InvalidInput(f"{question.partition(',')[0].partition(' (')[0]} is missing.")
            if not value:
                continue
            if not kind:
                values[f"{table}.{name}"] = value_of(f"{table}.{name}", value)
                continue
            self._redactor.learn(value)
            if problem := mistaken(value, kind):
                raise InvalidInput(problem)
            if before and not entered.another_bot and bot_of(before.reveal()) not in ("", bot_of(value)):
                raise InvalidInput(
                    "This token belongs to a different bot, but the people and threads here belong to the current "
                    f"one. Add the second bot as a separate table, [{table}.NAME]."
                )
            secrets[f"{table}.{name}"] = value
        more: dict[str, Value] = {f"{table}.{name}": value_of(f"{table}.{name}", text) for name, text in given.items()}
        return {**more, **values}, secrets

    async def _reconnect(self, config: Config, name: str) -> None:
        if name in self._connections.adapters:
            await self._connections.remove(name)
        config = self._with_platforms(config)
        watch_secrets(config, self._redactor.learn)
        account = next(account_at for _, there, account_at in every_account(config) if there == name)
        if account.enabled and self._runtime.state != "stopped":
            adapter = trying.adapter_of(config, name, self._store.settings)
            self._connections.add(adapter)
            self._connections.apply(config)
            with anyio.move_on_after(CONNECT_SECONDS):
                await adapter.connected.wait()
        self._connections.apply(config)

    def _with_platforms(self, config: Config) -> Config:
        current = self._config.current
        web = msgspec.structs.replace(current.web, public_url=config.web.public_url)
        return msgspec.structs.replace(current, platforms=config.platforms, web=web)
