"""The accounts of a configuration with the settings type of their platform."""

from typing import TypeVar

from shoal.config import Config
from shoal.kernel.settings_platforms import AccountSettings

A = TypeVar("A", bound=AccountSettings)


def configured(config: Config, kind: type[A]) -> list[A]:
    """Return every account with settings of this type, in the order of the file."""
    return [
        account for accounts in config.platforms.accounts.values() for account in accounts if isinstance(account, kind)
    ]
