"""`shoal permissions`, `pair` and `token`: permission rules, access with pairing codes, and API tokens."""

import asyncio
import sys
from pathlib import Path

import click
import msgspec

from shoal.agents.registry import AgentDefaults, AgentRegistry
from shoal.config import default_model
from shoal.kernel.errors import ConfigError, InvalidInput
from shoal.kernel.permissions import TOKEN_SCOPES, Asker, Decision, Ruling
from shoal.kernel.phrases import counted
from shoal.kernel.schema import refusal
from shoal.kernel.settings import ProfileSettings
from shoal.kernel.untrusted import BAD_TOML, decode_toml
from shoal.permissions.actions import action_of, shell_actions
from shoal.permissions.built_in import BUILT_IN
from shoal.permissions.profiles import Profile, Profiles, compile_profile, decide, decide_all
from shoal.surfaces.cli.client import as_usage, call_api, get, path_part
from shoal.surfaces.cli.completion import agent_option, complete_agents
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.known_tools import known_traits, situation_here
from shoal.surfaces.cli.output import echo, hours_of, print_json, print_records, print_table, printable, when
from shoal.surfaces.http.endpoints import Removed
from shoal.surfaces.http.routes_access import (
    AccessView,
    HindsightView,
    NewTokenView,
    OwnRuleView,
    PairAnswer,
    ProfileView,
    SuggestedRule,
    TokenView,
)

SHELL_TOOL = "bash"

# ---- permissions ----


class ShellDecision(msgspec.Struct, frozen=True):
    decision: Decision
    parts: tuple[Ruling, ...]


permissions = click.Group(
    "permissions",
    help="Check and change what agents may do.",
    epilog='Example: shoal permissions check --shell "git push origin main"',
)


