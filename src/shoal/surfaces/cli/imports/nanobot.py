"""Reads the home of nanobot (`~/.nanobot`).

`config.json` has the models and channels; the workspace has the persona, memory, skills and `sessions/*.jsonl`, whose
first line tells the conversation's key; `cron/jobs.json` the schedules. Source: its repository.
"""

import re
from collections.abc import Sequence
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
    day_of,
    json5,
    parsed,
    read_workspace,
    said,
    slug,
    speaker,
    time_of,
)

REASONS = {"logs": "logs", "bridge": "its bridge to WhatsApp", "media": "files of past messages", "history": "a cache"}
OPTIONS = {
    "gateway": "settings of its own server", "tools": "what tools may do: see docs/permissions.md",
    "audio": "Shoal does not speak", "agents": "no setting here means the same", "webui": "its own page",
}  # fmt: skip
SECRETS = {
    "telegram": {"token": "token"}, "discord": {"token": "token"},
    "slack": {"bot_token": "botToken", "app_token": "appToken"},
    "matrix": {"access_token": "accessToken", "password": "password"},
}  # fmt: skip
KNOWN = ("anthropic", "openai", "openrouter", "gemini")
ENTRY = re.compile(r"^\[(\d{4}-\d{2}-\d{2})[ T\d:]*\]\s*", re.MULTILINE)


def read(root: Path) -> Found:
    """All of it. Raises InvalidInput where this is no home of nanobot, OSError."""
    found, tree = Found("nanobot", root), Tree(root)
    if not (root / "config.json").is_file():
        raise InvalidInput(f"{root} is no home of nanobot: it has no config.json. Name the folder that has it.")
    options = Options(json5(tree.text(root / "config.json"), root / "config.json"))
    agent = FoundAgent("nanobot")
    found.agents.append(agent)
    given = options.text("agents", "defaults", "workspace")
    workspace = Path(given).expanduser() if given else root / "workspace"
    if not workspace.is_dir():  # a home that was copied from another machine
        workspace = root / workspace.name
    files = tree if workspace.is_relative_to(root) else Tree(workspace)
    read_workspace(found, files, workspace, agent)
    history = ENTRY.split(files.text(workspace / "memory" / "HISTORY.md"))
    for day, text in zip(history[1::2], history[2::2], strict=False):
        when, words = day_of(day), " ".join(text.split())
        if when is not None and words:
            agent.notes.setdefault(when, []).append(words)
    for folder in (workspace / "sessions", root / "sessions"):
        read_threads(found, files if folder.is_relative_to(files.root) else tree, folder)
    for file in (root / "cron" / "jobs.json", workspace / "cron" / "jobs.json"):
        read_schedules(
            found, as_list(as_dict(parsed((files if file.is_relative_to(files.root) else tree).text(file))).get("jobs"))
        )
    read_models(found, options)
    read_channels(found, options)
    for name in options.rest():
        found.leave(f"config.json: {name}", OPTIONS.get(name.split(".")[0], "no setting here means the same"))
    what = f"nanobot: other files of {workspace}"
    found.leave(what, "copy what the agent is to work with into agents/nanobot/workspace")
    tree.use(workspace)
    for name in tree.rest():
        found.leave(name, REASONS.get(name.split("/")[0], "it is no part of an agent's persona, memory or talk"))
    return found


def read_threads(found: Found, tree: Tree, folder: Path) -> None:
    """The conversations."""
    results = 0
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
        key, messages = path.stem.replace("_", ":", 1), list[ImportedMessage]()
        for line in tree.text(path).splitlines():
            entry = as_dict(parsed(line))
            if entry.get("_type") == "metadata":
                key = str(entry.get("key") or key)
                continue
            text, role, when = said(entry.get("content")), speaker(entry.get("role")), time_of(entry.get("timestamp"))
            results += entry.get("role") == "tool"
            if text and role and when is not None:
                messages.append(ImportedMessage(role, text, when))
        if key.startswith(("cron:", "heartbeat")):
            found.leave(f"nanobot: {key}", "a run of a schedule, not a conversation")
        elif messages and key not in [one.key for one in found.threads]:
            found.threads.append(FoundThread(key, "nanobot", messages[0].text, messages))
    if results:
        found.leave(f"nanobot: {results} results of tools", "what was said is brought over, what tools answered is not")


def read_schedules(found: Found, jobs: Sequence[object]) -> None:
    """What started turns by the clock."""
    for one in jobs:
        job = Options(as_dict(one))
        name, zone = job.text("name") or job.text("id"), job.text("schedule", "tz") or "UTC"
        text = job.text("payload", "message")
        told = " ".join(part for part in (job.text("payload", "channel"), job.text("payload", "to")) if part)
        at = time_of(job.get("schedule", "atMs"))
        line = job.text("schedule", "expr") or cron_of(float(job.text("schedule", "everyMs") or 0) / 1000)
        if text and at is not None:
            found.schedules.append(FoundSchedule(name, "one-shot", at.isoformat(), text, "UTC", "nanobot", told))
        elif text and line:
            found.schedules.append(FoundSchedule(name, "periodic", line, text, zone, "nanobot", told))
        else:
            found.leave(f"schedule {name}", "no cron line comes as often, or it says nothing to do")


def read_models(found: Found, options: Options) -> None:
    """The providers, their keys, and the models that were chosen."""
    model, provider = options.text("agents", "defaults", "model"), options.text("agents", "defaults", "provider")
    first = model.split("/")[0]
    for name in options.table("providers"):
        key, address = options.text("providers", name, "apiKey"), options.text("providers", name, "apiBase")
        if name in KNOWN and (key or address):
            found.providers.append(FoundProvider(name, "", address, key))
        elif address:
            found.providers.append(FoundProvider(slug(name), "openai", address, key))
        elif key:
            found.leave(f"the key of {name}", "Shoal does not know its address; write it under [providers]")
    options.get("providers")
    names = [one.name for one in found.providers]
    if model and first not in names and (provider in names or (names and provider in ("", "auto"))):
        model = f"{provider if provider in names else names[0]}/{model}"
    found.model = model


def read_channels(found: Found, options: Options) -> None:
    """The accounts on platforms that Shoal has, and who may speak there."""
    for name, value in options.table("channels").items():
        table = Options(value)
        if not as_dict(value) or not as_dict(value).get("enabled"):
            continue
        if name not in SECRETS:
            found.leave(f"channel {name}", f"Shoal has no {name} that could be set up from this; see docs/platforms")
            continue
        listed = [*table.texts("allowFrom"), *table.texts("dm", "allowFrom")]
        if "*" in listed or not listed:
            found.leave(f"channel {name}: everybody", 'it was open to all; write allow = ["*"] yourself if you mean it')
        allow = tuple(dict.fromkeys(one.split("|")[0] for one in listed if one != "*"))
        plain = {"homeserver": table.text("homeserver"), "user": table.text("userId")} if name == "matrix" else {}
        secrets = {key: table.text(one) for key, one in SECRETS[name].items()}
        filled = ({key: value for key, value in one.items() if value} for one in (plain, secrets))
        found.accounts.append(FoundAccount(name, allow, *filled))
    options.get("channels")
