"""Profiles as written down: the lists of patterns, who an override is for, and the four built-in profiles."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from shoal.domain.permissions import Asker

EVERYTHING = "(?s:.*)"
"""The one pattern that matches whatever there is and so names opaque commands too; the rule of `open`."""


class ProfileSource(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The patterns of a profile. Order: deny, allow, ask, and what nothing matches is denied.

    `extends` names another profile that is asked when these lists do not decide; its deny patterns always count.
    `trusted_allow` are patterns of actions that need no approval even after untrusted content was read.
    """

    deny: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    extends: str = ""
    trusted_allow: tuple[str, ...] = ()


class Override(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Lists that are laid over a profile where every selector holds; an empty selector holds always.

    `channels` are `PLATFORM:CHANNEL` or the channel alone, `users` are `PLATFORM:USER` or the user alone; `roles` holds
    when the asker has one of them. A later override is asked before an earlier one. No override takes a deny back.
    """

    agents: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    trusted_allow: tuple[str, ...] = ()

    def applies(self, asker: Asker, agent: str) -> bool:
        """Whether it is meant for this asker and this agent."""
        return (
            _holds(self.agents, agent)
            and _holds(self.platforms, asker.platform)
            and _holds(self.channels, asker.channel, f"{asker.platform}:{asker.channel}")
            and _holds(self.kinds, asker.kind)
            and _holds(self.users, asker.user, *asker.identities)
            and _holds(self.roles, *asker.roles)
        )


def _holds(wanted: tuple[str, ...], *found: str) -> bool:
    return not wanted or any(name in wanted for name in found)


# Paths in actions are those of the sandbox (see docs/permissions.md): the workspace is /workspace wherever it lies. A
# path without a slash in front is taken as below the workspace; the file tools never write one.
_NO_DOTS = r"(?!(.*/)?\.\.(/|$))"
_READABLE = rf"((/(workspace|scratch|skills|docs)(/|$))|(?![/~]|host:)){_NO_DOTS}.*"
_WRITABLE = rf"(/(workspace|scratch)/|(?![/~]|host:)){_NO_DOTS}(?!(.*/)?\.git(/|$)).*"

_READ = "(read|view|list|ls|glob|grep|search|find)"
_EDIT = "(write|edit|create_file|str_replace|append)"
_SEARCH = "read_artifact|search_history|search_channel|search_memory"
_PROCESS_READ = "process_list|process_logs"
_QUIET = f"(time|clock|recall|{_SEARCH}|read_memory|memory|skill|list_reminders|{_PROCESS_READ})"

_READS = (rf"tool:{_READ}:{_READABLE}", rf"tool:{_QUIET}:.*")
_NETWORK = r"(?s:tool:(read_url|fetch|web_fetch|web_search|brave_search|browse)(:.*)?)"

_SELF_EDIT = r"(?s:tool:(self_edit[a-z_]*|set_[a-z_]+|(write|edit|delete)_(doc|skill)):.*)"

_LOCKED = ProfileSource(allow=_READS)

_STANDARD = ProfileSource(
    allow=(
        *_READS,
        rf"tool:{_EDIT}:{_WRITABLE}",
        rf"tool:upload:{_READABLE}",
        "(?s:tool:(remember|note_today|remind|schedule|forget|cancel_reminder|spawn|subagent|thread_status):.*)",
        "tool:message:here",
    ),
    ask=(
        "(?s:tool:bash:.*)",
        _NETWORK,
        rf"(?s:tool:({_READ[1:-1]}|{_EDIT[1:-1]}|upload):.*)",
        _SELF_EDIT,
        "(?s:tool:(message|process)[a-z_]*:.*)",
        "(?s:tool:ask_agent:.*)",
        "(?s:tool:mcp[_.:-].*)",
    ),
)

_AT = "tool:(bash|process_start):"
_FLAGS = r"( -\S+( [^-\s]\S*)?)*"  # options before a subcommand, each perhaps with a value

# What changes something elsewhere, by program and verb. Reading verbs are known to `permissions.tools`; what neither
# list has is asked for.
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
_GUARDED = ProfileSource(
    deny=(
        rf"{_AT}git (-.* )?(push|send-email|request-pull)( .*)?",
        rf"{_AT}git (-.* )?(svn dcommit|remote( .*)? (add|set-url)|p4 submit)( .*)?",
        rf"{_AT}(gh|glab|hub){_FLAGS} [a-z-]+{_FLAGS} (create|new|merge|close|reopen|delete|edit|update|comment|note"
        r"|review|approve|revoke|upload|sync|fork|set|remove|run|rerun|retry|cancel|trigger|enable|disable|ready|lock|unlock"
        r"|transfer|rename|archive|unarchive|pin|unpin|develop|add|login|logout|refresh|setup-git|rebase"
        r"|install|upgrade|import|link|unlink|copy|mark-template|field-\S+|item-\S+|subscribe|unsubscribe|todo|for"
        r"|publish)( .*)?",
        rf"{_AT}hub{_FLAGS} (create|fork|pull-request|push|sync|delete|merge|api)( .*)?",
        rf"{_AT}(gh|glab) api( .*)? (-X ?|--method[ =])(POST|PUT|PATCH|DELETE)( .*)?",
        rf"(?!.* (-X ?|--method[ =])(GET|HEAD)( .*)?$)(?!.* graphql( .*)?$){_AT}(gh|glab) api( .*)? "
        r"(-[fF].*|--(field|raw-field|input|form).*)",
        rf"{_AT}(npm|pnpm|yarn|bun|cargo|gem|poetry|uv|flit|hatch|pdm|helm|lerna|dotnet|composer){_FLAGS} "
        r"(npm |nuget )?(publish|unpublish|push|deploy|deprecate|yank|owner|adduser|login|logout|signin|token|access"
        r"|team|dist-tag|profile|hook|star|install-chart|upgrade-chart)( .*)?",
        rf"{_AT}(npm|pnpm|yarn|bun|composer){_FLAGS} (run|run-script)( -\S+)* (publish|deploy|release)[a-z:-]*( .*)?",
        rf"{_AT}helm{_FLAGS} (install|upgrade|uninstall|delete|rollback|push|registry)( .*)?",
        rf"{_AT}(mvn|mvnw|gradle|gradlew|sbt)( .*)? (deploy|release|publish|upload)[A-Za-z:-]*( .*)?",
        rf"{_AT}(twine|vsce|ovsx|wrangler|vercel|netlify|flyctl|fly|heroku|firebase|serverless|sls|surge)( .*)?",
        rf"{_AT}(ansible|ansible-playbook|ansible-pull|capistrano|cap|fab|chef|knife|puppet|salt|salt-ssh)( .*)?",
        rf"{_AT}(docker|podman|buildah|nerdctl|oras|crane|regctl|skopeo){_FLAGS}"
        r"( (image|compose|manifest|buildx|registry))? (push|login|logout|copy|cp|sync|delete)( .*)?",
        rf"{_AT}(docker|podman|nerdctl|buildah)( .*)? --push( .*)?",
        rf"{_AT}(kubectl|oc){_FLAGS} (apply|create|delete|edit|patch|replace|scale|autoscale|rollout|set|label|annotate"
        r"|taint|cordon|uncordon|drain|expose|run|exec|cp|attach|debug|certificate|port-forward|proxy|login|new-app|new-project"
        r"|start-build|adm|config (set|use|unset|delete|rename)\S*)( .*)?",
        rf"{_AT}(terraform|tofu){_FLAGS} (apply|destroy|import|taint|untaint|force-unlock|login|logout|refresh|push"
        r"|state (rm|mv|push|replace-provider)|workspace (new|delete))( .*)?",
        *(rf"{_AT}({_CLOUDS})( .*)? ({changes})(-\S+)?( .*)?" for changes in _CHANGES),
        rf"{_AT}(ssh|scp|sftp|rsync|mosh|telnet|ftp|lftp|nc|ncat|netcat|socat|rsh|rcp)( .*)?",
        rf"{_AT}(mail|mailx|mutt|sendmail|msmtp|swaks|wall|write)( .*)?",
        rf"{_AT}curl( .*)? (-[a-zA-Z0-9#:]*[dFTK].*|--(data|form|json|upload|mail|config|url-query).*)",
        rf"{_AT}curl( .*)? (-[a-zA-Z0-9#:]*X|--request[ =]) ?[^GHO ].*",
        rf"{_AT}wget( .*)? --(post|body|method|config).*",
        rf"{_AT}(http|https|xh)( .*)? ((POST|PUT|PATCH|DELETE)( .*)?|\S+(=|:=|@).*)",
        rf"{_AT}(sudo|su|doas|pkexec|runuser|shutdown|reboot|halt|poweroff|init|systemctl|service)( .*)?",
        rf"{_AT}(mount|umount|mkfs\S*)( .*)?",
        _SELF_EDIT,
        "(?!tool:message:here$)(?s:tool:message[a-z_]*:.*)",
    ),
    allow=("(?s:tool:(?!(i2c|spi|mcp)_).*)",),
    ask=("(?s:tool:(bash|process_start):.*)", "(?s:tool:mcp_.*)"),
)

BUILTIN_PROFILES: Mapping[str, ProfileSource] = MappingProxyType(
    {
        "open": ProfileSource(allow=(EVERYTHING,)),
        "standard": _STANDARD,
        "guarded": _GUARDED,
        "locked": _LOCKED,
    }
)
