"""Read the home directory of nanobot (`~/.nanobot`).

- `config.json`: models and channels.
- the workspace: persona, memory and skills.
- `cron/jobs.json`: schedules.
- `sessions/WORKSPACE/sessions.sqlite3`: conversations.

Older versions store conversations in `sessions/*.jsonl`, here or in the workspace, with the key in the first line.

Source: nanobot/session and nanobot/cron in its repository.
"""

import re
from collections.abc import Sequence
from datetime import datetime
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
    walk,
)
from shoal.kernel.errors import InvalidInput
from shoal_import.files import Options, Tree, changed_at, json5, leave_files, notes_of, read_workspace

REASONS = {
    "logs": "logs", "bridge": "WhatsApp bridge", "media": "files from past messages", "history": "a cache",
    "sessions": "conversation state",
}  # fmt: skip
OPTIONS = {
    "gateway": "server settings", "tools": "tool permissions: see `shoal docs permissions`",
    "audio": "voice settings", "agents": "Shoal has no equivalent setting", "webui": "page settings",
}  # fmt: skip
SECRETS = {
    "telegram": {"token": "token"}, "discord": {"token": "token"},
    "slack": {"bot_token": "botToken", "app_token": "appToken"},
    "matrix": {"access_token": "accessToken", "password": "password"},
}  # fmt: skip
KNOWN = ("anthropic", "openai", "openrouter", "gemini")
ENTRY = re.compile(r"^\[(\d{4}-\d{2}-\d{2})[ T\d:]*\]\s*", re.MULTILINE)


def read(root: Path) -> Found:
    """Read a home directory. Raises OSError, or InvalidInput if it does not belong to nanobot."""
    found = Found("nanobot", root)
    tree = Tree(found, root)
    if not (root / "config.json").is_file():
        raise InvalidInput(
            f"{root} is not a nanobot home: it has no config.json. Specify the folder that contains config.json."
        )
    options = Options(json5(tree.text(root / "config.json"), root / "config.json"))
    has_place = isinstance(options.content, dict) and (root / "workspace").is_dir()
    if not has_place and not {"agents", "providers", "channels"} & set(as_dict(options.content)):
        needed = "its config.json has no agents, providers or channels, and it has no workspace"
        raise InvalidInput(f"{root} is not a nanobot home: {needed}. Specify the folder that nanobot created.")
    agent = found.add_agent(FoundAgent("nanobot"), "nanobot")
    files, workspace = tree.workspace(options.text("agents", "defaults", "workspace"), root / "workspace")
    read_workspace(found, files, workspace, agent)
    history = ENTRY.split(files.text(workspace / "memory" / "HISTORY.md"))
    for day, text in zip(history[1::2], history[2::2], strict=False):
        notes_of(agent, day, text)
    log = workspace / "memory" / "history.jsonl"
    if strange := sum(
        not notes_of(agent, text_of(line.get("timestamp")), line.get("content")) for line in files.lines(log)
    ):
        files.leave(log, f"{counted(strange, 'entry', 'entries')} without a date or text")
    results, known = 0, set[str]()
    for place, own in ((root / "sessions", tree), (workspace / "sessions", files)):
        results += read_threads(found, own, place, known)
    found.leave_results("nanobot", results)
    zone = options.text("agents", "defaults", "timezone") or local_zone()
    for place, own in ((root, tree), (workspace, files)):
        read_schedules(found, as_list(as_dict(own.json(place / "cron" / "jobs.json")).get("jobs")), zone)
    read_models(found, options)
    read_channels(found, options)
    for name in options.rest():
        found.leave(f"config.json: {name}", OPTIONS.get(name.split(".")[0], "Shoal has no equivalent setting"))
    if workspace != root:
        leave_files(found, files, workspace, "nanobot")
    tree.leave_rest(REASONS)
    return found


