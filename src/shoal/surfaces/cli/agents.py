"""`shoal agents`: manage the agents in this home directory. Each agent is a folder `agents/NAME/` with an
`agent.toml`.
"""

import sys
from pathlib import Path

import click
import msgspec

from shoal.agents.folder import NAME
from shoal.agents.registry import AgentDefaults, AgentRegistry
from shoal.kernel.agents import HEARD, LISTENS
from shoal.kernel.errors import InvalidInput, NotFound
from shoal.surfaces.cli.client import call_api, get, path_part
from shoal.surfaces.cli.completion import complete_agents
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.init import make_home
from shoal.surfaces.cli.output import echo, print_records
from shoal.surfaces.http.routes_agents import AgentView, DestroyedAgent, NewAgentView, TakenBack


class ListedAgent(AgentView, frozen=True):
    """An agent as the API returns it, with the path of its folder."""

    path: str = ""


_listen_option = click.option(
    "--listen",
    type=click.Choice(LISTENS),
    default="all",
    show_default=True,
    help=(
        "Messages that the agent answers: all, named (mentions and replies), or threads (also follow-ups in "
        "threads that mention the agent)."
    ),
)


agents = click.Group("agents", help="Create, configure, bind and remove agents.", epilog="Example: shoal agents list")


@command(agents, "list", example="shoal agents list")
def list_agents(context: CommandContext, as_json: bool) -> None:
    """List the agents."""
    agents = [
        msgspec.structs.replace(agent, path=str(context.home.agent(agent.name)))
        for agent in get(context, "/api/agents", list[ListedAgent])
    ]
    rows = [
        (
            agent.name,
            agent.error or agent.model,
            agent.profile,
            ", ".join(agent.tools) or "all",
            ", ".join(f"{place} ({listen})" for place, listen in agent.listen.items()),
            agent.path,
        )
        for agent in agents
    ]
    head = ("name", "model", "profile", "tools", "channels", "folder")
    print_records(agents, as_json, head, rows, "No agents.")


@command(agents, example='shoal agents create research --prompt "You compare sources."')
@click.option("--model", help="Model, as PROVIDER/MODEL. [default: the default model]")
@click.option("--profile", help="Permission profile. [default: the default profile]")
@click.option("--prompt", "system_prompt", help="Instructions, in one or more sentences.")
@click.option("--beside", metavar="PLATFORM:CHANNEL", help="Create a channel for the agent next to this one.")
@_listen_option
def create(
    context: CommandContext,
    name: str,
    model: str | None,
    profile: str | None,
    system_prompt: str | None,
    beside: str | None,
    listen: str,
) -> None:
    """Create an agent from the files in template/."""
    given = {"model": model, "profile": profile, "system_prompt": system_prompt}
    settings = {key: value for key, value in given.items() if value is not None}
    make_home(context.home)
    body = {"name": name, "settings": settings, "beside": beside or "", "listen": listen}
    made = call_api(context, "POST", "/api/agents", body, into=NewAgentView)
    print(f"Created {context.home.agent(name)}. Edit AGENTS.md there to describe how the agent works.")
    for place in made.agent.channels:
        print(f"The agent answers in {place}.")
    if made.note:
        echo(made.note)


@command(agents, example="shoal agents config main budget.usd_per_day 2.50")
@click.argument("name", shell_complete=complete_agents)
def config(context: CommandContext, name: str, key: str, value: str) -> None:
    """Change a setting of an agent. KEY is one of model, profile, system_prompt, tools, fallback, max_output_tokens,
    temperature, restrict_to_workspace, taint, idle_minutes, budget.usd_per_turn, budget.usd_per_day,
    budget.tokens_per_turn and budget.tokens_per_day.

    VALUE is TOML or plain text, depending on the key. An empty VALUE removes the key. The change takes effect on the
    agent's next turn.
    """
    _existing(context, name)
    call_api(context, "PATCH", f"/api/agents/{path_part(name)}", {"settings": {key: value}})
    print(f"{name}: {key} is {value or 'the default'}. This takes effect on the next turn.")


@command(agents, example="shoal agents destroy research --keep-files")
@click.argument("name", shell_complete=complete_agents)
@click.option("--keep-files", is_flag=True, help="Move the agent's folder to removed/ instead of deleting it.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def destroy(context: CommandContext, name: str, keep_files: bool, yes: bool) -> None:
    """Remove an agent: stop its turns and give its channels to the default agent. Its conversations are kept."""
    folder = _existing(context, name)
    if not (keep_files or yes) and sys.stdin.isatty():
        click.confirm(f"Delete {folder}, including its workspace?", abort=True)
    path = f"/api/agents/{path_part(name)}?keep_files={'true' if keep_files else 'false'}"
    removed = call_api(context, "DELETE", path, into=DestroyedAgent)
    print(
        f"Removed {name}. Its files are in {context.root / removed.files}."
        if keep_files
        else f"Removed {name} and its files."
    )


@command(agents, example="shoal agents bind research discord:1234567890")
@click.argument("name", shell_complete=complete_agents)
@click.argument("channel", metavar="PLATFORM:CHANNEL")
@_listen_option
def bind(context: CommandContext, name: str, channel: str, listen: str) -> None:
    """Let an agent answer in a channel, starting with the next message."""
    platform, identity = _channel(channel)
    binding = {"platform": platform, "channel": identity, "agent": name, "listen": listen}
    call_api(context, "PUT", "/api/bindings", binding)
    print(f"{name} answers {HEARD[listen]} in {channel}. This takes effect on the next message.")


@command(agents, example="shoal agents unbind discord:1234567890")
@click.argument("channel", metavar="PLATFORM:CHANNEL")
def unbind(context: CommandContext, channel: str) -> None:
    """Let the default agent answer in a channel again."""
    platform, identity = _channel(channel)
    call_api(context, "DELETE", f"/api/bindings/{path_part(platform)}/{path_part(identity)}")
    print(f"{channel} is no longer bound to an agent.")


@command(agents, example="shoal agents undo main")
@click.argument("name", shell_complete=complete_agents)
def undo(context: CommandContext, name: str) -> None:
    """Undo the newest change that an agent made to itself. Repeat the command to undo earlier changes."""
    _existing(context, name)
    print(call_api(context, "POST", f"/api/agents/{path_part(name)}/undo", into=TakenBack).said)


def _channel(text: str) -> tuple[str, str]:
    platform, _, channel = text.partition(":")
    if not platform or not channel:
        raise InvalidInput(f"{text[:80]!r} is not a channel. Specify the channel as PLATFORM:CHANNEL.")
    return platform, channel


def _existing(context: CommandContext, name: str) -> Path:
    folder = context.home.agent(name)
    if not NAME.fullmatch(name) or not folder.is_dir():
        known = ", ".join(AgentRegistry(context.home, AgentDefaults(context.config().agents.default_agent)).names())
        raise NotFound(f"No agent named {name!r}. Agents: {known}. Run `shoal agents create NAME` to create one.")
    return folder
