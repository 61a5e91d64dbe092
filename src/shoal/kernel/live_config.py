"""The current configuration. Setup and changes of permission rules replace it while Shoal runs."""

import msgspec

from shoal.kernel.settings import Config


class LiveConfig(msgspec.Struct, eq=False):
    """Contains the current configuration. `current` is always replaced as a whole."""

    current: Config
