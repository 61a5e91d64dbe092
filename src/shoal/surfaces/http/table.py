"""The table of endpoints by path. A module is imported when one of its paths is first called."""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from shoal.feature import Feature, features
from shoal.services import Services
from shoal.surfaces.http.endpoints import BoundEndpoint, Endpoint, Routes, segments_of

PATHS_MAX = 256


class RouteModule(NamedTuple):
    """A module with endpoints. The path of every endpoint is below one of `paths`.

    In `paths`, `*` matches any segment, and a final `$` matches the end of the path. A module without `paths` is
    imported for any call.
    """

    name: str
    paths: Sequence[str]
    feature: Feature | None = None

    def load(self) -> Routes:
        if self.feature is not None:
            routes = self.feature.load(self.feature.routes)
        else:
            routes = import_module(f"shoal.surfaces.http.{self.name}").routes
        assert isinstance(routes, Routes)
        return routes

    def serves(self, path: str) -> bool:
        segments = path.split("/")
        return not self.paths or any(_is_below(segments, pattern) for pattern in self.paths)


THREADS = "/api/threads/"
PAGE = RouteModule("page", ("/console", "/$", "/favicon.ico$"))
MODULES = (
    RouteModule(
        "routes_operations",
        ("/api/overview", "/healthz", "/readyz", "/metrics", "/openapi.json", "/api/usage", "/api/audit"),
    ),
    RouteModule("routes_inbound", ("/platforms",)),
    RouteModule("routes_threads", ("/api/threads", "/api/channels", "/api/chats", "/api/events", "/api/commands")),
    RouteModule(
        "routes_history",
        ("/api/threads/*$", "/api/threads/*/export", "/api/threads/*/turns/*/cost", "/api/search", "/api/models"),
    ),
    RouteModule(
        "routes_files",
        (
            "/api/threads/*/attachments",
            "/api/threads/*/files",
            "/api/threads/*/picture",
            "/api/threads/*/artifacts",
        ),
    ),
    RouteModule("routes_approvals", ("/api/approvals",)),
    RouteModule("routes_changes", ("/api/changes",)),
    RouteModule("routes_access", ("/api/me", "/api/tokens", "/api/access", "/api/permissions")),
    RouteModule("routes_agents", ("/api/agents", "/api/bindings", "/api/info", "/api/skills")),
    RouteModule("routes_setup", ("/api/setup", "/api/platforms")),
    *(RouteModule(feature.name, feature.paths, feature) for feature in features() if feature.routes),
    PAGE,
)


@cache
def api() -> Sequence[Endpoint]:
    """Return every endpoint of the API except those of the page. This imports all modules."""
    return [endpoint for module in MODULES if module is not PAGE for endpoint in module.load()]


def is_open(path: str) -> bool:
    """Return True if a path needs no token: probes, calls with their own authentication, and files without secrets."""
    for module in modules_of(path):
        for endpoint in module.load():
            start, brace, _ = endpoint.path.partition("{")
            if endpoint.is_open and (path == endpoint.path or (brace and path.startswith(start))):
                return True
    return False


def is_file(path: str) -> bool:
    """Return True if a path refers to a file of a thread. Browsers display or save such files by URL."""
    if not path.startswith(THREADS):
        return False
    segments = path.split("/")
    endpoints = (endpoint for module in modules_of(path) for endpoint in module.load())
    files = (endpoint for endpoint in endpoints if endpoint.is_file and endpoint.path.startswith(THREADS))
    return any(endpoint.parts_of(segments) is not None for endpoint in files)


@lru_cache(PATHS_MAX)
def modules_of(path: str) -> tuple[RouteModule, ...]:
    return tuple(module for module in MODULES if module.serves(path)) or MODULES


def endpoint_for(method: str, path: str) -> tuple[Endpoint, Mapping[str, str]]:
    """Return the endpoint for a call and the named parts of its path. Raises HTTPException 404 and 405."""
    method, segments = "GET" if method == "HEAD" else method, path.split("/")
    for modules in (modules_of(path), MODULES):
        others: list[Endpoint] = []
        for endpoint in (endpoint for module in modules for endpoint in module.load()):
            if (parts := endpoint.parts_of(segments)) is None:
                continue
            if endpoint.method == method:
                return endpoint, parts
            others.append(endpoint)
        if others:
            allowed = {other.method for other in others if other.path == others[0].path}
            allowed |= {"HEAD"} if "GET" in allowed else set()
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(allowed))})
    raise HTTPException(404)


def _is_below(segments: Sequence[str], pattern: str) -> bool:
    wanted = segments_of(pattern.removesuffix("$"))
    if len(segments) < len(wanted) or (pattern.endswith("$") and len(segments) > len(wanted)):
        return False
    return all(want in (segment, "*") for want, segment in zip(wanted, segments, strict=False))


class LazyRoutes:
    """The ASGI application of all endpoints. An endpoint is bound to the services on first use."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._bound: dict[tuple[str, str], BoundEndpoint] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint, scope["path_params"] = endpoint_for(scope["method"], scope["path"])
        key = endpoint.method, endpoint.path
        if key not in self._bound:
            self._bound[key] = endpoint.bind(self._services)
        answer = await self._bound[key].respond(Request(scope, receive, send))
        await answer(scope, receive, send)

    def bind_all(self) -> None:
        """Bind every endpoint. Raises LookupError if a service is missing."""
        endpoints = [endpoint for module in MODULES for endpoint in module.load()]
        self._bound = {(endpoint.method, endpoint.path): endpoint.bind(self._services) for endpoint in endpoints}
