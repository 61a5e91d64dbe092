"""Writes the tables of docs/http.md from the endpoints: every call with its fields, scope and description.

    python -m tests.http_table     write the page

`tests/tidy/test_http_table.py` compares the page with the code.
"""

import inspect
import re
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin

import msgspec

from shoal.surfaces.http.endpoints import ADMINS, DECIDERS, EVERYONE, OPEN, READERS, TALKERS, Endpoint
from shoal.surfaces.http.table import api

PAGE = Path(__file__).parents[1] / "docs/http.md"
BEGIN, END = "<!-- from the endpoints: python -m tests.http_table -->\n", "<!-- end of the endpoints -->\n"
TOPICS = {
    "Messages": r"/api/threads/{thread}/(messages|steer|abort|retry|again|edit|branch|fork|clear|command)$"
    r"|/api/(channels|commands)",
    "Threads": r"/api/(threads(/{thread})?(/(export|context|steps|replay))?|chats|search|models)$|.*/cost$",
    "Streams": r"/api/(threads/{thread}/)?(events|changes)$",
    "Files": r"/api/threads/{thread}/(attachments|files|picture|artifacts)|.*/speech$",
    "Undo and saved conversations": r".*/turns/{turn}/(changes|undo)$|/api/threads/{thread}/(new|snapshots)",
    "Approvals and permissions": r"/api/(approvals|permissions)",
    "People and tokens": r"/api/(me|tokens|access|push)(/|$)",
    "Agents, memory and skills": r"/api/(agents/{name}(/(files.*|undo))?|agents|bindings.*|memory.*|skills.*)$",
    "Triggers and processes": r"/api/(triggers|brief|processes)|/hooks",
    "Comparisons and cases": r"/api/comparisons|.*/cases$|.*/check$",
    "Setup": r"/api/(setup|platforms|mcp|backups)",
    "Operations": r"/(api/(overview|usage|audit|info)|healthz|readyz|metrics|openapi|platforms)",
    "OpenAI's interface": r"/v1",
}
"""Topics by pattern. A call belongs to the first topic whose pattern matches its path."""
SCOPES = {EVERYONE: "any", READERS: "read", TALKERS: "chat", DECIDERS: "approve", ADMINS: "admin", OPEN: "none"}


def struct(hint: object) -> type[msgspec.Struct] | None:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    structs = [kind for kind in options if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    return structs[0] if len(structs) == 1 else None


def fields(kind: type[msgspec.Struct]) -> list[tuple[str, bool]]:
    return [(field.encode_name, field.required) for field in msgspec.structs.fields(kind)]


def form(endpoint: Endpoint) -> str:
    """Return the method, path, query and body of a call. `?` marks optional parts."""
    path = re.sub(r"{(\w+):path}", r"{\1}", endpoint.path)
    query = "&".join(name for name, _ in fields(endpoint.query)) if endpoint.query else ""
    text = f"`{endpoint.method} {path}{'?' * bool(query)}{query}`"
    kind = struct(endpoint.parameters.get("body"))
    if kind is not None and not endpoint.path.startswith("/v1"):
        inner = ", ".join(name + "?" * (not required) for name, required in fields(kind))
        text += f" `{{{inner}}}`"
    elif endpoint.raw_body and endpoint.raw_body != "application/json":
        text += f" `{endpoint.raw_body}`"
    return text


def row(endpoint: Endpoint) -> str:
    scopes = SCOPES[endpoint.scopes] + ", owner" * endpoint.owner_only
    text = " ".join((inspect.getdoc(endpoint.handler) or "").split()).replace("|", "\\|")
    return f"| {form(endpoint)} | {scopes} | {text} |"


def topic(endpoint: Endpoint) -> str:
    path = re.sub(r"{(\w+):path}", r"{\1}", endpoint.path)
    return next(name for name, pattern in TOPICS.items() if re.match(pattern, path))


def tables() -> str:
    rows: dict[str, list[str]] = {name: [] for name in TOPICS}
    for endpoint in api():
        rows[topic(endpoint)].append(row(endpoint))
    head = "| call | scope | what it does |\n|---|---|---|\n"
    return "\n\n".join(f"### {name}\n\n{head}" + "\n".join(lines) for name, lines in rows.items())


def page(text: str) -> str:
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{tables()}\n\n{END}", text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
