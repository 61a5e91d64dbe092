"""`shoal agents`: the named agents of this home directory. Each is a folder `agents/NAME/` with an `agent.toml`."""

import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from shoal.agents.registry import AgentDefaults, AgentFile, Agents
from shoal.config import default_model
from shoal.domain.agents import AgentSpec
from shoal.domain.errors import Conflict, InvalidInput, NotFound
from shoal.surfaces.cli.init import make_agent, make_home
from shoal.surfaces.cli.output import json_option, print_json, print_table
from shoal.surfaces.cli.place import Place

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
FILE = "agent.toml"


class AgentView(msgspec.Struct, frozen=True):
    """An agent as lists show it."""

    name: str
    model: str
    profile: str
    tools: tuple[str, ...]
    path: str


@click.group()
def agents() -> None:
    """Agents: who answers, with which model, prompt and permissions."""


@agents.command("list")
@json_option
@click.pass_obj
def list_(place: Place, as_json: bool) -> None:
    """List the agents."""
    registry = open_agents(place)
    views = [_view(registry.spec(name)) for name in registry.names()]
    if as_json:
        print_json(views)
        return
    rows = [(view.name, view.model, view.profile, ", ".join(view.tools) or "all", view.path) for view in views]
    print_table(("name", "model", "profile", "tools", "folder"), rows, "There are no agents.")


@agents.command()
@click.argument("name")
@click.option("--model", help="PROVIDER/MODEL; without it the default one.")
@click.option("--profile", help="Permission profile; without it the default one.")
@click.option("--prompt", "system_prompt", help="What it is for, in a sentence or more.")
@click.pass_obj
def create(place: Place, name: str, model: str | None, profile: str | None, system_prompt: str | None) -> None:
    """Make an agent from template/."""
    if not NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} is no name for an agent: take small letters, digits, - and _, at most 64.")
    if place.home.agent(name).exists():
        raise Conflict(f"There is an agent {name} already. `shoal agents config {name} KEY VALUE` changes it.")
    given = {"model": model, "profile": profile, "system_prompt": system_prompt}
    settings = {key: value for key, value in given.items() if value is not None}
    _check_profile(place, profile)
    make_home(place.home)
    make_agent(place.home, name, [])
    for key, value in settings.items():
        _set(place.home.agent(name) / FILE, key, value)
    print(f"Made {place.home.agent(name)}. Edit AGENTS.md there to say how it works.")


@agents.command()
@click.argument("name")
@click.argument("key")
@click.argument("value")
@click.pass_obj
def config(place: Place, name: str, key: str, value: str) -> None:
    """Set KEY of an agent: model, profile, system_prompt, tools, fallback, max_output_tokens, temperature,
    restrict_to_workspace, taint.

    VALUE is TOML where the key can hold it, else text. An empty VALUE takes the key out. It counts from the agent's
    next turn.
    """
    file = _existing(place, name) / FILE
    if key == "profile" and value:
        _check_profile(place, value)
    _set(file, key, value)
    print(f"{name}: {key} is {value or 'left to the default'} from the next turn on.")


@agents.command()
@click.argument("name")
@click.option("--keep-files", is_flag=True, help="Move its folder to removed/ instead of deleting it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def destroy(place: Place, name: str, keep_files: bool, yes: bool) -> None:
    """Remove an agent. Its conversations stay in the journal."""
    folder = _existing(place, name)
    if name == place.config().agents.default_agent:
        raise Conflict(f"{name} is the default agent. Set agents.default_agent to another first.")
    if not keep_files and not yes:
        click.confirm(f"Delete {folder} with its workspace?", abort=True)
    if keep_files:
        target = place.root / "removed" / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        target.parent.mkdir(exist_ok=True)
        folder.rename(target)
        print(f"Removed {name}; its files are in {target}.")
        return
    import shutil

    shutil.rmtree(folder)
    print(f"Removed {name} and its files.")


def open_agents(place: Place) -> Agents:
    """The agents of the home directory as the configuration has them."""
    config = place.config()
    defaults = AgentDefaults(
        agent=config.agents.default_agent,
        model=default_model(config),
        profile=config.permissions.default_profile,
    )
    return Agents(place.home, defaults)


def _view(agent: AgentSpec) -> AgentView:
    return AgentView(agent.name, agent.model, agent.profile, agent.tools, str(agent.home))


def _existing(place: Place, name: str) -> Path:
    folder = place.home.agent(name)
    if not NAME.fullmatch(name) or not folder.is_dir():
        known = ", ".join(open_agents(place).names())
        raise NotFound(f"There is no agent {name!r}. There are: {known}. `shoal agents create NAME` makes one.")
    return folder


def _check_profile(place: Place, name: str | None) -> None:
    from shoal.surfaces.cli.permissions import load_profile

    if name:
        load_profile(place, name)


def _set(file: Path, key: str, value: str) -> None:
    """Set a key of an agent.toml in place, comments kept; an empty value takes it out.

    Raises InvalidInput when the key is unknown or cannot hold the value; the file is then as it was.
    """
    fields = [field.name for field in msgspec.structs.fields(AgentFile)]
    if key not in fields:
        raise InvalidInput(f"{key!r} is not a key of an agent. Keys: {', '.join(fields)}.")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = [line for line in text.splitlines() if not re.match(rf"\s*{key}\s*=", line)]
    if value:
        lines.append(f"{key} = {_literal(key, value)}")
    content = "\n".join(lines) + "\n"
    try:
        msgspec.convert(tomllib.loads(content), AgentFile)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"{key} cannot be {value!r}: {error}.") from error
    temporary = file.with_suffix(".new")
    temporary.write_text(content, encoding="utf-8")
    temporary.replace(file)


def _literal(key: str, value: str) -> str:
    """The value as TOML: as it is if the key can hold it so, else as text."""
    try:
        parsed = tomllib.loads(f"{key} = {value}")
        msgspec.convert(parsed, AgentFile)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError):
        return msgspec.json.encode(value).decode()
    return value if set(parsed) == {key} else msgspec.json.encode(value).decode()
