"""Reads the home of OpenClaw (`~/.openclaw`).

`openclaw.json` (JSON5) has the agents, channels and models; each agent has a workspace with its persona, memory and
skills, and its conversations in `agents/ID/sessions/*.jsonl`, a tree of entries of which the last leaf counts.
`cron/jobs.json` has the schedules. Source: the documentation in its repository (docs/concepts, docs/automation).
"""

from pathlib import Path

from shoal.domain.errors import InvalidInput
from shoal.surfaces.cli.imports.found import (
    Found,
    FoundAccount,
    FoundAgent,
    FoundProvider,
    FoundSchedule,
    FoundThread,
    ImportedMessage,
    Json,
    Options,
    Tree,
    as_dict,
    as_list,
    cron_of,
    dotenv,
    json5,
    parsed,
    read_workspace,
    said,
    slug,
    speaker,
    time_of,
)

NAMES = ("openclaw.json", "clawdbot.json", "moltbot.json")
KINDS = {
    "openai-completions": "openai", "openai-responses": "openai-responses", "anthropic-messages": "anthropic",
    "google-generative-ai": "gemini",
}  # fmt: skip
KEYS = {"ANTHROPIC_API_KEY": "anthropic", "OPENAI_API_KEY": "openai", "GEMINI_API_KEY": "gemini",
        "OPENROUTER_API_KEY": "openrouter"}  # fmt: skip
REASONS = {
    "credentials": "logins of its own; connect each platform anew with `shoal setup chat`",
    "devices": "its apps' pairings", "identity": "the identity of its own gateway", "nodes": "its remote nodes",
    "logs": "logs", "cache": "a cache", "media": "files of past messages", "sandboxes": "workspaces of its sandboxes",
    "extensions": "programs written for it", "plugins": "programs written for it", "hooks": "programs written for it",
    "cron": "records of past runs", "exec-approvals.json": "what it may run; Shoal asks anew",
    "canvas": "pages of its own display", "browser": "profiles of its own browser", "subagents": "records of past runs",
    "tasks": "records of past runs", "settings": "settings of its own page", "update-check.json": "a cache",
}  # fmt: skip
OPTIONS = {
    "gateway": "settings of its own server", "hooks": "webhooks: write them under [triggers.webhooks]",
    "browser": "Shoal has no browser", "tools": "what tools may do: see docs/permissions.md", "meta": "its own notes",
    "session": "how it parts conversations: a thread is a conversation here", "messages": "how it writes in chats",
    "logging": "logs", "plugins": "programs written for it", "wizard": "its own notes", "ui": "its own page",
    "skills": "settings of single skills", "auth": "logins of its own", "commands": "its own commands",
    "cron": "settings of its scheduler", "memory": "its search in memory", "update": "its own updates",
}  # fmt: skip
ACCOUNT_KEYS = {
    "telegram": {"token": "botToken"},
    "discord": {"token": "token"},
    "slack": {"bot_token": "botToken", "app_token": "appToken", "signing_secret": "signingSecret"},
    "matrix": {"access_token": "accessToken", "password": "password"},
    "teams": {"app_password": "appPassword"},
}
PLAIN_KEYS = {"matrix": {"homeserver": "homeserver", "user": "userId"},
              "teams": {"app_id": "appId", "tenant": "tenantId"}}  # fmt: skip


def read(root: Path) -> Found:
    """All of it. Raises InvalidInput where this is no home of OpenClaw, OSError."""
    found, tree = Found("openclaw", root), Tree(root)
    file = next((root / name for name in NAMES if (root / name).is_file()), None)
    if file is None:
        raise InvalidInput(f"{root} is no home of OpenClaw: it has no {NAMES[0]}. Name the folder that has it.")
    options = Options(json5(tree.text(file), file))
    variables = dotenv(tree.text(root / ".env")) | {
        name: value for name, value in options.table("env").items() if isinstance(value, str)
    }
    variables |= {name: value for name, value in options.table("env", "vars").items() if isinstance(value, str)}
    options.get("env")
    read_agents(found, tree, options)
    read_models(found, tree, options, variables)
    read_channels(found, tree, options, variables)
    read_schedules(found, tree)
    for name in options.rest():
        found.leave(f"{file.name}: {name}", OPTIONS.get(name.split(".")[0], "no setting here means the same"))
    for name in tree.rest():
        found.leave(name, REASONS.get(name.split("/")[0], "it is no part of an agent's persona, memory or talk"))
    return found


