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
