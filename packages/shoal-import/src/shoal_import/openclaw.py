"""Read the home directory of OpenClaw (`~/.openclaw`).

`openclaw.json` (JSON5) contains the agents, channels and models. Each agent has a workspace with its persona, memory
and skills.

- since 2026.9: conversations and keys are in `agents/ID/agent/openclaw-agent.sqlite`, schedules and pairings in
  `state/openclaw.sqlite`.
- before 2026.9: they are in `agents/ID/sessions/*.jsonl`, `auth-profiles.json` and `cron/jobs.json`.

The entries of a conversation form a tree. The branch to the last leaf is the current conversation.

Source: src/state/*.sql and docs/ in its repository.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from shoal.importing import (
    Entry,
    Found,
    FoundAgent,
    FoundProvider,
    Json,
    as_dict,
    as_list,
    counted,
    cron_of,
    local_zone,
    number_of,
    parsed,
    slug,
    text_of,
    time_of,
)
from shoal.installation import how_to_add
from shoal.kernel.errors import InvalidInput
from shoal_import.files import (
    Database,
    Options,
    Tree,
    changed_at,
    dotenv,
    folders_and_files,
    json5,
    leave_files,
    read_workspace,
    unzstd,
)

NAMES = ("openclaw.json", "clawdbot.json", "moltbot.json")
KINDS = {
    "openai-completions": "openai", "openai-responses": "openai-responses", "anthropic-messages": "anthropic",
    "google-generative-ai": "gemini",
}  # fmt: skip
KEYS = {"ANTHROPIC_API_KEY": "anthropic", "OPENAI_API_KEY": "openai", "GEMINI_API_KEY": "gemini",
        "OPENROUTER_API_KEY": "openrouter"}  # fmt: skip
REASONS = {
    "credentials": "logins (reconnect each platform with `shoal setup chat`)",
    "devices": "app pairings", "identity": "gateway identity", "nodes": "remote nodes",
    "logs": "logs", "cache": "a cache", "media": "files from past messages", "sandboxes": "workspaces of sandboxes",
    "extensions": "unsupported programs", "plugins": "unsupported programs", "hooks": "unsupported programs",
    "cron": "records of past runs", "exec-approvals.json": "allowed commands (Shoal asks again)",
    "canvas": "pages for the canvas", "browser": "browser profiles", "subagents": "records of past runs",
    "tasks": "records of past runs", "state": "server state", "settings": "page settings",
    "update-check.json": "a cache",
}  # fmt: skip
OPTIONS = {
    "gateway": "server settings", "hooks": "webhooks (add them under [triggers.webhooks])",
    "browser": "Shoal has no browser", "tools": "tool permissions: see `shoal docs permissions`", "meta": "metadata",
    "session": "rules for conversations (in Shoal, each thread is a conversation)", "messages": "message style",
    "logging": "logs", "plugins": "unsupported programs", "wizard": "metadata", "ui": "page settings",
    "skills": "settings of individual skills", "auth": "logins", "commands": "OpenClaw commands",
    "cron": "scheduler settings", "memory": "memory search settings", "update": "update settings",
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


_PREFIX = re.compile(r"^(?:telegram|tg|discord|slack|matrix|msteams|teams|user):", re.IGNORECASE)
"""Prefixes that OpenClaw accepts before a person's id."""
STORES = ("auth_profile_store", "auth_profile_stores")
"""Names of the key table in agent databases and in the server database."""
EVENT_BYTES_MAX = 4_194_304
"""Maximum uncompressed size of an entry in OpenClaw."""
SCHEDULE = {"kind": "schedule_kind", "expr": "schedule_expr", "tz": "schedule_tz", "everyMs": "every_ms", "at": "at"}
"""Columns of a schedule in `cron_jobs`, by their names in a job's JSON."""


