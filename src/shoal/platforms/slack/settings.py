"""Settings of a Slack account."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.section import URL
from shoal.kernel.settings_platforms import AccountSettings


class SlackSettings(AccountSettings, frozen=True, kw_only=True):
    """A Slack app in one workspace."""

    live: ClassVar[frozenset[str]] = AccountSettings.live | {"bot_token", "app_token"}

    needed: ClassVar[tuple[str, ...]] = ("bot_token",)

    bot_token: Secret = NO_SECRET
    """Bot token. It begins with `xoxb-`."""
    app_token: Secret = NO_SECRET
    """App-level token for Socket Mode. It begins with `xapp-`."""
    signing_secret: Secret = NO_SECRET
    """Secret for verifying that requests come from Slack. Required if mode is `http`."""
    api_base: Annotated[str, Meta(pattern=URL)] = "https://slack.com/api/"
    """Base URL of the Web API."""
    mode: Literal["socket", "http"] = "socket"
    """How Slack delivers events. `socket`: through Socket Mode. `http`: as HTTP requests."""

    def account_problems(self, public_url: str) -> Iterator[tuple[str, str]]:
        yield from super().account_problems(public_url)
        if self.mode == "socket" and not self.app_token:
            yield "app_token", 'is missing. Set it for Socket Mode, or set mode = "http"'
        elif self.mode == "http" and not self.signing_secret:
            yield "signing_secret", 'is missing. Set it for mode = "http", or set mode = "socket"'
