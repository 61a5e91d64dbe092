"""A part of an S3-compatible bucket in which whole files are kept by name (the extra `s3`)."""

from itertools import chain
from pathlib import Path

from shoal.store.files import CHUNK_BYTES, S3Settings, open_s3, s3_errors


class S3Place:
    """Implements `shoal.backups.BackupPlace`. A store renames by copying, which S3 does up to 5 GB."""

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings

    def sizes(self) -> dict[str, int]:
        """What is right below the prefix."""
        import obstore

        with s3_errors():
            listed = chain.from_iterable(obstore.list(open_s3(self._settings)))  # pyright: ignore[reportUnknownMemberType]
            return {found["path"]: found["size"] for found in listed if "/" not in found["path"]}

    def put(self, file: Path, name: str) -> None:
        """In parts where it is large."""
        import obstore

        with s3_errors():
            obstore.put(open_s3(self._settings), name, file)

    def fetch(self, name: str, file: Path) -> None:
        """Streamed."""
        import obstore

        with s3_errors(), file.open("wb") as target:
            for chunk in obstore.get(open_s3(self._settings), name).stream(min_chunk_size=CHUNK_BYTES):
                target.write(chunk)

    def rename(self, old: str, new: str) -> None:
        """A copy, then the old one goes."""
        import obstore

        with s3_errors():
            obstore.rename(open_s3(self._settings), old, new)

    def remove(self, name: str) -> None:
        """Delete it."""
        import obstore

        with s3_errors():
            obstore.delete(open_s3(self._settings), name)