def read_threads(found: Found, tree: Tree, folder: Path, known: set[str]) -> int:
    """Read the conversations below a folder, except those in `known`. Return the number of tool results that they
    contain.
    """
    results = 0
    files = sorted(place / name for place, _, names in walk(folder) for name in names)
    for path in [file for file in files if file.name == "sessions.sqlite3"]:
        with tree.database(path) as database:
            about = {text_of(row.get("key")): row for row in database("sessions")}
            spoken: dict[str, list[tuple[float, Json]]] = {}
            for row in database("messages"):
                spoken.setdefault(text_of(row.get("session_key")), []).append(
                    (number_of(row.get("position")), row.get("record"))
                )
        for key, row in about.items():
            records = [parsed(record) for _, record in sorted(spoken.get(key, ()), key=lambda item: item[0])]
            since = time_of(row.get("created_at")) or changed_at(path)
            results += read_thread(found, key, text_of(row.get("title")), list(map(as_dict, records)), since, known)
    for path in [file for file in files if file.suffix == ".jsonl"]:
        entries = list(tree.lines(path))
        first = next((entry for entry in entries if entry.get("_type") == "metadata"), dict[str, Json]())
        key = text_of(first.get("key")) or path.stem.replace("_", ":", 1)
        if not entries:
            tree.leave(path, "it contains no conversation entries")
            continue
        if key in known:
            tree.leave(path, "its conversation was already read from sessions.sqlite3 or another file")
            continue
        since = time_of(first.get("created_at")) or changed_at(path)
        results += read_thread(found, key, "", entries, since, known)
    return results


def read_thread(
    found: Found, key: str, title: str, entries: Sequence[dict[str, Json]], since: datetime, known: set[str]
) -> int:
    """Read a conversation and return the number of its tool results. Scheduled runs are skipped."""
    known.add(key)
    if key.startswith(("cron:", "heartbeat")):
        found.leave(f"nanobot: {key}", "a scheduled run, not a conversation")
        return 0
    talk: list[Entry] = [(entry.get("role"), entry.get("content"), entry.get("timestamp")) for entry in entries]
    return found.add_thread(key, "nanobot", title, talk, since)


def read_schedules(found: Found, jobs: Sequence[object], zone: str) -> None:
    """Read the schedules. A schedule without a time zone uses the zone in config.json, or local time."""
    for entry in jobs:
        job = Options(as_dict(entry))
        found.add_schedule(
            job.text("name") or job.text("id") or "without a name",
            job.text("payload", "message"),
            time_of(job.get("schedule", "atMs")),
            job.text("schedule", "expr") or cron_of(number_of(job.get("schedule", "everyMs")) / 1000),
            job.text("schedule", "tz") or zone,
            "nanobot",
            " ".join(filter(None, (job.text("payload", "channel"), job.text("payload", "to")))),
        )


def read_models(found: Found, options: Options) -> None:
    model, provider = options.text("agents", "defaults", "model"), options.text("agents", "defaults", "provider")
    first = model.split("/")[0]
    for name in options.table("providers"):
        key, address = options.text("providers", name, "apiKey"), options.text("providers", name, "apiBase")
        if name in KNOWN and (key or address):
            found.providers.append(FoundProvider(name, "", address, key))
        elif address:
            found.providers.append(FoundProvider(slug(name), "openai", address, key))
        elif key:
            found.leave(f"the key of {name}", "its URL is unknown, so add the provider under [providers]")
    options.get("providers")
    names = [provider.name for provider in found.providers]
    if model and first not in names and (provider in names or (names and provider in ("", "auto"))):
        model = f"{provider if provider in names else names[0]}/{model}"
    found.model = model


def read_channels(found: Found, options: Options) -> None:
    for name, value in options.table("channels").items():
        table = Options(value)
        if not as_dict(value) or not as_dict(value).get("enabled"):
            continue
        if name not in SECRETS:
            found.leave(f"channel {name}", f"Shoal cannot set up {name} from this file (see `shoal docs platforms`)")
            continue
        listed = [*table.texts("allowFrom"), *table.texts("dm", "allowFrom")]
        if "*" in listed or not listed:
            found.leave(
                f"channel {name}: everybody", ('it was open to everyone (set allow = ["*"] to allow everyone here too)')
            )
        allow = tuple(dict.fromkeys(person.split("|")[0] for person in listed if person != "*"))
        plain = {"homeserver": table.text("homeserver"), "user": table.text("userId")} if name == "matrix" else {}
        found.add_account(name, allow, plain, {key: table.text(key_name) for key, key_name in SECRETS[name].items()})
    options.get("channels")
