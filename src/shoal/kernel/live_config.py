"""The configuration as it is now: setup and the permission rules replace it while Shoal runs."""

from dataclasses import dataclass

from shoal.kernel.settings import Config


@dataclass
class LiveConfig:
    """Holds the configuration in force; `current` is replaced as a whole."""

    current: Config
