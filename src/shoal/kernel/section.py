"""What the sections of the configuration have in common."""

import msgspec

URL = r"^https?://([^\s/?#@]*@)?(\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(:\d{1,5})?([/?#]\S*)?$"
URL_OR_EMPTY = rf"^$|{URL}"


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the configuration file."""
