"""The sections of the chat platforms: what each needs to connect, and who may speak there."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shoal.config.secret import NO_SECRET, Secret

URL = r"^https?://\S+$"
URL_OR_EMPTY = r"^$|^https?://\S+$"


class Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every platform has. One account is a table [platforms.NAME]; several are [[platforms.NAME]], each with its
    own `account`."""

    enabled: bool = True
    """False leaves this account out."""
    account: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]*$")] = "main"
    """Name of this account where there are several."""
    owner: str = ""
    """User id of the owner, who may always speak and confirms pairing codes."""
    allow: tuple[str, ...] = ()
    """User ids that may speak; ["*"] is everybody; without any only the owner and people who were paired."""
    channels: tuple[str, ...] = ()
    """Channels to listen in; without any all it is a member of."""
    agent: str = ""
    """Agent that answers here; empty takes agents.default_agent."""


class Telegram(Account, frozen=True, kw_only=True):
    """A Telegram bot."""

    token: Secret = NO_SECRET
    """Token from BotFather."""
    api_base: Annotated[str, Meta(pattern=URL)] = "https://api.telegram.org"
    """Address of the Bot API."""
    file_base: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Address files are fetched from; empty is api_base with /file."""
    mode: Literal["polling", "webhook"] = "polling"
    """How updates arrive; webhook needs web.public_url."""
    webhook_secret: Secret = NO_SECRET
    """What Telegram must show in its secret header."""


class DiscordServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What differs in one Discord server; empty takes the account's."""

    threading: Literal["", "native", "reply", "channel"] = ""
    """What is a thread there."""
    agent: str = ""
    """Agent that answers there."""


class Discord(Account, frozen=True, kw_only=True):
    """A Discord bot."""

    token: Secret = NO_SECRET
    """The bot's token."""
    api_base: Annotated[str, Meta(pattern=URL)] = "https://discord.com/api/v10"
    """Address of the REST API, version part included."""
    gateway_url: Annotated[str, Meta(pattern=r"^$|^wss?://\S+$")] = ""
    """Address of the gateway; empty asks the API."""
    threading: Literal["native", "reply", "channel"] = "native"
    """What is a thread: a Discord thread, a chain of replies, or the whole channel."""
    servers: dict[str, DiscordServer] = {}
    """What differs in single servers, by their ids."""


class Slack(Account, frozen=True, kw_only=True):
    """A Slack app in one workspace."""

    bot_token: Secret = NO_SECRET
    """Bot token, xoxb-…."""
    app_token: Secret = NO_SECRET
    """App-level token, xapp-…, for Socket Mode."""
    signing_secret: Secret = NO_SECRET
    """What requests are signed with, for mode http."""
    api_base: Annotated[str, Meta(pattern=URL)] = "https://slack.com/api/"
    """Address of the Web API."""
    mode: Literal["socket", "http"] = "socket"
    """How events arrive."""


class Matrix(Account, frozen=True, kw_only=True):
    """A Matrix account; it needs an access token or a password."""

    homeserver: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Address of the homeserver."""
    user: str = ""
    """Full user id, @NAME:SERVER."""
    access_token: Secret = NO_SECRET
    """Access token of a device."""
    password: Secret = NO_SECRET
    """Password, where there is no access token."""


class Teams(Account, frozen=True, kw_only=True):
    """A Microsoft Teams bot."""

    app_id: str = ""
    """The bot's application id."""
    app_password: Secret = NO_SECRET
    """The application's client secret."""
    tenant: str = ""
    """Tenant of a single-tenant bot; empty is the Bot Framework's own."""
    openid_metadata_url: Annotated[str, Meta(pattern=URL)] = (
        "https://login.botframework.com/v1/.well-known/openidconfiguration"
    )
    """Where the keys that sign activities are described."""
    login_url: Annotated[str, Meta(pattern=URL)] = "https://login.microsoftonline.com"
    """Where access tokens come from."""
    service_url: Annotated[str, Meta(pattern=URL)] = "https://smba.trafficmanager.net/teams/"
    """Where posts go to in conversations that nobody has written in yet."""
    service_hosts: tuple[str, ...] = (
        "smba.trafficmanager.net",
        "smba.infra.gcc.teams.microsoft.com",
        "smba.infra.gov.teams.microsoft.us",
        "smba.infra.dod.teams.microsoft.us",
    )
    """Hosts, with their port unless it is the usual one, that activities may name as their service and that are shown
    our token; service_url's is one too."""
    emulator: bool = False
    """True also takes unsigned activities whose service is on this machine, as Microsoft's playground sends them; never
    on a server that others reach."""


class GoogleChat(Account, frozen=True, kw_only=True):
    """A Google Chat app."""

    audience: str = ""
    """Audience of the events' tokens: the project number or the endpoint's address."""
    service_account_file: str = ""
    """JSON key file of the service account, absolute or below the home directory."""
    api_base: Annotated[str, Meta(pattern=URL)] = "https://chat.googleapis.com"
    """Address of the Chat API."""
    certs_url: Annotated[str, Meta(pattern=URL)] = (
        "https://www.googleapis.com/service_accounts/v1/metadata/x509/chat@system.gserviceaccount.com"
    )
    """Where the certificates that sign events are."""
    oidc_certs_url: Annotated[str, Meta(pattern=URL)] = "https://www.googleapis.com/oauth2/v3/certs"
    """Where the keys are that sign events for an endpoint's address, and Pub/Sub's pushes."""
    push_account: str = ""
    """E-mail address of the service account that Pub/Sub pushes as; without one no pushes are taken."""
    subscription: Annotated[str, Meta(pattern=r"^$|^projects/[^/\s]+/subscriptions/[^/\s]+$")] = ""
    """Pub/Sub subscription to pull events from, projects/NAME/subscriptions/NAME, where Google cannot call."""
    pubsub_base: Annotated[str, Meta(pattern=URL)] = "https://pubsub.googleapis.com"
    """Address of the Pub/Sub API."""
    read_history: bool = False
    """True where an administrator has let the app read messages (chat.app.messages.readonly)."""


class Webhook(Account, frozen=True, kw_only=True):
    """A chat of your own that sends and takes signed JSON; its name is the platform's."""

    secret: Secret = NO_SECRET
    """What both sides sign with."""
    post_url: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Where answers are posted to."""


class PluginPlatform(msgspec.Struct, frozen=True):
    """The settings of a platform that an installed extension brings; it reads them itself."""

    name: str
    settings: msgspec.Raw


class Platforms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The chat platforms that are configured, each with its accounts.

    `plugins` is not a key: it holds the tables of platforms that extensions bring.
    """

    telegram: tuple[Telegram, ...] = ()
    discord: tuple[Discord, ...] = ()
    slack: tuple[Slack, ...] = ()
    matrix: tuple[Matrix, ...] = ()
    teams: tuple[Teams, ...] = ()
    google_chat: tuple[GoogleChat, ...] = ()
    webhook: dict[str, Webhook] = {}
    plugins: tuple[PluginPlatform, ...] = ()
