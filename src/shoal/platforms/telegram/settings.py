"""Settings of a Telegram account."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.section import URL, URL_OR_EMPTY
from shoal.kernel.settings_platforms import AccountSettings


class TelegramSettings(AccountSettings, frozen=True, kw_only=True):
    """A Telegram bot."""

    live: ClassVar[frozenset[str]] = AccountSettings.live | {"token"}

    needed: ClassVar[tuple[str, ...]] = ("token",)

    token: Secret = NO_SECRET
    """Token from BotFather."""
    api_base: Annotated[str, Meta(pattern=URL)] = "https://api.telegram.org"
    """Base URL of the Bot API."""
    file_base: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Base URL for downloads. Empty means `api_base` followed by `/file`."""
    mode: Literal["polling", "webhook"] = "polling"
    """How Telegram delivers updates. `polling`: Shoal requests them. `webhook`: Telegram sends them to web.public_url,
    which must be set.
    """
    webhook_secret: Secret = NO_SECRET
    """Secret that webhook requests from Telegram must contain. Required if mode is `webhook`."""

    def account_problems(self, public_url: str) -> Iterator[tuple[str, str]]:
        yield from super().account_problems(public_url)
        if self.mode == "webhook" and not public_url:
            yield "mode", 'is "webhook", which needs web.public_url. Set web.public_url, or set mode = "polling"'
        elif self.mode == "webhook" and not self.webhook_secret:
            yield "webhook_secret", 'is missing. Set it for mode = "webhook", or set mode = "polling"'
