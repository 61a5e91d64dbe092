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
    """Audience that event tokens must have: the project number or the endpoint's URL."""
    service_account_file: str = ""
    """Path to the service account's JSON key file, absolute or relative to the home directory."""
    api_base: Annotated[str, Meta(pattern=URL)] = "https://chat.googleapis.com"
    """URL of the Chat API."""
    certs_url: Annotated[str, Meta(pattern=URL)] = (
        "https://www.googleapis.com/service_accounts/v1/metadata/x509/chat@system.gserviceaccount.com"
    )
    """URL of the certificates for verifying events whose audience is a project number."""
    oidc_certs_url: Annotated[str, Meta(pattern=URL)] = "https://www.googleapis.com/oauth2/v3/certs"
    """URL of the keys for verifying add-on events, Pub/Sub pushes, and events whose audience is a URL."""
    addon_account: str = ""
    """E-mail address of the service account that sends events of a Google Workspace add-on. If empty, these events are
    rejected.
    """
    push_account: str = ""
    """E-mail address of the service account that signs Pub/Sub pushes. If empty, pushes are rejected."""
    subscription: Annotated[
        str,
        Meta(
            pattern=r"^$|^projects/[^/\s]+/subscriptions/[^/\s]+$",
            description="projects/NAME/subscriptions/NAME, or empty",
        ),
    ] = ""
    """Pub/Sub subscription from which Shoal pulls events. Use it if Google cannot reach the server."""
    pubsub_base: Annotated[str, Meta(pattern=URL)] = "https://pubsub.googleapis.com"
    """URL of the Pub/Sub API."""
    read_history: bool = False
    """Whether to read earlier messages. An administrator must first grant the app `chat.app.messages.readonly`."""
