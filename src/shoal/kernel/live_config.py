"""The current configuration. Setup and new permission rules replace it while Shoal runs."""

import msgspec

from shoal.kernel.settings import Config


class LiveConfig(msgspec.Struct, eq=False):
    """Holds the current configuration. Changes replace `current` with a new Config."""

    current: Config