@command(permissions, example='shoal permissions check --shell "git push origin main"')
@click.option("--profile", metavar="NAME|FILE", help="A profile, or a TOML file with deny, allow and ask lists.")
@click.option("--shell", "command", metavar="COMMAND", help="Check a shell command and each of its parts.")
@click.option("--tool", default=SHELL_TOOL, show_default=True, help="The tool that would run the shell command.")
@agent_option("Use the rules of this agent.")
@click.argument("actions", nargs=-1, metavar="[ACTION…|-]")
def check(
    context: CommandContext,
    profile: str | None,
    command: str | None,
    tool: str,
    agent: str,
    actions: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the decision (allow, ask or deny) and the matching rule for each ACTION.

    Each action is decided as if the owner asked for it in a turn without untrusted content. Your own rules and this
    machine's sandbox apply.

    An action is tool:NAME:DETAIL, such as "tool:bash:git status" or "tool:write:/workspace/notes.md". With -, read
    one action per line from standard input.
    """
    if (command is None) == (not actions):
        raise click.UsageError("Pass either actions or --shell COMMAND.")
    rules, situation = load_profile(context, profile, agent), asyncio.run(situation_here(context.config()))
    if command is not None:
        actions_of = shell_actions(tool, command, cwd=Path("/workspace"), isolated=situation.isolated)
        decision, rulings = decide_all(rules, actions_of, situation)
        record = ShellDecision(decision, rulings)
        if not as_json:
            print(decision)
    else:
        texts = [line.rstrip("\r\n") for line in sys.stdin] if actions == ("-",) else list(actions)
        record = rulings = [decide(rules, action_of(text), situation) for text in texts if text]
    rows = [(ruling.decision, ruling.action, ruling.rule or "no rule matches") for ruling in rulings]
    print_records(record, as_json, ("decision", "action", "rule"), rows, "No actions to check.")


ASKED_ANYWAY = (
    "No sandbox isolates commands on this machine, so Shoal still asks before every command that does more than read. "
    'Install bubblewrap, or set sandbox.kind = "host" in shoal.toml to rely on rules alone.'
)
OWNER_HERE = Asker(trust="owner", user="owner", platform="terminal")


def load_profile(context: CommandContext, name: str | None, agent: str) -> Profile:
    """Return the rules that apply to the owner in a direct conversation with an agent.

    The rules are read from the agent's profile, from a named profile, or from a TOML file. Overrides apply to
    profiles but not to files.

    Raises ConfigError if the profile does not exist or a pattern is invalid. The error lists every invalid pattern.
    """
    config = context.config()
    if name is not None and name not in BUILT_IN and (rules := _profile_file(name)) is not None:
        return compile_profile(Path(name).name, rules, traits=known_traits(config))
    agent = agent or config.agents.default_agent
    chosen = config.permissions.default_profile if name is None else name
    if name is None and context.home.agent(agent).is_dir():
        chosen = AgentRegistry(context.home, AgentDefaults.of(config, default_model(config))).spec(agent).profile
    profiles = Profiles(known_traits(config), config.permissions.profiles, config.permissions.overrides)
    return profiles.effective(chosen, OWNER_HERE, agent)


def _profile_file(name: str) -> ProfileSettings | None:
    path = Path(name)
    if not path.is_file() and "/" not in name and not name.endswith(".toml"):
        return None
    try:
        return msgspec.convert(decode_toml(path.read_text(encoding="utf-8")), ProfileSettings)
    except OSError as error:
        raise ConfigError([f"Shoal cannot read {path}: {error.strerror}."]) from error
    except BAD_TOML as error:
        why = refusal(error, ProfileSettings, table="a table")
        problem = f"{path}: {why}. Allowed keys: deny, allow, ask, trusted_allow, extends."
        raise ConfigError([problem]) from error


@command(permissions, example="shoal permissions replay --profile guarded --since 7d")
@click.option("--profile", required=True, metavar="NAME|FILE", help="A profile, or a TOML file with rules.")
@click.option("--since", default="30d", show_default=True, help="How far back to look: 12h, 30d, 2w.")
@click.option("--agent", default="", help="Only actions of this agent.")
@as_usage()
def replay(context: CommandContext, profile: str, since: str, agent: str, as_json: bool) -> None:
    """List the past actions that the rules in --profile would have decided differently."""
    try:
        rules = _profile_file(profile)
    except ConfigError as error:
        raise click.UsageError(" ".join(error.problems)) from error
    name = profile if rules is None else Path(profile).name
    body = {"profile": name, "rules": rules, "hours": hours_of(since), "agent": agent}
    view = call_api(context, "POST", "/api/permissions/replay", body, into=HindsightView)
    if as_json:
        print_json(view)
        return
    rows = [
        (decision.before, decision.after, decision.count, printable(decision.action), decision.rule or "no rule")
        for decision in view.changed
    ]
    nothing = "These rules would have decided every action the same way."
    print_table(("was", "would be", "times", "action", "by rule"), rows, nothing)
    for after, word in (("allow", "allowed"), ("ask", "requiring approval"), ("deny", "denied")):
        count = sum(decision.count for decision in view.changed if decision.after == after)
        if count:
            print(f"newly {word}: {count}")
    print(f"Compared {counted(view.checked, 'check')} of {counted(view.actions, 'distinct action')}.")


@command(permissions, example="shoal permissions suggest")
@click.option("--since", default="30d", show_default=True, help="How far back to look: 12h, 30d, 2w.")
@click.option("--accept", type=click.IntRange(1), help="Add the rule with this number to shoal.toml.")
def suggest(context: CommandContext, since: str, accept: int | None, as_json: bool) -> None:
    """Suggest narrow rules for actions that Shoal asked about repeatedly and people always allowed."""
    suggestions = get(context, "/api/permissions/suggestions", list[SuggestedRule], hours=hours_of(since))
    if as_json and accept is None:
        print_json(suggestions)
        return
    if accept is not None:
        if accept > len(suggestions):
            raise click.UsageError(
                f"Suggestion {accept} does not exist. Run `shoal permissions suggest` to list all suggestions."
            )
        rule = suggestions[accept - 1]
        body = {"agent": rule.agent, "allow": rule.allow, "hours": hours_of(since)}
        made = call_api(context, "POST", "/api/permissions/suggestions", body, into=SuggestedRule)
        print(f"Added to {context.home.config_file}. The rule takes effect on the next turn:\n{made.text}")
        return
    for number, suggestion in enumerate(suggestions, 1):
        taken = " (added)" if suggestion.accepted else ""
        asked = f"asked {counted(suggestion.asked, 'time')} since {when(suggestion.since)}"
        print(f"{number}. {suggestion.agent} {asked}, and each request was allowed{taken}:")
        print("\n".join(f"     {line}" for line in printable(suggestion.shown).splitlines()[:6]))
        print("   " + "\n   ".join(suggestion.text.splitlines()))
    if not suggestions:
        print("No suggestions yet.")
    elif not all(suggestion.accepted for suggestion in suggestions):
        echo("To accept a suggestion, run `shoal permissions suggest --accept NUMBER`.")


@command(permissions, example="shoal permissions rules")
def rules(context: CommandContext, as_json: bool) -> None:
    """List your own rules: those added to every profile, and those in your own profiles."""
    rules = get(context, "/api/permissions/rules", list[OwnRuleView])
    rows = [(rule.id, _whose(rule), rule.list, printable(rule.words or rule.pattern)) for rule in rules]
    empty = "You have no rules of your own. Run `shoal permissions add` to add one."
    print_records(rules, as_json, ("id", "for", "decision", "what"), rows, empty)


def _whose(rule: OwnRuleView) -> str:
    if rule.profile:
        return f"profile {rule.profile}"
    names = (*rule.agents, *rule.platforms, *rule.channels, *rule.kinds, *rule.users, *rule.roles)
    return ", ".join(names) or "everybody"


@command(permissions, example='shoal permissions add allow command "git fetch" --beginning')
@click.argument("decision", type=click.Choice(["allow", "ask", "deny", "trusted_allow"]))
@click.argument("what", type=click.Choice(["command", "read", "write", "web", "tool", "pattern"]))
@click.option(
    "--beginning", is_flag=True, help="Also match anything after TEXT: more words, or everything in a folder."
)
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_agents,
    help="Only for this agent. Can be repeated.",
)
@click.option("--profile", default="", metavar="NAME", help="Add the rule to this custom profile.")
def add(
    context: CommandContext, decision: str, what: str, text: str, beginning: bool, agents: tuple[str, ...], profile: str
) -> None:
    """Add a rule. It takes effect on the next turn.

    WHAT is the kind of TEXT: a command, a path to read or write, the address of a web page, the name of a tool, or a
    pattern for whole actions.
    """
    about = (
        {"pattern": text} if what == "pattern" else {"subject": {"what": what, "text": text, "beginning": beginning}}
    )
    body = {"list": decision, "agents": agents, "profile": profile, **about}
    made = call_api(context, "POST", "/api/permissions/rules", body, into=OwnRuleView)
    print(f"{made.id}: {made.list} {printable(made.words or made.pattern)}, for {_whose(made)}.")
    sandbox = context.config().sandbox
    is_of_commands = made.subject.what == "command" if made.subject is not None else "bash" in made.pattern
    may_ask = decision == "allow" and is_of_commands and sandbox.kind == "auto"
    if may_ask and not asyncio.run(situation_here(context.config())).isolated:
        echo(ASKED_ANYWAY)


@command(permissions, example="shoal permissions remove 3f9a2c")
def remove(context: CommandContext, id: str) -> None:
    """Remove the rule with this ID. 'permissions rules' lists the IDs."""
    call_api(context, "DELETE", f"/api/permissions/rules/{path_part(id)}", into=Removed)
    print("Removed.")


@command(permissions, example="shoal permissions copy standard mine")
def copy(context: CommandContext, profile: str, name: str) -> None:
    """Create the custom profile NAME with a copy of PROFILE's rules."""
    with as_usage():
        made = call_api(
            context, "POST", "/api/permissions/profiles", {"name": name, "copies": profile}, into=ProfileView
        )
    print(f"{made.name} has {counted(len(made.rules), 'rule')}.")
    print(f"To use this profile, run `shoal agents config AGENT profile {made.name}`.")


@command(permissions, example="shoal permissions discard mine")
def discard(context: CommandContext, name: str) -> None:
    """Delete the custom profile NAME. Fails if an agent uses it."""
    with as_usage():
        call_api(context, "DELETE", f"/api/permissions/profiles/{path_part(name)}", into=Removed)
    print("Removed.")


# ---- pairing ----


class CodeOrCommand(click.Group):
    """A command group that also accepts a pairing code as its first argument and confirms it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            return "confirm", self.commands["confirm"], args
        return super().resolve_command(ctx, args)


pair = CodeOrCommand(
    "pair",
    subcommand_metavar="CODE | list | remove PLATFORM:USER",
    help="Give access to a person who wrote to an agent and got a code: shoal pair CODE.",
    epilog="Example: shoal pair k5qct379",
)


@command(pair, hidden=True, example="shoal pair confirm k5qct379")
def confirm(context: CommandContext, code: str, as_json: bool) -> None:
    """Give access to the person who received CODE."""
    answer = call_api(context, "POST", "/api/access/pair", {"code": code}, into=PairAnswer)
    if as_json:
        print_json(answer)
        return
    print(f"{printable(f'{answer.platform}:{answer.user}')} can now talk to your agents.")


@command(pair, "list", example="shoal pair list")
def list_access(context: CommandContext, as_json: bool) -> None:
    """List the people who got access with a code, and the people who are waiting for access."""
    view = get(context, "/api/access", AccessView)
    waiting = [(request, f"waiting, code valid until {when(request.expires_at)}") for request in view.waiting]
    paired = [(person, f"access since {when(person.at)}, granted by {person.by}") for person in view.paired]
    rows = [(f"{person.platform}:{person.user}", person.name, text) for person, text in (*waiting, *paired)]
    print_records(
        view,
        as_json,
        ("who", "name", "access"),
        rows,
        ("No one has access through a pairing code, and no one is waiting for access."),
    )


@command(pair, "remove", example="shoal pair remove telegram:4711")
@click.argument("who", metavar="PLATFORM:USER")
def remove_access(context: CommandContext, who: str) -> None:
    """Remove the access that a person got with a code."""
    platform, _, user = who.partition(":")
    if not platform or not user:
        raise InvalidInput(
            f"{who!r} is not in the form PLATFORM:USER, such as telegram:4711. Run `shoal pair list` to see who has "
            "access."
        )
    call_api(context, "DELETE", f"/api/access/{path_part(platform)}/{path_part(user)}")
    print(f"{printable(who)} can no longer talk to your agents.")


# ---- tokens ----


token = click.Group(
    "token",
    help="Tokens with limited scopes for the page, the API and /v1.",
    epilog="Example: shoal token create openwebui --scope chat",
)


@command(token, "create", example="shoal token create openwebui --scope chat --expires 90d")
@click.option("--scope", required=True, type=click.Choice(TOKEN_SCOPES), help="Permissions of the token.")
@agent_option("Limit the token to this agent's threads.")
@click.option(
    "--as",
    "person",
    default="",
    metavar="PERSON",
    help="Person that the token acts as: PLATFORM:USER, a name from [access.people], or owner.",
)
@click.option("--expires", default="", metavar="WHEN", help="90d, 12h, 2027-01-31 or 2027-01-31T09:00:00Z.")
def create_token(
    context: CommandContext, name: str, scope: str, agent: str, person: str, expires: str, as_json: bool
) -> None:
    """Create a token and print it once. Shoal stores only a digest.

    Scopes: chat (send messages in the person's own threads, and read and steer them), read (read everything except
    tokens), approve (like read, and decide approvals if the person is an approver) and admin (everything). Without
    --as, an admin token acts as the owner, and any other token acts as a new person, web:NAME.
    """
    body = {"name": name, "scope": scope, "person": person, "agent": agent, "expires": expires}
    made = call_api(context, "POST", "/api/tokens", body, into=NewTokenView)
    if as_json:
        print_json(made)
        return
    print(made.secret)
    token = made.token
    until = f"until {when(token.expires_at)} UTC" if token.expires_at else "until it is revoked"
    print(
        f"{token.name}: scope {token.scope}, as {printable(token.person)}, valid {until}. Shoal does not show the "
        "token again.",
        file=sys.stderr,
    )


@command(token, "list", example="shoal token list")
def list_tokens(context: CommandContext, as_json: bool) -> None:
    """List the tokens and the day on which each was last used. Shoal does not store the tokens themselves."""
    tokens = get(context, "/api/tokens", list[TokenView])
    rows = [
        (token.name, token.scope, token.person, token.agent or "all", token.used_on or "never", token.expires_at)
        for token in tokens
    ]
    head = ("name", "scope", "as", "agent", "last used", "expires (UTC)")
    print_records(tokens, as_json, head, rows, "No tokens.")


@command(token, "revoke", example="shoal token revoke openwebui")
def revoke_token(context: CommandContext, name: str) -> None:
    """Revoke a token. Its next call fails, and its open streams end within a second."""
    call_api(context, "DELETE", f"/api/tokens/{path_part(name)}")
    print(f"Revoked {printable(name)}.")
