"""Settings in [backup]."""

from typing import Annotated

from msgspec import Meta

from shoal.kernel.section import Section


class BackupSettings(Section, frozen=True, kw_only=True):
    """Scheduled backups, with the same content as those made with `shoal backup`. Shoal checks each backup after making
    it.
    """

    live = frozenset({"to", "every_hours"})

    to: Annotated[
        str,
        Meta(
            pattern=r"^$|^s3://[A-Za-z0-9][A-Za-z0-9._-]*(/\S*)?$|^(?!s3:).+$",
            description="a directory, s3://BUCKET/PREFIX, or empty",
        ),
    ] = ""
    """Destination of the backups: a directory, absolute or relative to the home directory, or s3://BUCKET/PREFIX in the
    S3 store that [files] configures. If empty, Shoal makes no scheduled backups.
    """
    every_hours: Annotated[float, Meta(ge=0, le=8_784)] = 24.0
    """Hours between scheduled backups. 0 turns scheduled backups off."""
    keep: Annotated[int, Meta(ge=1, le=10_000)] = 7
    """Number of backups to keep. Older ones are deleted after a newer backup passes its check."""
