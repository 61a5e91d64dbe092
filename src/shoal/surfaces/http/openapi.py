"""The OpenAPI 3.1 document, made from the table of calls and the structs they take and give."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from shoal.domain.events import EVENT_CLASSES, Event
from shoal.surfaces.http.endpoints import JSON, Endpoint
from shoal.surfaces.http.errors import CompatBody, ErrorBody

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Schema: TypeAlias = dict[str, Json]

SCOPE_TEXTS = {
    "chat": "Talk in the person's own threads, read and steer those, and nothing else.",
    "read": "Read everything but tokens, change nothing.",
    "approve": "Read, and decide approvals as the person, who has to be one who may.",
    "admin": "Everything that the owner's own token may.",
}
"""What tokens of each scope may do; a token with an agent is confined to that agent's threads besides."""

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"{(\w+)(:path)?}")
_EVENT_LIST = list[Event]
_PARAMETER_SCHEMAS: dict[str, Schema] = {"thread": {"pattern": "^[^:]+:[^:]+:[^:]+$", "maxLength": 542}}
_PARAMETER_TEXTS = {
    "thread": "platform:channel:thread; unsafe characters in a part are written %HH (so %25HH in an address).",
    "path": "A path as the listing gives it; it may hold slashes.",
}


def make_document(endpoints: Sequence[Endpoint], version: str) -> bytes:
    """The document as JSON. Schemas stand under their struct's name."""
    kinds = _kinds(endpoints)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    by_kind = dict(zip((repr(kind) for kind in kinds), schemas, strict=True))
    components["Event"] = _event_schema()
    document: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "Shoal", "version": version, "description": "Agents that live in chats; see docs/http.md."},
        "security": [{"token": []}, {"page": []}],
        "x-shoal-scopes": {scope: text for scope, text in SCOPE_TEXTS.items()},
        "paths": _paths(endpoints, by_kind),
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "page": {"type": "apiKey", "in": "cookie", "name": "shoal"},
            },
        },
    }
    return msgspec.json.encode(document, order="deterministic")


def _kinds(endpoints: Iterable[Endpoint]) -> list[object]:
    found: dict[str, object] = {repr(kind): kind for kind in (ErrorBody, CompatBody, *EVENT_CLASSES.values())}
    for endpoint in endpoints:
        for kind in (endpoint.body, endpoint.query, endpoint.answer.kind):
            if kind is not None and kind is not bytes and kind != _EVENT_LIST:
                found[repr(kind)] = kind
    return list(found.values())


def _event_schema() -> Schema:
    shapes: list[Json] = []
    for name, kind in EVENT_CLASSES.items():
        properties: Schema = {"type": {"const": name}, "data": {"$ref": _REF.format(name=kind.__name__)}}
        shapes.append({"type": "object", "properties": properties})
    properties = {
        "seq": {"type": "integer", "minimum": 1},
        "thread": {"type": "string"},
        "turn": {"type": "string", "description": "Empty outside turns."},
        "type": {"type": "string", "enum": [*EVENT_CLASSES]},
        "at": {"type": "string", "format": "date-time"},
        "data": {"type": "object"},
    }
    return {"type": "object", "properties": properties, "required": [*properties], "oneOf": shapes}


def _paths(endpoints: Iterable[Endpoint], schemas: Mapping[str, Schema]) -> Schema:
    paths: dict[str, Schema] = {}
    for endpoint in endpoints:
        path = _PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
    return dict(paths)


def _operation(endpoint: Endpoint, schemas: Mapping[str, Schema]) -> Schema:
    found: Schema = {
        "operationId": endpoint.handler.__name__.strip("_"),
        "summary": endpoint.summary,
        "parameters": [*_path_parameters(endpoint.path), *_query_parameters(endpoint.query)],
        "responses": {str(endpoint.answer.status): _answer(endpoint, schemas), "default": _error(endpoint.path)},
    }
    if endpoint.is_open:
        found["security"] = []
    else:
        found["description"] = f"For tokens of scope {_listed(endpoint.scopes)}."
        found["x-shoal-scopes"] = [*endpoint.scopes]
    if endpoint.body is not None:
        content: Schema = {} if endpoint.body is bytes else {"schema": schemas[repr(endpoint.body)]}
        found["requestBody"] = {"required": not endpoint.body_optional, "content": {endpoint.body_media_type: content}}
    return found


def _listed(scopes: Sequence[str]) -> str:
    *most, last = scopes
    return f"{', '.join(most)} or {last}" if most else last


def _answer(endpoint: Endpoint, schemas: Mapping[str, Schema]) -> Schema:
    answer = endpoint.answer
    content: Schema = {}
    if answer.kind == _EVENT_LIST:
        content[JSON] = {"schema": {"type": "array", "items": {"$ref": _REF.format(name="Event")}}}
        content["text/event-stream"] = {}
    elif answer.kind is not None:
        content[JSON] = {"schema": schemas[repr(answer.kind)]}
    else:
        content[answer.media_type] = {}
    if answer.streams:
        content["text/event-stream"] = {}
    return {"description": answer.description, "content": content}


def _error(path: str) -> Schema:
    kind = CompatBody if path.startswith("/v1/") else ErrorBody
    schemas: list[Json] = [{"$ref": _REF.format(name=kind.__name__)}]
    if path == "/readyz":
        schemas.append({"$ref": _REF.format(name="Readiness")})
    return {"description": "Refused, and why.", "content": {JSON: {"schema": {"anyOf": schemas}}}}


def _path_parameters(path: str) -> list[Json]:
    return [
        {
            "name": found[1],
            "in": "path",
            "required": True,
            "description": _PARAMETER_TEXTS.get(found[1], ""),
            "schema": {"type": "string", "minLength": 1, **_PARAMETER_SCHEMAS.get(found[1], {})},
        }
        for found in _PARAMETER.finditer(path)
    ]


def _query_parameters(query: object) -> list[Json]:
    if query is None:
        return []
    _, components = msgspec.json.schema_components([query], ref_template=_REF)
    schema = components[getattr(query, "__name__", "")]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": kind}
        for name, kind in schema["properties"].items()
    ]
