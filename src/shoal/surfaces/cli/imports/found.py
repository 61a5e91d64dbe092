"""What is found in the home of another product, and how its files are read: leniently, bounded, and all accounted for.

Whatever a reader does not take is listed with a reason, so that nothing stays behind unexplained.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Literal, TypeAlias, cast

import msgspec

from shoal.domain.errors import InvalidInput

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

FILE_BYTES_MAX = 4_194_304
"""Longest text file that is read."""
NOT_KNOWN = "nothing here matches it; look at it by hand"
DAY = re.compile(r"(\d{4})-?(\d{2})-?(\d{2})")


class ImportedMessage(msgspec.Struct, frozen=True):
    """What was said, when, and by whom; `name` of a person who is known."""

    role: Literal["user", "assistant"]
    text: str
    at: datetime
    name: str = ""


class FoundThread(msgspec.Struct, frozen=True):
    """A conversation. `key` is what the product calls it."""

    key: str
    agent: str
    title: str
    messages: list[ImportedMessage]


class FoundSkill(msgspec.Struct, frozen=True):
    """A skill: its files by their paths in its folder."""

    name: str
    files: dict[str, bytes]


class FoundAgent(msgspec.Struct):
    """A persona: the files of its instructions, what it remembers, and what it can do. `model` is PROVIDER/MODEL."""

    name: str
    files: dict[str, str] = {}
    documents: dict[str, str] = {}
    memory: list[str] = []
    notes: dict[date, list[str]] = {}
    skills: list[FoundSkill] = []
    model: str = ""
    system_prompt: str = ""


class FoundSchedule(msgspec.Struct, frozen=True):
    """Something that started turns. `schedule` is a cron line, or an ISO time for `one-shot`."""

    name: str
    kind: Literal["one-shot", "periodic"]
    schedule: str
    text: str
    timezone: str = "UTC"
    agent: str = ""
    told: str = ""


class FoundAccount(msgspec.Struct, frozen=True):
    """An account on a platform that Shoal has: who may speak there, other keys of its section, and its secrets."""

    platform: str
    allow: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    secrets: dict[str, str] = {}


class FoundProvider(msgspec.Struct, frozen=True):
    """A service that runs models. An empty `kind` is that of the well-known provider of the name."""

    name: str
    kind: str = ""
    base_url: str = ""
    key: str = ""


class Left(msgspec.Struct, frozen=True):
    """Something that is not brought over, and why."""

    what: str
    why: str


class Found(msgspec.Struct):
    """All of a home. The first agent is the one that answered by default."""

    product: str
    root: Path
    agents: list[FoundAgent] = []
    threads: list[FoundThread] = []
    schedules: list[FoundSchedule] = []
    accounts: list[FoundAccount] = []
    providers: list[FoundProvider] = []
    model: str = ""
    fallback: tuple[str, ...] = ()
    left: list[Left] = []

    def leave(self, what: str, why: str) -> None:
        """Note what is not brought over, once."""
        if Left(what, why) not in self.left:
            self.left.append(Left(what, why))


class Tree:
    """A directory that is read, and which of its files were."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._used: set[Path] = set()

    def text(self, path: Path) -> str:
        """A text file, without carriage returns; empty where there is none, or none that is text."""
        data = self.data(path)
        return data.decode("utf-8", "replace").replace("\r\n", "\n").strip("\ufeff") if b"\0" not in data else ""

    def data(self, path: Path) -> bytes:
        """A file's beginning; empty where there is none. Links are not followed out of the directory."""
        if not path.is_file() or not path.resolve().is_relative_to(self.root.resolve()):
            return b""
        self._used.add(path)
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX)

    def use(self, path: Path) -> None:
        """A file, or all files of a folder, are accounted for."""
        self._used.add(path)

    def skill(self, folder: Path) -> FoundSkill | None:
        """The skill of a folder; None where there is none."""
        if not (folder / "SKILL.md").is_file():
            return None
        files = {path.relative_to(folder).as_posix(): self.data(path) for path in sorted(_files(folder))}
        return FoundSkill(slug(folder.name), {name: data for name, data in files.items() if data})

    def rest(self) -> Iterator[str]:
        """What was not read: files at the top, and folders of which nothing, or not all, was."""
        seen: dict[str, int] = {}
        for path in _files(self.root):
            if path not in self._used and not any(parent in self._used for parent in path.parents):
                parts = path.relative_to(self.root).parts
                where = parts[0] if len(parts) == 1 else "/".join(parts[: min(2, len(parts) - 1)]) + "/"
                seen[where] = seen.get(where, 0) + 1
        for where, count in sorted(seen.items()):
            yield f"{where} ({count} files)" if where.endswith("/") and count > 1 else where