def read(root: Path) -> Found:
    """Read a home directory. Raises OSError, or InvalidInput if it does not belong to OpenClaw."""
    found = Found("openclaw", root)
    tree = Tree(found, root)
    file = next((root / name for name in NAMES if (root / name).is_file()), None)
    if file is None:
        raise InvalidInput(
            f"{root} is not an OpenClaw home: it has no {NAMES[0]}. Specify the folder that contains this file."
        )
    options = Options(json5(tree.text(file), file))
    known = {"agents", "agent", "channels", "models", "identity", "env", *OPTIONS}
    if not known & set(as_dict(options.content)) and not (root / "agents").is_dir():
        raise InvalidInput(
            f"{root} is not an OpenClaw home: {file.name} has none of OpenClaw's keys. Specify OpenClaw's folder."
        )
    variables = dotenv(tree.text(root / ".env")) | {
        name: value for name, value in options.table("env").items() if isinstance(value, str)
    }
    variables |= {name: value for name, value in options.table("env", "vars").items() if isinstance(value, str)}
    options.get("env")
    names = read_agents(found, tree, options)
    with tree.database(root / "state" / "openclaw.sqlite") as state:
        read_models(found, tree, options, variables, state)
        read_channels(found, tree, options, variables, state)
        written = tree.json(root / "cron" / "jobs.json")  # older versions store a plain list
        jobs = [as_dict(job) for job in as_list(as_dict(written).get("jobs", written))]
        stored = [job_of(row) for row in state("cron_jobs")]
        for job in stored + [
            job for job in jobs if job.get("id") not in [stored_job.get("id") for stored_job in stored]
        ]:
            read_schedule(found, job, names)
    for name in options.rest():
        found.leave(f"{file.name}: {name}", OPTIONS.get(name.split(".")[0], "Shoal has no equivalent setting"))
    tree.leave_rest(REASONS)
    return found


def read_agents(found: Found, tree: Tree, options: Options) -> dict[str, str]:
    """Read the agents and their workspaces, starting with the default agent. Return each agent's name in Shoal by its
    OpenClaw id.
    """
    listed = {
        text_of(as_dict(entry).get("id")) or "main": as_dict(entry) for entry in as_list(options.get("agents", "list"))
    }
    listed |= {name: as_dict(entry) for name, entry in as_dict(options.get("agents", "entries")).items()}
    folders = tree.root / "agents"
    ids = [*listed, *(path.name for path in folders_and_files(folders) if path.is_dir())]
    default = next((name for name, agent in listed.items() if agent.get("default") is True), "")
    default = default or ("main" if "main" in ids or not ids else ids[0])
    workspace = options.text("agents", "defaults", "workspace") or options.text("agent", "workspace")
    identity = options.get("identity")
    names: dict[str, str] = {}
    for name in dict.fromkeys([default, *ids]):
        own = listed.get(name, dict[str, Json]())
        agent = FoundAgent("openclaw" if name == default else f"openclaw-{slug(name)}")
        names[name] = found.add_agent(agent, name).name
        given = text_of(own.get("workspace")) or (workspace if name == default else "")
        usual = tree.root / f"workspace{'' if name == default else f'-{name}'}"
        files, folder = tree.workspace(given, usual)
        read_workspace(found, files, folder, agent)
        for skill, path in tree.skills(tree.root / "skills"):
            if skill.name not in [skill.name for skill in agent.skills]:
                agent.add_skill(skill, path.name)
        about = as_dict(own.get("identity") or (identity if name == default else None))
        if about and "IDENTITY.md" not in agent.files:
            agent.files["IDENTITY.md"] = "\n".join(f"{key}: {value}" for key, value in about.items() if value)
        agent.model = _model_name(own.get("model"))
        with tree.database(folders / name / "agent" / "openclaw-agent.sqlite") as database:
            known = read_database(found, tree, database, agent.name)
        read_files(found, tree, folders / name / "sessions", agent.name, known)
        if folder.is_dir() and folder != tree.root:
            leave_files(found, files, folder, agent.name)
    return names


def _model_name(value: Json) -> str:
    return text_of(value) or text_of(as_dict(value).get("primary"))


# ---- conversations ----


