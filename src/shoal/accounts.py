"""The configured accounts and their adapters. A platform's module is imported only if the platform has an account."""

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
"""Identities of the owner: on the page, in the API, and in this machine's terminal."""


def every_account(config: Config) -> list[tuple[str, str, AccountSettings]]:
    """Return all accounts, including disabled accounts.

    Each row contains the platform, the first part of the account's thread ids, and the settings.
    """
    rows = [
        (platform, platform_name(platform, account), account)
        for platform, accounts in config.platforms.accounts.items()
        for account in accounts
    ]
    return [*rows, *(("webhook", name, account) for name, account in config.platforms.webhook.items())]


def accounts_of(config: Config) -> dict[str, AccountSettings]:
    """Return the enabled accounts. The keys are the first parts of their thread ids."""
    return {name: account for _, name, account in every_account(config) if account.enabled}


def platform_names(config: Config) -> tuple[str, ...]:
    own = (identity.partition(":")[0] for identity in OWNERS)
    return (*own, *accounts_of(config))


def platform_name(platform: str, account: AccountSettings) -> str:
    """Return the first part of an account's thread ids. It is the platform, plus the account's name unless that is
    `main`.
    """
    return platform if account.account == "main" else f"{platform}.{account.account}"


def platform_owners(config: Config) -> tuple[str, ...]:
    """Return the owner's identities on all enabled accounts, in the form PLATFORM:USER."""
    return tuple(f"{name}:{account.owner}" for name, account in accounts_of(config).items() if account.owner)


def account_agents(config: Config) -> dict[str, str]:
    return {name: account.agent for name, account in accounts_of(config).items() if account.agent}


def access_of(config: Config, platform: str) -> AccessRules:
    """Return the access rules of an account.

    By default, only the owner has access. Nobody has access through an account that is missing or disabled.
    """
    account = accounts_of(config).get(platform)
    if account is None:
        return AccessRules()
    return AccessRules((account.owner,) if account.owner else (), account.allow, account.channels)


def people_of(config: Config, instead: Mapping[str, AccessRules]) -> People:
    """Return the people in [access.people] and the owner's identities.

    `instead` contains the access rules that replace the configured rules of platforms.
    """
    owners = (f"{platform}:{owner}" for platform, rules in instead.items() for owner in rules.owners)
    persons = (
        Person(person.identities, person.roles, name, person.usd_per_day, person.tokens_per_day, person.timezone)
        for name, person in config.access.people.items()
    )
    return People(persons, (*OWNERS, *platform_owners(config), *owners))


def links_of(config: Config, platforms: Iterable[str], instead: Mapping[str, AccessRules]) -> Links:
    """Return the access rules of each platform and the identities of each person.

    `instead` contains the access rules that replace the configured rules of platforms.
    """
    rules = {name: instead.get(name) or access_of(config, name) for name in platforms}
    own = {identity.partition(":")[0]: AccessRules((identity.partition(":")[2],)) for identity in OWNERS}
    own["web"] = AccessRules(own["web"].owners, config.web.allow)
    return Links(people_of(config, instead), {**rules, **own})


def make_adapters(config: Config, home: Home, settings: Settings, clock: Clock) -> list[ChatAdapter]:
    """Create the adapters of the page, the API, the terminal and each enabled account.

    Raises ConfigError if the package of a platform is missing, or if no installed extension provides the platform.
    """
    adapters: list[ChatAdapter] = [WebAdapter(home, clock), WebAdapter(home, clock, "openai"), TerminalAdapter(clock)]
    url = config.web.public_url.rstrip("/")
    for platform, name, account in every_account(config):
        if account.enabled:
            inbound_url = f"{url}/platforms/{name.replace('.', '/')}" if url else ""
            record = built_in("webhook") if platform == "webhook" else platform_named(platform)
            adapters.append(record.load_adapter()(name, account, home, settings, clock, inbound_url))
    return adapters
