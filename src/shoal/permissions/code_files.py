"""Files that a later command may execute: all except those whose name identifies them as data.

The names of data files are an allow-list. A file counts as code if its name has no known data extension, if the name
begins with a dot, or if some program looks for this name automatically. Executable files and files that begin with
`#!` also count.
"""

import os
import re
import stat
from functools import cache
from pathlib import Path, PurePosixPath

from shoal.kernel import lazy_re
from shoal.kernel.regular_files import regular_only

_DATA = frozenset(
    """
    txt text md markdown rst adoc csv tsv jsonl ndjson geojson log diff patch html htm css svg png jpg jpeg gif webp bmp
    ico pdf docx xlsx pptx odt ods epub mp3 mp4 wav ogg webm mov zip gz tgz bz2 xz zst tar 7z bak orig db sqlite sqlite3
    parquet feather ics vcf eml srt vtt bib md5 sha256 po pot
    """.split()  # noqa: SIM905
)
# JSON and XML often control what runs, so they are data only in data folders.
_DATA_IN_FOLDERS = frozenset({"json", "xml", "dat", "data", "out", "tmp"})
_DATA_FOLDERS = frozenset({"data", "out", "output", "outputs", "result", "results", "report", "reports", "tmp", "temp",
                           "fixtures", "exports", "downloads", "coverage", "scratch"})  # fmt: skip
_CODE_FOLDERS = frozenset({"templates", "views", "layouts", "partials", "_includes", "_layouts", "hooks", "bin",
                           "requirements", "constraints"})  # fmt: skip
_LOOKED_FOR = lazy_re.compile(
    r"CMake.*|entry_points\.txt|meson_options\.txt|conanfile\.txt|(?=(?:.*-)?(?:requirements|constraints)[-._]).*\.txt"
    r"|(?:package|composer|deno|[jt]sconfig.*|tasks|launch|settings|pom|build)\.(?:json|xml)",
    re.IGNORECASE,
)


@cache
def _executed() -> dict[str, tuple[str, ...]]:
    lists: dict[str, tuple[str, ...]] = {}
    for line in Path(__file__).with_name("executed_files.txt").read_text("utf-8").splitlines():
        kind, _, names = line.partition(" ")
        if kind and kind != "#":
            lists[kind] = (*lists.get(kind, ()), *names.split())
    return lists


def is_executed(path: str) -> bool:
    """Return True if programs automatically execute this file or read configuration from it."""
    *folders, name = [part for part in path.lower().split("/") if part not in ("", ".", "..")] or [""]
    known = _executed()
    if name in known["name"] or name.startswith(known["begins"]) or name.endswith(known["ends"]):
        return True
    return any(part.startswith(".") for part in (*folders, name)) or not set(known["folder"]).isdisjoint(folders)


def is_code(name: str) -> bool:
    """Return True if a file with this name (or path) may be executed or control what is executed."""
    path = PurePosixPath(name)
    extension, folders = path.suffix[1:].lower(), {part.lower() for part in path.parts[:-1]}
    if any(part.startswith(".") and part not in (".", "..") for part in path.parts) or folders & _CODE_FOLDERS:
        return True
    is_data = extension in _DATA or (extension in _DATA_IN_FOLDERS and bool(folders & _DATA_FOLDERS))
    return not is_data or _LOOKED_FOR.fullmatch(path.name) is not None or is_executed(name)


def runs_as_code(path: str) -> bool:
    """Return True if an existing file may be executed regardless of its name.

    Such a file is executable, begins with `#!`, has several hard links, or cannot be read as a regular file.
    """
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            return True
        if status.st_mode & 0o111 or status.st_nlink > 1:
            return True
        with open(path, "rb", opener=regular_only) as file:
            return file.read(2) == b"#!"
    except FileNotFoundError:
        return False
    except OSError:
        return True
