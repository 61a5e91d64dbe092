"""The front matter of a SKILL.md: the small part of YAML that such files use, read strictly.

Taken: `key: value` with plain, 'single' and "double" quoted scalars, `|` and `>` blocks, lists of scalars (`[a, b]`, or
a line `- a` each), one level of nested keys, and comments. A plain value may hold `: `, as many published skills do.
Not taken: anchors, tags, several documents, deeper nesting; these are problems with a line number.

Skills: what a SKILL.md says, found at five scopes of which the narrower wins by name; a broken one is a problem
that is told and never fatal. The format is the open Agent Skills one, with `inline` added.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from shoal.domain.home import Home
from shoal.domain.ids import ThreadId
from shoal.domain.ports import Mount

Value: TypeAlias = str | tuple[str, ...] | dict[str, str]

_FENCE = re.compile(r"---[ \t]*")
_KEY = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)[ \t]*+:(?:[ \t]++(.*))?")
_BLOCK_SCALAR = re.compile(r"([|>])([+-]?)(?:[ \t]+#.*)?")
_COMMENT = re.compile(r"(?:^|[ \t])#.*")
_FOLD = re.compile(r"(?<!\n)\n+(?![ \t\n])")
_UNSUPPORTED = re.compile(r"[&*!%@`{]")


class FrontMatterError(Exception):
    """The front matter cannot be read; the text says where and why."""


class SkillDocument(msgspec.Struct, frozen=True):
    """A file's front matter by key, and the text after it."""

    fields: dict[str, Value]
    body: str


def parse_document(text: str) -> SkillDocument:
    """Split a file into front matter and body. Raises FrontMatterError."""
    lines = text.removeprefix("\ufeff").split("\n")
    if not _FENCE.fullmatch(lines[0]):
        raise FrontMatterError("must begin with a line `---`, then `name:` and `description:`")
    for number, line in enumerate(lines[1:], 1):
        if _FENCE.fullmatch(line):
            return SkillDocument(_FrontMatterParser(lines[1:number]).fields(), "\n".join(lines[number + 1 :]).strip())
    raise FrontMatterError("the front matter is not closed by a line `---`")


class _FrontMatterParser:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0

    def fields(self) -> dict[str, Value]:
        found: dict[str, Value] = {}
        while (line := self._next_line()) is not None:
            self._at += 1
            if line[0] in " \t":
                raise self._problem("is indented, but belongs to no key")
            match = _KEY.fullmatch(line.rstrip())
            if match is None:
                raise self._problem("is not of the form `key: value`")
            if match[1] in found:
                raise self._problem(f"{match[1]!r} stands twice")
            found[match[1]] = self._value((match[2] or "").strip())
        return found

    def _next_line(self) -> str | None:
        """The next line that is neither empty nor a comment; stays before it."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.strip() and not line.lstrip().startswith("#"):
                return line
            self._at += 1
        return None

    def _value(self, rest: str) -> Value:
        """The value of a key, `rest` of which stands on the key's own line."""
        block = _BLOCK_SCALAR.fullmatch(rest)
        if not block and (not rest or rest.startswith("#")):
            return self._nested()
        start = self._at  # the lines below a key that belong to it are indented or empty
        while self._at < len(self._lines) and (not self._lines[self._at].strip() or self._lines[self._at][0] in " \t"):
            self._at += 1
        lines = [line.rstrip() for line in self._lines[start : self._at]]
        if block:
            indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
            text = "\n".join(line[min(indents, default=0) :] for line in lines).strip("\n")
            return _FOLD.sub(lambda breaks: breaks[0][1:] or " ", text) if block[1] == ">" else text
        if not rest.startswith("["):
            return self._scalar(" ".join([rest, *(line.strip() for line in lines if line.strip())]))
        text = _COMMENT.sub("", " ".join([rest, *(line.strip() for line in lines)])).strip()
        if not text.endswith("]"):
            raise self._problem("opens a list with `[` and does not close it")
        return tuple(self._scalar(item.strip()) for item in text[1:-1].split(",") if item.strip())

    def _nested(self) -> Value:
        listed: list[str] = []
        while (line := self._next_line()) is not None and (item := re.fullmatch(r"[ \t]*-[ \t]++(.*)", line)):
            self._at += 1
            listed.append(self._scalar(item[1].strip()))
        if listed:
            return tuple(listed)
        found: dict[str, str] = {}
        while (line := self._next_line()) is not None and line[0] in " \t":
            self._at += 1
            match = _KEY.fullmatch(line.strip())
            if match is None or not match[2]:
                raise self._problem("is not of the form `key: value`; only one level of nesting is read")
            found[match[1]] = self._scalar(match[2].strip())
        return found or ""

    def _scalar(self, text: str) -> str:
        if text.startswith('"'):
            match = re.fullmatch(r'("(?:[^"\\]|\\.)*")[ \t]*(?:#.*)?', text)
            if match is None:
                raise self._problem("a text in double quotes is not closed")
            try:
                decoded: str = json.loads(match[1])
            except ValueError:
                raise self._problem("a text in double quotes has an escape that is not known") from None
            return decoded
        if text.startswith("'"):
            match = re.fullmatch(r"'((?:[^']|'')*)'[ \t]*(?:#.*)?", text)
            if match is None:
                raise self._problem("a text in single quotes is not closed")
            return match[1].replace("''", "'")
        if _UNSUPPORTED.match(text):
            raise self._problem(f"a value that begins with {text[0]!r} has to stand in quotes")
        return _COMMENT.sub("", text).strip()

    def _problem(self, what: str) -> FrontMatterError:
        return FrontMatterError(f"line {self._at + 1} of the file: {what}")


