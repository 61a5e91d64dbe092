"""Rules of the built-in profiles, derived from the traits of the registered tools (`kernel.traits`).

profile    what it allows
--------   ------------------------------------------------------------------------------------------------------
open       everything
standard   calls that the tool's traits allow; for other calls, the effect decides (`permissions.effects`)
guarded    everything except commands that change something on other systems, and calls that the tool's traits
           exclude; for MCP tools, the effect decides
locked     only calls that the tool's traits allow
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

from shoal.kernel.settings import ProfileSettings
from shoal.kernel.traits import AGENT_ITSELF, ANYTHING, TraitsByName, Treatment

RuleList: TypeAlias = Literal["deny", "allow", "ask", "trusted_allow"]
EVERYTHING = "(?s:.*)"
"""Pattern that matches everything, including opaque commands. The profile `open` consists of this pattern alone."""
MCP_TOOLS = "(?s:tool:mcp_.*)"
"""Pattern for MCP tools. The profile `guarded` asks before calling them, unless the effect allows the call."""
BUILT_IN = ("open", "standard", "guarded", "locked")

# Names that tools from extensions and host programs often have, by rule subject.
ALIKE_WEB = ("fetch", "web_fetch", "browse")
ALIKE_READERS = ("ls", "glob", "grep", "search", "find")
ALIKE_WRITERS = ("append",)
_ALIKE_EDITORS = ("self_edit[a-z_]*", "set_[a-z_]+")
_NEVER_ALLOWED = ("i2c_", "spi_", "mcp_", "message")
"""Name prefixes of tools that the general allow rule of `guarded` excludes."""

_AT = "<command>"
"""Placeholder in a pattern for `tool:NAME:`, where NAME is any tool that takes commands."""
_FLAGS = r"( -\S+( [^-\s]\S*)?)*"  # Options before a subcommand, each optionally followed by a value.

# Commands that change something outside the machine, by program and verb. `shell/programs.txt` lists the verbs that
# only read. Commands on neither list need approval.
_CHANGES = (
    "create|new|add|delete|destroy|remove|rm|update|edit|patch|put|set|unset|apply|deploy|publish|push|upload|import|restore"
    "|start|stop|restart|reboot|reset|resize|rebuild|shutdown|power(-?[a-z]+)|terminate|run|enable|disable",
    "attach|detach|assign|register|deregister|modify|scale|migrate|move|mv|copy|cp|sync|promote|rollback|invoke|send|submit|execute"
    "|exec|ssh|login|purge|revoke|grant|authorize|tag|mb|rb|init|up|actions?|configure|config|batch-write|batch-delete",
)
_CLOUDS = (
    "aws|gcloud|az|gsutil|bq|s3cmd|rclone|mc|oci|ibmcloud|aliyun|openstack|doctl|hcloud|linode-cli|linode|scw|vultr-cli|exo"
    "|upctl|civo|pulumi|eksctl|cdk|sam|railway|render|cf"
)
_DENIED_COMMANDS = {
    "pushing with git, and sending patches by mail": rf"{_AT}git (-.* )?(push|send-email|request-pull)( .*)?",
    "changing where git pushes to, and committing to Subversion or Perforce": (
        rf"{_AT}git (-.* )?(svn dcommit|remote( .*)? (add|set-url)|p4 submit)( .*)?"
    ),
    "changing anything on GitHub or GitLab with gh, glab or hub": (
        rf"{_AT}(gh|glab|hub){_FLAGS} [a-z-]+{_FLAGS} (create|new|merge|close|reopen|delete|edit|update|comment|note"
        r"|review|approve|revoke|upload|sync|fork|set|remove|run|rerun|retry|cancel|trigger|enable|disable|ready|lock|unlock"
        r"|transfer|rename|archive|unarchive|pin|unpin|develop|add|login|logout|refresh|setup-git|rebase"
        r"|install|upgrade|import|link|unlink|copy|mark-template|field-\S+|item-\S+|subscribe|unsubscribe|todo|for"
        r"|publish)( .*)?"
    ),
    "changing anything on GitHub with hub": (
        rf"{_AT}hub{_FLAGS} (create|fork|pull-request|push|sync|delete|merge|api)( .*)?"
    ),
    "modifying data through the GitHub or GitLab API": (
        rf"{_AT}(gh|glab) api( .*)? (-X ?|--method[ =])(POST|PUT|PATCH|DELETE)( .*)?"
    ),
    "calls to the GitHub or GitLab API that send fields": (
        rf"(?!.* (-X ?|--method[ =])(GET|HEAD)( .*)?$)(?!.* graphql( .*)?$){_AT}(gh|glab) api( .*)? "
        r"(-[fF].*|--(field|raw-field|input|form).*)"
    ),
    "publishing packages, and signing in to package registries": (
        rf"{_AT}(npm|pnpm|yarn|bun|cargo|gem|poetry|uv|flit|hatch|pdm|helm|lerna|dotnet|composer){_FLAGS} "
        r"(npm |nuget )?(publish|unpublish|push|deploy|deprecate|yank|owner|adduser|login|logout|signin|token|access"
        r"|team|dist-tag|profile|hook|star|install-chart|upgrade-chart)( .*)?"
    ),
    "package scripts that publish, deploy or release": (
        rf"{_AT}(npm|pnpm|yarn|bun|composer){_FLAGS} (run|run-script)( -\S+)* (publish|deploy|release)[a-z:-]*( .*)?"
    ),
    "installing, changing or removing Helm releases": (
        rf"{_AT}helm{_FLAGS} (install|upgrade|uninstall|delete|rollback|push|registry)( .*)?"
    ),
    "deploying, releasing or publishing with Maven, Gradle or sbt": (
        rf"{_AT}(mvn|mvnw|gradle|gradlew|sbt)( .*)? (deploy|release|publish|upload)[A-Za-z:-]*( .*)?"
    ),
    "publishing with twine, Vercel, Netlify, Fly, Heroku and the like": (
        rf"{_AT}(twine|vsce|ovsx|wrangler|vercel|netlify|flyctl|fly|heroku|firebase|serverless|sls|surge)( .*)?"
    ),
    "managing machines with Ansible, Chef, Puppet, Salt and the like": (
        rf"{_AT}(ansible|ansible-playbook|ansible-pull|capistrano|cap|fab|chef|knife|puppet|salt|salt-ssh)( .*)?"
    ),
    "pushing, copying or deleting container images, and signing in to registries": (
        rf"{_AT}(docker|podman|buildah|nerdctl|oras|crane|regctl|skopeo){_FLAGS}"
        r"( (image|compose|manifest|buildx|registry))? (push|login|logout|copy|cp|sync|delete)( .*)?"
    ),
    "building container images with --push": rf"{_AT}(docker|podman|nerdctl|buildah)( .*)? --push( .*)?",
    "changing anything in Kubernetes": (
        rf"{_AT}(kubectl|oc){_FLAGS} (apply|create|delete|edit|patch|replace|scale|autoscale|rollout|set|label|annotate"
        r"|taint|cordon|uncordon|drain|expose|run|exec|cp|attach|debug|certificate|port-forward|proxy|login|new-app|new-project"
        r"|start-build|adm|config (set|use|unset|delete|rename)\S*)( .*)?"
    ),
    "changing anything with Terraform or OpenTofu": (
        rf"{_AT}(terraform|tofu){_FLAGS} (apply|destroy|import|taint|untaint|force-unlock|login|logout|refresh|push"
        r"|state (rm|mv|push|replace-provider)|workspace (new|delete))( .*)?"
    ),
    "creating, changing, starting, stopping or deleting cloud resources": (
        rf"{_AT}({_CLOUDS})( .*)? ({_CHANGES[0]})(-\S+)?( .*)?"
    ),
    "attaching, moving, copying, sending or running cloud resources": (
        rf"{_AT}({_CLOUDS})( .*)? ({_CHANGES[1]})(-\S+)?( .*)?"
    ),
    "connecting to other machines with ssh, scp, rsync, nc and the like": (
        rf"{_AT}(ssh|scp|sftp|rsync|mosh|telnet|ftp|lftp|nc|ncat|netcat|socat|rsh|rcp)( .*)?"
    ),
    "sending mail, and messages to other terminals": rf"{_AT}(mail|mailx|mutt|sendmail|msmtp|swaks|wall|write)( .*)?",
    "sending data or files with curl": (
        rf"{_AT}curl( .*)? (-[a-zA-Z0-9#:]*[dFTK].*|--(data|form|json|upload|mail|config|url-query).*)"
    ),
    "curl requests that could modify data": rf"{_AT}curl( .*)? (-[a-zA-Z0-9#:]*X|--request[ =]) ?[^GHO ].*",
    "sending data with wget": rf"{_AT}wget( .*)? --(post|body|method|config).*",
    "HTTPie requests that could modify data": (
        rf"{_AT}(http|https|xh)( .*)? ((POST|PUT|PATCH|DELETE)( .*)?|\S+(=|:=|@).*)"
    ),
    "acting as another user, and starting or stopping services or the machine": (
        rf"{_AT}(sudo|su|doas|pkexec|runuser|shutdown|reboot|halt|poweroff|init|systemctl|service)( .*)?"
    ),
    "mounting and formatting disks": rf"{_AT}(mount|umount|mkfs\S*)( .*)?",
}
"""Patterns of commands that `guarded` denies, by description."""


class WordedRule(NamedTuple):
    """A rule of a built-in profile and its description."""

    list: RuleList
    pattern: str
    words: str


def built_in(name: str, traits: TraitsByName) -> ProfileSettings:
    rules = built_in_rules(name, traits)
    deny, allow, ask = (tuple(rule.pattern for rule in rules if rule.list == kind) for kind in ("deny", "allow", "ask"))
    stages = name in ("standard", "guarded")
    return ProfileSettings(deny=deny, allow=allow, ask=ask, effects=name == "standard", stages=stages)


def built_in_rules(name: str, traits: TraitsByName) -> tuple[WordedRule, ...]:
    return _rules(name, traits, traits.version)


@lru_cache(maxsize=64)
def _rules(name: str, traits: TraitsByName, version: int) -> tuple[WordedRule, ...]:
    tools = traits.items()
    match name:
        case "locked":
            return tuple(_allowing({tool: tool_traits.treatments.locked for tool, tool_traits in tools}))
        case "standard":
            answers = {tool: tool_traits.treatments.standard for tool, tool_traits in tools}
            return (*_allowing(answers), *_otherwise("ask", answers), *_otherwise("deny", answers))
        case "guarded":
            return _guarded({tool: tool_traits.treatments.guarded for tool, tool_traits in tools}, commands(traits))
        case _:
            return (WordedRule("allow", EVERYTHING, "everything"),)


def _guarded(answers: Mapping[str, Treatment], commands: str) -> tuple[WordedRule, ...]:
    at = f"tool:{commands}:"
    denied = [WordedRule("deny", pattern.replace(_AT, at), words) for words, pattern in _DENIED_COMMANDS.items()]
    others = {tool: answer for tool, answer in answers.items() if answer.allow != ANYTHING}
    apart = [
        tool
        for tool, treatment in others.items()
        if treatment.otherwise != "deny" and not tool.startswith(_NEVER_ALLOWED)
    ]
    named = f"|{_one_of(apart)}:" if apart else ""
    # A message to this conversation also names its thread, so a rule that denies other conversations would match it.
    rest = rf"(?s:tool:(?!(i2c|spi|mcp)_|message{named}).*)"
    return (
        *denied,
        *_otherwise("deny", others, {AGENT_ITSELF: _ALIKE_EDITORS}),
        WordedRule("allow", rest, "everything except hardware, MCP tools and messages"),
        *_allowing(others),
        *_otherwise("ask", others),
        WordedRule("ask", f"(?s:tool:{commands}:.*)", "every command that no other rule covers"),
        WordedRule("ask", MCP_TOOLS, "MCP tools, except those that you confirmed as reads"),
    )


def _allowing(answers: Mapping[str, Treatment]) -> Iterator[WordedRule]:
    groups: dict[tuple[str, str], list[str]] = {}
    for tool, answer in answers.items():
        if answer.allow:
            groups.setdefault((answer.allows, answer.allow), []).append(tool)
    for (words, allow), names in groups.items():
        some = _one_of(names)
        yield WordedRule("allow", f"(?s:tool:{some}:.*)" if allow == ANYTHING else f"tool:{some}:{allow}", words)


def _otherwise(
    otherwise: Literal["ask", "deny"],
    answers: Mapping[str, Treatment],
    alike: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Iterator[WordedRule]:
    groups: dict[str, list[str]] = {words: [] for words in alike}
    for tool, answer in answers.items():
        if answer.otherwise == otherwise:
            groups.setdefault(answer.others, []).append(tool)
    for words, names in groups.items():
        yield WordedRule(otherwise, f"(?s:tool:{_one_of((*names, *alike.get(words, ())))}:.*)", words)


def commands(traits: TraitsByName) -> str:
    """Return a pattern for the names of tools that take commands. It matches every name if no such tool is
    registered.
    """
    return f"({'|'.join(traits.names(lambda tool_traits: tool_traits.takes_commands)) or '[^:]+'})"


def _one_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"({'|'.join(names)})"
