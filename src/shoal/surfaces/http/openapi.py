"""The OpenAPI 3.1 document, generated from the endpoints and their structs."""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Self, TypeAlias

import msgspec

from shoal.kernel.events import EVENT_CLASSES, Event, ToolResultShown
from shoal.kernel.version import VERSION
from shoal.services import Services
from shoal.surfaces.http.endpoints import JSON, AnyObject, Endpoint
from shoal.surfaces.http.errors import CompatBody, ErrorBody
from shoal.surfaces.http.table import api

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Schema: TypeAlias = dict[str, Json]

SCOPE_TEXTS = {
    "chat": "Send messages in the person's own threads, and read and steer those threads.",
    "read": "Read everything except tokens.",
    "approve": "Read everything except tokens, and decide approvals if the person is an approver.",
    "admin": "Do everything that the owner's token can do.",
}
"""Permissions of each scope. If a token is limited to an agent, the permissions apply only to that agent's threads."""

_REF = "#/components/schemas/{name}"
_EVENTS = {**EVENT_CLASSES, ToolResultShown.type: ToolResultShown}
_PARAMETER = re.compile(r"{(\w+)(:path)?}")
_PARAMETER_SCHEMAS: dict[str, Schema] = {"thread": {"pattern": "^[^:]+:[^:]+:[^:]+$", "maxLength": 542}}
_PARAMETER_TEXTS = {
    "thread": (
        "A thread id: platform:channel:thread. Encode unsafe characters in each part as %HH, which becomes "
        "%25HH in a URL."
    ),
    "path": "A path from the listing. It may contain slashes.",
}


class ApiDocument:
    """The OpenAPI document, generated on first use."""

    @classmethod
    def of(cls, _: Services) -> Self:
        return cls()

    @cached_property
    def content(self) -> bytes:
        return make_document(api(), VERSION)


def make_document(endpoints: Sequence[Endpoint], version: str) -> bytes:
    found: dict[str, object] = {repr(kind): kind for kind in (ErrorBody, CompatBody, AnyObject, *_EVENTS.values())}
    for endpoint in endpoints:
        for kind in (endpoint.parameters.get("body"), endpoint.query, endpoint.answer):
            if kind is not None and kind != list[Event]:
                found[repr(kind)] = kind
    kinds = list(found.values())
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    by_kind = dict(zip((repr(kind) for kind in kinds), schemas, strict=True))
    by_kind[repr(list[Event])] = {"type": "array", "items": {"$ref": _REF.format(name="Event")}}
    shapes: list[Json] = []
    for name, kind in _EVENTS.items():
        properties: Schema = {"type": {"const": name}, "data": {"$ref": _REF.format(name=kind.__name__)}}
        shapes.append({"type": "object", "properties": properties})
    properties = {
        "seq": {"type": "integer", "minimum": 1},
        "thread": {"type": "string"},
        "turn": {"type": "string", "description": "Empty outside turns."},
        "type": {"type": "string", "enum": [*_EVENTS]},
        "at": {"type": "string", "format": "date-time"},
        "data": {"type": "object"},
    }
    components["Event"] = {"type": "object", "properties": properties, "required": [*properties], "oneOf": shapes}
    paths: dict[str, Schema] = {}
    for endpoint in endpoints:
        path = _PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, by_kind, components)
    document: Schema = {
        "openapi": "3.1.0",
        "info": {
            "title": "Shoal",
            "version": version,
            "description": ("HTTP API for agents that live in chats. Run `shoal docs http` for the documentation."),
        },
        "security": [{"token": []}, {"page": [], "pageKey": []}],
        "x-shoal-scopes": {scope: text for scope, text in SCOPE_TEXTS.items()},
        "paths": {**paths},
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "page": {"type": "apiKey", "in": "cookie", "name": "shoal"},
                "pageKey": {"type": "apiKey", "in": "header", "name": "X-Shoal"},
            },
        },
    }
    return msgspec.json.encode(document, order="deterministic")


def _operation(endpoint: Endpoint, schemas: dict[str, Schema], components: dict[str, Schema]) -> Schema:
    parameters: list[Json] = [
        {
            "name": match[1],
            "in": "path",
            "required": True,
            "description": _PARAMETER_TEXTS.get(match[1], ""),
            "schema": {"type": "string", "minLength": 1, **_PARAMETER_SCHEMAS.get(match[1], {})},
        }
        for match in _PARAMETER.finditer(endpoint.path)
    ]
    if endpoint.query is not None:
        schema = components.pop(endpoint.query.__name__)
        required, properties = schema.get("required"), schema["properties"]
        assert isinstance(properties, dict)
        parameters += [
            {"name": name, "in": "query", "required": isinstance(required, list) and name in required, "schema": kind}
            for name, kind in properties.items()
        ]
    content: Schema = {endpoint.media_type: {"schema": schemas[repr(endpoint.answer)]} if endpoint.answer else {}}
    if endpoint.streams:
        content["text/event-stream"] = {}
    summary = " ".join((endpoint.handler.__doc__ or "").split())
    errors: list[Json] = [{"$ref": _REF.format(name="CompatBody" if endpoint.path.startswith("/v1/") else "ErrorBody")}]
    if endpoint.path == "/readyz":
        errors.append({"$ref": _REF.format(name="Readiness")})
    operation: Schema = {
        "operationId": endpoint.handler.__name__,
        "summary": summary,
        "parameters": parameters,
        "responses": {
            str(endpoint.status): {"description": summary, "content": content},
            "default": {
                "description": "An error response that states the reason.",
                "content": {JSON: {"schema": {"anyOf": errors}}},
            },
        },
    }
    if endpoint.is_open:
        operation["security"] = []
    else:
        *most, last = endpoint.scopes
        listed = f"{', '.join(most)} or {last}" if most else last
        operation["description"] = f"Requires a token with scope {listed}."
        operation["x-shoal-scopes"] = [*endpoint.scopes]
    if body := endpoint.parameters.get("body"):
        taken: Schema = {"schema": schemas[repr(body)]}
        operation["requestBody"] = {"required": not endpoint.body_optional, "content": {JSON: taken}}
    elif endpoint.raw_body:
        taken = {"schema": schemas[repr(AnyObject)]} if endpoint.raw_body == JSON else {}
        operation["requestBody"] = {"required": endpoint.raw_body == JSON, "content": {endpoint.raw_body: taken}}
    return operation
