"""Read the files and databases of another product's home without changing them.

Every file is accounted for. Files that cannot be read completely are listed with a reason. The module also parses
configuration files (JSON5, a subset of YAML, .env) and tracks which of their keys were read.
"""

import json
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

from shoal.importing import (
    SKILL_DEPTH_MAX,
    SKILL_FILE,
    Found,
    FoundAgent,
    FoundSkill,
    Json,
    as_dict,
    clean,
    counted,
    day_of,
    distinct,
    is_skill_file,
    parsed,
    slug,
    text_of,
    walk,
)
from shoal.kernel.errors import InvalidInput

TEXT_BYTES_MAX = 4_194_304
"""Maximum size of a persona, memory or skill. Only the beginning of a longer file is read."""
JSON_BYTES_MAX = 268_435_456
"""Maximum size of a file read as one JSON value."""
LINE_BYTES_MAX = 67_108_864
NOT_KNOWN = "Shoal does not import it, so check it yourself"
PASSED_OVER = {".git", "__pycache__", "node_modules", ".DS_Store"}
PERSONA = ("AGENTS.md", "SOUL.md", "IDENTITY.md", "USER.md")
ASIDE = {
    "HEARTBEAT.md": "it would start turns (to use it, copy it to data/HEARTBEAT.md and set triggers.heartbeat_minutes)",
    "BOOT.md": "Shoal does not run scripts at each start",
    "BOOTSTRAP.md": "it is for the first conversation with a new agent",
}


Database: TypeAlias = Callable[[str], Iterator[dict[str, Json]]]
"""Function that yields the rows of a table, or nothing if this version has no such table. JSON columns stay text."""


