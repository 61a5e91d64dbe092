"""Read Open WebUI data: the folder that contains `webui.db`, or a JSON file of exported chats.

The messages of a chat form a tree through `parentId`, and `history.currentId` is the visible leaf. If several people
have accounts, only the data of the first administrator is imported.

Source: the models in its repository.
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
    FoundSkill,
    Json,
    as_dict,
    as_list,
    counted,
    local_zone,
    message_text,
    parsed,
    slug,
    text_of,
    time_of,
)
from shoal.kernel.errors import InvalidInput
from shoal_import.files import Database, Tree, changed_at

REASONS = {
    "vector_db": "search index", "uploads": "files from past messages", "cache": "a cache", "docs": "documents",
    "audit.log": "logs",
}  # fmt: skip
TABLES = {
    "tool": "unsupported programs (see `shoal docs extending`)", "function": "unsupported programs",
    "knowledge": "document collections (copy the files to an agent's docs/)", "note": "notes in Open WebUI",
    "prompt": "saved prompts (recreate them as skills)", "file": "files from past messages", "channel": "chat channels",
}  # fmt: skip
DAYS = {"MO": "1", "TU": "2", "WE": "3", "TH": "4", "FR": "5", "SA": "6", "SU": "0"}


def read(path: Path) -> Found:
    """Read a folder or a file. Raises OSError, or InvalidInput if it does not belong to Open WebUI."""
    root = path if path.is_dir() else path.parent
    found = Found("openwebui", path)
    tree = Tree(found, root)
    main = found.add_agent(FoundAgent("openwebui"), "openwebui")
    if path.suffix == ".json":
        for entry in as_list(tree.json(path)):
            row = as_dict(entry)
            read_chat(found, {**row, "chat": row.get("chat") or row}, {}, changed_at(path))
        if not found.threads:
            raise InvalidInput(f"{path} contains no Open WebUI chats. Export them under Settings, Data Controls.")
        return found
    file = next(
        (candidate for candidate in (path, root / "webui.db", root / "data" / "webui.db") if candidate.is_file()), None
    )
    if file is None:
        raise InvalidInput(
            f"{root} is not an Open WebUI folder: it has no webui.db. Specify the folder that contains webui.db."
        )
    with tree.database(file) as database:
        people = sorted(database("user"), key=lambda user: (user.get("role") != "admin", str(user.get("created_at"))))
        if not people or "role" not in people[0]:
            raise InvalidInput(f"{file} is not an Open WebUI database: it contains no users. Specify another file.")
        read_database(found, database, people[0], main)
    tree.leave_rest(REASONS)
    return found


def _table(value: Json) -> dict[str, Json]:
    """Decode a JSON column, which may be stored as text."""
    return as_dict(parsed(value) if isinstance(value, str) else value)


def read_database(found: Found, database: Database, person: Mapping[str, Json], main: FoundAgent) -> None:
    owner = text_of(person.get("id"))
    others = dict[str, int]()

    def mine(table: str) -> list[dict[str, Json]]:
        rows = list(database(table))
        others[table] = sum(text_of(row.get("user_id")) != owner for row in rows)
        return [row for row in rows if text_of(row.get("user_id")) == owner]

    main.memory = [" ".join(text_of(row.get("content")).split()) for row in mine("memory")]
    spoken: dict[str, dict[str, Json]] = {}
    for row in database("chat_message"):  # since 2026, messages are stored here as well as in `chat`
        chat = text_of(row.get("chat_id"))
        content = row.get("content")
        spoken.setdefault(chat, {})[text_of(row.get("id")).removeprefix(f"{chat}-")] = {
            "parentId": row.get("parent_id"), "role": row.get("role"), "timestamp": row.get("created_at"),
            "content": parsed(content) or content,
        }  # fmt: skip
    for row in mine("chat"):
        began = time_of(row.get("created_at")) or datetime.now(UTC)
        read_chat(found, row, spoken.get(text_of(row.get("id")), {}), began)
    for row in mine("model"):
        key, params, meta = text_of(row.get("id")), _table(row.get("params")), _table(row.get("meta"))
        if not row.get("base_model_id") and not params.get("system"):
            found.leave(f"model {key}", "model settings without a persona")
            continue
        prompt = "\n\n".join(filter(None, (text_of(meta.get("description")), text_of(params.get("system")))))
        title = text_of(row.get("name")) or key
        agent = FoundAgent(f"openwebui-{slug(title)}", title, system_prompt=prompt)
        agent.model = text_of(row.get("base_model_id"))
        found.add_agent(agent, key)
    for row in mine("skill"):
        main.add_skill(*read_skill(row))
    zone = text_of(person.get("timezone")) or local_zone()
    for row in mine("automation"):
        read_schedule(found, row, main.name, zone)
    for table, count in others.items():
        if count:
            what = f"{counted(count, 'row', 'rows')} of {table}"
            found.leave(what, "data of other accounts (Shoal imports only the first administrator's data)")
    for table, why in TABLES.items():
        if count := sum(1 for _ in database(table)):
            found.leave(f"{counted(count, 'row', 'rows')} of {table}", why)
    settings: dict[str, Json] = {}
    for row in database("config"):  # either one row for all keys, or one row per key
        settings |= _table(row.get("data"))
        name, value = text_of(row.get("key")), row.get("value")
        section, _, rest = name.partition(".")
        if rest:
            decoded = parsed(value) if isinstance(value, str) else value
            settings[section] = {**as_dict(settings.get(section)), rest: decoded}
    read_providers(found, settings)


def read_providers(found: Found, settings: Mapping[str, Json]) -> None:
    openai, ollama = as_dict(settings.get("openai")), as_dict(settings.get("ollama"))
    keys = as_list(openai.get("api_keys"))
    for number, address in enumerate(as_list(openai.get("api_base_urls"))):
        url, key = text_of(address), text_of(keys[number]) if number < len(keys) else ""
        official = "api.openai.com" in url
        name = "openai" if official else f"openwebui-{number + 1}"
        found.providers.append(FoundProvider(name, "" if official else "openai", "" if official else url, key))
    for address in as_list(ollama.get("base_urls"))[:1]:
        found.providers.append(FoundProvider("ollama", "", f"{text_of(address).rstrip('/')}/v1"))
    if settings:
        found.leave("other settings", "Open WebUI server settings")


def read_skill(row: Mapping[str, Json]) -> tuple[FoundSkill, str]:
    origin = text_of(row.get("id"))
    title = text_of(row.get("name")) or origin
    name = slug(title)
    given = map(as_dict, as_list(_table(row.get("data")).get("files")))
    files = {text_of(file_row.get("path")): text_of(file_row.get("content")) for file_row in given}
    text = files.pop("SKILL.md", "") or text_of(row.get("content"))
    if not text.startswith("---"):
        about = " ".join((text_of(row.get("description")) or title or name).split())[:1000]
        text = f'---\nname: {name}\ndescription: "{about.replace(chr(34), chr(39))}"\n---\n\n{text}'
    safe = {
        name_in: content for name_in, content in files.items() if re.fullmatch(r"(?!/)(?!.*\.\.)[^\0]{1,200}", name_in)
    }
    contents = {name_in: content.encode() for name_in, content in {"SKILL.md": text, **safe}.items()}
    return FoundSkill(name, contents, title), origin


def read_chat(found: Found, row: Mapping[str, Json], stored: dict[str, Json], since: datetime) -> None:
    """Read a chat along its visible branch. `stored` contains messages that are not in the chat's row."""
    key, chat = text_of(row.get("id")), _table(row.get("chat"))
    title = text_of(row.get("title")) or text_of(chat.get("title"))
    history = as_dict(chat.get("history"))
    messages = {**stored, **as_dict(history.get("messages"))}
    at = text_of(history.get("currentId")) or next(reversed(messages), "")
    branch, seen = list[dict[str, Json]](), set[str]()
    while at in messages and at not in seen:
        seen.add(at)
        branch.append(as_dict(messages[at]))
        at = text_of(branch[-1].get("parentId"))
    branch = branch[::-1] or [as_dict(message) for message in as_list(chat.get("messages"))]
    talk: list[Entry] = []
    for message in branch:  # remove the markup of reasoning and tool calls
        text = re.sub(r"<details(?:[^<]|<(?!/?details))*+</details>", "", message_text(message.get("content")))
        talk.append((message.get("role"), text, message.get("timestamp")))
    found.add_thread(key, "openwebui", title, talk, since)
    if others := len(messages) - len(seen):
        what = f"{counted(others, 'message', 'messages')} of {title or key}"
        found.leave(what, "branches other than the one shown last")


def read_schedule(found: Found, row: Mapping[str, Json], agent: str, zone: str) -> None:
    """Read a schedule. Its times are in the person's time zone, or in local time."""
    data, name = _table(row.get("data")), text_of(row.get("name")) or text_of(row.get("id"))
    rule = dict(re.findall(r"(?<!\w)(\w++)=([^;\n]++)", text_of(data.get("rrule"))))
    minute, hour = rule.get("BYMINUTE", "0"), rule.get("BYHOUR", "9")
    days = ",".join(DAYS[day] for day in rule.get("BYDAY", "").split(",") if day in DAYS)
    once = rule.get("INTERVAL", "1") == "1" and "COUNT" not in rule and "UNTIL" not in rule
    line = {
        "HOURLY": f"{minute} * * * *",
        "DAILY": f"{minute} {hour} * * {days or '*'}",
        "WEEKLY": f"{minute} {hour} * * {days or '1'}",
        "MONTHLY": f"{minute} {hour} {rule.get('BYMONTHDAY', '1')} * *",
    }.get(rule.get("FREQ", ""), "")
    found.add_schedule(name, text_of(data.get("prompt")), None, line if once else "", zone, agent)
