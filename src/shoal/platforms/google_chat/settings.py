"""Settings of a Google Chat account."""

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
    """Audience of the tokens in events: the project number or the endpoint's URL."""
    service_account_file: str = ""
    """JSON key file of the service account. Absolute, or relative to the home directory."""
    api_base: Annotated[str, Meta(pattern=URL)] = "https://chat.googleapis.com"
    """URL of the Chat API."""
    certs_url: Annotated[str, Meta(pattern=URL)] = (
        "https://www.googleapis.com/service_accounts/v1/metadata/x509/chat@system.gserviceaccount.com"
    )
    """URL of the certificates that sign events."""
    oidc_certs_url: Annotated[str, Meta(pattern=URL)] = "https://www.googleapis.com/oauth2/v3/certs"
    """URL of the keys that sign events for an HTTP endpoint, and Pub/Sub pushes."""
    addon_account: str = ""
    """E-mail address of the service account that sends a Google Workspace add-on's events. Without it, add-on events
    are refused."""
    push_account: str = ""
    """E-mail address of the service account that signs Pub/Sub pushes. Without it, pushes are refused."""
    subscription: Annotated[
        str,
        Meta(
            pattern=r"^$|^projects/[^/\s]+/subscriptions/[^/\s]+$",
            description="projects/NAME/subscriptions/NAME, or empty",
        ),
    ] = ""
    """Pub/Sub subscription to pull events from, for servers that Google cannot call."""
    pubsub_base: Annotated[str, Meta(pattern=URL)] = "https://pubsub.googleapis.com"
    """URL of the Pub/Sub API."""
    read_history: bool = False
    """Whether an administrator has allowed the app to read messages (chat.app.messages.readonly)."""
