"""Recognize files that contain secrets, by name (`secret_files.txt`) and by content."""

import os
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from shoal.kernel import lazy_re
from shoal.kernel.regular_files import regular_only
from shoal.permissions.redact import has_key

CONTENT_BYTES_MAX = 65_536
"""Number of bytes that are searched for secrets at the beginning of a file, and also at its end."""
NAME_CHARS_MAX = 512
"""Number of characters at the end of a file name that are checked. File systems limit names to half of that length."""
_DATA = frozenset(
    """
    txt text md csv tsv json jsonl yml yaml toml ini cfg conf config xml properties env dat data db sqlite sqlite3 log
    rtf doc docx xls xlsx pdf html rst org plist lst list enc b64 out
    """.split()  # noqa: SIM905
)
_COPIES = lazy_re.compile(
    r"(?:~|\.(?:bak|backup|old|orig|save|saved|copy|swp|swo|tmp|new|prev|dist|example|sample|template|local|enc|gz|zip"
    r"|[0-9]{1,4})|[ _-](?:copy|backup|bak|old)| \([0-9]{1,3}\))\Z"
)
_COPIES_MAX = 4
_PARTS = lazy_re.compile(r"[^a-z0-9]+")
_CAMEL = lazy_re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SAID = lazy_re.compile(r"credential|secret|passw(?:or)?d|api[_-]?key|token|private[_-]?key", re.IGNORECASE)


class _Names(NamedTuple):
    """The contents of `secret_files.txt`."""

    folder: frozenset[str]
    folders: tuple[str, ...]
    name: frozenset[str]
    begins: tuple[str, ...]
    ends: tuple[str, ...]
    stem: frozenset[str]
    word: frozenset[str]


@cache
def _names() -> _Names:
    lists: dict[str, list[str]] = {}
    for line in Path(__file__).with_name("secret_files.txt").read_text("utf-8").splitlines():
        kind, _, names = line.partition(" ")
        if kind and kind != "#":
            lists.setdefault(kind, []).extend(name.replace("\0", " ") for name in names.replace("\\ ", "\0").split())
    folders = lists["folder"]
    return _Names(
        frozenset(name for name in folders if "/" not in name),
        tuple(f"/{name}/" for name in folders if "/" in name),
        frozenset(lists["name"]),
        tuple(lists["begins"]),
        tuple(lists["ends"]),
        frozenset(lists["stem"]),
        frozenset(lists["word"]),
    )


def is_secret_file(path: str) -> bool:
    """Return True if a file with this name or path probably contains a secret. Code with such a name does not count."""
    known = _names()
    cased = path.rstrip("/").rpartition("/")[2][-NAME_CHARS_MAX:]
    whole, name = path.lower(), cased.lower()
    parts = whole.split("/")
    if not known.folder.isdisjoint(parts) or any(folder in f"/{whole}/" for folder in known.folders):
        return True
    for _ in range(_COPIES_MAX):
        if name in known.name or name.startswith(known.begins) or name.endswith(known.ends):
            return True
        stem, _, extension = name.rpartition(".") if "." in name[1:] else (name, "", "")
        if not extension or extension in _DATA:
            words = _PARTS.split(_CAMEL.sub("-", cased).lower())
            if _SAID.search(stem) or stem.lstrip(".") in known.stem or not known.word.isdisjoint(words):
                return True
        original = _COPIES.sub("", name)
        if original == name or not original:
            return False
        name, cased = original, cased[: len(original)]
    return False


def holds_secret(path: Path) -> bool:
    """Return True if a file contains a key near its beginning or its end. Returns False if the file is unreadable."""
    try:
        with open(path, "rb", opener=regular_only) as file:
            content = file.read(CONTENT_BYTES_MAX)
            if len(content) == CONTENT_BYTES_MAX:
                file.seek(max(CONTENT_BYTES_MAX, os.fstat(file.fileno()).st_size - CONTENT_BYTES_MAX))
                content += file.read(CONTENT_BYTES_MAX)
    except OSError:
        return False
    return has_key(content.decode("latin-1"))