class Tree:
    """A directory, and a record of which of its files were read. Links to files outside it are not followed."""

    def __init__(self, found: Found, root: Path) -> None:
        self.root = root
        self._found = found
        self._used: set[Path] = set()

    def text(self, path: Path) -> str:
        """Return the text of a file without carriage returns. Return an empty string if the file is missing or not
        text.
        """
        data = self.data(path)
        if b"\0" in data:
            self.leave(path, "it is not text")
            return ""
        return data.decode("utf-8", "replace").replace("\r\n", "\n").strip("\ufeff")

    def json(self, path: Path) -> Json:
        """Return the value of a JSON file, or an empty dict if the file is missing or unreadable."""
        text = self.data(path, JSON_BYTES_MAX).decode("utf-8", "replace")
        value = parsed(text.strip("\ufeff"))
        if text.strip() and not value and text.strip() not in ("{}", "[]"):
            self.leave(path, "it is not valid JSON")
        return value

    def lines(self, path: Path) -> Iterator[dict[str, Json]]:
        """Yield the objects of a JSON Lines file. Invalid lines are skipped, and their count is reported."""
        damaged = 0
        try:
            if self._takes(path):
                with path.open("rb") as file:
                    while line := file.readline(LINE_BYTES_MAX):
                        entry = as_dict(parsed(line.decode("utf-8", "replace")))
                        damaged += not entry and line.strip() not in (b"", b"{}")
                        if entry:
                            yield entry
        except OSError as error:
            self.leave(path, f"reading it failed: {error.strerror}")
        if damaged:
            self.leave(path, f"it has {counted(damaged, 'line', 'lines')} of invalid JSON")

    def data(self, path: Path, bytes_max: int = TEXT_BYTES_MAX) -> bytes:
        """Return the first `bytes_max` bytes of a file. Return empty bytes if the file is missing."""
        try:
            if not self._takes(path):
                return b""
            with path.open("rb") as file:
                content = file.read(bytes_max + 1)
        except OSError as error:
            self.leave(path, f"reading it failed: {error.strerror}")
            return b""
        if len(content) > bytes_max:
            self.leave(path, f"it is longer than {bytes_max // 1048576} MiB, so the rest was skipped")
        return content[:bytes_max]

    def _takes(self, path: Path) -> bool:
        """Return True if the directory contains the file, and record the file as read."""
        if not path.is_file() or not path.resolve().is_relative_to(self.root.resolve()):
            return False
        self._used.add(path)
        return True

    @contextmanager
    def database(self, path: Path) -> Generator[Database]:
        """Open an SQLite database, including its write-ahead log, without changing either.

        A missing or unreadable database appears as an empty database.
        """
        log = path.with_name(f"{path.name}-wal")
        with ExitStack() as stack:
            connection = stack.enter_context(closing(sqlite3.connect(":memory:")))
            if self._takes(path):
                self._used |= {log, path.with_name(f"{path.name}-shm")}
                try:
                    file = path
                    if log.is_file() and log.stat().st_size:  # opening the database in place would change its files
                        file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-"))) / "copy.db"
                        shutil.copyfile(path, file)
                        shutil.copyfile(log, file.with_name("copy.db-wal"))
                    way = "mode=ro&immutable=1" if file == path else "mode=rw"
                    opened = sqlite3.connect(f"{file.absolute().as_uri()}?{way}", uri=True)
                    connection = stack.enter_context(closing(opened))
                    (tables,) = connection.execute("select count(*) from sqlite_master").fetchone()
                    if not tables:
                        self.leave(path, "it contains no tables")
                except (sqlite3.Error, OSError) as error:
                    self.leave(path, f"it is not a readable database: {error}")
                    connection = stack.enter_context(closing(sqlite3.connect(":memory:")))
            connection.row_factory = sqlite3.Row
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")

            def rows(table: str) -> Iterator[dict[str, Json]]:
                try:
                    for row in connection.execute(f'select * from "{table}"'):  # noqa: S608 (only table names from this package)
                        yield dict(row)
                except sqlite3.Error as error:
                    if not str(error).startswith("no such table"):
                        self.leave(path, f"reading {table} failed partway: {error}")

            yield rows

    def workspace(self, given: str, usual: Path) -> tuple["Tree", Path]:
        """Return the tree and the path of the workspace.

        If the home was copied from another machine, look for the workspace next to the configuration.
        """
        try:
            path = Path(given).expanduser() if given else usual
            if not path.is_dir() and path.name:
                path = self.root / path.name
            path = path.resolve()
        except (RuntimeError, OSError, ValueError):  # an unknown user, a symlink loop, or a NUL in the path
            path = usual
        root = self.root.resolve()
        if path.is_relative_to(root):
            return self, self.root / path.relative_to(root)
        return Tree(self._found, path), path

    def skill(self, folder: Path) -> FoundSkill | None:
        """Return the skill in a folder, or None if the folder has no SKILL.md. The file name is case-insensitive."""
        named = next((path for path in folders_and_files(folder) if is_skill_file(path.name) and path.is_file()), None)
        if named is None:
            return None
        files = {path.relative_to(folder).as_posix(): self.data(path) for path in _files(folder)}
        files = {SKILL_FILE if name == named.name else name: data for name, data in files.items() if data}
        return FoundSkill(slug(folder.name), files, folder.name)

    def skills(self, folder: Path, depth: int = SKILL_DEPTH_MAX) -> Iterator[tuple[FoundSkill, Path]]:
        """Yield the skills below a folder with their paths. Skills may be in category folders, up to `depth`
        levels deep.
        """
        for path in folders_and_files(folder):
            if path.name.startswith(".") or path.is_symlink() or not path.is_dir():
                continue
            if (skill := self.skill(path)) is not None:
                yield skill, path
            elif depth > 1:
                yield from self.skills(path, depth - 1)

    def use(self, path: Path) -> None:
        """Mark a file, or all files of a folder, as accounted for."""
        self._used.add(path)

    def unread(self, folder: Path) -> list[str]:
        """Return the names in a folder that were not read completely, and mark the folder as accounted for."""
        names = [path.name for path in folders_and_files(folder) if any(map(self._is_unread, _files(path)))]
        self.use(folder)
        return names

    def _is_unread(self, path: Path) -> bool:
        return path not in self._used and not any(parent in self._used for parent in path.parents)

    def leave(self, path: Path, why: str) -> None:
        name = path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)
        self._found.leave(name, why)

    def leave_rest(self, reasons: Mapping[str, str]) -> None:
        """Report the files and folders that were not read completely. `reasons` maps their names to reasons."""
        seen: dict[str, int] = {}
        for path in filter(self._is_unread, _files(self.root)):
            parts = path.relative_to(self.root).parts
            where = parts[0] if len(parts) == 1 else "/".join(parts[: min(2, len(parts) - 1)]) + "/"
            seen[where] = seen.get(where, 0) + 1
        for where, count in sorted(seen.items()):
            what = f"{where} ({count} files)" if where.endswith("/") and count > 1 else where
            self._found.leave(what, reasons.get(where.rstrip("/"), reasons.get(where.split("/")[0], NOT_KNOWN)))


def unzstd(data: bytes, bytes_max: int) -> str | None:
    """Decompress zstd data.

    Return an empty string if the data is damaged or too long, and None if no installed package supports zstd.
    """
    try:
        from backports import zstd
    except ImportError:
        return None
    reader = zstd.ZstdDecompressor()
    try:
        text = reader.decompress(data, max_length=bytes_max)
    except zstd.ZstdError:
        return ""
    return text.decode("utf-8", "replace") if reader.eof else ""