class Options:
    """A configuration, and which of its keys were looked at. A key may be written in camelCase or snake_case."""

    def __init__(self, content: Json) -> None:
        self.content = content
        self._used: set[tuple[str, ...]] = set()

    def get(self, *path: str) -> Json:
        """The value at a path, which is accounted for then; None where there is none."""
        found, taken = self.content, list[str]()
        for name in path:
            table = as_dict(found)
            key = name if name in table or _snake(name) not in table else _snake(name)
            found = table.get(key)
            taken.append(key)
        self._used.add(tuple(taken))
        return found

    def text(self, *path: str) -> str:
        """A text or number as text; empty for anything else."""
        found = self.get(*path)
        return str(found).strip() if isinstance(found, str | int | float) and not isinstance(found, bool) else ""

    def texts(self, *path: str) -> tuple[str, ...]:
        """A list of texts or numbers, or one of them."""
        found = self.get(*path)
        items = found if isinstance(found, list) else [found]
        return tuple(str(one).strip() for one in items if isinstance(one, str | int) and not isinstance(one, bool))

    def table(self, *path: str) -> dict[str, Json]:
        """The table at a path, of which nothing is accounted for yet."""
        found = self.content
        for name in path:
            table = as_dict(found)
            found = table.get(name, table.get(_snake(name)))
        return as_dict(found)

    def rest(self) -> Iterator[str]:
        """The keys that nobody looked at, as far up as none below was."""
        yield from self._below(as_dict(self.content), ())

    def _below(self, table: dict[str, Json], path: tuple[str, ...]) -> Iterator[str]:
        for name, value in table.items():
            here = (*path, name)
            if here in self._used or value in (None, "", [], {}):
                continue
            if any(used[: len(here)] == here for used in self._used):
                yield from self._below(as_dict(value), here)
            else:
                yield ".".join(here)


def parsed(text: str) -> Json:
    """A JSON text; an empty table for one that is damaged."""
    try:
        return cast("Json", json.loads(text))
    except (ValueError, RecursionError):
        return {}


def speaker(role: object) -> Literal["user", "assistant", ""]:
    """Who says a message of this role; empty for all that is no talk."""
    return "user" if role == "user" else "assistant" if role == "assistant" else ""


