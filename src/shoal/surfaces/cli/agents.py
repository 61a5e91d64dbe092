"""`shoal agents`: the named agents of this home directory. Each is a folder `agents/NAME/` with an `agent.toml`."""

import asyncio
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click
import msgspec

from shoal.agents.folder import NAME, checked_name, make_folder, remove_folder, set_key
from shoal.agents.registry import AgentDefaults, Agents
from shoal.agents.roster import check_platform, listed
from shoal.config import default_model
from shoal.domain.errors import Conflict, InvalidInput, NotFound
from shoal.domain.registry import Binding
from shoal.surfaces.cli.init import make_home
from shoal.surfaces.cli.output import json_option, print_json, print_table
from shoal.surfaces.cli.place import Place

BY = "terminal:owner"


class AgentView(msgspec.Struct, frozen=True):
    """An agent as lists show it."""

    name: str
    model: str
    profile: str
    tools: tuple[str, ...]
    path: str
    channels: tuple[str, ...] = ()
    error: str = ""


class _Destroyed(msgspec.Struct):
    files: str


@click.group()
def agents() -> None:
    """Agents: who answers, with which model, prompt and permissions."""


@agents.command("list")
@json_option
@click.pass_obj
def list_(place: Place, as_json: bool) -> None:
    """List the agents."""
    registry = open_agents(place)
    bindings = place.read(lambda store: store.registry.bindings())
    views = [_view(registry, name, bindings) for name in registry.names()]
    if as_json:
        print_json(views)
        return
    rows = [
        (
            view.name,
            view.error or view.model,
            view.profile,
            ", ".join(view.tools) or "all",
            ", ".join(view.channels),
            view.path,
        )
        for view in views
    ]
    print_table(("name", "model", "profile", "tools", "channels", "folder"), rows, "There are no agents.")


@agents.command()
@click.argument("name")
@click.option("--model", help="PROVIDER/MODEL; without it the default one.")
@click.option("--profile", help="Permission profile; without it the default one.")
@click.option("--prompt", "system_prompt", help="What it is for, in a sentence or more.")
@click.pass_obj
def create(place: Place, name: str, model: str | None, profile: str | None, system_prompt: str | None) -> None:
    """Make an agent from template/."""
    from shoal.factories import make_profiles
    from shoal.surfaces.cli.remote import find_remote

    checked_name(name)
    if profile == "":
        make_profiles(place.config()).get(profile)  # says which there are
    if place.home.agent(name).exists():
        raise Conflict(f"There is an agent {name} already. `shoal agents config {name} KEY VALUE` changes it.")
    given = {"model": model, "profile": profile, "system_prompt": system_prompt}
    settings = {key: value for key, value in given.items() if value is not None}
    remote = find_remote(place)
    if remote is not None:
        asyncio.run(remote.call("POST", "/api/agents", {"name": name, "settings": settings}))
        print(f"Made {place.home.agent(name)}. Edit AGENTS.md there to say how it works.")
        return
    _check(place, settings)
    make_home(place.home)
    make_folder(place.home, name)
    for key, value in settings.items():
        set_key(place.home.agent(name), key, value)
    print(f"Made {place.home.agent(name)}. Edit AGENTS.md there to say how it works.")


@agents.command()
@click.argument("name")
@click.argument("key")
@click.argument("value")
@click.pass_obj
def config(place: Place, name: str, key: str, value: str) -> None:
    """Set KEY of an agent: model, profile, system_prompt, tools, fallback, max_output_tokens, temperature,
    restrict_to_workspace, taint, idle_minutes, budget.usd_per_turn, budget.usd_per_day, budget.tokens_per_turn,
    budget.tokens_per_day.

    VALUE is TOML where the key can hold it, else text. An empty VALUE takes the key out. It counts from the agent's
    next turn.
    """
    from shoal.surfaces.cli.remote import find_remote, part

    folder = _existing(place, name)
    remote = find_remote(place)
    if remote is not None:
        asyncio.run(remote.call("PATCH", f"/api/agents/{part(name)}", {"settings": {key: value}}))
    else:
        value = listed(key, value)
        _check(place, {key: value})
        set_key(folder, key, value)
    print(f"{name}: {key} is {value or 'left to the default'} from the next turn on.")


