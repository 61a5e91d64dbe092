"""The accounts of the configuration and their adapters; a platform's module is imported when it has an account."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import msgspec

from shoal.actors.door import Links
from shoal.chat.terminal import TerminalAdapter
from shoal.chat.web import WebAdapter
from shoal.config import Config
from shoal.config.platforms import Account, Discord, GoogleChat, Matrix, Slack, Teams, Telegram, Webhook
from shoal.domain.clock import Clock
from shoal.domain.home import Home
from shoal.domain.ports import ChatAdapter
from shoal.domain.store import Settings
from shoal.permissions.access import AccessRules, People, Person
from shoal.plugins import load_extension

OWNERS = ("web:owner", "openai:owner", "terminal:owner")
"""Whoever uses the page, the API or this machine's shell is the owner, unless a token was given to somebody else."""
PLATFORMS = ("telegram", "discord", "slack", "matrix", "teams", "google_chat")


class Surroundings(msgspec.Struct, frozen=True):
    """What adapters are given beside their account. `public_url` is where platforms can call us, without a slash."""

    home: Home
    settings: Settings
    clock: Clock
    public_url: str

    def inbound_url(self, name: str) -> str:
        """Where the platform of this name calls."""
        return f"{self.public_url}/platforms/{name.replace('.', '/')}"


def accounts_of(config: Config) -> dict[str, Account]:
    """Every enabled account, by the first part of its thread ids."""
    found = dict[str, Account](config.platforms.webhook)
    for platform in PLATFORMS:
        accounts: tuple[Account, ...] = getattr(config.platforms, platform)
        found |= {platform_name(platform, account): account for account in accounts}
    return {name: account for name, account in found.items() if account.enabled}


def platform_names(config: Config) -> tuple[str, ...]:
    """The first parts of the thread ids there are with this configuration, without connecting to anything."""
    own = (identity.partition(":")[0] for identity in OWNERS)
    return (*own, *accounts_of(config), *(plugin.name for plugin in config.platforms.plugins))


def platform_name(platform: str, account: Account) -> str:
    """The first part of an account's thread ids: the platform, and the account's name unless it is `main`."""
    return platform if account.account == "main" else f"{platform}.{account.account}"


def platform_owners(config: Config) -> tuple[str, ...]:
    """The owner's identities, PLATFORM:USER."""
    return tuple(f"{name}:{account.owner}" for name, account in accounts_of(config).items() if account.owner)


def account_agents(config: Config) -> dict[str, str]:
    """The agent of each account that names one."""
    return {name: account.agent for name, account in accounts_of(config).items() if account.agent}


def access_of(config: Config, platform: str) -> AccessRules:
    """Who may speak on a platform: the owner alone where nothing is said, and nobody where it is not configured."""
    account = accounts_of(config).get(platform)
    if account is None:
        return AccessRules()
    return AccessRules((account.owner,) if account.owner else (), account.allow, account.channels)


def people_of(config: Config, instead: Mapping[str, AccessRules]) -> People:
    """[access.people], whose identities on several platforms are one person, and who is the owner; `instead` are rules
    of platforms that take the place of the configuration's."""
    owners = (f"{platform}:{owner}" for platform, rules in instead.items() for owner in rules.owners)
    persons = (Person(one.identities, one.roles, name) for name, one in config.access.people.items())
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
    around = Surroundings(home, settings, clock, config.web.public_url.rstrip("/"))
    found: list[ChatAdapter] = [WebAdapter(home, clock), WebAdapter(home, clock, "openai"), TerminalAdapter(clock)]
    for platform, make in MAKERS.items():
        accounts: Sequence[Account] = getattr(config.platforms, platform)
        found += [make(platform_name(platform, account), account, around) for account in accounts if account.enabled]
    webhooks = config.platforms.webhook.items()
    found += [_webhook(name, account, around) for name, account in webhooks if account.enabled]
    for plugin in config.platforms.plugins:
        factory = cast("Callable[[bytes, Home, Clock], ChatAdapter]", load_extension("shoal.platforms", plugin.name))
        found.append(factory(bytes(plugin.settings), home, clock))
    return found


