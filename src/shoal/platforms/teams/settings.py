"""Settings of a Microsoft Teams account."""

from typing import Annotated, ClassVar

from msgspec import Meta

from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.section import URL
from shoal.kernel.settings_platforms import AccountSettings


class TeamsSettings(AccountSettings, frozen=True, kw_only=True):
    """A Microsoft Teams bot."""

    live: ClassVar[frozenset[str]] = AccountSettings.live | {"app_id", "tenant", "app_password"}

    needed: ClassVar[tuple[str, ...]] = ("app_id", "app_password")

    app_id: str = ""
    """The bot's application id."""
    app_password: Secret = NO_SECRET
    """The application's client secret."""
    tenant: str = ""
    """Tenant of a single-tenant bot. Leave it empty for a multi-tenant bot."""
    openid_metadata_url: Annotated[str, Meta(pattern=URL)] = (
        "https://login.botframework.com/v1/.well-known/openidconfiguration"
    )
    """URL of the OpenID metadata, which lists the keys that sign activities."""
    login_url: Annotated[str, Meta(pattern=URL)] = "https://login.microsoftonline.com"
    """URL of the token service."""
    service_url: Annotated[str, Meta(pattern=URL)] = "https://smba.trafficmanager.net/teams/"
    """Service URL for conversations from which no message has arrived yet."""
    service_hosts: tuple[str, ...] = (
        "smba.trafficmanager.net",
        "smba.infra.gcc.teams.microsoft.com",
        "smba.infra.gov.teams.microsoft.us",
        "smba.infra.dod.teams.microsoft.us",
    )
    """Hosts to which Shoal may send the bot's token. Include the port if it is not the default."""
    emulator: bool = False
    """Whether to accept unsigned activities from this machine, for Microsoft's Agents Playground. Never enable this on
    a server that others can reach.
    """