@agents.command()
@click.argument("name")
@click.option("--keep-files", is_flag=True, help="Move its folder to removed/ instead of deleting it.")
@click.option("--yes", is_flag=True, help="Do not ask, as where nobody sits at a terminal.")
@click.pass_obj
def destroy(place: Place, name: str, keep_files: bool, yes: bool) -> None:
    """Remove an agent: its turns are stopped, its channels go to the default agent, its conversations stay."""
    from shoal.surfaces.cli.remote import find_remote, part

    folder = _existing(place, name)
    if name == place.config().agents.default_agent:
        raise Conflict(f"{name} is the default agent. Set agents.default_agent to another first.")
    if not (keep_files or yes) and sys.stdin.isatty():
        click.confirm(f"Delete {folder} with its workspace?", abort=True)
    remote = find_remote(place)
    if remote is not None:
        path = f"/api/agents/{part(name)}?keep_files={'true' if keep_files else 'false'}"
        files = msgspec.json.decode(asyncio.run(remote.call("DELETE", path)), type=_Destroyed).files
        target = place.root / files
    else:
        place.write(lambda store: store.registry.retire(name))
        target = remove_folder(place.home, name, datetime.now(UTC), keep=keep_files)
    print(f"Removed {name}; its files are in {target}." if keep_files else f"Removed {name} and its files.")


@agents.command()
@click.argument("name")
@click.argument("channel", metavar="PLATFORM:CHANNEL")
@click.pass_obj
def bind(place: Place, name: str, channel: str) -> None:
    """Let an agent answer in a channel from its next message on, such as discord:1234567890."""
    from shoal.accounts import platform_names
    from shoal.domain.clock import SystemClock
    from shoal.surfaces.cli.remote import find_remote

    _existing(place, name)
    platform, identity = _channel(channel)
    remote = find_remote(place)
    if remote is not None:
        body = {"platform": platform, "channel": identity, "agent": name}
        asyncio.run(remote.call("PUT", "/api/bindings", body))
    else:
        check_platform(platform, platform_names(place.config()))
        binding = Binding(platform, identity, name, BY, SystemClock().now())
        place.write(lambda store: store.registry.bind(binding))
    print(f"{name} answers in {channel} from the next message on.")


@agents.command()
@click.argument("channel", metavar="PLATFORM:CHANNEL")
@click.pass_obj
def unbind(place: Place, channel: str) -> None:
    """Let the default agent answer in a channel again."""
    from shoal.surfaces.cli.remote import find_remote, part

    platform, identity = _channel(channel)
    remote = find_remote(place)
    if remote is not None:
        asyncio.run(remote.call("DELETE", f"/api/bindings/{part(platform)}/{part(identity)}"))
    elif not place.write(lambda store: store.registry.unbind(platform, identity)):
        raise NotFound(f"{channel} is bound to no agent. `shoal agents list` shows what is bound.")
    print(f"{channel} is bound to no agent any more.")


@agents.command()
@click.argument("name")
@click.pass_obj
def undo(place: Place, name: str) -> None:
    """Take back the newest change that an agent made to itself. Again takes back the one before."""
    from shoal.agents.self_edit import undo_in

    print(undo_in(_existing(place, name)))


def open_agents(place: Place) -> Agents:
    """The agents of the home directory as the configuration has them."""
    config = place.config()
    defaults = AgentDefaults(
        agent=config.agents.default_agent,
        model=default_model(config),
        profile=config.permissions.default_profile,
    )
    return Agents(place.home, defaults)


def _view(registry: Agents, name: str, bindings: list[Binding]) -> AgentView:
    channels = tuple(one.place for one in bindings if one.agent == name)
    try:
        agent = registry.spec(name)
    except InvalidInput as error:
        return AgentView(name, "", "", (), "", channels, str(error))
    return AgentView(name, agent.model, agent.profile, agent.tools, str(agent.home), channels)


def _channel(text: str) -> tuple[str, str]:
    platform, _, channel = text.partition(":")
    if not platform or not channel:
        raise InvalidInput(f"{text[:80]!r} is no channel: write PLATFORM:CHANNEL.")
    return platform, channel


def _existing(place: Place, name: str) -> Path:
    folder = place.home.agent(name)
    if not NAME.fullmatch(name) or not folder.is_dir():
        known = ", ".join(open_agents(place).names())
        raise NotFound(f"There is no agent {name!r}. There are: {known}. `shoal agents create NAME` makes one.")
    return folder


def _check(place: Place, settings: Mapping[str, str]) -> None:
    """Refuse a model, profile or tool that does not exist, as far as is known without asking anybody."""
    asyncio.run(_check_known(place, settings))


async def _check_known(place: Place, settings: Mapping[str, str]) -> None:
    from shoal.factories import make_profiles, tool_names
    from shoal.office import make_checks
    from shoal.surfaces.cli.models import open_catalog

    config, catalog = place.config(), open_catalog(place)
    checks = make_checks(catalog, make_profiles(config), partial(tool_names, config))
    try:
        for key, value in settings.items():
            if value:
                checks.check(key, value)
    finally:
        await catalog.close()
