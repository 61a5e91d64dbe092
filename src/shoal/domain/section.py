"""What the sections of the configuration have in common."""

import msgspec

URL = r"^https?://\S+$"
URL_OR_EMPTY = r"^$|^https?://\S+$"


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the configuration file."""
