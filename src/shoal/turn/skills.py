"""Skills: what a SKILL.md says, found at five scopes of which the narrower wins by name; a broken one is a problem
that is told and never fatal. The format is the open Agent Skills one, with `inline` added."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, assert_never

import msgspec

from shoal.domain.home import Home
from shoal.domain.ids import ThreadId
from shoal.domain.ports import Mount
from shoal.turn.files import FileCache
from shoal.turn.frontmatter import Document, Problem, Value, parse_document

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
    """A directory that holds a directory for each skill."""

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


class SkillReader:
    """Reads skills through a FileCache and parses each file once while it stays the same."""

    def __init__(self, files: FileCache) -> None:
        self._files = files
        self._parsed: dict[str, tuple[str, SkillScope, Skill | SkillProblem]] = {}
        self._merged: dict[tuple[SkillRoot, ...], tuple[tuple[Skill | SkillProblem, ...], Skills]] = {}

    def read(self, roots: tuple[SkillRoot, ...]) -> Skills:
        """The skills below `roots`; the same object while nothing changed there."""
        found = tuple(one for root in roots for one in self._in(root))
        kept = self._merged.get(roots)
        if kept is not None and kept[0] == found:
            return kept[1]
        if len(self._merged) >= 512:
            self._merged.clear()
        merged = merge(found)
        self._merged[roots] = (found, merged)
        return merged

    def _in(self, root: SkillRoot) -> Iterable[Skill | SkillProblem]:
        base = str(root.path)
        names = self._files.names(base)
        for name in names[:SKILLS_MAX]:
            path = f"{base}/{name}/{SKILL_FILE}"
            text = self._files.read(path, SKILL_BYTES_MAX)
            if text:
                yield self._one(path, text, root.scope)
            elif os.path.lexists(path):
                yield SkillProblem(Path(path), f"Skill {name!r} is left out: {SKILL_FILE} is empty or cannot be read.")
        if len(names) > SKILLS_MAX:
            yield SkillProblem(
                root.path, f"{root.path} holds {len(names)} skills; only the first {SKILLS_MAX} are read."
            )

    def _one(self, path: str, text: str, scope: SkillScope) -> Skill | SkillProblem:
        kept = self._parsed.get(path)
        if kept is not None and kept[0] is text and kept[1] == scope:
            return kept[2]
        if len(self._parsed) >= 4096:
            self._parsed.clear()
        parsed = parse_skill(Path(path), text, scope)
        self._parsed[path] = (text, scope, parsed)
        return parsed


def merge(found: Iterable[Skill | SkillProblem]) -> Skills:
    """Let the later (narrower) skill of a name win; sorted by name. A broken one does not hide a broader whole one."""
    by_name: dict[str, Skill] = {}
    problems: list[SkillProblem] = []
    shadowed: list[Skill] = []
    for one in found:
        match one:
            case SkillProblem():
                problems.append(one)
            case Skill():
                if one.name in by_name:
                    shadowed.append(by_name[one.name])
                by_name[one.name] = one
            case _:
                assert_never(one)
    return Skills(tuple(by_name[name] for name in sorted(by_name)), tuple(problems), tuple(shadowed))


def parse_skill(path: Path, text: str, scope: SkillScope) -> Skill | SkillProblem:
    """Read one SKILL.md. The name is lower-case letters and digits with single hyphens, as the directory's."""
    try:
        document = parse_document(text)
        return _skill(path, document, scope)
    except Problem as problem:
        return SkillProblem(path, f"Skill {path.parent.name!r} is left out: {SKILL_FILE} {problem}.")


def _skill(path: Path, document: Document, scope: SkillScope) -> Skill:
    fields = document.fields
    name, description = _text(fields, "name"), " ".join(_text(fields, "description").split())
    if not name or not description:
        raise Problem("needs both `name` and `description`")
    if not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        raise Problem(f"has the name {name!r}; take lower-case letters, digits and single hyphens, at most 64")
    if name != path.parent.name:
        raise Problem(f"has the name {name!r}, which must be that of its directory")
    if len(description) > DESCRIPTION_CHARS_MAX:
        raise Problem(f"has a description of {len(description)} characters; {DESCRIPTION_CHARS_MAX} are allowed")
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
        allowed_tools=_words(fields.get("allowed-tools", "")),
    )


def _text(fields: dict[str, Value], key: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise Problem(f"needs a text for `{key}`")
    return value.strip()


def _flag(fields: dict[str, Value], key: str) -> bool:
    value = _text(fields, key).lower()
    if value not in ("", "true", "false"):
        raise Problem(f"has {value!r} for `{key}`; write true or false")
    return value == "true"


def _words(value: Value) -> tuple[str, ...]:
    match value:
        case str():
            return tuple(value.replace(",", " ").split())
        case tuple():
            return value
        case dict():
            raise Problem("needs a list for `allowed-tools`")
