"""Settings of a Discord account."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.section import URL, Section
from shoal.kernel.settings_platforms import AccountSettings


class DiscordServerSettings(Section, frozen=True, kw_only=True):
    """Settings of one Discord server. Empty values fall back to the account's settings."""

    threading: Literal["", "native", "reply", "channel"] = ""
    """Scope of a conversation on this server. Takes the same values as the account's `threading`."""
    agent: str = ""
    """Agent that answers in the server."""


class DiscordSettings(AccountSettings, frozen=True, kw_only=True):
    """A Discord bot."""

    live: ClassVar[frozenset[str]] = AccountSettings.live | {"token"}

    needed: ClassVar[tuple[str, ...]] = ("token",)

    token: Secret = NO_SECRET
    """The bot's token."""
    api_base: Annotated[str, Meta(pattern=URL)] = "https://discord.com/api/v10"
    """Base URL of the REST API, including the version."""
    gateway_url: Annotated[str, Meta(pattern=r"^$|^wss?://\S+$")] = ""
    """URL of the gateway. Empty means the URL that the API returns."""
    threading: Literal["native", "reply", "channel"] = "native"
    """Scope of a conversation. `native`: a Discord thread. `reply`: a chain of replies. `channel`: an entire channel.
    """
    servers: dict[str, DiscordServerSettings] = {}
    """Settings of individual servers, by server id."""

    def threading_in(self, server: str) -> Literal["native", "reply", "channel"]:
        return self.servers.get(server, DiscordServerSettings()).threading or self.threading

    @property
    def opens_threads(self) -> bool:
        """True if every conversation has its own Discord thread and therefore its own rate limit."""
        return self.threading == "native" and all(
            server.threading in ("", "native") for server in self.servers.values()
        )

    def agent_in(self, server: str) -> str:
        return self.servers.get(server, DiscordServerSettings()).agent or self.agent
