"""Reads the home of Hermes Agent (`~/.hermes`), and its profiles, which are homes of their own below it.

`config.yaml` and `.env` have the models and channels, `SOUL.md` the persona, `memories/` what it remembers (entries
between lines of §), `skills/` the skills in folders by category, `state.db` the conversations, and `cron/jobs.json` the
schedules. Source: the documentation in its repository (developer-guide/session-storage, user-guide/features).
"""

import sqlite3
from contextlib import closing
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
    Options,
    Tree,
    as_dict,
    as_list,
    cron_of,
    dotenv,
    parsed,
    said,
    slug,
    speaker,
    time_of,
    yaml_subset,
)

REASONS = {
    "logs": "logs", "cache": "a cache", "sessions": "copies of what state.db has", "cron": "records of past runs",
    "auth.json": "logins of its own", "pairing": "logins of its own", "gateway": "the state of its own server",
    "hooks": "programs written for it", "plugins": "programs written for it", "sandboxes": "its sandboxes",
    "images": "files of past messages", "audio": "files of past messages", "state.db-wal": "a part of state.db",
    "state.db-shm": "a part of state.db", "skills": "it came with Hermes, or has no SKILL.md", "checkpoints": "a cache",
    "memories": "an archive of what its memory had no room for", "hermes-agent": "the program itself",
    "whatsapp": "Shoal has no WhatsApp",
}  # fmt: skip
KEYS = {
    "ANTHROPIC_API_KEY": "anthropic", "OPENAI_API_KEY": "openai", "OPENROUTER_API_KEY": "openrouter",
    "GEMINI_API_KEY": "gemini", "GOOGLE_API_KEY": "gemini",
}  # fmt: skip
ACCOUNTS = {
    "telegram": {"token": "TELEGRAM_BOT_TOKEN"},
    "discord": {"token": "DISCORD_BOT_TOKEN"},
    "slack": {"bot_token": "SLACK_BOT_TOKEN", "app_token": "SLACK_APP_TOKEN"},
    "matrix": {"access_token": "MATRIX_ACCESS_TOKEN", "password": "MATRIX_PASSWORD"},
}
PLAIN = {"matrix": {"homeserver": "MATRIX_HOMESERVER", "user": "MATRIX_USER_ID"}}
NOT_TALK = {"cron": "a run of a schedule", "subagent": "a subagent", "kanban": "a run of its board"}


def read(root: Path) -> Found:
    """All of it. Raises InvalidInput where this is no home of Hermes Agent, OSError."""
    if not any((root / name).exists() for name in ("config.yaml", "state.db", "SOUL.md")):
        raise InvalidInput(f"{root} is no home of Hermes Agent: it has neither config.yaml, state.db nor SOUL.md.")
    found, tree = Found("hermes", root), Tree(root)
    read_profile(found, tree, root, FoundAgent("hermes"))
    profiles = root / "profiles"
    for folder in sorted(profiles.iterdir()) if profiles.is_dir() else ():
        if folder.is_dir():
            read_profile(found, tree, folder, FoundAgent(f"hermes-{slug(folder.name)}"))
    for name in tree.rest():
        found.leave(
            name, REASONS.get(name.split("/")[0].split(" ")[0], "it is no part of an agent's persona, memory or talk")
        )
    return found


def read_profile(found: Found, tree: Tree, home: Path, agent: FoundAgent) -> None:
    """One profile: an agent with all that is its own."""
    found.agents.append(agent)
    is_first = len(found.agents) == 1
    for name, path in (("SOUL.md", home / "SOUL.md"), ("USER.md", home / "memories" / "USER.md"),
                       ("AGENTS.md", home / "AGENTS.md")):  # fmt: skip
        if text := tree.text(path).strip():
            agent.files[name] = "\n".join(f"- {one}" for one in _entries(text)) if name == "USER.md" else text
    agent.memory = _entries(tree.text(home / "memories" / "MEMORY.md"))
    shipped = {line.split(":")[0].strip() for line in tree.text(home / "skills" / ".bundled_manifest").splitlines()}
    for path in sorted((home / "skills").rglob("SKILL.md")) if (home / "skills").is_dir() else ():
        skill = tree.skill(path.parent)
        if skill is None or path.parent.name in shipped:
            found.leave(f"{agent.name}: skill {path.parent.name}", "it came with Hermes")
        else:
            agent.skills.append(skill)
        tree.use(path.parent)
    options = Options(yaml_subset(tree.text(home / "config.yaml")))
    variables = dotenv(tree.text(home / ".env"))
    read_models(found, options, variables, agent, is_first=is_first)
    read_channels(found, variables, is_first=is_first)
    read_threads(found, tree, home / "state.db", agent.name)
    for one in as_list(as_dict(parsed(tree.text(home / "cron" / "jobs.json"))).get("jobs")):
        read_schedule(found, Options(as_dict(one)), agent.name)
    for name in options.rest():
        found.leave(f"{agent.name}: config.yaml: {name}", "no setting here means the same")
    for name in variables:
        found.leave(f"{agent.name}: .env: {name}", "nothing of Shoal's reads it")


def _entries(text: str) -> list[str]:
    """Entries stand between lines of §."""
    return [" ".join(one.split()) for one in text.split("§") if one.strip()]