def read_database(found: Found, tree: Tree, database: Database, agent: str) -> set[str]:
    """Read the conversations in an agent's database and return the ids of the conversations."""
    about = {text_of(row.get("current_session_id")): row for row in database("session_nodes")}
    windows = {text_of(row.get("session_id")): row for row in database("session_windows")}
    leaves = {text_of(row.get("session_id")): row.get("leaf_event_id") for row in
              database("session_transcript_index_state")}  # fmt: skip
    damaged: dict[tuple[object, object], dict[str, Json]] = {}
    sessions: dict[str, list[tuple[float, dict[str, Json]]]] = {}
    closed: set[str] = set()
    for row in database("transcript_events"):
        session, place = text_of(row.get("session_id")), (row.get("session_id"), row.get("seq"))
        content: object = row.get("event_json")
        if content is None and isinstance(compressed := row.get("event_zstd"), bytes):  # a large entry, since 2026.9.6
            content = unzstd(compressed, EVENT_BYTES_MAX)
            if content is None:
                closed.add(session)
        entry = as_dict(parsed(content))
        if not entry:
            damaged[place] = entry
        sessions.setdefault(session, []).append((number_of(row.get("seq")), entry))
    damaged = {place: entry for place, entry in damaged.items() if text_of(place[0]) not in closed}
    if damaged:
        for row in database("transcript_event_identities"):  # this table contains each entry's parent
            place = (row.get("session_id"), row.get("seq"))
            if place in damaged:
                damaged[place].update(id=row.get("event_id"), parentId=row.get("parent_id"))
        what = counted(len(damaged), "entry of a conversation", "entries of conversations")
        found.leave(f"{agent}: {what}", "damaged and unreadable")
    results = 0
    for session, numbered in sessions.items():
        window = windows.get(session, dict[str, Json]())
        node = about.get(session, dict[str, Json]())
        key = text_of(window.get("session_key")) or text_of(node.get("session_key")) or session
        title = text_of(node.get("label")) or text_of(node.get("display_name")) or text_of(window.get("display_name"))
        entries = [entry for _, entry in sorted(numbered, key=lambda item: item[0])]
        since = time_of(window.get("created_at")) or changed_at(tree.root)
        named = _title(as_dict(parsed(node.get("entry_json"))))
        if session in closed:
            why = f"parts of it are compressed with zstd. {how_to_add('import')}, then import again"
            found.leave(f"{agent}: conversation {title or named or key}", why)
            continue
        results += read_thread(found, agent, session, key, title or named, entries, text_of(leaves.get(session)), since)
    if old := sum(1 for _ in database("session_transcript_archives")):
        what = counted(old, "conversation that was reset", "conversations that were reset")
        found.leave(
            f"{agent}: {what}",
            ("OpenClaw keeps reset and deleted conversations in archives, which Shoal does not read"),
        )
    found.leave_results(agent, results)
    return set(sessions)


def read_files(found: Found, tree: Tree, folder: Path, agent: str, known: set[str]) -> None:
    """Read an agent's conversations from files, except those in its database."""
    index = as_dict(tree.json(folder / "sessions.json"))
    about = {text_of(as_dict(entry).get("sessionId")): (key, as_dict(entry)) for key, entry in index.items()}
    results = 0
    for path in folders_and_files(folder):
        session = path.name.removesuffix(".jsonl")
        if path.suffix != ".jsonl" or session in known:
            if path.name != "sessions.json":
                is_old = ".jsonl.reset" in path.name or ".jsonl.deleted" in path.name
                why = "it was reset or deleted in OpenClaw" if is_old else "it is not a conversation"
                tree.leave(path, "it is also in the agent's database" if session in known else why)
                tree.use(path)
            continue
        entries = list(tree.lines(path))
        key, own = about.get(session.split("-topic-")[0], (session, dict[str, Json]()))
        if not entries:
            tree.leave(path, "it contains no conversation entries")
            continue
        results += read_thread(found, agent, session, key, _title(own), entries, "", changed_at(path))
    found.leave_results(agent, results)


def _title(about: dict[str, Json]) -> str:
    names = (about.get("displayName"), about.get("subject"), as_dict(about.get("origin")).get("label"))
    return next((text_of(name) for name in names if text_of(name)), "")


