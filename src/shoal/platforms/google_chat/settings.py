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
    """Audience of the events' tokens: the project number or the address of the endpoint."""
    service_account_file: str = ""
    """JSON key file of the service account, absolute or below the home directory."""
    api_base: Annotated[str, Meta(pattern=URL)] = "https://chat.googleapis.com"
    """Address of the Chat API."""
    certs_url: Annotated[str, Meta(pattern=URL)] = (
        "https://www.googleapis.com/service_accounts/v1/metadata/x509/chat@system.gserviceaccount.com"
    )
    """Address of the certificates that sign events."""
    oidc_certs_url: Annotated[str, Meta(pattern=URL)] = "https://www.googleapis.com/oauth2/v3/certs"
    """Address of the keys that sign events for an endpoint, and pushes of Pub/Sub."""
    addon_account: str = ""
    """E-mail address of the account that calls for a Google Workspace add-on. Without it, add-on events are refused."""
    push_account: str = ""
    """E-mail address of the service account that Pub/Sub pushes as. Without it, pushes are refused."""
    subscription: Annotated[
        str,
        Meta(
            pattern=r"^$|^projects/[^/\s]+/subscriptions/[^/\s]+$",
            description="projects/NAME/subscriptions/NAME, or empty",
        ),
    ] = ""
    """Pub/Sub subscription to pull events from, projects/NAME/subscriptions/NAME, if Google cannot call this server."""
    pubsub_base: Annotated[str, Meta(pattern=URL)] = "https://pubsub.googleapis.com"
    """Address of the Pub/Sub API."""
    read_history: bool = False
    """Whether an administrator has allowed the app to read messages (chat.app.messages.readonly)."""
