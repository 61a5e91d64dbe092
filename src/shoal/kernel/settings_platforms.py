"""The sections of the configuration for chat platforms: the keys of every account, and those of webhooks."""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.section import URL_OR_EMPTY, Section


class AccountSettings(Section, frozen=True, kw_only=True):
    """What every platform has, those of installed packages among them. One account is a table [platforms.NAME]; several
    are tables [platforms.NAME.ACCOUNT], or [[platforms.NAME]] with an `account` each."""

    live: ClassVar[frozenset[str]] = frozenset({"enabled", "owner"})

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

    needed: ClassVar[tuple[str, ...]] = ()
    """Keys without which an enabled account does not work."""

    def problems(self, public_url: str) -> Iterator[tuple[str, str]]:
        """Yield what an enabled account lacks: a key, and a phrase that goes on after the key's name."""
        for key in self.needed:
            if not getattr(self, key):
                yield key, "is missing; give it, or set enabled = false"


class WebhookSettings(AccountSettings, frozen=True, kw_only=True):
    """A chat of your own that sends and takes signed JSON; its name is the platform's."""

    secret: Secret = NO_SECRET
    """What both sides sign with."""
    post_url: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Where answers are posted to."""


class PlatformsSettings(Section, frozen=True, kw_only=True):
    """The chat platforms that are configured, each with its accounts."""

    webhook: dict[str, WebhookSettings] = {}
    accounts: dict[str, tuple[AccountSettings, ...]] = {}
    """Not a key: the accounts of all platforms but webhooks, by platform, with those that are switched off."""

    def of(self, platform: str) -> tuple[AccountSettings, ...]:
        return self.accounts.get(platform, ())