def as_dict(value: object) -> dict[str, Json]:
    """The value if it is a table, else an empty one."""
    return cast("dict[str, Json]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> "list[Json]":
    """The value if it is a list, else an empty one."""
    return cast("list[Json]", value) if isinstance(value, list) else []


def slug(name: str) -> str:
    """A name that agents and skills may have: lower-case letters, digits and single hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:48] or "unnamed"


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name)


def day_of(name: str) -> date | None:
    """The day in the name of a note."""
    found = DAY.search(name)
    try:
        return date(int(found[1]), int(found[2]), int(found[3])) if found else None
    except ValueError:
        return None


def time_of(value: object) -> datetime | None:
    """A time in seconds, milliseconds or nanoseconds since 1970, or as ISO 8601 (without an offset: this machine's)."""
    try:
        if isinstance(value, str) and not re.fullmatch(r"[\d.]+", value):
            return datetime.fromisoformat(value).astimezone(UTC)
        number = float(cast("float", value))
        while number > 1e11:
            number /= 1000
        return datetime.fromtimestamp(number, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def said(content: object) -> str:
    """The words of a message: a text, or the text blocks of a list; calls, results and pictures are left out."""
    if isinstance(content, str):
        return (said(parsed(content)) if content.startswith("[{") else "") or content.strip()
    blocks = [as_dict(one) for one in as_list(content)]
    texts = [one.get("text") or one.get("content") for one in blocks if one.get("type") in ("text", "input_text", None)]
    return "\n".join(one for one in texts if isinstance(one, str)).strip()


def cron_of(seconds: float) -> str:
    """The cron line that comes as often; empty where no line does."""
    minutes, rest = divmod(round(seconds), 60)
    if rest == 0 and minutes and minutes < 60 and 60 % minutes == 0:
        return f"*/{minutes} * * * *"
    hours, rest = divmod(minutes, 60)
    if rest == 0 and hours and hours < 24 and 24 % hours == 0:
        return f"0 */{hours} * * *"
    return {24: "0 9 * * *", 168: "0 9 * * 1"}.get(hours, "") if rest == 0 else ""


# ---- the forms of configuration files ----

_TOKEN = re.compile(
    r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|//[^\n]*|/\*.*?\*/|[{}\[\]:,]|[^\s{}\[\]:,"'/]+|/""", re.DOTALL
)


def json5(text: str, where: Path) -> Json:
    """JSON with comments, trailing commas, single quotes and bare keys. Raises InvalidInput."""
    words = [one for one in _TOKEN.findall(text) if not one.startswith(("//", "/*"))]
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
        return cast("Json", json.loads(" ".join(out))) if out else {}
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where} cannot be read as JSON: {error}. Correct it, then import again.") from error


def dotenv(text: str) -> dict[str, str]:
    """The variables of a .env file."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*", line)
        if match:
            quoted = re.match(r"""(["'])(.*)\1""", match[2])
            found[match[1]] = quoted[2] if quoted else re.sub(r"\s+#.*", "", match[2]).strip()
    return {name: value for name, value in found.items() if value}


def yaml_subset(text: str) -> dict[str, Json]:
    """The part of YAML that configuration files use: nested keys, lists, plain and quoted values, blocks of text.

    What is written in another way (anchors, tags, flow mappings over several lines) is read as text or left out.
    """
    lines = [line.rstrip() for line in text.replace("\t", "  ").splitlines()]
    value, _ = _yaml_block([line for line in lines if line.strip() and not line.lstrip().startswith("#")], 0, 0)
    return as_dict(value)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _yaml_block(lines: list[str], at: int, indent: int) -> tuple[Json, int]:
    """The value whose lines begin at `at` and are indented by `indent`, and where it ends."""
    table, items = dict[str, Json](), list[Json]()
    while at < len(lines) and _indent(lines[at]) >= indent:
        line = lines[at]
        if _indent(line) > indent:
            at += 1
            continue
        content = line.strip()
        is_item = content == "-" or content.startswith("- ")
        if (items and not is_item) or (table and is_item):  # it belongs to the value around this one
            break
        if is_item:
            inner = content[1:].strip()
            if re.match(r"""[\w"'.-]+:(\s|$)""", inner):  # a table that begins behind the dash
                deeper = indent + 2
                lines[at] = " " * deeper + inner
                value, at = _yaml_block(lines, at, deeper)
            else:
                value, at = _yaml_scalar(inner), at + 1
            items.append(value)
            continue
        match = re.match(r"""("[^"]*"|'[^']*'|[^:#]+?)\s*:(?:\s+(.*))?$""", content)
        if match is None:
            at += 1
            continue
        name, rest = match[1].strip("\"'"), re.sub(r"\s+#.*$", "", match[2] or "").strip()
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
        return [_yaml_scalar(one.strip()) for one in text[1:-1].split(",") if one.strip()]
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    plain: Mapping[str, Json] = {"true": True, "false": False, "null": None, "~": None, "": None, "{}": {}}
    if text.lower() in plain:
        return plain[text.lower()]
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def _files(folder: Path) -> Iterator[Path]:
    """The files below a folder, links not followed, nothing of git and of caches."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_symlink() or path.name in (".git", "__pycache__", "node_modules", ".DS_Store"):
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path


# ---- a workspace, as several products have it ----

PERSONA = ("AGENTS.md", "SOUL.md", "IDENTITY.md", "USER.md")
ASIDE = {
    "HEARTBEAT.md": "it would start turns by itself; copy it to data/HEARTBEAT.md and set triggers.heartbeat_minutes",
    "BOOT.md": "Shoal has nothing that runs at each start",
    "BOOTSTRAP.md": "it is for the first conversation with a new agent",
}


def read_workspace(found: Found, tree: Tree, folder: Path, agent: FoundAgent) -> None:
    """The persona, documents, memory, daily notes and skills in a workspace; its other files stay where they are."""
    for name in PERSONA:
        if text := tree.text(folder / name).strip():
            agent.files[name] = text
    if text := tree.text(folder / "TOOLS.md").strip():
        agent.documents["TOOLS.md"] = text
    for name, why in ASIDE.items():
        if tree.text(folder / name).strip():
            found.leave(f"{agent.name}: {name}", why)
    for path in (folder / "MEMORY.md", folder / "memory" / "MEMORY.md"):
        agent.memory += _entries(tree.text(path))
    for path in sorted((folder / "memory").rglob("*.md")):
        day = day_of(path.name)
        if day is not None:
            agent.notes.setdefault(day, []).extend(_entries(tree.text(path)))
        elif path.name not in ("MEMORY.md", "HISTORY.md") and (text := tree.text(path).strip()):
            agent.documents[f"memory-{slug(path.stem)}.md"] = text
    for path in sorted((folder / "skills").iterdir()) if (folder / "skills").is_dir() else ():
        if (skill := tree.skill(path)) is not None:
            agent.skills.append(skill)
            tree.use(path)


def _entries(text: str) -> list[str]:
    """The lines of a memory file that say something: headings stay as lines, rules and empty ones go."""
    lines = (line.strip() for line in text.splitlines())
    return [line.lstrip("#").strip() if line.startswith("#") else line for line in lines if line.strip("-=*_# ")]
