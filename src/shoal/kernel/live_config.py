"""The current configuration, replaced when setup or a permission rule changes it while Shoal runs."""

import msgspec

from shoal.kernel.settings import Config


class LiveConfig(msgspec.Struct, eq=False):
    """Holder of the current configuration. `current` is always replaced as a whole."""

    current: Config
