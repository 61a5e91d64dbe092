"""The settings of a Google Chat account."""

from typing import Annotated, ClassVar

from msgspec import Meta

from shoal.kernel.section import URL
from shoal.kernel.settings_platforms import AccountSettings


class GoogleChatSettings(AccountSettings, frozen=True, kw_only=True):
    """A Google Chat app."""

    live: ClassVar[frozenset[str]] = AccountSettings.live | frozenset(
        {"service_account_file", "audience", "subscription"}
    )

    needed: ClassVar[tuple[str, ...]] = ("audience", "service_account_file")

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
