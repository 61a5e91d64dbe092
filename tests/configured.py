"""The accounts in a configuration that have the settings type of a platform."""

from typing import TypeVar

from shoal.config import Config
from shoal.kernel.settings_platforms import AccountSettings

A = TypeVar("A", bound=AccountSettings)


def configured(config: Config, kind: type[A]) -> list[A]:
    return [
        account for accounts in config.platforms.accounts.values() for account in accounts if isinstance(account, kind)
    ]
