"""`shoal skills`: the skills that agents have, and what is wrong with others."""

from typing import TYPE_CHECKING

import click
import msgspec

from shoal.domain.ids import ThreadId, parse_thread_id
from shoal.surfaces.cli.output import json_option, print_json, print_table, printable
from shoal.surfaces.cli.place import Place

if TYPE_CHECKING:
    from shoal.turn.skills import Skills


class SkillView(msgspec.Struct, frozen=True):
    """A skill as lists show it."""

    name: str
    scope: str
    description: str
    path: str


@click.group()
def skills() -> None:
    """Skills: instructions that agents read when a task needs them."""


@skills.command("list")
@click.option("--agent", default="main", show_default=True, help="As this agent has them.")
@click.option("--thread", help="As they are in this thread.")
@json_option
@click.pass_obj
def list_(place: Place, agent: str, thread: str | None, as_json: bool) -> None:
    """List the skills, narrower scopes winning by name."""
    found = read_skills(place, agent, parse_thread_id(thread) if thread else None)
    views = [SkillView(skill.name, skill.scope, skill.description, str(skill.path)) for skill in found.found]
    if as_json:
        print_json(views)
        return
    rows = [(view.name, view.scope, printable(view.description)) for view in views]
    print_table(("name", "scope", "description"), rows, f"There are no skills. Put one into {place.home.data}/skills/.")


@skills.command()
@click.option("--agent", default="main", show_default=True, help="As this agent has them.")
@click.option("--thread", help="As they are in this thread.")
@json_option
@click.pass_obj
def check(place: Place, agent: str, thread: str | None, as_json: bool) -> int:
    """Say what is wrong with skills; exit 1 if something is. As JSON a list of `{"path", "problem"}`."""
    found = read_skills(place, agent, parse_thread_id(thread) if thread else None)
    if as_json:
        print_json([{"path": str(problem.path), "problem": problem.text} for problem in found.problems])
        return 1 if found.problems else 0
    for problem in found.problems:
        print(f"fail: {printable(problem.text)} ({problem.path})")
    for skill in found.shadowed:
        print(f"warn: {skill.name} of scope {skill.scope} is replaced by one of a narrower scope. ({skill.path})")
    print(f"{len(found.found)} skills can be used.")
    return 1 if found.problems else 0


def read_skills(place: Place, agent: str, thread: ThreadId | None) -> "Skills":
    """The skills of an agent, broken ones as problems."""
    from shoal.turn.files import FileCache
    from shoal.turn.skills import SkillReader, skill_roots

    return SkillReader(FileCache()).read(skill_roots(place.home, place.home.agent(agent), thread))