def _telegram(name: str, account: Account, around: Surroundings) -> ChatAdapter:
    from shoal.chat.telegram.adapter import TelegramAdapter, TelegramSettings

    assert isinstance(account, Telegram)
    wanted = TelegramSettings(
        account=account.account,
        token=account.token.reveal,
        api_base=account.api_base,
        file_base=account.file_base,
        mode=account.mode,
        webhook_secret=account.webhook_secret.reveal,
        webhook_url=around.inbound_url(name),
        agent=account.agent,
    )
    return TelegramAdapter(name, wanted, around.home, around.settings, around.clock)


def _webhook(name: str, account: Account, around: Surroundings) -> ChatAdapter:
    from shoal.chat.webhook.adapter import WebhookAdapter, WebhookSettings

    assert isinstance(account, Webhook)
    wanted = WebhookSettings(secret=account.secret.reveal, post_url=account.post_url, agent=account.agent)
    return WebhookAdapter(name, wanted, around.home, around.settings, around.clock)


def _discord(name: str, account: Account, around: Surroundings) -> ChatAdapter:
    from shoal.chat.discord.adapter import DiscordAdapter
    from shoal.chat.discord.intake import DiscordSettings, ServerSettings

    assert isinstance(account, Discord)
    wanted = DiscordSettings(
        account=account.account,
        token=account.token.reveal,
        api_base=account.api_base,
        gateway_url=account.gateway_url,
        threading=account.threading,
        agent=account.agent,
        servers={
            server: ServerSettings(threading=one.threading, agent=one.agent) for server, one in account.servers.items()
        },
    )
    return DiscordAdapter(name, wanted, around.home, around.settings, around.clock)


def _slack(name: str, account: Account, around: Surroundings) -> ChatAdapter:
    from shoal.chat.slack.adapter import SlackAdapter
    from shoal.chat.slack.connection import SlackSettings

    assert isinstance(account, Slack)
    wanted = SlackSettings(
        account=account.account,
        bot_token=account.bot_token.reveal,
        app_token=account.app_token.reveal,
        signing_secret=account.signing_secret.reveal,
        api_base=account.api_base,
        mode=account.mode,
        agent=account.agent,
    )
    return SlackAdapter(name, wanted, around.home, around.settings, around.clock)


def _matrix(name: str, account: Account, around: Surroundings) -> ChatAdapter:
    from shoal.chat.matrix.adapter import MatrixAdapter, MatrixSettings

    assert isinstance(account, Matrix)
    wanted = MatrixSettings(
        account=account.account,
        homeserver=account.homeserver,
        user=account.user,
        access_token=account.access_token.reveal,
        password=account.password.reveal,
        owner=account.owner,
        agent=account.agent,
    )
    return MatrixAdapter(name, wanted, around.home, around.settings, around.clock)


def _teams(name: str, account: Account, around: Surroundings) -> ChatAdapter:
    from shoal.chat.teams.adapter import TeamsAdapter
    from shoal.chat.teams.service import TeamsSettings

    assert isinstance(account, Teams)
    wanted = TeamsSettings(
        account=account.account,
        app_id=account.app_id,
        app_password=account.app_password.reveal,
        tenant=account.tenant,
        openid_metadata_url=account.openid_metadata_url,
        login_url=account.login_url,
        service_url=account.service_url,
        service_hosts=account.service_hosts,
        emulator=account.emulator,
        agent=account.agent,
    )
    return TeamsAdapter(name, wanted, around.home, around.settings, around.clock)


def _google_chat(name: str, account: Account, around: Surroundings) -> ChatAdapter:
    from shoal.chat.google_chat.adapter import GoogleChatAdapter
    from shoal.chat.google_chat.service import GoogleChatSettings

    assert isinstance(account, GoogleChat)
    wanted = GoogleChatSettings(
        account=account.account,
        audience=account.audience,
        service_account_file=around.home.root / account.service_account_file,
        api_base=account.api_base,
        certs_url=account.certs_url,
        oidc_certs_url=account.oidc_certs_url,
        push_account=account.push_account,
        push_url=around.inbound_url(name) if around.public_url else "",
        subscription=account.subscription,
        pubsub_base=account.pubsub_base,
        read_history=account.read_history,
        agent=account.agent,
    )
    return GoogleChatAdapter(name, wanted, around.home, around.settings, around.clock)


Maker = Callable[[str, Account, Surroundings], ChatAdapter]
MAKERS: dict[str, Maker] = {
    "telegram": _telegram,
    "discord": _discord,
    "slack": _slack,
    "matrix": _matrix,
    "teams": _teams,
    "google_chat": _google_chat,
}
"""By platform; each imports its adapter when it is called."""
