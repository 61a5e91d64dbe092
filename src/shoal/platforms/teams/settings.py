"""The settings of a Microsoft Teams account."""

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
    """Tenant of a single-tenant bot. Empty means the Bot Framework's own."""
    openid_metadata_url: Annotated[str, Meta(pattern=URL)] = (
        "https://login.botframework.com/v1/.well-known/openidconfiguration"
    )
    """Address of the metadata of keys that sign activities."""
    login_url: Annotated[str, Meta(pattern=URL)] = "https://login.microsoftonline.com"
    """Address of the token service."""
    service_url: Annotated[str, Meta(pattern=URL)] = "https://smba.trafficmanager.net/teams/"
    """Service address for conversations without messages so far."""
    service_hosts: tuple[str, ...] = (
        "smba.trafficmanager.net",
        "smba.infra.gcc.teams.microsoft.com",
        "smba.infra.gov.teams.microsoft.us",
        "smba.infra.dod.teams.microsoft.us",
    )
    """Trusted service hosts, which receive the bot's token. Include the port if it is not the default."""
    emulator: bool = False
    """Also accept unsigned activities from this machine, for Microsoft's playground. Never use it on a reachable
    server."""
