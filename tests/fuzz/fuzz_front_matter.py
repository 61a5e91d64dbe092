"""Skill files: any text yields a skill or a problem in one sentence, and a skill takes one line in the prompt."""

import random
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from shoal.turn.front_matter import FrontMatterError, parse_document
from shoal.turn.skills import Skill, parse_skill, skill_name
from tests.fuzz.inputs import any_text, damaged
from tests.fuzz.target import Attempt

SAMPLES = (
    "---\nname: tide\ndescription: When the tide is in. Use for: all tides.\nlicense: MIT\n---\n# Tide\nLook.\n",
    "---\nname: 'tide'\ndescription: >\n  Folded\n  text\n\n  more\nallowed-tools: [bash]\ninline: true\n---\nbody",
    '---\nname: "tide"\ndescription: |\n  Kept\n  text\nmetadata:\n  author: "somebody \\u00e9"\n  version: 1\n---\n',
    "---\n# comment\nname: tide\ndescription: plain\nallowed-tools:\n  - bash\n  - 'it''s'\n---\n",
)


@contextmanager
def target() -> Generator[Attempt]:
    yield attempt


def attempt(source: random.Random) -> None:
    text = damaged(source, source.choice(SAMPLES).encode()).decode(errors="replace")
    if source.random() < 0.2:
        text = f"---\nname: tide\ndescription: {any_text(source)}\n{any_text(source)}\n---\n{any_text(source)}"
    with suppress(FrontMatterError):
        parse_document(text)
    skill = parse_skill(Path("/skills/tide/SKILL.md"), text, "agent")
    if isinstance(skill, Skill):
        assert skill.name == skill_name(skill.name) != ""
        assert len(skill.description.splitlines()) == 1, repr(skill.description)
    else:
        assert len(skill.text) < 2000
