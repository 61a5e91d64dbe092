"""The current configuration. Setup and changes of permission rules replace it while Shoal runs."""

from dataclasses import dataclass

from shoal.kernel.settings import Config


@dataclass
class LiveConfig:
    """Contains the current configuration. `current` is always replaced as a whole."""

    current: Config