def folders_and_files(folder: Path) -> list[Path]:
    """Return the sorted entries of a folder, or an empty list if it is missing or unreadable."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def changed_at(path: Path) -> datetime:
    """Return the modification time of a file, which is used for entries without a time."""
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _files(path: Path) -> Iterator[Path]:
    """Yield a file, or all files and links below a folder. Git folders and caches are skipped."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for folder, folders, names in walk(path):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = sorted(set(folders) - PASSED_OVER - set(links))
        yield from (Path(folder, name) for name in sorted({*names, *links} - PASSED_OVER))


# ---- workspaces, as used by several products ----


def read_workspace(found: Found, tree: Tree, folder: Path, agent: FoundAgent) -> None:
    """Read the persona, documents, memory, daily notes and skills in a workspace. Other files are not copied."""
    for name in PERSONA:
        if text := tree.text(folder / name).strip():
            agent.files[name] = text
    if text := tree.text(folder / "TOOLS.md").strip():
        agent.documents["TOOLS.md"] = text
    for name, why in ASIDE.items():
        if tree.text(folder / name).strip():
            found.leave(f"{agent.name}: {name}", why)
    for path in (folder / "MEMORY.md", folder / "memory" / "MEMORY.md"):
        agent.memory += entries_of(tree.text(path))
    for path in _files(folder / "memory") if (folder / "memory").is_dir() else ():
        day = day_of(path.name)
        if path.suffix != ".md" or path.name in ("MEMORY.md", "HISTORY.md"):
            continue
        if day is not None:
            agent.notes.setdefault(day, []).extend(entries_of(tree.text(path)))
        elif text := tree.text(path).strip():
            name = distinct(f"memory-{slug(path.stem)}", str(path), [document[:-3] for document in agent.documents])
            agent.documents[f"{name}.md"] = text
    for skill, path in tree.skills(folder / "skills"):
        agent.add_skill(skill, path.relative_to(folder / "skills").as_posix())


def leave_files(found: Found, tree: Tree, folder: Path, agent: str) -> None:
    if names := tree.unread(folder):
        shown = f"{', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
        what = f"{agent}: other files in {folder} ({shown})"
        found.leave(what, f"copy the files that the agent needs to agents/{agent}/workspace")


def entries_of(text: str) -> list[str]:
    """Return the lines of a memory file. Headings are included. Horizontal rules and empty lines are not."""
    lines = (line.strip() for line in text.splitlines())
    return [line.lstrip("#").strip() if line.startswith("#") else line for line in lines if line.strip("-=*_# ")]


def notes_of(agent: FoundAgent, day_text: str, words: object) -> bool:
    """Add a daily note. Return False if `day_text` contains no date or the note is empty."""
    day, text = day_of(day_text), " ".join(re.sub(r"\0", "", words).split()) if isinstance(words, str) else ""
    if day is not None and text:
        agent.notes.setdefault(day, []).append(text)
    return day is not None and bool(text)


# ---- configuration file formats ----


class Options:
    """A configuration, and a record of the keys that were read. Keys may be in camelCase or snake_case."""

    def __init__(self, content: Json) -> None:
        self.content = content
        self._used: set[tuple[str, ...]] = set()

    def get(self, *path: str) -> Json:
        """Return the value at a path, or None, and record the key as read."""
        value, taken = self.content, list[str]()
        for name in path:
            table = as_dict(value)
            key = name if name in table or _snake(name) not in table else _snake(name)
            value = table.get(key)
            taken.append(key)
        self._used.add(tuple(taken))
        return value

    def text(self, *path: str) -> str:
        return text_of(self.get(*path))

    def texts(self, *path: str) -> tuple[str, ...]:
        """Return a list of strings or numbers as strings. A single value becomes a tuple with one item."""
        value = self.get(*path)
        items = value if isinstance(value, list) else [value]
        return tuple(str(item).strip() for item in items if isinstance(item, str | int) and not isinstance(item, bool))

    def table(self, *path: str) -> dict[str, Json]:
        """Return the table at a path without recording its keys as read."""
        value = self.content
        for name in path:
            table = as_dict(value)
            value = table.get(name, table.get(_snake(name)))
        return as_dict(value)

    def rest(self, *path: str) -> Iterator[str]:
        """Yield the unread keys at a path. A table in which no key was read counts as one key."""
        for name, value in self.table(*path).items():
            here = (*path, name)
            if here in self._used or value in (None, "", [], {}):
                continue
            if any(used[: len(here)] == here for used in self._used):
                yield from self.rest(*here)
            else:
                yield ".".join(here)


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name)


