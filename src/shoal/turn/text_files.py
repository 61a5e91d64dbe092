"""Cache small text files, directory listings and skills. An unchanged file costs one stat per turn."""

import os
import stat
import time
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from shoal.kernel.untrusted import is_text
from shoal.turn.skills import (
    SKILL_BYTES_MAX,
    SKILL_FILE,
    SKILLS_MAX,
    Skill,
    SkillProblem,
    SkillRoot,
    Skills,
    SkillScope,
    is_skill_file,
    merge,
    parse_skill,
)

_RACY_NANOSECONDS = 20_000_000
"""Minimum age of a file's last change before its content is cached.

If a file was modified more recently, it may change again with the same timestamp, so it is read again.
"""

SKILL_DEPTH_MAX = 3
"""Maximum depth of folders below a root. Folders are skills, or categories that contain skills."""
SKILL_FOLDERS_MAX = 200
"""Maximum number of entries per folder that are searched for skills."""

Content = TypeVar("Content", str, tuple[str, ...])


class _FileStamp(NamedTuple):
    mtime_ns: int
    size: int
    inode: int


class _Cached(NamedTuple, Generic[Content]):
    """A cached file or directory. Unless `is_stable` is set, it may change without a new timestamp."""

    stamp: _FileStamp
    is_stable: bool
    bytes_max: int
    content: Content


