"""[backup]."""

from typing import Annotated

from msgspec import Meta

from shoal.kernel.section import Section


class BackupSettings(Section, frozen=True, kw_only=True):
    """Backups on schedule, of all that `shoal backup` writes; each is checked after it was made."""

    live = frozenset({"to", "every_hours"})

    to: Annotated[str, Meta(pattern=r"^$|^s3://[A-Za-z0-9][A-Za-z0-9._-]*(/\S*)?$|^(?!s3:).+$")] = ""
    """Where they are kept: a directory (from the home on) or s3://BUCKET/PREFIX in the store of [files]; empty: not."""
    every_hours: Annotated[float, Meta(ge=0, le=8_784)] = 24.0
    """Time between two, in hours; 0 makes them only when asked."""
    keep: Annotated[int, Meta(ge=1, le=10_000)] = 7
    """How many are kept; older ones are deleted once a newer one was checked."""