SkillScope: TypeAlias = Literal["builtin", "global", "platform", "channel", "agent"]

BUILTIN_SKILLS = Path(__file__).parent / "builtin_skills"
"""The skills that come with Shoal; the broadest scope, so that anyone's own skill of the same name wins."""

SKILL_FILE = "SKILL.md"
NAME_CHARS_MAX = 64
DESCRIPTION_CHARS_MAX = 1024
SKILL_BYTES_MAX = 65_536
"""Longest SKILL.md that is read; the format asks for less than about 20,000 bytes and for companion files beyond."""
SKILLS_MAX = 100
"""Most skills of one scope; more are a problem."""

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


class SkillRoot(msgspec.Struct, frozen=True):
    scope: SkillScope
    path: Path


class Skill(msgspec.Struct, frozen=True):
    """One skill. `path` is its SKILL.md on this machine, `body` its text without the front matter.

    `inline` puts the body into the prompt; `hidden` (`disable-model-invocation`) keeps the skill out of it.
    """

    name: str
    description: str
    path: Path
    scope: SkillScope
    body: str
    inline: bool = False
    hidden: bool = False
    license: str = ""
    compatibility: str = ""
    allowed_tools: tuple[str, ...] = ()


class SkillProblem(msgspec.Struct, frozen=True):
    """What is wrong with a skill, and which: one full sentence for `shoal doctor` and `shoal skills check`."""

    path: Path
    text: str


class Skills(msgspec.Struct, frozen=True):
    """The skills of a place, by name, and what is wrong with others. `shadowed` ones lost to a narrower scope."""

    found: tuple[Skill, ...] = ()
    problems: tuple[SkillProblem, ...] = ()
    shadowed: tuple[Skill, ...] = ()


def skill_roots(home: Home, agent_home: Path | None = None, thread: ThreadId | None = None) -> tuple[SkillRoot, ...]:
    """Where skills are looked for, broadest first: built in, global, platform, channel, agent."""
    roots = [SkillRoot("builtin", BUILTIN_SKILLS), SkillRoot("global", home.data / "skills")]
    if thread is not None:
        roots.append(SkillRoot("platform", home.platform(thread) / "skills"))
        roots.append(SkillRoot("channel", home.channel(thread) / "skills"))
    if agent_home is not None:
        roots.append(SkillRoot("agent", agent_home / "skills"))
    return tuple(roots)


def skill_places(roots: Sequence[SkillRoot]) -> tuple[Mount, ...]:
    """Where a sandbox has each root, `/skills/SCOPE`, read-only, whether it exists or not."""
    return tuple(Mount(root.path, f"/skills/{root.scope}") for root in roots)


def skill_mounts(roots: Sequence[SkillRoot]) -> tuple[Mount, ...]:
    """The places of those that exist: what can be mounted."""
    return tuple(place for place in skill_places(roots) if place.host.is_dir())


def merge(found: Sequence[Skill | SkillProblem]) -> Skills:
    """Let the later (narrower) skill of a name win; sorted by name. A broken one does not hide a broader whole one."""
    by_name, shadowed = dict[str, Skill](), list[Skill]()
    for one in found:
        if isinstance(one, Skill):
            if one.name in by_name:
                shadowed.append(by_name[one.name])
            by_name[one.name] = one
    problems = tuple(one for one in found if isinstance(one, SkillProblem))
    return Skills(tuple(by_name[name] for name in sorted(by_name)), problems, tuple(shadowed))


def parse_skill(path: Path, text: str, scope: SkillScope) -> Skill | SkillProblem:
    """Read one SKILL.md. The name is lower-case letters and digits with single hyphens, as the directory's."""
    try:
        document = parse_document(text)
        fields = document.fields
        name, description = _text(fields, "name"), " ".join(_text(fields, "description").split())
        wrong = ""
        if not name or not description:
            wrong = "needs both `name` and `description`"
        elif not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
            wrong = f"has the name {name!r}; take lower-case letters, digits and single hyphens, at most 64"
        elif name != path.parent.name:
            wrong = f"has the name {name!r}, which must be that of its directory"
        elif len(description) > DESCRIPTION_CHARS_MAX:
            wrong = f"has a description of {len(description)} characters; {DESCRIPTION_CHARS_MAX} are allowed"
        if wrong:
            raise FrontMatterError(wrong)
        words = fields.get("allowed-tools", "")
        if isinstance(words, dict):
            raise FrontMatterError("needs a list for `allowed-tools`")
        return Skill(
            name=name,
            description=description,
            path=path,
            scope=scope,
            body=document.body,
            inline=_flag(fields, "inline"),
            hidden=_flag(fields, "disable-model-invocation"),
            license=_text(fields, "license"),
            compatibility=_text(fields, "compatibility"),
            allowed_tools=tuple(words.replace(",", " ").split()) if isinstance(words, str) else words,
        )
    except FrontMatterError as problem:
        return SkillProblem(path, f"Skill {path.parent.name!r} is left out: {SKILL_FILE} {problem}.")


def _text(fields: dict[str, Value], key: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise FrontMatterError(f"needs a text for `{key}`")
    return value.strip()


def _flag(fields: dict[str, Value], key: str) -> bool:
    value = _text(fields, key).lower()
    if value not in ("", "true", "false"):
        raise FrontMatterError(f"has {value!r} for `{key}`; write true or false")
    return value == "true"