def read_agents(found: Found, tree: Tree, options: Options) -> None:
    """The agents and their workspaces, the default one first."""
    listed = [as_dict(one) for one in as_list(options.get("agents", "list"))]
    ids = [str(one.get("id") or "main") for one in listed]
    folders = tree.root / "agents"
    ids += [path.name for path in sorted(folders.iterdir()) if path.is_dir()] if folders.is_dir() else []
    default = next((str(one["id"]) for one in listed if one.get("default") and one.get("id")), "")
    default = default or ("main" if "main" in ids or not ids else ids[0])
    workspace = options.text("agents", "defaults", "workspace") or options.text("agent", "workspace")
    identity = options.get("identity")
    for name in dict.fromkeys([default, *ids]):
        own = next((one for one in listed if str(one.get("id") or "main") == name), dict[str, Json]())
        agent = FoundAgent("openclaw" if name == default else f"openclaw-{slug(name)}")
        given = str(own.get("workspace") or (workspace if name == default else ""))
        folder = Path(given).expanduser() if given else tree.root / f"workspace{'' if name == default else f'-{name}'}"
        if not folder.is_dir() and folder.name:  # a home that was copied from another machine has it beside
            folder = tree.root / folder.name
        inside = folder.is_relative_to(tree.root)
        files = tree if inside else Tree(folder)
        read_workspace(found, files, folder, agent)
        for path in sorted((tree.root / "skills").iterdir()) if (tree.root / "skills").is_dir() else ():
            skill = tree.skill(path)
            if skill is not None and skill.name not in [one.name for one in agent.skills]:
                agent.skills.append(skill)
                tree.use(path)
        about = as_dict(own.get("identity") or (identity if name == default else None))
        if about and "IDENTITY.md" not in agent.files:
            agent.files["IDENTITY.md"] = "\n".join(f"{key}: {value}" for key, value in about.items() if value)
        agent.model = _model_name(own.get("model"))
        found.agents.append(agent)
        read_threads(found, tree, folders / name / "sessions", agent.name)
        tree.use(folders / name / "sessions")
        if folder.is_dir():
            rest = sorted({one.split("/")[0].split(" ")[0] for one in files.rest()} if not inside else ())
            if inside:
                tree.use(folder)
            what = f"{agent.name}: other files of {folder}{f' ({len(rest)} entries)' if rest else ''}"
            found.leave(what, f"copy what the agent is to work with into agents/{agent.name}/workspace")


def _model_name(value: Json) -> str:
    return value if isinstance(value, str) else str(as_dict(value).get("primary") or "")


def read_threads(found: Found, tree: Tree, folder: Path, agent: str) -> None:
    """The conversations of an agent."""
    index = as_dict(parsed(tree.text(folder / "sessions.json")))
    known = {str(as_dict(one).get("sessionId")): (key, as_dict(one)) for key, one in index.items()}
    calls = 0
    for path in sorted(folder.glob("*.jsonl")):
        entries = dict[str, dict[str, Json]]()
        for line in tree.text(path).splitlines():
            entry = as_dict(parsed(line))
            entries[str(entry.get("id") or len(entries))] = entry
        branch, at = list[dict[str, Json]](), next(reversed(entries), "")
        while at in entries and entries[at] not in branch:
            branch.append(entries[at])
            at = str(entries[at].get("parentId") or "")
        if len(branch) < 2:  # an older form without a tree
            branch = list(reversed(entries.values()))
        key, about = known.get(path.stem.split("-topic-")[0], (path.stem, dict[str, Json]()))
        if ":cron:" in key or ":subagent:" in key or key.startswith(("cron:", "hook:")):
            found.leave(f"{agent}: {key}", "a run of a schedule, a hook or a subagent, not a conversation")
            continue
        messages: list[ImportedMessage] = []
        for entry in reversed(branch):
            message = as_dict(entry.get("message"))
            when = time_of(entry.get("timestamp")) or time_of(message.get("timestamp"))
            text, role = said(message.get("content")), speaker(message.get("role"))
            calls += message.get("role") == "toolResult"
            if role and text and when is not None:
                messages.append(ImportedMessage(role, text, when))
        origin = as_dict(about.get("origin"))
        title = str(about.get("displayName") or about.get("subject") or origin.get("label") or "")
        if messages:
            found.threads.append(FoundThread(path.stem, agent, title or messages[0].text, messages))
    if calls:
        found.leave(f"{agent}: {calls} results of tools", "what was said is brought over, what tools answered is not")


