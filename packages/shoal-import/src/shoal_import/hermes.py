"""Read the home directory of Hermes Agent (`~/.hermes`). A profile is another home directory inside it.

- `config.yaml`, `.env`: models and channels.
- `SOUL.md`: persona.
- `memories/`: memory. Entries are separated by lines that contain only §.
- `skills/`: skills, in folders by category.
- `state.db`: conversations.
- `cron/jobs.json`: schedules.

Source: the documentation in its repository (developer-guide/session-storage, user-guide/features).
"""

import re
from collections.abc import Mapping
from pathlib import Path

from shoal.importing import (
    Entry,
    Found,
    FoundAgent,
    FoundProvider,
    as_dict,
    as_list,
    cron_of,
    local_zone,
    number_of,
    slug,
    text_of,
    time_of,
    zone_named,
)
from shoal.kernel.errors import InvalidInput
from shoal_import.files import Options, Tree, changed_at, dotenv, folders_and_files, yaml_subset

REASONS = {
    "logs": "logs", "cache": "a cache", "sessions": "copies of data in state.db", "cron": "records of past runs",
    "auth.json": "logins", "pairing": "Hermes pairings", "gateway": "Hermes server state",
    "hooks": "unsupported programs", "plugins": "unsupported programs", "sandboxes": "files of sandboxes",
    "images": "files from past messages", "audio": "files from past messages",
    "skills": "it is part of Hermes, or has no SKILL.md", "checkpoints": "a cache",
    "memories": "an archive of old memory", "hermes-agent": "the Hermes program",
    "whatsapp": "Shoal does not support WhatsApp",
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
KNOWN = {"model", "providers", "terminal", "agent", "toolsets", "timezone", "_config_version"}
"""Keys of config.yaml that identify a Hermes Agent home directory."""
NOT_TALK = {"cron": "a scheduled run", "subagent": "a subagent", "kanban": "a kanban run"}


def read(root: Path) -> Found:
    """Read a home directory. Raises OSError, or InvalidInput if it does not belong to Hermes Agent."""
    found = Found("hermes", root)
    tree = Tree(found, root)
    with tree.database(root / "state.db") as database:
        has_talk = any(True for _ in database("sessions"))
    settings = yaml_subset(tree.text(root / "config.yaml"))
    has_persona = (root / "SOUL.md").is_file() and ((root / "memories").is_dir() or (root / ".env").is_file())
    if not (has_talk or has_persona or KNOWN & set(settings)):
        needed = "it has no config.yaml with a model, no state.db with sessions, and no SOUL.md next to memories/"
        raise InvalidInput(f"{root} is not a Hermes Agent home: {needed}. Specify a folder that contains one of them.")
    read_profile(found, tree, root, FoundAgent("hermes"))
    for folder in folders_and_files(root / "profiles"):
        if folder.is_dir():
            read_profile(found, tree, folder, FoundAgent(f"hermes-{slug(folder.name)}"))
    tree.leave_rest(REASONS)
    return found


def read_profile(found: Found, tree: Tree, home: Path, agent: FoundAgent) -> None:
    found.add_agent(agent, home.name)
    is_first = len(found.agents) == 1
    for name, path in (("SOUL.md", home / "SOUL.md"), ("USER.md", home / "memories" / "USER.md"),
                       ("AGENTS.md", home / "AGENTS.md")):  # fmt: skip
        if text := tree.text(path).strip():
            agent.files[name] = "\n".join(f"- {entry}" for entry in _entries(text)) if name == "USER.md" else text
    agent.memory = _entries(tree.text(home / "memories" / "MEMORY.md"))
    shipped = {line.split(":")[0].strip() for line in tree.text(home / "skills" / ".bundled_manifest").splitlines()}
    for skill, path in tree.skills(home / "skills"):
        if path.name in shipped:
            found.leave(f"{agent.name}: skill {path.name}", "it is part of Hermes")
            tree.use(path)
        else:
            agent.add_skill(skill, path.relative_to(home).as_posix())
    written = tree.text(home / "config.yaml")
    options, variables = Options(yaml_subset(written)), dotenv(tree.text(home / ".env"))
    if written.strip() and not options.content:
        tree.leave(home / "config.yaml", "it contains no readable keys")
    zone = options.text("timezone") or local_zone()
    read_models(found, options, variables, agent, is_first=is_first)
    read_channels(found, variables, is_first=is_first)
    read_threads(found, tree, home / "state.db", agent.name)
    for job in as_list(as_dict(tree.json(home / "cron" / "jobs.json")).get("jobs")):
        read_schedule(found, Options(as_dict(job)), agent.name, zone)
    for name in options.rest():
        found.leave(f"{agent.name}: config.yaml: {name}", "Shoal has no equivalent setting")
    for name in variables:
        found.leave(f"{agent.name}: .env: {name}", "Shoal does not use it")


def _entries(text: str) -> list[str]:
    return [" ".join(entry.split()) for entry in re.split(r"(?m)^[ \t]*§[ \t]*$", text) if entry.strip()]


def read_models(
    found: Found, options: Options, variables: dict[str, str], agent: FoundAgent, *, is_first: bool
) -> None:
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
        if key and name not in [provider.name for provider in own]:
            own.append(FoundProvider(name, key=key))
    names = [provider.name for provider in own]
    if address and provider in ("custom", "ollama", "vllm", "llamacpp", "lmstudio"):
        own.append(FoundProvider(slug(provider), "openai", address))
        provider = slug(provider)
    elif "openrouter.ai" in address or (provider in ("", "auto") and "openrouter" in names):
        provider = "openrouter"
    known = {provider.name for provider in found.providers}
    found.providers += [provider for provider in own if provider.name not in known]
    if model and provider not in ("", "auto"):
        model = f"{provider}/{model.removeprefix(f'{provider}/')}"
    agent.model = model
    found.model = model if is_first else found.model


def read_channels(found: Found, variables: dict[str, str], *, is_first: bool) -> None:
    for platform, names in ACCOUNTS.items():
        secrets = {key: variables.pop(name, "") for key, name in names.items()}
        plain = {key: variables.pop(name, "") for key, name in PLAIN.get(platform, {}).items()}
        people = variables.pop(f"{platform.upper()}_ALLOWED_USERS", "")
        if not any(secrets.values()):
            continue
        if not is_first:
            found.leave(f"{platform} account of another profile", "Shoal imports only the default profile's account")
            continue
        if variables.pop("GATEWAY_ALLOW_ALL_USERS", "").lower() == "true" or "*" in people:
            found.leave(
                f"channel {platform}: everybody",
                ('it was open to everyone (set allow = ["*"] to allow everyone here too)'),
            )
        allow = tuple(person.strip() for person in people.split(",") if person.strip() not in ("", "*"))
        found.add_account(platform, allow, plain, secrets)


def read_threads(found: Found, tree: Tree, file: Path, agent: str) -> None:
    spoken: dict[str, list[Mapping[str, object]]] = {}
    results = 0
    with tree.database(file) as database:
        sessions = sorted(database("sessions"), key=lambda row: number_of(row.get("started_at")))
        for row in database("messages"):
            if row.get("active", 1) or row.get("compacted", 1):  # a retracted message is neither active nor compacted
                spoken.setdefault(text_of(row.get("session_id")), []).append(row)
    for session in sessions:
        key, source, title = (text_of(session.get(name)) for name in ("id", "source", "title"))
        if source in NOT_TALK:
            found.leave(f"{agent}: {title or key}", f"{NOT_TALK[source]}, not a conversation")
            continue
        talk = dict[Entry, None]()  # skips a message that was stored twice
        for row in sorted(spoken.get(key, ()), key=lambda row_of: number_of(row_of.get("timestamp"))):
            talk[row.get("role"), row.get("content"), row.get("timestamp")] = None
        results += found.add_thread(key, agent, title, talk, time_of(session.get("started_at")) or changed_at(file))
    found.leave_results(agent, results)


def read_schedule(found: Found, job: Options, agent: str, zone: str) -> None:
    """Read a schedule. Times without an offset use the time zone in config.yaml, or local time."""
    name, text = job.text("name") or job.text("id") or "without a name", job.text("prompt")
    at = None
    if job.text("schedule", "kind") == "once":
        try:
            at = time_of(job.get("schedule", "run_at"), zone_named(zone))
        except InvalidInput:
            at = time_of(job.get("schedule", "run_at"))
    line = job.text("schedule", "expr") or cron_of(60 * number_of(job.get("schedule", "minutes")))
    if job.text("script") and not text:
        found.leave(f"schedule {name}", "it runs a script without an agent, so use the system's cron")
    else:
        found.add_schedule(name, text, at, line, zone, agent, job.text("deliver"))
