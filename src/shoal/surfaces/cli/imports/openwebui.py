"""Reads Open WebUI: the folder with its `webui.db`, or a JSON file of exported chats.

A chat's messages are a tree by `parentId`, of which `history.currentId` is the leaf that is shown. Of several people
only the first administrator's things are brought over. Source: the models in its repository.
"""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from shoal.domain.errors import InvalidInput
from shoal.surfaces.cli.imports.found import (
    Found,
    FoundAgent,
    FoundProvider,
    FoundSchedule,
    FoundSkill,
    FoundThread,
    ImportedMessage,
    Json,
    Tree,
    as_dict,
    as_list,
    parsed,
    said,
    slug,
    speaker,
    time_of,
)

REASONS = {
    "vector_db": "its search index", "uploads": "files of past messages", "cache": "a cache", "docs": "its documents",
    "audit.log": "logs", "webui.db-wal": "a part of webui.db", "webui.db-shm": "a part of webui.db",
}  # fmt: skip
TABLES = {
    "tool": "programs written for it; see docs/extending.md", "function": "programs written for it",
    "knowledge": "collections of documents; copy the files into an agent's docs/", "note": "its notes",
    "prompt": "saved prompts; write them as skills", "file": "files of past messages", "channel": "its own channels",
}  # fmt: skip
DAYS = {"MO": "1", "TU": "2", "WE": "3", "TH": "4", "FR": "5", "SA": "6", "SU": "0"}


def read(path: Path) -> Found:
    """All of it. Raises InvalidInput where this is no Open WebUI, OSError."""
    root = path if path.is_dir() else path.parent
    found, tree = Found("openwebui", path), Tree(root)
    found.agents.append(FoundAgent("openwebui"))
    if path.suffix == ".json":
        for one in as_list(parsed(tree.text(path))):
            row = as_dict(one)
            read_chat(found, str(row.get("id") or ""), row.get("title"), row.get("chat") or row, row.get("created_at"))
        if not found.threads:
            raise InvalidInput(f"{path} holds no chats of Open WebUI. Export them under Settings, Data Controls.")
        return found
    file = next((one for one in (path, root / "webui.db", root / "data" / "webui.db") if one.is_file()), path)
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            read_database(found, database)
    except sqlite3.Error as error:
        raise InvalidInput(f"{file} is no database of Open WebUI: {error}. Name the folder with webui.db.") from error
    tree.use(file)
    for name in tree.rest():
        found.leave(
            name, REASONS.get(name.split("/")[0].split(" ")[0], "it is no part of an agent's persona, memory or talk")
        )
    return found


def _rows(database: sqlite3.Connection, table: str) -> list[dict[str, Json]]:
    """A table's rows, none where this version has no such table; JSON columns stay text."""
    if not database.execute("select 1 from sqlite_master where type = 'table' and name = ?", (table,)).fetchone():
        return []
    return [dict(row) for row in database.execute(f'select * from "{table}"')]  # noqa: S608 (names of this file only)


def _table(value: Json) -> dict[str, Json]:
    """A JSON column, which may come as text."""
    return as_dict(parsed(value) if isinstance(value, str) else value)