def read_models(
    found: Found, options: Options, variables: dict[str, str], agent: FoundAgent, *, is_first: bool
) -> None:
    """The providers, their keys, and the models that were chosen."""
    model = options.text("model", "default") or options.text("model", "model") or options.text("model")
    provider, address = options.text("model", "provider"), options.text("model", "base_url")
    options.get("model")
    own: list[FoundProvider] = []
    for name in options.table("providers"):
        url = options.text("providers", name, "base_url")
        key = options.text("providers", name, "api_key") or f"${{{options.text('providers', name, 'key_env')}}}"
        key = variables.pop(key[2:-1], "") if key.startswith("${") else key
        if url:
            own.append(FoundProvider(slug(name), "openai", url, key))
    options.get("providers")
    for variable, name in KEYS.items():
        key = variables.pop(variable, "")
        if key and name not in [one.name for one in own]:
            own.append(FoundProvider(name, key=key))
    names = [one.name for one in own]
    if address and provider in ("custom", "ollama", "vllm", "llamacpp", "lmstudio"):
        own.append(FoundProvider(slug(provider), "openai", address))
        provider = slug(provider)
    elif "openrouter.ai" in address or (provider in ("", "auto") and "openrouter" in names):
        provider = "openrouter"
    known = {one.name for one in found.providers}
    found.providers += [one for one in own if one.name not in known]
    if model and provider not in ("", "auto"):
        model = f"{provider}/{model.removeprefix(f'{provider}/')}"
    agent.model = model
    found.model = model if is_first else found.model


def read_channels(found: Found, variables: dict[str, str], *, is_first: bool) -> None:
    """The accounts on platforms that Shoal has, and who may speak there."""
    for platform, names in ACCOUNTS.items():
        secrets = {key: variables.pop(name, "") for key, name in names.items()}
        plain = {key: variables.pop(name, "") for key, name in PLAIN.get(platform, {}).items()}
        people = variables.pop(f"{platform.upper()}_ALLOWED_USERS", "")
        if not any(secrets.values()):
            continue
        if not is_first:
            found.leave(
                f"{platform} of a profile", "one account of each platform is brought over, the default profile's"
            )
            continue
        if variables.pop("GATEWAY_ALLOW_ALL_USERS", "").lower() == "true" or "*" in people:
            found.leave(f"channel {platform}: everybody", 'it was open to all; write allow = ["*"] if you mean it')
        allow = tuple(one.strip() for one in people.split(",") if one.strip() not in ("", "*"))
        filled = ({key: value for key, value in one.items() if value} for one in (plain, secrets))
        found.accounts.append(FoundAccount(platform, allow, *filled))


def read_threads(found: Found, tree: Tree, file: Path, agent: str) -> None:
    """The conversations of a state.db, of any version: columns that came later are asked for only where they are."""
    if not file.is_file():
        return
    tree.use(file)
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            columns = {str(row[1]) for row in database.execute("pragma table_info(messages)")}
            kept = "and (active = 1 or compacted = 1)" if {"active", "compacted"} <= columns else ""
            asked = "select id, source, title, parent_session_id from sessions order by started_at"
            sessions = database.execute(asked).fetchall()
            words = f"select role, content, timestamp from messages where session_id = ? {kept} order by timestamp, id"  # noqa: S608 (no value is put in)
            spoken = {str(row[0]): database.execute(words, (row[0],)).fetchall() for row in sessions}
    except sqlite3.Error as error:
        found.leave(f"{agent}: state.db", f"it cannot be read: {error}")
        return
    results = 0
    for key, source, title, _ in sessions:
        if str(source) in NOT_TALK:
            found.leave(f"{agent}: {title or key}", f"{NOT_TALK[str(source)]}, not a conversation")
            continue
        messages, seen = list[ImportedMessage](), set[tuple[object, ...]]()
        for role, content, at in spoken[str(key)]:
            text, who, when = said(content), speaker(role), time_of(at)
            results += role == "tool"
            if text and who and when is not None and (role, text, at) not in seen:
                messages.append(ImportedMessage(who, text, when))
                seen.add((role, text, at))
        if messages:
            found.threads.append(FoundThread(str(key), agent, str(title or messages[0].text), messages))
    if results:
        found.leave(f"{agent}: {results} results of tools", "what was said is brought over, what tools answered is not")


def read_schedule(found: Found, job: Options, agent: str) -> None:
    """What started turns by the clock."""
    name, text = job.text("name") or job.text("id"), job.text("prompt")
    told, kind = job.text("deliver"), job.text("schedule", "kind")
    at = time_of(job.get("schedule", "run_at")) if kind == "once" else None
    line = job.text("schedule", "expr") or cron_of(60 * float(job.text("schedule", "minutes") or 0))
    if job.text("script") and not text:
        found.leave(f"schedule {name}", "it runs a script without an agent; use cron of the system")
    elif text and at is not None:
        found.schedules.append(FoundSchedule(name, "one-shot", at.isoformat(), text, "UTC", agent, told))
    elif text and line:
        found.schedules.append(FoundSchedule(name, "periodic", line, text, "UTC", agent, told))
    else:
        found.leave(f"schedule {name}", "no cron line comes as often, or it says nothing to do")
