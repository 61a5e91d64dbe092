"""The record of the complete configuration file, with the sections of the core and of all features."""

from functools import cache
from typing import cast

import msgspec

from shoal.feature import features
from shoal.kernel.settings import Config


@cache
def whole_config() -> type[Config]:
    kinds = {
        table: cast("type[msgspec.Struct]", feature.load(entry))
        for feature in features()
        for table, entry in feature.settings.items()
    }
    fields = [(table, kind, kind()) for table, kind in kinds.items()]
    made = msgspec.defstruct("Config", fields, bases=(Config,), module=__name__, frozen=True, kw_only=True)
    return cast("type[Config]", made)