class FileCache:
    """Caches texts and listings by path. Drops the least recently used entries beyond `files_max` and `bytes_max`.

    Returns the same `str` object while a file is unchanged, so callers can compare by identity. Not thread-safe. An
    unreadable file counts as missing.
    """

    def __init__(self, *, files_max: int = 2048, bytes_max: int = 16_777_216) -> None:
        self._files_max = files_max
        self._bytes_max = bytes_max
        self._texts: OrderedDict[str, _Cached[str]] = OrderedDict()
        self._listings: OrderedDict[str, _Cached[tuple[str, ...]]] = OrderedDict()
        self.bytes_held = 0

    def read(self, path: str, bytes_max: int) -> str:
        """Return the file's text without trailing white space.

        Returns an empty string if the file is missing, unreadable or not a regular file. A notice replaces the middle
        of a file longer than `bytes_max` bytes. NULs and bytes that cannot be decoded become U+FFFD.
        """
        stamp, cached = _stamp(path, stat.S_IFREG), self._texts.get(path)
        if stamp and cached and cached.is_stable and (cached.stamp, cached.bytes_max) == (stamp, bytes_max):
            self._texts.move_to_end(path)
            return cached.content
        if cached is not None:
            del self._texts[path]
            self.bytes_held -= len(cached.content)
        if stamp is None:
            return ""
        before_ns = time.time_ns()
        try:
            with open(path, "rb", buffering=0) as file:
                if stamp.size <= bytes_max:
                    text = _clean(file.read(bytes_max), "replace")
                else:
                    half = bytes_max // 4 * 2  # Keep it even, because a UTF-16 character has two or four bytes.
                    start = file.read(half)
                    file.seek((stamp.size - half) // 2 * 2)
                    head, tail = _clean(start, "ignore"), _clean(file.read(half), "ignore", _codec(start))
                    text = _joined(head, tail, stamp.size, "bytes", path)
        except OSError:
            text = ""
        if cached is not None and cached.content == text:
            text = cached.content
        self._texts[path] = _Cached(stamp, stamp.mtime_ns < before_ns - _RACY_NANOSECONDS, bytes_max, text)
        self.bytes_held += len(text)
        while len(self._texts) > 1 and (len(self._texts) > self._files_max or self.bytes_held > self._bytes_max):
            self.bytes_held -= len(self._texts.popitem(last=False)[1].content)
        return text

    def names(self, directory: str) -> tuple[str, ...]:
        """Return the sorted names in a directory, without hidden names and names that are not UTF-8.

        Returns an empty tuple if the directory is unreadable.
        """
        stamp = _stamp(directory, stat.S_IFDIR)
        if stamp is None:
            self._listings.pop(directory, None)
            return ()
        cached = self._listings.get(directory)
        if cached is not None and cached.is_stable and cached.stamp == stamp:
            self._listings.move_to_end(directory)
            return cached.content
        before_ns = time.time_ns()
        try:
            listed = tuple(sorted(name for name in os.listdir(directory) if not name.startswith(".") and is_text(name)))
        except OSError:
            listed = ()
        if cached is not None and cached.content == listed:
            listed = cached.content
        self._listings[directory] = _Cached(stamp, stamp.mtime_ns < before_ns - _RACY_NANOSECONDS, 0, listed)
        while len(self._listings) > self._files_max:
            self._listings.popitem(last=False)
        return listed


class SkillReader:
    """Reads skills through a FileCache. Parses a file again only if it has changed."""

    def __init__(self, files: FileCache) -> None:
        self._files = files
        self._parsed: dict[str, tuple[str, SkillScope, Skill | SkillProblem]] = {}
        self._merged: dict[tuple[SkillRoot, ...], tuple[list[Skill | SkillProblem], Skills]] = {}

    def read(self, roots: tuple[SkillRoot, ...]) -> Skills:
        """Return the skills below `roots`. Returns the same object while no skill changes."""
        skills: list[Skill | SkillProblem] = []
        for root in roots:
            looked = [*self._below(str(root.path), root.scope)]
            names = set[str]()
            for entry in looked[:SKILLS_MAX]:
                if isinstance(entry, Skill) and entry.name in names:
                    why = (
                        f"Skill {entry.path.parent.name!r} is skipped: another skill here has the name {entry.name!r}."
                    )
                    skills.append(SkillProblem(entry.path, why))
                    continue
                if isinstance(entry, Skill):
                    names.add(entry.name)
                skills.append(entry)
            if len(looked) > SKILLS_MAX:
                why = f"{root.path} contains {len(looked)} skills. Shoal reads only the first {SKILLS_MAX}."
                skills.append(SkillProblem(root.path, why))
        before, merged = self._merged.get(roots, (None, None))
        if merged is None or before != skills:
            if len(self._merged) >= 512:
                self._merged.clear()
            merged = merge(skills)
            self._merged[roots] = (skills, merged)
        return merged

    def _below(self, folder: str, scope: SkillScope, depth: int = SKILL_DEPTH_MAX) -> Iterator[Skill | SkillProblem]:
        """Yield the skills below a folder. Folders without a SKILL.md are categories, up to `depth` levels deep."""
        for name in self._files.names(folder)[:SKILL_FOLDERS_MAX]:
            path = f"{folder}/{name}/{SKILL_FILE}"
            text = self._files.read(path, SKILL_BYTES_MAX)
            if not text and not os.path.lexists(path):
                inner = self._files.names(f"{folder}/{name}")
                written = next((name for name in inner if is_skill_file(name)), "")
                if not written:
                    if depth > 1:
                        yield from self._below(f"{folder}/{name}", scope, depth - 1)
                    continue
                path = f"{folder}/{name}/{written}"
                text = self._files.read(path, SKILL_BYTES_MAX)
            cached = self._parsed.get(path)
            if text and cached is not None and cached[0] is text and cached[1] == scope:
                yield cached[2]
            elif text:
                if len(self._parsed) >= 4096:
                    self._parsed.clear()
                parsed = parse_skill(Path(path), text, scope)
                self._parsed[path] = (text, scope, parsed)
                yield parsed
            else:
                why = f"Skill {name!r} is skipped: {SKILL_FILE} is empty or unreadable."
                yield SkillProblem(Path(path), why)


def cut_middle(text: str, chars_max: int, where: str = "") -> str:
    """Replace the middle of text longer than `chars_max` with a notice of the omitted length."""
    if len(text) <= chars_max:
        return text
    half = chars_max // 2
    return _joined(text[:half], text[len(text) - half :], len(text), "characters", where)


def cut_bytes(text: str, bytes_max: int, where: str = "") -> str:
    data = text.encode()
    if len(data) <= bytes_max:
        return text
    half = bytes_max // 2
    head, tail = _clean(data[:half], "ignore"), _clean(data[len(data) - half :], "ignore")
    return _joined(head, tail, len(data), "bytes", where)


def _stamp(path: str, kind: int) -> _FileStamp | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if stat.S_IFMT(status.st_mode) != kind:
        return None
    return _FileStamp(status.st_mtime_ns, status.st_size, status.st_ino)


def _codec(data: bytes) -> str:
    marks = {BOM_UTF16_LE: "utf-16-le", BOM_UTF16_BE: "utf-16-be"}
    return next((codec for mark, codec in marks.items() if data.startswith(mark)), "utf-8")


def _clean(data: bytes, errors: str, codec: str = "") -> str:
    text = data.decode(codec or _codec(data), errors).removeprefix("\ufeff")
    return text.replace("\x00", "\ufffd").replace("\r\n", "\n").rstrip()


def _joined(head: str, tail: str, size: int, unit: str, where: str) -> str:
    head_end = head.rfind("\n")
    if head_end > len(head) * 3 // 4:
        head = head[:head_end]
    tail_start = tail.find("\n") + 1
    if tail_start < len(tail) // 4:
        tail = tail[tail_start:]
    length = len(head.encode()) + len(tail.encode()) if unit == "bytes" else len(head) + len(tail)
    name = f" of {os.path.basename(where)}" if where else ""
    return f"{head}\n[… {size - length} of {size} {unit}{name} omitted here …]\n{tail}"
