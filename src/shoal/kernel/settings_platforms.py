"""The sections of the configuration for chat platforms: what every account has, and what each platform's has beside."""

from typing import Annotated, Literal

from msgspec import Meta

from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.section import URL, URL_OR_EMPTY, Section


class AccountSettings(Section, frozen=True, kw_only=True):
    """What every platform has, those of installed packages among them. One account is a table [platforms.NAME]; several
    are tables [platforms.NAME.ACCOUNT], or [[platforms.NAME]] with an `account` each."""

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


class TelegramSettings(AccountSettings, frozen=True, kw_only=True):
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


class DiscordServerSettings(Section, frozen=True, kw_only=True):
    """What differs in one Discord server; empty takes the account's."""

    threading: Literal["", "native", "reply", "channel"] = ""
    """What is a thread there."""
    agent: str = ""
    """Agent that answers there."""


class DiscordSettings(AccountSettings, frozen=True, kw_only=True):
    """A Discord bot."""

    token: Secret = NO_SECRET
    """The bot's token."""
    api_base: Annotated[str, Meta(pattern=URL)] = "https://discord.com/api/v10"
    """Address of the REST API, version part included."""
    gateway_url: Annotated[str, Meta(pattern=r"^$|^wss?://\S+$")] = ""
    """Address of the gateway; empty asks the API."""
    threading: Literal["native", "reply", "channel"] = "native"
    """What is a thread: a Discord thread, a chain of replies, or the whole channel."""
    servers: dict[str, DiscordServerSettings] = {}
    """What differs in single servers, by their ids."""

    def threading_in(self, server: str) -> Literal["native", "reply", "channel"]:
        return self.servers.get(server, DiscordServerSettings()).threading or self.threading

    @property
    def opens_threads(self) -> bool:
        """Whether every conversation has a Discord thread of its own, and with it a rate limit of its own."""
        return self.threading == "native" and all(one.threading in ("", "native") for one in self.servers.values())

    def agent_in(self, server: str) -> str:
        return self.servers.get(server, DiscordServerSettings()).agent or self.agent


class SlackSettings(AccountSettings, frozen=True, kw_only=True):
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


class MatrixSettings(AccountSettings, frozen=True, kw_only=True):
    """A Matrix account; it needs an access token or a password."""

    homeserver: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Address of the homeserver."""
    user: str = ""
    """Full user id, @NAME:SERVER."""
    access_token: Secret = NO_SECRET
    """Access token of a device."""
    password: Secret = NO_SECRET
    """Password, where there is no access token."""


class TeamsSettings(AccountSettings, frozen=True, kw_only=True):
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
    """Hosts, with any unusual port, that activities may name as their service and that are shown our token."""
    emulator: bool = False
    """Also takes unsigned activities of this machine, as Microsoft's playground sends them; never where others can."""


class GoogleChatSettings(AccountSettings, frozen=True, kw_only=True):
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
    addon_account: str = ""
    """E-mail address of the account that calls for a Google Workspace add-on; without one its events are refused."""
    push_account: str = ""
    """E-mail address of the service account that Pub/Sub pushes as; without one no pushes are taken."""
    subscription: Annotated[str, Meta(pattern=r"^$|^projects/[^/\s]+/subscriptions/[^/\s]+$")] = ""
    """Pub/Sub subscription to pull events from, projects/NAME/subscriptions/NAME, where Google cannot call."""
    pubsub_base: Annotated[str, Meta(pattern=URL)] = "https://pubsub.googleapis.com"
    """Address of the Pub/Sub API."""
    read_history: bool = False
    """True where an administrator has let the app read messages (chat.app.messages.readonly)."""


class WebhookSettings(AccountSettings, frozen=True, kw_only=True):
    """A chat of your own that sends and takes signed JSON; its name is the platform's."""

    secret: Secret = NO_SECRET
    """What both sides sign with."""
    post_url: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Where answers are posted to."""


class PlatformsSettings(Section, frozen=True, kw_only=True):
    """The chat platforms that are configured, each with its accounts.

    `extensions` is not a key: it holds the accounts on platforms that installed packages bring.
    """

    telegram: tuple[TelegramSettings, ...] = ()
    discord: tuple[DiscordSettings, ...] = ()
    slack: tuple[SlackSettings, ...] = ()
    matrix: tuple[MatrixSettings, ...] = ()
    teams: tuple[TeamsSettings, ...] = ()
    google_chat: tuple[GoogleChatSettings, ...] = ()
    webhook: dict[str, WebhookSettings] = {}
    extensions: dict[str, tuple[AccountSettings, ...]] = {}

    @property
    def by_platform(self) -> dict[str, tuple[AccountSettings, ...]]:
        """The accounts of each platform but webhooks', those that are switched off among them."""
        return {
            "telegram": self.telegram, "discord": self.discord, "slack": self.slack, "matrix": self.matrix,
            "teams": self.teams, "google_chat": self.google_chat, **self.extensions,
        }  # fmt: skip
