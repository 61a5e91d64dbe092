"""The accounts of the configuration and their adapters; a platform's module is imported when it has an account."""

from collections.abc import Iterable, Mapping

from shoal.config import Config
from shoal.extensions import platform_named
from shoal.kernel.clock import Clock
from shoal.kernel.home import Home
from shoal.kernel.ports import ChatAdapter, Settings
from shoal.kernel.settings_platforms import AccountSettings
from shoal.permissions.access import AccessRules, Links, People, Person
from shoal.platforms.local import TerminalAdapter, WebAdapter
from shoal.platforms.record import built_in

OWNERS = ("web:owner", "openai:owner", "terminal:owner")
"""Anyone who uses the page, the API or this machine's shell is the owner, unless a token belongs to someone else."""


def every_account(config: Config) -> list[tuple[str, str, AccountSettings]]:
    """Each account, also one that is switched off: its platform, the first part of its thread ids, its settings."""
    rows = [
        (platform, platform_name(platform, account), account)
        for platform, accounts in config.platforms.accounts.items()
        for account in accounts
    ]
    return [*rows, *(("webhook", name, account) for name, account in config.platforms.webhook.items())]


def accounts_of(config: Config) -> dict[str, AccountSettings]:
    """Every enabled account, by the first part of its thread ids."""
    return {name: account for _, name, account in every_account(config) if account.enabled}


def platform_names(config: Config) -> tuple[str, ...]:
    """The first parts of the thread ids there are with this configuration, without connecting to anything."""
    own = (identity.partition(":")[0] for identity in OWNERS)
    return (*own, *accounts_of(config))


def platform_name(platform: str, account: AccountSettings) -> str:
    """The first part of an account's thread ids: the platform, and the account's name unless it is `main`."""
    return platform if account.account == "main" else f"{platform}.{account.account}"


def platform_owners(config: Config) -> tuple[str, ...]:
    """The owner's identities, PLATFORM:USER."""
    return tuple(f"{name}:{account.owner}" for name, account in accounts_of(config).items() if account.owner)


def account_agents(config: Config) -> dict[str, str]:
    return {name: account.agent for name, account in accounts_of(config).items() if account.agent}


def access_of(config: Config, platform: str) -> AccessRules:
    """Return who has access on a platform: by default only the owner, and nobody if it is not configured."""
    account = accounts_of(config).get(platform)
    if account is None:
        return AccessRules()
    return AccessRules((account.owner,) if account.owner else (), account.allow, account.channels)


def people_of(config: Config, instead: Mapping[str, AccessRules]) -> People:
    """[access.people], whose identities on several platforms are one person, and who is the owner; `instead` are rules
    of platforms that take the place of the configuration's."""
    owners = (f"{platform}:{owner}" for platform, rules in instead.items() for owner in rules.owners)
    persons = (
        Person(person.identities, person.roles, name, person.usd_per_day, person.tokens_per_day, person.timezone)
        for name, person in config.access.people.items()
    )
    return People(persons, (*OWNERS, *platform_owners(config), *owners))


def links_of(config: Config, platforms: Iterable[str], instead: Mapping[str, AccessRules]) -> Links:
    """Who may speak on each platform, by the configuration or `instead` of it, and who is the same on several."""
    rules = {name: instead.get(name) or access_of(config, name) for name in platforms}
    own = {identity.partition(":")[0]: AccessRules((identity.partition(":")[2],)) for identity in OWNERS}
    own["web"] = AccessRules(own["web"].owners, config.web.allow)
    return Links(people_of(config, instead), {**rules, **own})


def make_adapters(config: Config, home: Home, settings: Settings, clock: Clock) -> list[ChatAdapter]:
    """The page, the API, the terminal, and each account that is configured.

    Raises ConfigError for a platform whose package is missing, or that no installed extension offers.
    """
    adapters: list[ChatAdapter] = [WebAdapter(home, clock), WebAdapter(home, clock, "openai"), TerminalAdapter(clock)]
    url = config.web.public_url.rstrip("/")
    for platform, name, account in every_account(config):
        if account.enabled:
            inbound_url = f"{url}/platforms/{name.replace('.', '/')}" if url else ""
            record = built_in("webhook") if platform == "webhook" else platform_named(platform)
            adapters.append(record.load_adapter()(name, account, home, settings, clock, inbound_url))
    return adapters
