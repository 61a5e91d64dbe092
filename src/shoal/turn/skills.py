"""Load skills from SKILL.md files in five scopes.

If several scopes contain a skill with the same name, the narrowest scope wins. A broken skill is reported and is
never fatal.

The format is Agent Skills plus `inline`. Parsing is as lenient as in other products: the name may be missing or
differ from the folder's name, the first paragraph replaces a missing description, and unknown keys are ignored.
"""

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.ports import Mount
from shoal.text.order import natural
from shoal.turn.front_matter import Document, FrontMatterError, parse_document

SkillScope: TypeAlias = Literal["builtin", "global", "platform", "channel", "agent"]

BUILTIN_SKILLS = Path(__file__).parent / "builtin_skills"
"""Directory of the built-in skills. They have the broadest scope. A skill with the same name in any other scope
replaces the built-in one.
"""

SKILL_FILE = "SKILL.md"
NAME_CHARS_MAX = 64
DESCRIPTION_CHARS_MAX = 1024
SKILL_BYTES_MAX = 65_536
"""Maximum number of bytes that are read from a SKILL.md. The format recommends fewer than about 20,000 bytes, with the
rest in other files.
"""
SKILLS_MAX = 100
"""Maximum number of skills per scope. If there are more, the rest are skipped and a problem is reported."""

_NOT_IN_NAME = lazy_re.compile(r"[\W_]+")
_TOOL = lazy_re.compile(r"[^\s,(]++(?:\([^()]*+\))?")
_NO_PARAGRAPH = ("#", "<", "```", "~~~", "![", "---", "***", "|", "{%")


class SkillRoot(msgspec.Struct, frozen=True):
    scope: SkillScope
    path: Path


class Skill(msgspec.Struct, frozen=True):
    """A skill. `body` is the text without front matter."""

    name: str
    """Name in lowercase letters, digits and hyphens. It may differ from the folder's name."""
    description: str
    path: Path
    """Path of the SKILL.md file on this machine."""
    scope: SkillScope
    body: str
    inline: bool = False
    """Whether the prompt contains the body."""
    hidden: bool = False
    """True if the prompt does not mention the skill (`disable-model-invocation`)."""
    license: str = ""
    compatibility: str = ""
    allowed_tools: tuple[str, ...] = ()


class SkillProblem(msgspec.Struct, frozen=True):
    """A problem with a skill, as one full sentence for `shoal doctor` and `shoal skills check`."""

    path: Path
    text: str


class Skills(msgspec.Struct, frozen=True):
    """The available skills by name, the problems of broken skills, and the skills `shadowed` by a narrower scope."""

    found: tuple[Skill, ...] = ()
    problems: tuple[SkillProblem, ...] = ()
    shadowed: tuple[Skill, ...] = ()


def skill_roots(home: Home, agent_home: Path | None = None, thread: ThreadId | None = None) -> tuple[SkillRoot, ...]:
    """Return the skill folders, broadest scope first: built-in, global, platform, channel, agent."""
    roots = [SkillRoot("builtin", BUILTIN_SKILLS), SkillRoot("global", home.data / "skills")]
    if thread is not None:
        roots.append(SkillRoot("platform", home.platform(thread) / "skills"))
        roots.append(SkillRoot("channel", home.channel(thread) / "skills"))
    if agent_home is not None:
        roots.append(SkillRoot("agent", agent_home / "skills"))
    return tuple(roots)


def skill_locations(roots: Sequence[SkillRoot]) -> tuple[Mount, ...]:
    """Return each root with its read-only path in a sandbox, `/skills/SCOPE`. Includes roots that do not exist."""
    return tuple(Mount(root.path, f"/skills/{root.scope}") for root in roots)


def skill_mounts(roots: Sequence[SkillRoot]) -> tuple[Mount, ...]:
    return tuple(place for place in skill_locations(roots) if place.host.is_dir())


def merge(items: Sequence[Skill | SkillProblem]) -> Skills:
    """Merge the skills of several scopes and sort them by name. For equal names, the last (narrowest) scope wins.

    A broken skill does not hide a valid skill from a broader scope.
    """
    by_name, shadowed = dict[str, Skill](), list[Skill]()
    for item in items:
        if isinstance(item, Skill):
            if item.name in by_name:
                shadowed.append(by_name[item.name])
            by_name[item.name] = item
    problems = tuple(item for item in items if isinstance(item, SkillProblem))
    return Skills(tuple(by_name[name] for name in sorted(by_name, key=natural)), problems, tuple(shadowed))


def parse_skill(path: Path, text: str, scope: SkillScope) -> Skill | SkillProblem:
    try:
        document = parse_document(text)
        name = skill_name(document.text("name")) or skill_name(path.parent.name)
        description = " ".join((document.text("description") or _first_paragraph(document.body)).split())
        if not str(path).isprintable():
            raise FrontMatterError("is in a folder whose name contains control characters. Rename the folder")
        if not name or not description:
            raise FrontMatterError("needs both `name` and `description`")
    except FrontMatterError as problem:
        return SkillProblem(path, f"Skill {path.parent.name!r} is skipped: {SKILL_FILE} {problem}.")
    if len(description) > DESCRIPTION_CHARS_MAX:
        description = f"{description[: DESCRIPTION_CHARS_MAX - 1]}…"
    return Skill(
        name=name,
        description=description,
        path=path,
        scope=scope,
        body=document.body,
        inline=_flag(document, "inline"),
        hidden=_flag(document, "disable-model-invocation"),
        license=document.text("license"),
        compatibility=document.text("compatibility"),
        allowed_tools=_tools(document),
    )


def skill_name(text: str) -> str:
    """Convert text to a skill name: lowercase letters and digits with single hyphens. The result may be empty."""
    plain = unicodedata.normalize("NFC", text).lower()
    return _NOT_IN_NAME.sub("-", plain).strip("-")[:NAME_CHARS_MAX].rstrip("-")


def is_skill_file(name: str) -> bool:
    return name.upper() == SKILL_FILE.upper()


def _first_paragraph(body: str) -> str:
    lines = (line.strip() for line in body.split("\n"))
    return next((line for line in lines if line and not line.startswith(_NO_PARAGRAPH)), "")


def _tools(document: Document) -> tuple[str, ...]:
    value = document.fields.get("allowed-tools", "")
    if isinstance(value, str):
        return tuple(_TOOL.findall(value))
    return tuple(word.strip() for word in value if isinstance(word, str))


def _flag(document: Document, key: str) -> bool:
    return document.text(key).lower() in ("true", "yes", "on", "1")