def read_models(found: Found, tree: Tree, options: Options, variables: dict[str, str]) -> None:
    """The providers, their keys, and the models that were chosen."""
    for path in (("agents", "defaults", "model"), ("agent", "model")):
        value = options.get(*path)
        found.model = found.model or _model_name(value)
        fallbacks = as_list(as_dict(value).get("fallbacks"))
        found.fallback = found.fallback or tuple(one for one in fallbacks if isinstance(one, str))
    keys = {name: variables[variable] for variable, name in KEYS.items() if variables.get(variable)}
    for file in sorted((tree.root / "agents").glob("*/agent/auth-profiles.json")):
        for name, one in as_dict(as_dict(parsed(tree.text(file))).get("profiles")).items():
            profile = as_dict(one)
            provider, key = str(profile.get("provider") or name.split(":")[0]), profile.get("key")
            if isinstance(key, str) and key:
                keys.setdefault(provider, key)
            else:
                found.leave(f"the login {name}", "it is no key, and belongs to OpenClaw")
    for name, one in options.table("models", "providers").items():
        table = as_dict(one)
        key = _filled(str(table.get("apiKey") or ""), variables)
        kind = KINDS.get(str(table.get("api") or ""), "openai")
        found.providers.append(FoundProvider(slug(name), kind, str(table.get("baseUrl") or ""), key))
        keys.pop(name, None)
    options.get("models")
    for name, key in keys.items():
        known = "gemini" if name in ("google", "gemini") else name
        if known in KEYS.values():
            found.providers.append(FoundProvider(known, key=key))
        else:
            found.leave(f"the key of {name}", "Shoal does not know its address; write it under [providers]")


def _filled(value: str, variables: dict[str, str]) -> str:
    """A value in which ${NAME} stands for a variable."""
    return variables.get(value[2:-1], "") if value.startswith("${") and value.endswith("}") else value


def read_channels(found: Found, tree: Tree, options: Options, variables: dict[str, str]) -> None:
    """The accounts on platforms that Shoal has, and who may speak there."""
    for name, value in options.table("channels").items():
        table = Options(value)
        platform = {"msteams": "teams"}.get(name, name)
        if name == "defaults":
            continue
        if platform not in ACCOUNT_KEYS:
            found.leave(f"channel {name}", f"Shoal has no {name} that could be set up from this; see docs/platforms")
            continue
        accounts = table.table("accounts")
        if len(accounts) > 1:
            found.leave(f"channel {name}: {len(accounts)} accounts", "only the first is brought over")
        if accounts:
            table = Options({**as_dict(value), **as_dict(next(iter(accounts.values())))})
        allow = [*table.texts("allowFrom"), *table.texts("dm", "allowFrom"), *table.texts("groupAllowFrom")]
        paired = parsed(tree.text(tree.root / "credentials" / f"{name}-allowFrom.json"))
        allow += [str(one) for one in as_list(as_dict(paired).get("allowFrom"))]
        if "*" in allow:
            found.leave(f"channel {name}: everybody", 'it was open to all; write allow = ["*"] yourself if you mean it')
        groups = {**table.table("groups"), **table.table("guilds"), **table.table("channels")}
        if groups:
            found.leave(f"channel {name}: {len(groups)} groups", "name the rooms in `channels`, by their ids")
        token = {key: _filled(table.text(one), variables) for key, one in ACCOUNT_KEYS[platform].items()}
        plain = {key: table.text(one) for key, one in PLAIN_KEYS.get(platform, {}).items()}
        people = tuple(dict.fromkeys(one.removeprefix(f"{name}:") for one in allow if one != "*"))
        filled = ({key: value for key, value in one.items() if value} for one in (plain, token))
        found.accounts.append(FoundAccount(platform, people, *filled))
    options.get("channels")


def read_schedules(found: Found, tree: Tree) -> None:
    """What started turns by the clock."""
    stored = parsed(tree.text(tree.root / "cron" / "jobs.json"))
    names = {agent.name.removeprefix("openclaw-"): agent.name for agent in found.agents}
    for one in as_list(as_dict(stored).get("jobs") if isinstance(stored, dict) else stored):
        job, payload = as_dict(one), as_dict(as_dict(one).get("payload"))
        when, delivery = as_dict(job.get("schedule")), as_dict(job.get("delivery"))
        name = str(job.get("name") or job.get("id") or job.get("jobId"))
        text = str(payload.get("message") or payload.get("text") or "").strip()
        agent = names.get(slug(str(job.get("agentId") or "")), found.agents[0].name)
        told = " ".join(str(delivery[key]) for key in ("channel", "to") if delivery.get(key))
        zone = str(when.get("tz") or "UTC")
        at = time_of(when.get("at") or when.get("atMs"))
        line = str(when.get("expr") or "")
        if line.startswith("0 ") and len(line.split()) == 6:
            line = line[2:]
        line = line or cron_of(float(str(when.get("everyMs") or 0)) / 1000)
        if text and at is not None:
            found.schedules.append(FoundSchedule(name, "one-shot", at.isoformat(), text, "UTC", agent, told))
        elif text and line:
            found.schedules.append(FoundSchedule(name, "periodic", line, text, zone, agent, told))
        else:
            found.leave(f"schedule {name}", "no cron line comes as often, or it says nothing to do")