_TOKEN = re.compile(
    r""""(?:[^"\\]|\\.)*+(?:"|\\?\Z)|'(?:[^'\\]|\\.)*+(?:'|\\?\Z)|//[^\n]*|/\*.*?(?:\*/|\Z)"""
    r"""|[{}\[\]:,]|[^\s{}\[\]:,"'/]+|/""",
    re.DOTALL,
)


def json5(text: str, where: Path) -> Json:
    """Parse JSON with comments, trailing commas, single quotes and unquoted keys. Raises InvalidInput."""
    words = [word for word in _TOKEN.findall(text) if not word.startswith(("//", "/*"))]
    out: list[str] = []
    for number, word in enumerate(words):
        after = words[number + 1] if number + 1 < len(words) else ""
        if word[0] == "'":
            inner = re.sub(r'(?<!\\)"', lambda _: '\\"', word[1:-1].replace("\\'", "'"))
            out.append(f'"{inner}"')
        elif after == ":" and word[0] != '"':
            out.append(json.dumps(word))
        elif word != "," or after not in ("}", "]"):
            out.append(word)
    try:
        return clean(cast("Json", json.loads(" ".join(out)))) if out else {}
    except (ValueError, RecursionError) as error:
        near = error.doc[error.pos :][:30] if isinstance(error, json.JSONDecodeError) else ""
        place = f" near {near!r}" if near else ": its end is missing, or it is nested too deeply"
        raise InvalidInput(f"{where} is not valid JSON{place}. Correct it, then import again.") from error


def dotenv(text: str) -> dict[str, str]:
    variables: dict[str, str] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*+(.*)", line.rstrip())
        if match:
            quoted = re.match(r"""(["'])(.*)\1""", match[2])
            variables[match[1]] = quoted[2] if quoted else re.sub(r"(?<!\s)\s++#.*", "", match[2]).strip()
    return {name: value for name, value in variables.items() if value}


def yaml_subset(text: str) -> dict[str, Json]:
    """Parse the YAML that configuration files use: nested keys, lists, plain and quoted values, and text blocks.

    Other syntax, such as anchors, tags and multi-line flow mappings, is read as text or omitted.
    """
    lines = [line.rstrip() for line in text.replace("\t", "  ").splitlines()]
    try:
        value, _ = _yaml_block([line for line in lines if line.strip() and not line.lstrip().startswith("#")], 0, 0)
    except RecursionError:
        return {}
    return as_dict(value)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _yaml_block(lines: list[str], at: int, indent: int) -> tuple[Json, int]:
    table, items = dict[str, Json](), list[Json]()
    while at < len(lines) and _indent(lines[at]) >= indent:
        line = lines[at]
        if _indent(line) > indent:
            at += 1
            continue
        content = line.strip()
        is_item = content == "-" or content.startswith("- ")
        if (items and not is_item) or (table and is_item):  # the line belongs to the enclosing value
            break
        if is_item:
            inner = content[1:].strip()
            if re.match(r"""[\w"'.-]+:(\s|$)""", inner):  # a table that starts after the dash
                deeper = indent + 2
                lines[at] = " " * deeper + inner
                value, at = _yaml_block(lines, at, deeper)
            else:
                value, at = _yaml_scalar(inner), at + 1
            items.append(value)
            continue
        match = re.match(r"""("[^"]*"|'[^']*'|[^:#]*[^:#\s])\s*+:(?:\s++(.*))?$""", content)
        if match is None:
            at += 1
            continue
        name, rest = match[1].strip("\"'"), re.sub(r"(?<!\s)\s++#.*", "", match[2] or "").strip()
        at += 1
        below = _indent(lines[at]) if at < len(lines) else 0
        starts_list = at < len(lines) and below == indent and lines[at].strip().startswith("-")
        if rest in ("|", ">", "|-", ">-"):
            block: list[str] = []
            while at < len(lines) and _indent(lines[at]) > indent:
                block.append(lines[at].strip())
                at += 1
            table[name] = ("\n" if rest[0] == "|" else " ").join(block)
        elif not rest and (below > indent or starts_list):
            table[name], at = _yaml_block(lines, at, below)
        else:
            table[name] = _yaml_scalar(rest)
    return (items if items else table), at


def _yaml_scalar(text: str) -> Json:
    if text.startswith("[") and text.endswith("]"):
        return [_yaml_scalar(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    plain: Mapping[str, Json] = {"true": True, "false": False, "null": None, "~": None, "": None, "{}": {}}
    if text.lower() in plain:
        return plain[text.lower()]
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text
