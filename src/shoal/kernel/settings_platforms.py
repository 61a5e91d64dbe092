"""Configuration of chat platforms: the keys of every account, and those of webhooks."""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.section import URL_OR_EMPTY, Section


class AccountSettings(Section, frozen=True, kw_only=True):
    """Keys that accounts on every platform share, including platforms from installed packages.

    A single account is the table [platforms.NAME]. Several accounts are tables [platforms.NAME.ACCOUNT], or
    [[platforms.NAME]] with a different account key in each.
    """

    live: ClassVar[frozenset[str]] = frozenset({"enabled", "owner"})

    enabled: bool = True
    """Whether the account is used."""
    account: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]*$")] = "main"
    """Name of the account, if the platform has several accounts."""
    owner: str = ""
    """User id of the owner, who may always write and confirms pairing codes."""
    allow: tuple[str, ...] = ()
    """User ids that may write. ["*"] means everyone. Empty means the owner and paired people."""
    channels: tuple[str, ...] = ()
    """Channels to listen in. Empty means all channels that the account is a member of."""
    agent: str = ""
    """Agent that answers. Empty uses agents.default_agent."""

    needed: ClassVar[tuple[str, ...]] = ()
    """Keys that must be set if the account is enabled."""

    def account_problems(self, public_url: str) -> Iterator[tuple[str, str]]:
        """Yield the problems of an enabled account. Each is a key and a phrase that follows the name of the key."""
        for key in self.needed:
            if not getattr(self, key):
                yield key, "is missing. Set it, or set enabled = false"


class WebhookSettings(AccountSettings, frozen=True, kw_only=True):
    """Your own chat, which exchanges signed JSON with Shoal. The table's name is the name of the platform."""

    secret: Secret = NO_SECRET
    """Secret that signs messages in both directions."""
    post_url: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """URL that receives answers."""


class PlatformsSettings(Section, frozen=True, kw_only=True):
    """Chat platforms and their accounts."""

    webhook: dict[str, WebhookSettings] = {}
    accounts: dict[str, tuple[AccountSettings, ...]] = {}
    """Accounts of all platforms except webhooks, by platform, including disabled accounts. This is not a key in
    shoal.toml.
    """

    def of(self, platform: str) -> tuple[AccountSettings, ...]:
        return self.accounts.get(platform, ())