def read_database(found: Found, database: sqlite3.Connection) -> None:
    """What the first administrator has in it."""
    people = sorted(_rows(database, "user"), key=lambda one: (one.get("role") != "admin", str(one.get("created_at"))))
    owner = str(people[0]["id"]) if people else ""
    main = found.agents[0]
    others = dict[str, int]()

    def mine(table: str) -> list[dict[str, Json]]:
        rows = _rows(database, table)
        others[table] = sum(str(row.get("user_id")) != owner for row in rows)
        return [row for row in rows if str(row.get("user_id")) == owner]

    main.memory = [" ".join(str(row["content"]).split()) for row in mine("memory")]
    for row in mine("chat"):
        read_chat(found, str(row["id"]), row.get("title"), _table(row.get("chat")), row.get("created_at"))
    agents = {str(row["id"]): row for row in mine("model")}
    for key, row in agents.items():
        params, meta = _table(row.get("params")), _table(row.get("meta"))
        if not row.get("base_model_id") and not params.get("system"):
            found.leave(f"model {key}", "settings of a model and no persona")
            continue
        prompt = "\n\n".join(str(one) for one in (meta.get("description"), params.get("system")) if one)
        agent = FoundAgent(f"openwebui-{slug(str(row.get('name') or key))}", system_prompt=prompt)
        agent.model = str(row.get("base_model_id") or "")
        found.agents.append(agent)
    for row in mine("skill"):
        name = slug(str(row.get("name") or row["id"]))
        files = {
            str(one.get("path")): str(one.get("content") or "")
            for one in map(as_dict, as_list(_table(row.get("data")).get("files")))
        }
        text = files.pop("SKILL.md", "") or str(row.get("content") or "")
        if not text.startswith("---"):
            about = " ".join(str(row.get("description") or row.get("name") or name).split())[:1000]
            text = f'---\nname: {name}\ndescription: "{about.replace(chr(34), chr(39))}"\n---\n\n{text}'
        safe = {
            one: content for one, content in files.items() if ".." not in Path(one).parts and not one.startswith("/")
        }
        main.skills.append(
            FoundSkill(name, {name_: data.encode() for name_, data in {"SKILL.md": text, **safe}.items()})
        )
    for row in mine("automation"):
        read_schedule(found, row, main.name)
    for table, count in others.items():
        if count:
            found.leave(f"{count} rows of {table}", "they belong to other accounts; each person decides on their own")
    for table, why in TABLES.items():
        if count := len(_rows(database, table)):
            found.leave(f"{count} rows of {table}", why)
    for row in _rows(database, "config"):
        data = _table(row.get("data")) or _table(row.get("value"))
        openai, ollama = as_dict(data.get("openai")), as_dict(data.get("ollama"))
        keys = as_list(openai.get("api_keys"))
        for number, url in enumerate(as_list(openai.get("api_base_urls"))):
            key = str(keys[number]) if number < len(keys) else ""
            official = "api.openai.com" in str(url)
            name = "openai" if official else f"openwebui-{number + 1}"
            found.providers.append(FoundProvider(name, "" if official else "openai", "" if official else str(url), key))
        for url in as_list(ollama.get("base_urls"))[:1]:
            found.providers.append(FoundProvider("ollama", "", f"{str(url).rstrip('/')}/v1"))
        found.leave("its other settings", "settings of its own server")


def read_chat(found: Found, key: str, title: Json, value: Json, created: Json) -> None:
    """A chat, along the branch that was shown last."""
    chat = as_dict(value)
    history = as_dict(chat.get("history"))
    messages, at = as_dict(history.get("messages")), str(history.get("currentId") or "")
    branch: list[dict[str, Json]] = []
    while at in messages and as_dict(messages[at]) not in branch:
        branch.append(as_dict(messages[at]))
        at = str(branch[-1].get("parentId") or "")
    branch = branch[::-1] or [as_dict(one) for one in as_list(chat.get("messages"))]
    spoken: list[ImportedMessage] = []
    for one in branch:
        text, role = said(one.get("content")), speaker(one.get("role"))
        text = re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL).strip()  # how it shows thoughts and tools
        when = time_of(one.get("timestamp")) or time_of(created)
        if text and role and when is not None:
            spoken.append(ImportedMessage(role, text, when))
    if spoken:
        found.threads.append(FoundThread(key, "openwebui", str(title or spoken[0].text), spoken))
    else:
        found.leave(f"chat {title or key}", "nothing was said in it")
    others = len(messages) - len(branch)
    if messages and others > 0:
        found.leave(f"{others} messages of {title or key}", "other branches than the one that was shown last")


def read_schedule(found: Found, row: dict[str, Json], agent: str) -> None:
    """What started turns by the clock."""
    data, name = _table(row.get("data")), str(row.get("name") or row["id"])
    rule = dict(re.findall(r"(\w+)=([^;\n]+)", str(data.get("rrule") or "")))
    minute, hour = rule.get("BYMINUTE", "0"), rule.get("BYHOUR", "9")
    days = ",".join(DAYS[one] for one in rule.get("BYDAY", "").split(",") if one in DAYS)
    once = rule.get("INTERVAL", "1") == "1" and "COUNT" not in rule and "UNTIL" not in rule
    line = {
        "HOURLY": f"{minute} * * * *",
        "DAILY": f"{minute} {hour} * * {days or '*'}",
        "WEEKLY": f"{minute} {hour} * * {days or '1'}",
        "MONTHLY": f"{minute} {hour} {rule.get('BYMONTHDAY', '1')} * *",
    }.get(rule.get("FREQ", ""), "")
    if once and line and data.get("prompt"):
        found.schedules.append(FoundSchedule(name, "periodic", line, str(data["prompt"]), "UTC", agent))
    else:
        found.leave(f"schedule {name}", f"no cron line comes as {data.get('rrule') or 'it says'}")
