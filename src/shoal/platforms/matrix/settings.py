"""Settings of a Matrix account."""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.section import URL_OR_EMPTY
from shoal.kernel.settings_platforms import AccountSettings


class MatrixSettings(AccountSettings, frozen=True, kw_only=True):
    """A Matrix account. Requires an access token or a password."""

    live: ClassVar[frozenset[str]] = AccountSettings.live | {"homeserver", "user", "access_token"}

    needed: ClassVar[tuple[str, ...]] = ("homeserver", "user")

    homeserver: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """URL of the homeserver."""
    user: str = ""
    """Full user id, @NAME:SERVER."""
    access_token: Secret = NO_SECRET
    """Access token of a device."""
    password: Secret = NO_SECRET
    """Password. Used only if no access token is set."""

    def account_problems(self, public_url: str) -> Iterator[tuple[str, str]]:
        yield from super().account_problems(public_url)
        if not self.access_token and not self.password:
            yield "access_token", "is missing. Set it, or set a password"