def read_thread(
    found: Found, agent: str, session: str, key: str, title: str, entries: list[dict[str, Json]], leaf: str,
    since: datetime,
) -> int:  # fmt: skip
    """Read a conversation along the branch that ends at `leaf`. Return the number of tool results in it."""
    if ":cron:" in key or ":subagent:" in key or key.startswith(("cron:", "hook:")):
        found.leave(f"{agent}: {key}", "a run by a schedule, hook or subagent, not a conversation")
        return 0
    talk: list[Entry] = []
    for entry in branch_of(entries, leaf):
        message = as_dict(entry.get("message"))
        talk.append((message.get("role"), message.get("content"), entry.get("timestamp") or message.get("timestamp")))
    return found.add_thread(session, agent, title, talk, since)


def branch_of(entries: list[dict[str, Json]], leaf: str) -> list[dict[str, Json]]:
    """Return the entries from the first one to the leaf. If the leaf is unknown, the last entry is the leaf.

    Older files have no tree, so all entries are returned. If an entry has an invalid parent, the preceding entry is
    used.
    """
    if not any(entry.get("parentId") for entry in entries):
        return entries
    places = {text_of(entry.get("id")): place for place, entry in enumerate(entries) if entry.get("id")}
    branch, place = list[dict[str, Json]](), places.get(leaf, len(entries) - 1)
    while place >= 0:
        branch.append(entries[place])
        parent = text_of(entries[place].get("parentId"))
        before = places.get(parent, place - 1) if parent else -1
        place = min(before, place - 1)  # parents precede their children, so the loop ends
    return branch[::-1]


# ---- settings ----


def read_models(found: Found, tree: Tree, options: Options, variables: Mapping[str, str], state: Database) -> None:
    for path in (("agents", "defaults", "model"), ("agent", "model")):
        value = options.get(*path)
        found.model = found.model or _model_name(value)
        fallbacks = as_list(as_dict(value).get("fallbacks"))
        found.fallback = found.fallback or tuple(fallback for fallback in fallbacks if isinstance(fallback, str))
    keys = {name: variables[variable] for variable, name in KEYS.items() if variables.get(variable)}
    stores = [parsed(row.get("store_json")) for name in STORES for row in state(name)]
    for folder in folders_and_files(tree.root / "agents"):
        stores.append(tree.json(folder / "agent" / "auth-profiles.json"))
        with tree.database(folder / "agent" / "openclaw-agent.sqlite") as database:
            stores += [parsed(row.get("store_json")) for name in STORES for row in database(name)]
    for name, provider in [item for store in stores for item in as_dict(as_dict(store).get("profiles")).items()]:
        profile = as_dict(provider)
        key = secret_of(profile.get("key") or profile.get("keyRef"), variables)
        if key:
            keys.setdefault(text_of(profile.get("provider")) or name.split(":")[0], key)
        else:
            found.leave(f"the login {name}", "it is a login to OpenClaw without a readable API key")
    for name, provider in options.table("models", "providers").items():
        table = as_dict(provider)
        kind = KINDS.get(text_of(table.get("api")), "openai")
        key = secret_of(table.get("apiKey"), variables)
        found.providers.append(FoundProvider(slug(name), kind, text_of(table.get("baseUrl")), key))
        keys.pop(name, None)
    options.get("models")
    for name, key in keys.items():
        known = "gemini" if name in ("google", "gemini") else name
        if known in KEYS.values():
            found.providers.append(FoundProvider(known, key=key))
        else:
            found.leave(f"the key of {name}", "its URL is unknown, so add the provider under [providers]")


def secret_of(value: Json, variables: Mapping[str, str]) -> str:
    """Return a secret that is written as literal text, as `${NAME}`, or as `{source: "env", id: NAME}`."""
    reference = as_dict(value)
    if reference:
        return variables.get(text_of(reference.get("id")), "") if reference.get("source") == "env" else ""
    text = text_of(value)
    return variables.get(text[2:-1], "") if text.startswith("${") and text.endswith("}") else text


def read_channels(found: Found, tree: Tree, options: Options, variables: Mapping[str, str], state: Database) -> None:
    paired = [(row.get("channel_key"), text_of(row.get("entry"))) for row in
              state("channel_pairing_allow_entries")]  # fmt: skip
    for name, value in options.table("channels").items():
        table = Options(value)
        platform = {"msteams": "teams"}.get(name, name)
        if name == "defaults":
            continue
        if platform not in ACCOUNT_KEYS:
            found.leave(f"channel {name}", f"Shoal cannot set up {name} from this file (see `shoal docs platforms`)")
            continue
        accounts = table.table("accounts")
        if len(accounts) > 1:
            found.leave(f"channel {name}: {len(accounts)} accounts", "only the first is imported")
        if accounts:
            table = Options({**as_dict(value), **as_dict(next(iter(accounts.values())))})
        allow = [*table.texts("allowFrom"), *table.texts("dm", "allowFrom"), *table.texts("groupAllowFrom")]
        listed = as_list(as_dict(tree.json(tree.root / "credentials" / f"{name}-allowFrom.json")).get("allowFrom"))
        allow += [*map(text_of, listed), *(person for channel, person in paired if channel == name)]
        if "*" in allow:
            found.leave(
                f"channel {name}: everybody", ('it was open to everyone (set allow = ["*"] to allow everyone here too)')
            )
        groups = {**table.table("groups"), **table.table("guilds"), **table.table("channels")}
        if groups:
            what = f"channel {name}: {counted(len(groups), 'group', 'groups')}"
            found.leave(what, "add the groups' ids to `channels`")
        people = tuple(dict.fromkeys(_PREFIX.sub("", person) for person in allow if person not in ("", "*")))
        plain = {key: table.text(field) for key, field in PLAIN_KEYS.get(platform, {}).items()}
        token = {key: secret_of(table.get(field), variables) for key, field in ACCOUNT_KEYS[platform].items()}
        for key in ACCOUNT_KEYS[platform].values():
            if as_dict(table.get(key)) and not secret_of(table.get(key), variables):
                found.leave(
                    f"channel {name}: {key}", ("it is stored outside OpenClaw's files, so use `shoal setup chat`")
                )
        found.add_account(platform, people, plain, token)
    options.get("channels")


# ---- schedules ----


def job_of(row: Mapping[str, Json]) -> dict[str, Json]:
    """Convert a row of `cron_jobs` to the older file format. Columns override the values in the row's JSON."""
    job = as_dict(parsed(row.get("job_json")))
    own = {key: row[column] for key, column in SCHEDULE.items() if row.get(column) is not None}
    payload = as_dict(job.get("payload"))
    message = row.get("payload_message") or payload.get("message") or payload.get("text")
    target = {"channel": row.get("delivery_channel"), "to": row.get("delivery_to")}
    return {
        "id": row.get("job_id"), "name": row.get("name"), "agentId": row.get("agent_id") or job.get("agentId"),
        "schedule": {**as_dict(job.get("schedule")), **own}, "payload": {"message": message},
        "delivery": target if any(target.values()) else job.get("delivery"),
    }  # fmt: skip


def read_schedule(found: Found, job: Mapping[str, Json], names: Mapping[str, str]) -> None:
    """Read a schedule. A time without an offset is UTC. A cron line without a time zone uses local time."""
    when, delivery, payload = (as_dict(job.get(key)) for key in ("schedule", "delivery", "payload"))
    line = text_of(when.get("expr"))
    if line.startswith("0 ") and len(line.split()) == 6:
        line = line[2:]
    found.add_schedule(
        text_of(job.get("name")) or text_of(job.get("id")) or text_of(job.get("jobId")) or "without a name",
        text_of(payload.get("message")) or text_of(payload.get("text")),
        time_of(when.get("at") or when.get("atMs"), UTC),
        line or cron_of(number_of(when.get("everyMs")) / 1000),
        text_of(when.get("tz")) or local_zone(),
        names.get(text_of(job.get("agentId")), found.agents[0].name),
        " ".join(filter(None, (text_of(delivery.get("channel")), text_of(delivery.get("to"))))),
    )
